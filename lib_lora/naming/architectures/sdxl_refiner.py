"""Stable Diffusion XL refiner: four-level UNet of width 384 with 1280-wide cross attention, OpenCLIP bigG/14 alone."""

from ._clip import BIG_G_SIGN, CLIP_ALIASES, OPEN_CLIP_ALIASES
from ._ldm_unet import IN_UNET, UNET_ALIASES
from .base import Architecture, Sign, named

SDXL_REFINER = Architecture(
    name="sdxl_refiner",
    title="Stable Diffusion XL refiner",
    signs=(
        # only the refiner's; its text encoder also speaks for XL
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:1280$", weight=5),
        Sign(rf"{IN_UNET}.*attn1_to_[qkv]:(384|768|1536)$", weight=2),
        BIG_G_SIGN,
        named("sdxl.refiner|stable-diffusion-xl-v1-refiner"),
    ),
    never=Sign(rf"{IN_UNET}.*attn1_to_[qkv]:(320|640)$"),
    # A1111 and diffusers both call the only encoder the second one, ldm's own code the first
    aliases=(*UNET_ALIASES, *CLIP_ALIASES, *OPEN_CLIP_ALIASES),
)
