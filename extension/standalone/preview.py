"""A cheap look at latents while they are being denoised: a linear map to colours, no decoder."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

_SCALE = 8  # pixels per latent

# Linear fits of the published decoders' output to their latents, red green blue per latent channel.
_FACTORS = {
    "sd": (
        (0.3512, 0.2297, 0.3227),
        (0.3250, 0.4974, 0.2350),
        (-0.2829, 0.1762, 0.2721),
        (-0.2120, -0.2616, -0.7177),
    ),
    "sdxl": (
        (0.3920, 0.4054, 0.4549),
        (-0.2634, -0.0196, 0.0653),
        (0.0568, 0.1687, -0.0755),
        (-0.3112, -0.2359, -0.2076),
    ),
}


def preview(latents: Tensor, family: str) -> Image.Image:
    """Return a picture of the first latents of a batch.

    Args:
        latents: (batch, 4, height / 8, width / 8), scaled as the unet sees them.
        family: as in `LoadedModel`.
    """
    factors = torch.tensor(_FACTORS["sd" if family == "sd" else "sdxl"])
    first = latents[0].detach().float().cpu()
    first = first / first.std().clamp(min=1)  # early latents are mostly noise, up to 15 times as large
    colours = first.permute(1, 2, 0) @ factors  # (height, width, 3), about -1 to 1
    pixels = ((colours + 1) * 127.5).clamp(0, 255).byte().numpy()
    small = Image.fromarray(pixels)
    return small.resize((small.width * _SCALE, small.height * _SCALE), Image.Resampling.BILINEAR)
