"""Stable Diffusion XL."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes.ldm import UNETS, unet_shapes

from ._unet import KOHYA_LDM, family, kohya_oft, omi
from .base import List

DEPTHS, MIDDLE = (0, 1, 2), 2


FAMILY = family(
    "sdxl",
    # Pony, Illustrious and NoobAI are SDXL to trainers
    named=("sdxl_base_v1-0", "sdxl_1.0", "sdxl_", "stable-diffusion-xl-v1-base/lora", "sdxl-base-1.0/lora"),
    depths=DEPTHS,
    middle=MIDDLE,
    writers={
        "kohya, ldm": KOHYA_LDM,
        **omi({"clip_l": "text_encoder", "clip_g": "text_encoder_2"}, "stable-diffusion-xl-v1-base/lora"),
    },
    made=kohya_oft(lambda: unet_shapes(replace(UNETS["sdxl"], depths=DEPTHS, middle=MIDDLE)), 136, tells=False),
    # self-attention only: no layer says how wide the cross attention is
    lists={"sdxl_dramatic_lighting_slider": List("kohya", 280, 280)},
)
