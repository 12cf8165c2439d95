"""Stable Diffusion XL."""

from __future__ import annotations

from ._unet import KOHYA_LDM, family
from .base import List

FAMILY = family(
    "sdxl",
    depths=(0, 1, 2),
    middle=2,
    writers={"kohya, ldm": KOHYA_LDM},
    # self-attention only: no layer says how wide the cross attention is
    lists={"sdxl_dramatic_lighting_slider": List("kohya", 280, 280)},
)
