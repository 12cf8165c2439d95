"""Pictures that a job starts from: resized, masked and cropped before, and put back after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from ..hosts.txt2img import LATENT_RESIZE, SIDE_STEP

if TYPE_CHECKING:
    from ..hosts.txt2img import Source

_FILLED = 0
_HALF = 128
_RADII = (64, 32, 16, 8, 4, 2, 1)  # pixels, from far to near
_BEST = Image.Resampling.LANCZOS


@dataclass(frozen=True)
class Canvas:
    """One picture to start from."""

    start: Image.Image
    """What is encoded; as large as the job's pictures, except where the latents are stretched."""
    mask: Image.Image | None = None
    """As large as the job's pictures; white is painted. None paints all."""
    whole: Image.Image | None = None
    """The picture that the result is put back into."""
    edge: Image.Image | None = None
    """The mask of `whole`."""
    box: tuple[int, int, int, int] | None = None
    """The part of `whole` that was worked on; None is all."""

    def finished(self, made: Image.Image) -> Image.Image:
        """Return the result with everything outside the mask as it was."""
        if self.whole is None or self.edge is None:
            return made
        layer = made
        if self.box is not None:
            left, top, right, bottom = self.box
            layer = self.whole.copy()
            layer.paste(made.resize((right - left, bottom - top), _BEST), (left, top))
        return Image.composite(layer, self.whole, self.edge)


def canvas_of(source: Source, number: int, width: int, height: int) -> Canvas:
    """Prepare one picture of a source for a job of this size."""
    image = _flat(source.images[number if len(source.images) > 1 else 0])
    mask = _mask_of(source, image.size)
    painted = None if mask is None else mask.getbbox()
    if mask is None or (source.only_masked and painted is None):
        return Canvas(_start(image, source.resize_mode, width, height))
    if source.only_masked and painted is not None:
        box = _box(painted, image.size, source.padding, width / height)
        start = image.resize((width, height), _BEST, box=box)
        part = mask.resize((width, height), _BEST, box=box)
        return Canvas(_filled(start, part, source.content), part, image, mask, box)
    whole = resized(image, source.resize_mode, width, height)
    part = resized(mask, source.resize_mode, width, height)
    start = _start(image, source.resize_mode, width, height)
    outline = part.resize(start.size, _BEST)
    edge = part.point(lambda value: min(255, 2 * value))  # as in A1111, so that no seam shows
    return Canvas(_filled(start, outline, source.content), part, whole, edge)


def has_empty_mask(source: Source) -> bool:
    """Tell whether there is a mask that names nothing to paint."""
    mask = _mask_of(source, source.images[0].size)
    return mask is not None and mask.getbbox() is None


def resized(image: Image.Image, mode: int, width: int, height: int) -> Image.Image:
    """Resize a picture in one of A1111's modes, see `Source.resize_mode`."""
    size = width, height
    if image.size == size:
        return image
    if mode == 1:
        return ImageOps.fit(image, size, _BEST)
    if mode == 2:
        inner = ImageOps.contain(image, size, _BEST)
        left, top = (width - inner.width) // 2, (height - inner.height) // 2
        # the pixels at the edges are repeated outwards
        columns = np.clip(np.arange(width) - left, 0, inner.width - 1)
        rows = np.clip(np.arange(height) - top, 0, inner.height - 1)
        return Image.fromarray(np.asarray(inner)[rows][:, columns])
    return image.resize(size, _BEST)


def _start(image: Image.Image, mode: int, width: int, height: int) -> Image.Image:
    if mode != LATENT_RESIZE:
        return resized(image, mode, width, height)
    sides = [max(SIDE_STEP, side // SIDE_STEP * SIDE_STEP) for side in image.size]
    return resized(image, mode, sides[0], sides[1])


def _flat(image: Image.Image) -> Image.Image:
    """Return a picture on white, without transparency."""
    if "A" not in image.getbands():
        return image.convert("RGB")
    ground = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")


def _mask_of(source: Source, size: tuple[int, int]) -> Image.Image | None:
    """Return the blurred mask in the size of the picture."""
    if source.mask is None:
        return None
    alpha = source.mask.getchannel("A") if "A" in source.mask.getbands() else None
    is_drawn = alpha is not None and alpha.getextrema() != (255, 255)  # by a program that draws on transparent ground
    grey = alpha if alpha is not None and is_drawn else source.mask.convert("L")
    mask = grey.point(lambda value: 255 if value >= _HALF else 0).resize(size, Image.Resampling.NEAREST)
    if source.inverted:
        mask = ImageOps.invert(mask)
    return mask.filter(ImageFilter.GaussianBlur(source.blur)) if source.blur else mask


def _box(
    painted: tuple[int, int, int, int], size: tuple[int, int], padding: int, ratio: float
) -> tuple[int, int, int, int]:
    """Return a box around what is painted, padded and widened towards a ratio of width to height within the picture."""
    left, top = max(0, painted[0] - padding), max(0, painted[1] - padding)
    right, bottom = min(size[0], painted[2] + padding), min(size[1], painted[3] + padding)
    width, height = right - left, bottom - top
    wanted = max(width, round(height * ratio)), max(height, round(width / ratio))
    wide, tall = min(size[0], wanted[0]), min(size[1], wanted[1])
    left = min(max(0, left - (wide - width) // 2), size[0] - wide)
    top = min(max(0, top - (tall - height) // 2), size[1] - tall)
    return left, top, left + wide, top + tall


def _filled(image: Image.Image, mask: Image.Image, content: int) -> Image.Image:
    """Return the picture with the colours around the mask in its place, if the job starts from these."""
    if content != _FILLED:
        return image
    kept = ImageOps.invert(mask.point(lambda value: 255 if value else 0))
    if kept.getbbox() is None:
        return Image.new("RGB", image.size, (_HALF,) * 3)  # no colour is known
    known = Image.composite(image, Image.new("RGB", image.size), kept)
    colours = np.full((image.height, image.width, 3), _mean(known, kept))
    for radius in _RADII:
        blur = ImageFilter.GaussianBlur(radius)
        weight = np.asarray(kept.filter(blur), dtype=np.float64)[..., None] / 255
        near = np.asarray(known.filter(blur), dtype=np.float64) / np.maximum(weight, 1 / 255)
        share = np.clip(4 * weight, 0, 1)
        colours = share * near + (1 - share) * colours
    made = Image.fromarray(colours.clip(0, 255).round().astype(np.uint8))
    return Image.composite(image, made, kept)


def _mean(known: Image.Image, kept: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    total = np.asarray(kept, dtype=np.float64).sum() / 255
    mean: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.asarray(known, dtype=np.float64).sum((0, 1)) / total
    return mean
