"""Stable Diffusion XL refiner: four-level UNet of width 384 with 1280-wide cross attention, OpenCLIP bigG/14 alone."""

from __future__ import annotations

from ._clip import CLIP_ALIASES, OPEN_CLIP_ALIASES
from ._ldm_unet import UNET_ALIASES
from .base import Architecture, Sign

SDXL_REFINER = Architecture(
    name="sdxl_refiner",
    title="Stable Diffusion XL refiner",
    signs=(
        # only the refiner's; its text encoder also speaks for XL
        Sign(r"^(denoiser|\?):.*attn2_to_[kv]:1280$", weight=5),
        Sign(r"^(denoiser|\?):.*attn1_to_[qkv]:(384|768|1536)$", weight=2),
        Sign(
            r"^meta:(ss_base_model_version:sdxl_refiner|modelspec_architecture:stable-diffusion-xl-v1-refiner)",
            weight=4,
        ),
    ),
    # A1111 and diffusers both call the only encoder the second one, ldm's own code the first
    aliases=(
        *UNET_ALIASES,
        *CLIP_ALIASES,
        *OPEN_CLIP_ALIASES,
    ),
)
