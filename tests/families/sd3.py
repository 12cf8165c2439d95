"""Stable Diffusion 3 medium."""

from __future__ import annotations

from ._sd3 import family

# stabilityai/stable-diffusion-3-medium-diffusers, transformer/config.json
FAMILY = family("sd3", 1536, 24, (), qk_norm=False, version="medium", named=("sd_3", "sd3m"), encoders=True)
