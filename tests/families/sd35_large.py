"""Stable Diffusion 3.5 large."""

from __future__ import annotations

from ._sd3 import family

# stabilityai/stable-diffusion-3.5-large, transformer/config.json
FAMILY = family("sd35_large", 2432, 38, (), qk_norm=True, version="5-large", named=("stable-diffusion-3-5-large/lora",))
