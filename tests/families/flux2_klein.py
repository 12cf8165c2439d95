"""FLUX.2 Klein 4B, which is as wide as FLUX.1. Klein 9B is the same at 4096."""

from __future__ import annotations

from diffusers import Flux2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_flux2_transformer_checkpoint_to_diffusers
from torch import nn

from .base import Base, Family, Shapes, on_meta
from .flux2 import flux2, writers

WIDTH, TEXT, HEADS = 3072, 7680, 24


def build(full: bool) -> nn.Module:
    """black-forest-labs/FLUX.2-klein-4B, transformer/config.json."""
    return on_meta(
        Flux2Transformer2DModel,
        num_layers=5 if full else 2,
        num_single_layers=20 if full else 2,
        num_attention_heads=HEADS,
        joint_attention_dim=TEXT,
        guidance_embeds=False,
    )


def klein_9b() -> nn.Module:
    """black-forest-labs/FLUX.2-klein-9B, transformer/config.json."""
    return on_meta(
        Flux2Transformer2DModel,
        num_layers=8,
        num_single_layers=24,
        num_attention_heads=32,
        joint_attention_dim=12288,
        guidance_embeds=False,
    )


def native() -> Shapes:
    return flux2(WIDTH, TEXT, guidance=False)


FAMILY = Family(
    name="flux2_klein",
    architecture="flux2",
    named=("flux2_klein_4b", "flux_2_klein_9b", "flux2-klein-9b/lora"),
    bases={"flux2_transformer_bfl_keys": Base({"transformer": klein_9b})},
    build=build,
    native=native,
    convert=convert_flux2_transformer_checkpoint_to_diffusers,
    writers={name: writers()[name] for name in ("musubi", "ai-toolkit", "diffusers")},
)
