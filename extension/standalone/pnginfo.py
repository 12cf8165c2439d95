"""Pictures with the parameters text where A1111 and related programs have it, and pictures that clients send."""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import ImageOps
from PIL.ExifTags import IFD, Base
from PIL.PngImagePlugin import PngInfo

from ..hosts.txt2img import RequestError
from ..library.pictures import PictureError, opened_picture
from ..outputs import comment_text
from ..store import locked, write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..hosts.txt2img import Picture

_CHUNK = "parameters"
_LARGEST_SIDE = 1 << 16  # pixels: nothing is reduced
_NUMBERED = re.compile(r"(\d{5,})-")


def encode_png(image: Image, infotext: str) -> bytes:
    """Encode a picture with its parameters text; text outside Latin-1 goes into an iTXt chunk."""
    chunks = PngInfo()
    if infotext:
        chunks.add_text(_CHUNK, infotext)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=chunks)
    return buffer.getvalue()


def to_base64(image: Image, infotext: str = "") -> str:
    """Encode a picture as PNG for an answer."""
    return base64.b64encode(encode_png(image, infotext)).decode("ascii")


def read_picture(text: object, name: str) -> Image:
    """Decode a picture of a request, upright, with its parameters text and other texts in `info`.

    Args:
        text: base64, possibly as a `data:` address.
        name: of the field, for the error.

    Raises:
        RequestError: it is no picture, or too large.
    """
    if not isinstance(text, str):
        raise RequestError(f"{name} must be a picture as base64, not {text!r:.60}")
    if text.startswith(("http://", "https://")):
        raise RequestError(f"{name} is an address; send the picture itself as base64, as nothing is fetched here")
    content = text.partition(",")[2] if text.startswith("data:") else text
    try:
        image = opened_picture(base64.b64decode("".join(content.split()), validate=True), _LARGEST_SIDE)
    except (binascii.Error, ValueError) as error:
        reason = error if isinstance(error, PictureError) else "it is no base64"
        raise RequestError(f"{name}: {reason}") from error
    return ImageOps.exif_transpose(image)


def read_infotext(image: Image) -> str:
    """Return the parameters text of a PNG, or the comment of a JPEG or WebP; an empty text without one."""
    if _CHUNK in image.info:
        return str(image.info[_CHUNK])
    return comment_text(image.getexif().get_ifd(IFD.Exif).get(Base.UserComment, b""))


def read_texts(image: Image) -> dict[str, str]:
    """Return the texts of an opened picture by name, without the parameters text."""
    texts = {name: text for name, text in image.info.items() if isinstance(name, str) and isinstance(text, str)}
    texts.pop(_CHUNK, None)
    return texts


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
