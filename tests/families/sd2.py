"""Stable Diffusion 2.x."""

from __future__ import annotations

from ._unet import cloneofsimo, family

FAMILY = family("sd2", writers={"cloneofsimo": cloneofsimo("sd2")})
