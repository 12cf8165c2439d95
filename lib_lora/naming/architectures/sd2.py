"""Stable Diffusion 2.x: UNet with 1024-wide cross attention, OpenCLIP ViT-H/14 (23 of its 24 layers used)."""

from ._clip import CLIP_ALIASES, OPEN_CLIP_ALIASES
from ._ldm_unet import IN_UNET, UNET_ALIASES
from .base import Architecture, Sign, Variant, named

SD2 = Architecture(
    name="sd2",
    title="Stable Diffusion 2.x",
    signs=(
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:1024$"),
        Sign(r"^denoiser:\d+:1024$"),  # a number for a name: nothing else in the UNet has so many inputs
        Sign(r"^(text_encoder|\?):(.*_)?(encoder_layers|resblocks)_\d+_.*(q_proj|fc1|c_fc):1024$"),
        named(r"sd_v2|sd_2\.|stable-diffusion-v2"),
    ),
    inputs=("conv_in",),
    variants=(
        Variant("Stable Diffusion 2.x", inputs=4),
        Variant("Stable Diffusion 2 inpainting", inputs=9),
        Variant("Stable Diffusion 2 depth", inputs=5),
        Variant("Stable Diffusion x4 upscaler", inputs=7),
    ),
    aliases=(*UNET_ALIASES, *CLIP_ALIASES, *OPEN_CLIP_ALIASES),
)
