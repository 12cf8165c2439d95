"""The models of which a step is measured, and the ways in which they are compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from _models import build_unet, make_step
from diffusers import Transformer2DModel
from torch import Tensor, nn

SDXL_BLOCKS = {
    "num_attention_heads": 20,
    "attention_head_dim": 64,
    "in_channels": 1280,
    "num_layers": 10,
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
}
"""One of the stacks of ten transformer blocks in SDXL's UNet, which are most of its time."""
SMALL_BLOCKS = SDXL_BLOCKS | {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 16,
    "num_layers": 2,
    "cross_attention_dim": 16,
    "norm_num_groups": 8,
}
_COMPILATIONS = 64
"""As the trees of modules under comparison share their code, each of them counts against torch's limit."""


@dataclass(frozen=True, slots=True)
class Model:
    """How a model is made and called."""

    build: Callable[..., nn.Module]
    """Called with `tiny` and `dtype`."""
    step: Callable[[Any, int, int], Callable[[nn.Module], Tensor]]
    """Called with the model, the latents' width and the batch."""


def build_blocks(*, tiny: bool, dtype: torch.dtype) -> nn.Module:
    """Return the stack of blocks with random weights."""
    made: nn.Module = Transformer2DModel(**(SMALL_BLOCKS if tiny else SDXL_BLOCKS))
    return made.to(dtype).eval().requires_grad_(False)


def blocks_step(model: Any, latent: int, batch: int) -> Callable[[nn.Module], Tensor]:
    """Return a function that runs the blocks on inputs that stay the same: 32 is that of a picture of 1024 x 1024."""
    some = torch.Generator().manual_seed(1)
    sample = torch.randn(batch, model.config["in_channels"], latent, latent, generator=some).to(model.dtype)
    states = torch.randn(batch, 77, model.config["cross_attention_dim"], generator=some).to(model.dtype)

    def step(model: nn.Module) -> Tensor:
        with torch.no_grad():
            output: Tensor = model(sample, encoder_hidden_states=states, return_dict=False)[0]
        return output

    return step


MODELS = {"sd15": Model(build_unet, make_step), "sdxl-blocks": Model(build_blocks, blocks_step)}


def compile_model(model: Any, how: str) -> None:
    """Have torch compile a model as a whole, or its repeated blocks as diffusers does it; or leave it."""
    torch._dynamo.config.recompile_limit = _COMPILATIONS
    if how == "whole":
        model.compile(fullgraph=True, dynamic=False)
    elif how == "blocks":
        for block in model.modules():
            if type(block).__name__ == "BasicTransformerBlock":
                block.compile(fullgraph=True, dynamic=False)
