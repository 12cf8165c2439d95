"""The models of which a step is measured, and the ways in which they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _models import build_unet, make_step
from diffusers import FluxTransformer2DModel, Transformer2DModel
from torch import Tensor, nn

Config = Mapping[str, Any]

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
FLUX_BLOCKS = {"num_layers": 2, "num_single_layers": 4}
"""Six of FLUX.1's 57 blocks, at full width."""
SMALL_FLUX = FLUX_BLOCKS | {
    "num_single_layers": 2,
    "in_channels": 16,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "axes_dims_rope": (4, 6, 6),
    "joint_attention_dim": 16,
    "pooled_projection_dim": 16,
}
_REPEATED = ("BasicTransformerBlock", "FluxTransformerBlock", "FluxSingleTransformerBlock")
_COMPILATIONS = 64
"""As the trees of modules under comparison share their code, each of them counts against torch's limit."""


@dataclass(frozen=True, slots=True)
class Model:
    """How a model is made and called."""

    build: Callable[..., nn.Module]
    """Called with `tiny` and `dtype`."""
    step: Callable[[Any, int, int], Callable[[nn.Module], Tensor]]
    """Called with the model, the latents' width and the batch."""


def build(kind: Callable[..., Any], full: Config, small: Config, *, tiny: bool, dtype: torch.dtype) -> nn.Module:
    """Return a model of a class with random weights."""
    made: nn.Module = kind(**(small if tiny else full))
    return made.to(dtype).eval().requires_grad_(False)


def blocks_step(model: Any, latent: int, batch: int) -> Callable[[nn.Module], Tensor]:
    """Return a function that runs the blocks on inputs that stay the same: 32 is that of a picture of 1024 x 1024."""
    some = torch.Generator().manual_seed(1)
    own = {"device": model.device, "dtype": model.dtype}
    sample = torch.randn(batch, model.config["in_channels"], latent, latent, generator=some).to(**own)
    states = torch.randn(batch, 77, model.config["cross_attention_dim"], generator=some).to(**own)

    def step(model: nn.Module) -> Tensor:
        with torch.no_grad():
            output: Tensor = model(sample, encoder_hidden_states=states, return_dict=False)[0]
        return output

    return step


def flux_step(model: Any, latent: int, batch: int, text: int = 512) -> Callable[[nn.Module], Tensor]:
    """Return a function that runs the blocks; latents of 128 are of a picture of 1024 x 1024, and 4096 tokens.

    Args:
        model: whose inputs they are.
        latent: width and height of the latents.
        batch: pictures at once.
        text: tokens of the prompt.
    """
    some = torch.Generator().manual_seed(1)
    own = {"device": model.device, "dtype": model.dtype}
    side = max(latent // 2, 1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=some).to(**own)

    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1).to(**own)
    given = {
        "hidden_states": random(batch, side * side, model.config["in_channels"]),
        "encoder_hidden_states": random(batch, text, model.config["joint_attention_dim"]),
        "pooled_projections": random(batch, model.config["pooled_projection_dim"]),
        "timestep": torch.full((batch,), 0.5).to(**own),
        "img_ids": places,
        "txt_ids": torch.zeros(text, 3).to(**own),
    }
    if model.config["guidance_embeds"]:
        given["guidance"] = torch.full((batch,), 3.5).to(**own)

    def step(model: nn.Module) -> Tensor:
        with torch.no_grad():
            output: Tensor = model(**given, return_dict=False)[0]
        return output

    return step


MODELS = {
    "flux-blocks": Model(partial(build, FluxTransformer2DModel, FLUX_BLOCKS, SMALL_FLUX), flux_step),
    "sd15": Model(build_unet, make_step),
    "sdxl-blocks": Model(partial(build, Transformer2DModel, SDXL_BLOCKS, SMALL_BLOCKS), blocks_step),
}


def compile_model(model: Any, how: str, **options: Any) -> None:
    """Have torch compile a model as a whole, or its repeated blocks as diffusers does it; or leave it.

    Args:
        model: it is changed.
        how: `whole`, `blocks` or `no`.
        options: of `torch.compile`, such as `mode`.
    """
    torch._dynamo.config.recompile_limit = _COMPILATIONS
    if how == "whole":
        model.compile(fullgraph=True, dynamic=False, **options)
    elif how == "blocks":
        for block in model.modules():
            if type(block).__name__ in _REPEATED:
                block.compile(fullgraph=True, dynamic=False, **options)
