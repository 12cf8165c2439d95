"""Pictures of files: the one beside a file, or in its header, as a thumbnail; replaced on request."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from lib_lora import AdapterFile

from ..store import read_bytes, write_bytes
from .facts import PICTURES
from .walk import CatalogFile, Found, leads_away

logger = logging.getLogger(__name__)

_SIDE = 384  # pixels, of the longer side of a thumbnail
_KEPT_SIDE = 1024  # of a picture that is kept beside a file
_QUALITY = 80
_MAX_BYTES = 64 << 20  # of a picture's file
_MAX_PIXELS = 25_000_000
_MOST = f"{_MAX_PIXELS // 1_000_000} million"
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "TGA")
"""Formats that are read, in the order in which they are tried.

Pillow starts another program for EPS and decodes ICO before it tells the size, so such formats are left out.
"""
_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # tags of TIFF
_WITH_MEANS = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
"""Modes of Pillow that it can average."""
_WORKER = ThreadPoolExecutor(1, "remora-picture")

T = TypeVar("T")


class PictureError(ValueError):
    """A picture is invalid; the message is one sentence."""


class _RefusedError(ValueError):
    """A picture is refused on purpose; the message says why."""


class Thumbnails:
    """Makes thumbnails, and stores them as WebP in a folder.

    Args:
        folder: the folder; None stores none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._unreadable: set[str] = set()
        """Marks of pictures that could not be read; valid until the file changes."""

    def of(self, found: Found, embedded: bool) -> bytes | None:
        """Return the thumbnail of a file as WebP, or None if it has no readable picture."""
        source = found.picture
        if source is None and not embedded:
            return None
        mark = f"{found.file.path}|{found.file.mtime_ns}|{source}|{found.stamp}|{_SIDE}"
        name = hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        if name in self._unreadable:
            return None
        kept = None if self._folder is None else self._folder / name[:2] / f"{name}.webp"
        if kept is not None and kept.is_file():
            return kept.read_bytes()
        made = self._made(found, source, name)
        if made is not None and kept is not None:
            _keep(kept, made)
        return made

    def _made(self, found: Found, source: Path | None, name: str) -> bytes | None:
        try:
            content = _embedded(found.file.path) if source is None else read_bytes(source, _MAX_BYTES)
            return None if content is None else shrunk_picture(content, _SIDE)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one picture, the others are shown
            logger.warning("remora: the picture of %s cannot be shown: %s", found.file.path, error)
            if isinstance(error, ValueError) and not isinstance(error.__cause__, MemoryError):
                self._unreadable.add(name)  # retry after a missing drive or memory, not after a damaged picture
            return None


@dataclass(frozen=True, slots=True)
class Replaced:
    """What was in the place of a picture that was saved."""

    path: Path
    content: bytes | None
    """None if there was no file."""

    def restore(self) -> None:
        """Put it back.

        Raises:
            OSError: it cannot be written, or the later picture cannot be deleted.
        """
        if self.content is None:
            self.path.unlink(missing_ok=True)
        else:
            write_bytes(self.path, self.content)


def set_picture(file: CatalogFile, found: Found, content: bytes) -> Replaced:
    """Save a picture beside a file, where every web UI finds it; return what was in its place.

    Raises:
        PictureError: the content is no picture, the picture in its place is too large to be put back, or it is a link
            to a file of another name in another folder.
        OSError: the picture cannot be written; the previous one stays.
    """
    made = shrunk_picture(content, _KEPT_SIDE, "PNG")
    path = file.path.with_name(f"{file.path.stem}.png")
    if leads_away(path):
        raise PictureError(f"{path} is a link to a file of another name in another folder; put a file in its place")
    try:
        replaced = Replaced(path, read_bytes(path, _MAX_BYTES) if path.exists() else None)
    except ValueError as error:
        raise PictureError(f"{path} cannot be replaced, as it could not be put back: {error}") from error
    write_bytes(path, made)
    thumb = found.picture
    if thumb is not None and ".thumb." in thumb.name:
        thumb.unlink(missing_ok=True)  # the host made it from the previous picture, and makes a new one
    return replaced


