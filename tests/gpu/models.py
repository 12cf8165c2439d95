"""The models and files of the checks, beside those of `tests/fakes` and `benchmarks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _models import TINY
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.fakes.models import kohya_lora

FEW = TINY | {
    "down_block_types": ("CrossAttnDownBlock2D",),
    "up_block_types": ("UpBlock2D",),
    "mid_block_type": "UNetMidBlock2D",
    "block_out_channels": (16,),
}
"""41 layers, for devices on which each call takes milliseconds."""
MORE = TINY | {"sample_size": 16, "cross_attention_dim": 32, "attention_head_dim": 8, "block_out_channels": (32, 64)}
ROWS = 2


def unet(*, small: bool, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a UNet with the same random weights each time, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        made: nn.Module = UNet2DConditionModel(**(FEW if small else MORE))
    return made.to(dtype).eval().requires_grad_(False)


def random_model(kind: Any, config: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Return a model whose weights are drawn on the device: those of a large one would take minutes on the CPU."""
    with torch.device("meta"):
        made: nn.Module = kind(**config)
    made = made.to(dtype).to_empty(device=device).eval().requires_grad_(False)
    if any(True for _ in made.buffers()):
        raise RuntimeError(f"{kind.__name__} has buffers, which are not drawn")
    for module in made.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 1:
                parameter.fill_(float("norm" in type(module).__name__.lower() and name == "weight"))
            else:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
    return made


def step_of(model: Any, rows: int = ROWS) -> Callable[[nn.Module], Tensor]:
    """Return a function that calls a UNet with inputs that stay the same, those of `model` in its dtype and place.

    The timestep is a tensor there, too: diffusers would copy a number, and wait for that.
    """
    some, config = torch.Generator().manual_seed(1), model.config
    sample = torch.randn(rows, 4, config.sample_size, config.sample_size, generator=some)
    states = torch.randn(rows, 77, config.cross_attention_dim, generator=some)
    sample, states = (one.to(model.device, model.dtype) for one in (sample, states))
    time = torch.full((rows,), 500.0).to(model.device, model.dtype)
    given = {"encoder_hidden_states": states, "return_dict": False}
    if config.addition_embed_type == "text_time":  # SDXL
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        added = {"text_embeds": torch.randn(rows, pooled, generator=some), "time_ids": torch.zeros(rows, 6)}
        given["added_cond_kwargs"] = {name: one.to(model.device, model.dtype) for name, one in added.items()}

    def step(other: nn.Module) -> Tensor:
        with torch.no_grad():
            output: Tensor = other(sample, time, **given)[0]
        return output

    return step


def loras(folder: Path, model: nn.Module, ranks: Sequence[int], *, conv: bool = True) -> list[Path]:
    """Write LoRA of these ranks for all layers of a UNet; each changes every weight by a tenth of its norm."""
    return [
        kohya_lora(folder / f"{number}-{rank}.safetensors", {"unet": model}, rank, rank / 2, number, conv=conv)
        for number, rank in enumerate(ranks)
    ]


def with_biases(file: Path, model: nn.Module) -> Path:
    """Write a LoRA like one that is there, which also changes each bias."""
    tensors, some = load_file(file), torch.Generator().manual_seed(3)
    for path, layer in model.named_modules():
        key = f"lora_unet_{path.replace('.', '_')}"
        if f"{key}.alpha" in tensors and getattr(layer, "bias", None) is not None:
            tensors[f"{key}.diff_b"] = torch.randn(layer.bias.shape, generator=some) * 0.1
    made = file.with_name(f"{file.stem}-biases.safetensors")
    save_file(tensors, made)
    return made


def bytes_of(file: Path, itemsize: int) -> int:
    """Return what the pairs of a file take in a dtype of this size."""
    return sum(one.numel() for key, one in load_file(file).items() if not key.endswith("alpha")) * itemsize


def pairs_of(file: Path) -> int:
    """Return how many layers a file is for."""
    return sum(key.endswith("alpha") for key in load_file(file))


def unchanged(model: nn.Module, before: Mapping[str, Tensor]) -> bool:
    """Tell whether all weights have the bits that they had."""
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
