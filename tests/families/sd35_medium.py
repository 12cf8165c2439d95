"""Stable Diffusion 3.5 medium."""

from __future__ import annotations

from ._sd3 import family

# stabilityai/stable-diffusion-3.5-medium, transformer/config.json
FAMILY = family(
    "sd35_medium", 1536, 24, range(13), qk_norm=True, version="5-medium", named=("stable-diffusion-v3.5/lora",)
)