def shrunk_picture(content: bytes, side: int, form: str = "WEBP") -> bytes:
    """Return a picture with sides of at most `side` pixels.

    Raises:
        PictureError: the content is no readable picture.
    """
    picture = opened_picture(content, side)
    picture.thumbnail((side, side))
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": _QUALITY} if form == "WEBP" else {}
    picture.save(stream, form, **options)
    return stream.getvalue()


def opened_picture(content: bytes, side: int, mode: str = "") -> Image.Image:
    """Read a picture, possibly at a lower resolution of at least twice `side`.

    Args:
        content: of its file.
        side: pixels that the caller needs.
        mode: of Pillow; by default RGB, or RGBA if it is transparent.

    Raises:
        PictureError: the content is no readable picture.
    """
    try:
        return one_picture(lambda: _opened(content, side, mode))
    except Exception as error:  # decoders raise any error for a damaged file
        logger.debug("remora: a picture cannot be read", exc_info=True)
        raise PictureError(f"this picture cannot be read: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Return a reason for users: Pillow's own texts name objects and offsets."""
    if isinstance(error, _RefusedError):
        return str(error)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"it has more than {_MOST} pixels"
    return "its file is damaged, or of an unknown format"


def one_picture(work: Callable[[], T]) -> T:
    """Decode or draw a picture while no other one is, and wait for it.

    A small file can take hundreds of megabytes, and requests come at once. One thread does all of them, as allocators
    keep the memory of each thread.
    """
    return _WORKER.submit(work).result()


def _opened(content: bytes, side: int, mode: str) -> Image.Image:
    Image.init()  # finds the formats of this build of Pillow
    formats = [one for one in _FORMATS if one in Image.OPEN]
    with Image.open(io.BytesIO(content), formats=formats) as opened:
        for width, height in (opened.size, _tile_of(opened)):
            if width * height > _MAX_PIXELS:
                raise _RefusedError(f"{width} x {height} pixels are more than {_MOST}")
        return _reduced(opened, side, mode)


def _tile_of(opened: Image.Image) -> tuple[int, int]:
    """Return the size of a TIFF's tiles: each is decoded whole, however small the picture is."""
    tags = getattr(opened, "tag_v2", {})
    return int(tags.get(_TILE_WIDTH, 0)), int(tags.get(_TILE_HEIGHT, 0))


def _reduced(opened: Image.Image, side: int, mode: str) -> Image.Image:
    """Return a picture in a mode, reduced before it is converted, which may quadruple its size."""
    opened.draft("RGB", (side, side))  # decodes a JPEG at a lower resolution
    wanted = mode or ("RGBA" if "A" in opened.getbands() else "RGB")
    picture: Image.Image = opened
    if opened.mode not in _WITH_MEANS or "transparency" in opened.info:
        picture = opened.convert(wanted)
    factor = min(picture.size) // (2 * side)
    picture = picture.reduce(factor) if factor > 1 else picture
    return picture.convert(wanted)


def _embedded(path: Path) -> bytes | None:
    """Return the picture in a header: ModelSpec's thumbnail, a `data:` URL, or A1111's first cover image."""
    said = AdapterFile.open(path).metadata
    for key in PICTURES:
        text = said.get(key, "")
        if text.startswith("["):
            images = json.loads(text)
            text = images[0] if images and isinstance(images[0], str) else ""
        text = text.partition(",")[2] if text.startswith("data:") else text
        if text:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{key} in the header is no base64") from error
    return None


def _keep(path: Path, content: bytes) -> None:
    try:
        write_bytes(path, content, lasting=False)
    except OSError as error:
        logger.warning("remora: a thumbnail cannot be saved in %s: %s", path.parent, error.strerror or error)
