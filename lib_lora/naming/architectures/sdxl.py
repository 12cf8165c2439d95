"""Stable Diffusion XL base: three-level UNet with 2048-wide cross attention, CLIP ViT-L/14 and OpenCLIP bigG/14."""

from ._clip import BIG_G_SIGN, CLIP_ALIASES, OPEN_CLIP_ALIASES
from ._ldm_unet import IN_UNET, UNET_ALIASES
from .base import Architecture, Sign, Variant, named

SDXL = Architecture(
    name="sdxl",
    title="Stable Diffusion XL",
    before=("hidream", "sd3", "sdxl_refiner"),  # which have its second text encoder
    signs=(
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:2048$"),
        # ten transformer blocks at the lowest level: seen even in files that hold no cross attention
        Sign(rf"{IN_UNET}.*transformer_blocks_[4-9]_"),
        BIG_G_SIGN,
        named("sdxl(?!.refiner)|stable-diffusion-xl-v1-base"),
    ),
    never=Sign(rf"{IN_UNET}.*attn[12]_to_q:320$"),  # it has no attention on its finest level, as DreamLite has
    inputs=("conv_in",),
    variants=(
        Variant("Stable Diffusion XL", inputs=4),
        Variant("Stable Diffusion XL inpainting", inputs=9),
        Variant("InstructPix2Pix for Stable Diffusion XL", inputs=8),
    ),
    aliases=(*UNET_ALIASES, *CLIP_ALIASES, *OPEN_CLIP_ALIASES),
)
