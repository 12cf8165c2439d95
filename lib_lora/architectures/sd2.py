"""Stable Diffusion 2.x: UNet with 1024-wide cross attention, OpenCLIP ViT-H/14 (23 of its 24 layers used)."""

from __future__ import annotations

from ._clip import CLIP_ALIASES, OPEN_CLIP_ALIASES
from ._ldm_unet import UNET_ALIASES
from .base import Architecture, Sign

SD2 = Architecture(
    name="sd2",
    title="Stable Diffusion 2.x",
    signs=(
        Sign(r"^(denoiser|\?):.*attn2_to_[kv]:1024$"),
        Sign(r"^denoiser:\d+:1024$"),  # a number for a name: nothing else in the UNet has so many inputs
        Sign(r"^(text_encoder|\?):.*(layers|resblocks)_\d+_.*(q_proj|fc1|c_fc):1024$"),
        Sign(r"^meta:(ss_base_model_version:sd_v2|modelspec_architecture:stable-diffusion-v2)", weight=2),
    ),
    inputs=("conv_in",),
    aliases=(*UNET_ALIASES, *CLIP_ALIASES, *OPEN_CLIP_ALIASES),
)
