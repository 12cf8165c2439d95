"""Adapter files made by tests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from lib_lora import Network
from lib_lora.adapters.base import Adapter


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    safetensors.torch.save_file(
        {key: tensor.contiguous() for key, tensor in tensors.items()}, path, dict(metadata or {})
    )
    return path


def hollow(
    path: Path, infos: Mapping[str, tuple[Sequence[int], str]], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write a file of zeros that takes no disk, with its keys in the given order.

    Args:
        infos: key -> shape and dtype as safetensors spells it.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for key, (shape, dtype) in infos.items():
        start, end = end, end + math.prod(shape) * _BYTES[dtype]
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return path


_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}


def adapters_of(network: Network) -> dict[str, dict[str, Adapter]]:
    """Return {component: {name of a layer or of a window: adapter}}."""
    adapters: dict[str, dict[str, Adapter]] = {}
    for binding in network.bindings:
        adapters.setdefault(binding.component, {})[binding.target.name] = binding.adapter
    return adapters


def pair(
    prefix: str,
    shape: tuple[int, ...],
    rank: int,
    *,
    alpha: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    size: float = 0.1,
) -> dict[str, Tensor]:
    """kohya-style parameters of a LoRA for a weight of `shape` (out, in, *kernel)."""
    generator = torch.Generator().manual_seed(seed)
    kernel = shape[2:]
    made = {
        f"{prefix}.lora_down.weight": torch.randn(rank, *shape[1:], generator=generator),
        f"{prefix}.lora_up.weight": torch.randn(shape[0], rank, *(1,) * len(kernel), generator=generator),
    }
    made = {key: (tensor * size).to(dtype) for key, tensor in made.items()}
    if alpha is not None:
        made[f"{prefix}.alpha"] = torch.tensor(float(alpha))
    return made


def by_component() -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a LoRA for SD 1.5 that PEFT saves component by component: component -> its file's."""
    layers = {
        "unet": "mid_block.attentions.0.transformer_blocks.0.attn1.to_q",
        "text_encoder": "text_model.encoder.layers.0.self_attn.q_proj",
    }
    return {
        part: {
            f"base_model.model.{layer}.lora_A.weight": torch.randn(4, 16),
            f"base_model.model.{layer}.lora_B.weight": torch.randn(24, 4),
        }
        for part, layer in layers.items()
    }
