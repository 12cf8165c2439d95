"""The upscaling of pictures that A1111 has under `extra-single-image` and `extra-batch-images`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from ..hosts.txt2img import RequestError
from .latents import UPSCALERS, check_upscaler
from .txt2img_fields import read_flag, read_number, read_text

_FACES = ("gfpgan_visibility", "codeformer_visibility")
_MOST_PIXELS = 64_000_000
_NONE = "None"


@dataclass(frozen=True)
class Extras:
    """How pictures are upscaled."""

    upscaler: str = _NONE
    """`None` leaves a picture as it is."""
    other: str = _NONE
    share: float = 0.0
    """Of `other` in the result."""
    factor: float = 2.0
    size: tuple[int, int] | None = None
    """In place of the factor: width and height to cover."""
    crop: bool = True
    """Cut off what is larger than `size`."""

    def upscaled(self, image: Image.Image) -> Image.Image:
        """Upscale a picture.

        Raises:
            RequestError: the result is too large.
        """
        if self.upscaler == _NONE:
            return image
        factor = self.factor
        if self.size is not None:
            factor = max(self.size[0] / image.width, self.size[1] / image.height)
        size = max(1, int(image.width * factor)), max(1, int(image.height * factor))
        if size[0] * size[1] > _MOST_PIXELS:
            most = _MOST_PIXELS // 1_000_000
            raise RequestError(f"{size[0]} x {size[1]} pixels are more than {most} million; ask for a smaller size")
        made = image.resize(size, UPSCALERS[self.upscaler])
        if self.other != _NONE and self.share:
            made = Image.blend(made, image.resize(size, UPSCALERS[self.other]), self.share)
        if self.size is None or not self.crop:
            return made
        left, top = (size[0] - self.size[0]) // 2, (size[1] - self.size[1]) // 2
        return made.crop((left, top, left + self.size[0], top + self.size[1]))


def read_extras(payload: Mapping[str, Any]) -> Extras:
    """Parse a request.

    Raises:
        RequestError: a value is invalid, or asks for what is missing here.
    """
    for name in _FACES:
        if read_number(payload, name, 0.0, float):
            raise RequestError(f"{name}={payload[name]!r:.60} is not supported here: no model restores faces")
    names = [read_text(payload, name) or _NONE for name in ("upscaler_1", "upscaler_2")]
    for name in names:
        check_upscaler(name, latent=False)
    share = read_number(payload, "extras_upscaler_2_visibility", 0.0, float)
    factor = read_number(payload, "upscaling_resize", 2.0, float)
    size = read_number(payload, "upscaling_resize_w", 512, int), read_number(payload, "upscaling_resize_h", 512, int)
    if not (0 <= share <= 1 and 0 < factor <= _MOST_PIXELS and min(size) > 0 and max(size) <= _MOST_PIXELS):
        raise RequestError(
            f"extras_upscaler_2_visibility must be from 0 to 1, and the sizes above 0 and at most {_MOST_PIXELS:,}"
        )
    to_size = bool(read_number(payload, "resize_mode", 0, int))
    return Extras(
        names[0], names[1], share, factor, size if to_size else None, read_flag(payload, "upscaling_crop", True)
    )
