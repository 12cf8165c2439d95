"""Stable Diffusion XL refiner."""

from __future__ import annotations

from ._unet import KOHYA_LDM, family

FAMILY = family(
    "sdxl_refiner",
    named=("sdxl_refiner", "stable-diffusion-xl-v1-refiner"),
    depths=(0, 1, 1, 0),
    middle=1,
    writers={"kohya, ldm": KOHYA_LDM},
)
