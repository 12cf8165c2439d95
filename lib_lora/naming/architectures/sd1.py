"""Stable Diffusion 1.x: UNet with 768-wide cross attention, CLIP ViT-L/14."""

from ._clip import CLIP_ALIASES
from ._ldm_unet import IN_UNET, UNET_ALIASES
from .base import Architecture, Sign, Variant, layers, named

SD1 = Architecture(
    name="sd1",
    title="Stable Diffusion 1.x",
    signs=(
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:768$"),
        Sign(r"^denoiser:\d+:768$"),  # a number for a name: nothing else in the UNet has so many inputs
        Sign(
            r"^(text_encoder|\?):(text_model_)?encoder_layers_\d+_.*(q_proj|fc1):768$", weight=1
        ),  # SDXL has it as well
        layers(r"(down_blocks_0|input_blocks_1)_.*transformer_blocks_0_attn", 1),
        named(r"sd_v1|sd_1\.|sd1x|stable-diffusion-v1"),
    ),
    never=Sign(rf"{IN_UNET}.*attn2_to_[kv]:(1024|1280|2048)$"),
    inputs=("conv_in",),
    variants=(
        Variant("Stable Diffusion 1.x", inputs=4),
        Variant("Stable Diffusion 1.5 inpainting", inputs=9),
        Variant("InstructPix2Pix or IC-Light", inputs=8),
        Variant("IC-Light with a background", inputs=12),
    ),
    aliases=(*UNET_ALIASES, *CLIP_ALIASES),
)
