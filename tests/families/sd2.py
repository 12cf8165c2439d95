"""Stable Diffusion 2.x."""

from __future__ import annotations

from ._unet import cloneofsimo, family

FAMILY = family(
    "sd2",
    named=("sd_v2", "sd_v2_v", "sd_2.1", "stable-diffusion-v2-512/lora", "stable-diffusion-v2-768-v/lora"),
    writers={"cloneofsimo": cloneofsimo("sd2")},
)
