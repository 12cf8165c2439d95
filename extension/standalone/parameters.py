"""Parameters texts that are typed, pasted or dropped into the page, and the ones in picture files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from PIL import Image, UnidentifiedImageError

from ..hosts.txt2img import RequestError
from ..text.infotext import parse_infotext
from .pnginfo import read_infotext

if TYPE_CHECKING:
    from ..hosts.txt2img import Txt2Img
    from ..text.infotext import Infotext

_FORMATS = ("PNG", "JPEG", "WEBP", "AVIF")
_EXIF, _USER_COMMENT = 0x8769, 0x9286
_ENCODINGS: Mapping[bytes, str] = {b"UNICODE\0": "utf-16-be", b"ASCII\0\0\0": "ascii"}


def parameters_in(text: str) -> Infotext | None:
    """Return what a parameters text says; None of a text that is a prompt."""
    found = parse_infotext(text)
    return found if "Steps" in found.settings else None


def applied(request: Txt2Img, settings: Mapping[str, str], samplers: Sequence[str]) -> tuple[Txt2Img, list[str]]:
    """Return a request with the settings of a parameters text, and those that cannot be used here, as `Name: value`."""
    left: list[str] = []
    for name, value in settings.items():
        try:
            changed = _with(request, name, value, settings, samplers)
            changed.check()
        except (ValueError, RequestError):
            left.append(f"{name}: {value:.60}")
            continue
        request = changed
    return request, left


def _with(request: Txt2Img, name: str, value: str, settings: Mapping[str, str], samplers: Sequence[str]) -> Txt2Img:
    match name:
        case "Steps":
            return replace(request, steps=int(value))
        case "CFG scale":
            return replace(request, cfg_scale=float(value))
        case "Seed":
            return replace(request, seed=int(value))
        case "Size":
            width, height = value.lower().split("x")
            return replace(request, width=int(width), height=int(height))
        case "Sampler":
            with_schedule = f"{value} {settings.get('Schedule type', '')}"
            return replace(request, sampler=with_schedule if with_schedule in samplers else _known(value, samplers))
        case _:
            return request


def _known(sampler: str, samplers: Sequence[str]) -> str:
    if sampler not in samplers:
        raise ValueError(f"there is no sampler {sampler}")
    return sampler


def text_of_picture(content: bytes) -> str:
    """Return the parameters text in a picture's file; empty if it has none.

    Raises:
        ValueError: the content is not a picture of a format that has such texts.
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return read_infotext(image) or _comment(image)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"this is no picture that can be read (of {', '.join(_FORMATS)})") from error


def _comment(image: Image.Image) -> str:
    """Return the comment of a JPEG, WebP or AVIF, where web UIs write the text."""
    comment = image.getexif().get_ifd(_EXIF).get(_USER_COMMENT, b"")
    if isinstance(comment, str):
        return comment
    encoding = _ENCODINGS.get(bytes(comment[:8]))
    return "" if encoding is None else bytes(comment[8:]).decode(encoding, "replace")
