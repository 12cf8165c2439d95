"""Quick previews of latents during denoising: a linear map to colours, or a small decoder."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor

_SCALE = 8  # pixels per latent
_SMALL = 5_000_000  # parameters of a decoder that takes less than a step of any denoiser

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


def preview(latents: Tensor, family: str, vae: Any = None) -> Image.Image:
    """Return a picture of the first latents of a batch.

    Args:
        latents: (batch, 4, height / 8, width / 8), scaled as the unet sees them.
        family: as in `LoadedModel`.
        vae: the model's own, used if it is small and not offloaded: the colour map is for SD.
    """
    return _mapped(latents, family) if vae is None or not _is_at_hand(vae) else _decoded(latents, vae)


def _is_at_hand(vae: Any) -> bool:
    """Tell whether decoding is quick: the decoder is small, and not offloaded, which would displace the denoiser."""
    small = sum(parameter.numel() for parameter in vae.decoder.parameters()) <= _SMALL
    hooked = (hasattr(module, name) for module in vae.modules() for name in ("_hf_hook", "_diffusers_hook"))
    return small and not any(hooked)


@torch.no_grad()
def _decoded(latents: Tensor, vae: Any) -> Image.Image:
    decoded = vae.decode(latents[:1].to(vae.dtype) / vae.config.scaling_factor).sample[0]
    pixels = ((decoded.float().cpu().permute(1, 2, 0) + 1) * 127.5).clamp(0, 255).byte().numpy()
    return Image.fromarray(pixels)


def _mapped(latents: Tensor, family: str) -> Image.Image:
    factors = torch.tensor(_FACTORS["sd" if family == "sd" else "sdxl"])
    first = latents[0].detach().float().cpu()
    first = first / first.std().clamp(min=1)  # early latents are mostly noise, up to 15 times as large
    colours = first.permute(1, 2, 0) @ factors  # (height, width, 3), about -1 to 1
    pixels = ((colours + 1) * 127.5).clamp(0, 255).byte().numpy()
    small = Image.fromarray(pixels)
    return small.resize((small.width * _SCALE, small.height * _SCALE), Image.Resampling.BILINEAR)
