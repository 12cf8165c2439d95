"""Stable Diffusion XL base: three-level UNet with 2048-wide cross attention, CLIP ViT-L/14 and OpenCLIP bigG/14."""

from __future__ import annotations

from ._clip import CLIP_ALIASES, OPEN_CLIP_ALIASES
from ._ldm_unet import UNET_ALIASES
from .base import Architecture, Sign

SDXL = Architecture(
    name="sdxl",
    title="Stable Diffusion XL",
    signs=(
        Sign(r"^(denoiser|\?):.*attn2_to_[kv]:2048$"),
        # ten transformer blocks at the lowest level: seen even in files that hold no cross attention
        Sign(r"^(denoiser|\?):(down|mid|middle|up|input|output)_block.*transformer_blocks_[4-9]_"),
        Sign(r"^text_encoder_2:.*:1280$", weight=2),
        Sign(r"^meta:(ss_base_model_version:sdxl|modelspec_architecture:stable-diffusion-xl-v1-base)", weight=2),
    ),
    inputs=("conv_in",),
    aliases=(
        *UNET_ALIASES,
        *CLIP_ALIASES,
        *OPEN_CLIP_ALIASES,
    ),
)
