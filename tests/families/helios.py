"""Helios 14B: Wan 2.1's blocks, with patches of what came before."""

from __future__ import annotations

from diffusers import HeliosTransformer3DModel
from torch import nn

from .base import Family, Writer, dotted, on_meta


def build(full: bool) -> nn.Module:
    """BestWishYsh/Helios-Base, transformer/config.json."""
    return on_meta(HeliosTransformer3DModel, num_layers=40 if full else 2)


FAMILY = Family(
    name="helios",
    architecture="wan",
    named=("wan", "helios"),
    build=build,
    writers={
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, HeliosLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
    },
)
