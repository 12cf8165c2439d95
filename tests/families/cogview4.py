"""CogView 4. Trainers have diffusers' names."""

from __future__ import annotations

from diffusers import CogView4Transformer2DModel
from torch import nn

from .base import Family, Writer, dotted, on_meta


def build(full: bool) -> nn.Module:
    """THUDM/CogView4-6B, transformer/config.json."""
    return on_meta(
        CogView4Transformer2DModel, num_layers=28 if full else 2, num_attention_heads=32, attention_head_dim=128
    )


FAMILY = Family(
    name="cogview4",
    named=("cogview4", "cogview4/lora"),
    alone=("time_condition_embed.timestep_embedder.linear_1:4096",),
    build=build,
    writers={
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, CogView4LoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit toolkit/models/cogview4.py",
            dotted("transformer."),
            "diffusers",
            layers=("attn1.", "ff."),
            metadata={"ss_base_model_version": "cogview4"},
        ),
    },
)
