"""CogVideoX 5B. Trainers have diffusers' names."""

from __future__ import annotations

from diffusers import CogVideoXTransformer3DModel
from torch import nn

from .base import Family, Writer, dotted, kohya, on_meta


def build(full: bool) -> nn.Module:
    """THUDM/CogVideoX-5b, transformer/config.json."""
    return on_meta(CogVideoXTransformer3DModel, num_layers=42 if full else 2, num_attention_heads=48)


FAMILY = Family(
    name="cogvideox",
    named=("cogvideox", "CogVideoX-5b/lora"),
    alone=("transformer_blocks.0.attn1.to_q:1920", "transformer_blocks.0.norm2.linear:512"),
    build=build,
    writers={
        "diffusers and finetrainers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, CogVideoXLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "VideoX-Fun, ComfyUI-CogVideoXWrapper": Writer(
            "kohya",
            "aigc-apps/VideoX-Fun cogvideox/utils/lora_utils.py, LoRANetwork; kijai/ComfyUI-CogVideoXWrapper "
            "lora_utils.py, merge_lora",
            kohya("lora_unet__"),
            "diffusers",
        ),
    },
)
