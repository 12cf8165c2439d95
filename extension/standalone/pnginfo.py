"""Pictures as PNG with the parameters text in the chunk that A1111 and related programs use."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from PIL.PngImagePlugin import PngInfo

from ..store import locked, write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..hosts.txt2img import Picture

_CHUNK = "parameters"
_NUMBERED = re.compile(r"(\d{5,})-")


def encode_png(image: Image, infotext: str) -> bytes:
    """Encode a picture with its parameters text; text outside Latin-1 goes into an iTXt chunk."""
    chunks = PngInfo()
    if infotext:
        chunks.add_text(_CHUNK, infotext)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=chunks)
    return buffer.getvalue()


def read_infotext(image: Image) -> str:
    """Return the parameters text of an opened PNG, or an empty text."""
    return str(image.info.get(_CHUNK, ""))


def save_picture(picture: Picture, folder: Path) -> Path:
    """Write a picture as `00001-SEED.png` with the next free number; safe beside other programs.

    Raises:
        OSError: the folder cannot be written to; no partial file stays.
    """
    content = encode_png(picture.image, picture.infotext)
    with locked(Path(os.path.realpath(folder))):
        numbers = [int(match[1]) for path in folder.glob("*.png") if (match := _NUMBERED.match(path.name))]
        path = folder / f"{max(numbers, default=0) + 1:05d}-{picture.seed}.png"
        write_bytes(path, content, lasting=False)
    return path
