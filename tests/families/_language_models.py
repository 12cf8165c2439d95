"""Language models that newer families have for text encoders, on meta."""

from __future__ import annotations

from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)

from .base import on_meta


def qwen3(width: int, feed_forward: int, heads: int, *, head: bool = True) -> nn.Module:
    """Qwen3 with two layers; alone, or with a head as diffusers' pipelines mostly have it."""
    config = Qwen3Config(
        hidden_size=width, intermediate_size=feed_forward, num_attention_heads=heads, num_hidden_layers=2
    )
    return on_meta(Qwen3ForCausalLM if head else Qwen3Model, config=config)


def qwen25_vl() -> nn.Module:
    """Qwen/Qwen2.5-VL-7B-Instruct, config.json."""
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "num_hidden_layers": 28,
            "vocab_size": 152064,
        },
        vision_config={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
            "patch_size": 14,
        },
    )
    return on_meta(Qwen2_5_VLForConditionalGeneration, config=config)
