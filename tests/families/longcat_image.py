"""LongCat-Image. Its own code and trainers have diffusers' names."""

from __future__ import annotations

from diffusers import LongCatImageTransformer2DModel
from torch import nn

from .base import Family, Writer, dotted, on_meta


def build(full: bool) -> nn.Module:
    """meituan-longcat/LongCat-Image, transformer/config.json."""
    return on_meta(LongCatImageTransformer2DModel, num_layers=19 if full else 2, num_single_layers=38 if full else 2)


FAMILY = Family(
    name="longcat_image",
    named=("longcat_image", "longcat-image/lora"),
    alone=("context_embedder:3584",),
    blocks_of=("flux",),
    build=build,
    writers={
        "longcat": Writer(
            "peft",
            "meituan-longcat/LongCat-Image train_examples/lora/train_lora.py",
            dotted("transformer."),
            "diffusers",
            layers=("attn.", "ff."),
            metadata={"modelspec.architecture": "longcat-image/lora"},
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/peft.py, save_lora_adapter",
            dotted("transformer."),
            "diffusers",
        ),
    },
)
