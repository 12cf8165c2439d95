"""Rounds the finished weights to few values each, so that git packs the demo to a third, and a clone is small.

A weight becomes a small multiple of a power of two, the step of its matrix. The more weights a matrix has, the more of
their errors cancel, and the longer is its step. Eight bits hold the values of the UNet and the VAE. What other programs
read as well, the text encoder and the LoRA, stays in half precision.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor

_EIGHT_BITS = ("unet", "vae")
_FEWEST = 4096
"""Weights of a matrix of the model; a smaller one stays as it is."""
_COARSEST = 130_000
"""Weights of a matrix whose step is as long as their root mean square; no step is longer."""
_FEWEST_OF_LORA, _LORA_STEP = 100, 0.25
"""The same of LoRA files, whose matrices are all small; and their step, of the root mean square."""
_HASH = "modelspec.hash_sha256"


def round_model(folder: Path) -> None:
    """Round the weights of a pipeline, in place."""
    for path in sorted(folder.rglob("*.safetensors")):
        tensors, metadata = _read(path)
        dtype = torch.float8_e4m3fn if path.parent.name in _EIGHT_BITS else torch.float16
        for key, value in tensors.items():
            if value.dim() > 1 and value.numel() >= _FEWEST:
                tensors[key] = rounded(value, min(1.0, value.numel() / _COARSEST)).to(dtype)
        save_file(tensors, path, metadata)


def round_lora(path: Path) -> None:
    """Round the weights of a LoRA file, in place; its metadata stay."""
    tensors, metadata = _read(path)
    for key, value in tensors.items():
        if value.dim() > 1 and value.numel() >= _FEWEST_OF_LORA:
            tensors[key] = rounded(value, _LORA_STEP).half()
    save_file(tensors, path, {**metadata, _HASH: f"0x{hashlib.sha256(save(tensors)).hexdigest()}"})


def rounded(weight: Tensor, share: float) -> Tensor:
    """Return multiples of the power of two that is nearest to this share of the root mean square.

    What was rounded before stays as it is, though its root mean square is another one now.
    """
    weight = weight.float()
    step = torch.exp2((weight.square().mean().sqrt() * share).log2().round())
    if step == 0 or torch.equal((weight / step * 2).round() * step / 2, weight):
        return weight
    return (weight / step).round() * step


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in [*file.keys()]}, file.metadata() or {}
