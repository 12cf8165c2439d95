"""Stable Diffusion 1.x."""

from __future__ import annotations

from ._unet import cloneofsimo, family
from .base import List

FAMILY = family(
    "sd1",
    writers={"cloneofsimo": cloneofsimo("sd1")},
    lists={"stripped_shinkai_makoto_offset": List("kohya", 264, 264)},
)
