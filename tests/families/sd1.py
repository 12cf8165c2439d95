"""Stable Diffusion 1.x."""

from __future__ import annotations

from tests.fakes.families import diffusers_unet

from ._unet import cloneofsimo, family, kohya_oft, omi
from .base import List


def shapes() -> dict[str, tuple[int, ...]]:
    """sd-scripts has diffusers' names here."""
    return {name: tuple(value.shape) for name, value in diffusers_unet("sd1").state_dict().items()}


FAMILY = family(
    "sd1",
    named=("sd_v1", "sd_1.5", "stable-diffusion-v1/lora", "stable-diffusion-v1-inpainting/lora"),
    writers={"cloneofsimo": cloneofsimo("sd1"), **omi({"clip_l": "text_encoder"}, "stable-diffusion-v1/lora")},
    lists={"stripped_shinkai_makoto_offset": List("kohya", 264, 264)},
    made=kohya_oft(shapes, 128),
)
