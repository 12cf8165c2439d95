"""Sana-Video 2B: Sana's blocks, with one more convolution over time."""

from __future__ import annotations

from diffusers import SanaVideoTransformer3DModel
from torch import nn

from .base import Family, Writer, dotted, on_meta


def build(full: bool) -> nn.Module:
    """Efficient-Large-Model/SANA-Video_2B_480p_diffusers, transformer/config.json."""
    return on_meta(SanaVideoTransformer3DModel, num_layers=20 if full else 2)


FAMILY = Family(
    name="sana_video",
    architecture="sana",
    named=("sana_video", "sana-video/lora"),
    alone=("transformer_blocks.0.ff.conv_temp:2240", "blocks.0.mlp.t_conv:2240"),
    build=build,
    writers={
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, SanaLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
    },
)
