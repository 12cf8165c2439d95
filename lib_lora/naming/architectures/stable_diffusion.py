"""Stable Diffusion with a UNet: 1.x, 2.x, XL and its refiner."""

from ._encoders import BIG_G_SIGN
from ._ldm_unet import FINEST, IN_UNET, UNET_ALIASES
from .base import Architecture, Sign, Variant, layers, named

SD1 = Architecture(  # 768-wide cross attention, CLIP ViT-L/14
    name="sd1",
    title="Stable Diffusion 1.x",
    signs=(
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:768$"),
        Sign(r"^denoiser:\d+:768$"),  # a number for a name: nothing else in the UNet has so many inputs
        # SDXL has it as well
        Sign(r"^(text_encoder|\?):(text_model_)?encoder_layers_\d+_.*(q_proj|fc1):768$", weight=1),
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
    aliases=UNET_ALIASES,
)
SD2 = Architecture(  # 1024-wide cross attention, OpenCLIP ViT-H/14 (23 of its 24 layers used)
    name="sd2",
    title="Stable Diffusion 2.x",
    signs=(
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:1024$"),
        Sign(r"^denoiser:\d+:1024$"),  # as in 1.x
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
    aliases=UNET_ALIASES,
)
SDXL = Architecture(  # three levels, 2048-wide cross attention, CLIP ViT-L/14 and OpenCLIP bigG/14
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
    never=Sign(rf"{FINEST}.*attn2_to_q:320$"),  # it has no attention on its finest level, as DreamLite has
    inputs=("conv_in",),
    variants=(
        Variant("Stable Diffusion XL", inputs=4),
        Variant("Stable Diffusion XL inpainting", inputs=9),
        Variant("InstructPix2Pix for Stable Diffusion XL", inputs=8),
    ),
    aliases=UNET_ALIASES,
)
SDXL_REFINER = Architecture(  # four levels, 384 wide, 1280-wide cross attention, OpenCLIP bigG/14 alone
    name="sdxl_refiner",
    title="Stable Diffusion XL refiner",
    signs=(
        # only the refiner's; its text encoder, which A1111 and diffusers call the second one, also speaks for XL
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:1280$", weight=5),
        Sign(rf"{IN_UNET}.*attn1_to_[qkv]:(384|768|1536)$", weight=2),
        BIG_G_SIGN,
        named("sdxl.refiner|stable-diffusion-xl-v1-refiner"),
    ),
    never=Sign(rf"{IN_UNET}.*attn1_to_[qkv]:(320|640)$"),
    aliases=UNET_ALIASES,
)
