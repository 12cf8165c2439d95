"""A small denoiser for slow devices: the parts of a UNet that offloading looks for, with few layers in each."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.fakes.files import pair, save

CHANNELS, WIDTH, WORDS, SIDE = 4, 16, 8, 4


class Block(nn.Module):
    """A convolution, a norm and two linear layers, as a block with attention has them."""

    def __init__(self, inside: int, out: int, ops: Any) -> None:
        super().__init__()
        self.conv = ops.Conv2d(inside, out, 3, padding=1)
        self.norm = nn.GroupNorm(2, out)
        self.to_k = ops.Linear(WORDS, out)
        self.to_out = ops.Linear(out, out)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).movedim(1, -1)
        x = F.silu(x + self.to_k(words).mean(1)[:, None, None])
        result: Tensor = self.to_out(x).movedim(-1, 1)
        return result


class Net(nn.Module):
    """Five blocks in the places of a UNet's; each row of a batch is by itself.

    Args:
        ops: has the classes `Linear` and `Conv2d`.
    """

    def __init__(self, ops: Any = nn) -> None:
        super().__init__()
        self.time_embedding = ops.Linear(1, WORDS)
        self.down_blocks = nn.ModuleList([Block(CHANNELS, WIDTH, ops), Block(WIDTH, WIDTH, ops)])
        self.mid_block = Block(WIDTH, WIDTH, ops)
        self.up_blocks = nn.ModuleList([Block(WIDTH, WIDTH, ops), Block(WIDTH, CHANNELS, ops)])

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> tuple[Tensor]:
        words = encoder_hidden_states + self.time_embedding(timestep.to(sample) / 1000)[:, None]
        for block in (*self.down_blocks, self.mid_block, *self.up_blocks):
            sample = block(sample, words)
        return (sample,)


def net(ops: Any = nn) -> Net:
    """Return a new one; all have the same weights, in fp32, frozen."""
    if ops is nn:
        return copy.deepcopy(_plain())
    made = Net(ops).requires_grad_(False).eval()
    made.load_state_dict(_plain().state_dict())
    return made


@functools.lru_cache(maxsize=1)
def _plain() -> Net:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return Net().requires_grad_(False).eval()


def net_inputs(dtype: torch.dtype = torch.float32, batch: int = 2) -> dict[str, Tensor]:
    """Return the arguments of a call, on the CPU."""
    some = torch.Generator().manual_seed(1)
    return {
        "sample": torch.randn(batch, CHANNELS, SIDE, SIDE, generator=some).to(dtype),
        "timestep": torch.full((batch, 1), 500.0),
        "encoder_hidden_states": torch.randn(batch, 3, WORDS, generator=some).to(dtype),
    }


def net_lora(path: Path, seed: int = 0, rank: int = 4) -> Path:
    """Write a LoRA of every layer in kohya's spelling; at 1 it changes the output by about a half."""
    tensors = {}
    for name, layer in _plain().named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            prefix = f"lora_unet_{name.replace('.', '_')}"
            tensors |= pair(prefix, tuple(layer.weight.shape), rank, alpha=2.0, seed=seed, size=0.25)
    return save(path, tensors)


def exactly(path: Path, strength: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return what such a file does to a net whose weights and inputs are of a dtype, in fp64, from its bytes alone."""
    exact, tensors = net().to(dtype).double(), load_file(path)
    for name, layer in exact.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            prefix = f"lora_unet_{name.replace('.', '_')}"
            down, up = (tensors[f"{prefix}.lora_{one}.weight"].double() for one in ("down", "up"))
            scale = tensors[f"{prefix}.alpha"].item() / down.shape[0]
            layer.weight += strength * scale * (up.flatten(1) @ down.flatten(1)).reshape(layer.weight.shape)
    inputs = {name: value.double() for name, value in net_inputs(dtype).items()}
    result: Tensor = exact(**inputs)[0]
    return result
