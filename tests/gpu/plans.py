"""The models that are measured: as large as the memory allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from _blocks import FLUX_BLOCKS, SDXL_BLOCKS, SMALL_FLUX, blocks_step, flux_step
from _models import SD15, linear_layers
from _sdxl import SMALL_UNET, UNET
from diffusers import FluxTransformer2DModel, Transformer2DModel, UNet2DConditionModel
from torch import Tensor, nn

from . import device as devices
from .check import Setup
from .models import FEW, random_model, step_of

Step = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Plan:
    """A model, and how it is called."""

    name: str
    build: Callable[[], nn.Module]
    step: Callable[[Any], Step]
    goal: float
    """Time of a step with LoRA at most, in units of one without."""
    gigabytes: float = 0.0
    """What all its variants together take on the device, about."""
    baked: bool = True
    """Whether LoRA are baked for comparison, which needs the memory of the model once more, in the computer."""

    changes: bool = True
    """Whether more is measured than steps."""

    def layers(self, model: nn.Module) -> tuple[str, ...]:
        """Return the layers with LoRA: of UNets, those of the transformers."""
        found = linear_layers(model)
        return tuple(path for path in found if ".attentions." in path) or found


def plans(setup: Setup) -> list[Plan]:
    """Return for each family the largest model that fits into the memory that is free."""

    def of(kind: Any, config: Any) -> Callable[[], nn.Module]:
        return partial(random_model, kind, config, setup.half, setup.device)

    if setup.small:
        few = SMALL_UNET | FEW | {"cross_attention_dim": SMALL_UNET["cross_attention_dim"]}
        flux = SMALL_FLUX | {"num_layers": 1, "num_single_layers": 1}
        few_tokens = partial(flux_step, latent=4, batch=1, text=8)
        return [
            Plan("SDXL's UNet, small", of(UNet2DConditionModel, few), step_of, 1.15),
            Plan("FLUX.1, small", of(FluxTransformer2DModel, flux), few_tokens, 1.08, changes=False),
        ]
    a_map, tokens = partial(blocks_step, latent=32, batch=2), partial(flux_step, latent=128, batch=1)
    families = [
        [
            Plan("SDXL's UNet, 1024, CFG", of(UNet2DConditionModel, UNET), step_of, 1.15, 7.0),
            Plan("10 of SDXL's 70 blocks, 1024, CFG", of(Transformer2DModel, SDXL_BLOCKS), a_map, 1.15),
        ],
        [
            Plan("FLUX.1, 1024", of(FluxTransformer2DModel, {}), tokens, 1.08, 30.0, baked=False),
            Plan("6 of FLUX.1's 57 blocks, 1024", of(FluxTransformer2DModel, FLUX_BLOCKS), tokens, 1.08),
        ],
        [Plan("SD 1.5's UNet, 512, CFG", of(UNet2DConditionModel, SD15), step_of, 1.25)],
    ]
    free = devices.free(setup.device) / 2**30
    return [next(plan for plan in family if plan.gigabytes <= free) for family in families]
