"""The user's own regions: grey pictures in a folder, white where something acts."""

from __future__ import annotations

import base64
import binascii
import io
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image

from lib_lora import Region

from .atomic import write_bytes
from .collection import PictureError, opened_picture, read_picture_file
from .regions import RegionTextError, checked_name

logger = logging.getLogger(__name__)

_FOLDER = "regions"
_SIDE = 64
"""Cells at most along each side: finer than attention sees of a picture, and small enough for a parameters text."""
_MOST = 500


class RegionFiles:
    """Keeps them as `regions/<name>.png` of a folder; pictures put there by hand are as good.

    Args:
        folder: where; asked when it is needed. None keeps them only as long as the program runs.
    """

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: dict[str, Region] = {}
        self._read: dict[Path, tuple[tuple[int, int], Region | None]] = {}

    @property
    def all(self) -> Mapping[str, Region]:
        """By name."""
        with self._lock:
            return self._all()

    def put(self, name: str, picture: bytes) -> Region:
        """Keep a picture under a name, in place of that of the same name.

        Args:
            name: that tags call it by.
            picture: a file's content, of any size and format that Pillow reads.

        Raises:
            RegionTextError: the name or the picture is none, it is black all over, or there are too many.
            OSError: it cannot be written; all is as before.
        """
        return self.keep(name, read_picture(picture))

    def keep(self, name: str, region: Region) -> Region:
        """Keep a region under a name; see `put`."""
        name = checked_name(name)
        if not any(region.cells):
            raise RegionTextError("the region is empty: white is where the LoRA acts")
        with self._lock:
            kept = self._all()
            same = next((one for one in kept if one != name and one.lower() == name.lower()), None)
            if same is not None:  # one file, where capitals make no difference
                raise RegionTextError(f"there is a region {same!r} already")
            if name not in kept and len(kept) >= _MOST:
                raise RegionTextError(f"there are {_MOST} regions already; delete some")
            path = self._path(name)
            if path is None:
                self._kept[name] = region
            else:
                write_bytes(path, as_png(region))
        return region

    def delete(self, name: str) -> None:
        """Delete one.

        Raises:
            RegionTextError: there is none of that name.
            OSError: it cannot be deleted.
        """
        with self._lock:
            if name not in self._all():
                raise RegionTextError(f"there is no region {name[:60]!r} of your own")
            path = self._path(name)
            if path is None:
                del self._kept[name]
            else:
                path.unlink()

    def _path(self, name: str) -> Path | None:
        folder = self._folder()
        return None if folder is None else folder / _FOLDER / f"{name}.png"

    def _all(self) -> dict[str, Region]:
        folder = self._folder()
        if folder is None:
            return dict(self._kept)
        found = {}
        for path in sorted((folder / _FOLDER).glob("*.png")):
            region = self._of_file(path)
            if region is not None:
                found[path.stem] = region
        return found

    def _of_file(self, path: Path) -> Region | None:
        """Of a file, read again when it has changed; None where it is no region, which is said once."""
        try:
            stat = path.stat()
        except OSError:
            return None
        state = stat.st_mtime_ns, stat.st_size
        known = self._read.get(path)
        if known is None or known[0] != state:
            known = self._read[path] = state, _read(path)
        return known[1]


def read_picture(content: bytes) -> Region:
    """Read a picture as a region: how bright each place is, what is transparent being black.

    Raises:
        RegionTextError: it is no picture.
    """
    try:
        layers = opened_picture(content, _SIDE, "RGBA")
    except PictureError as error:
        raise RegionTextError(f"the picture of the region cannot be read: {error}") from error
    black = Image.new("RGBA", layers.size, (0, 0, 0, 255))
    grey = Image.alpha_composite(black, layers).convert("L")
    size = min(grey.width, _SIDE), min(grey.height, _SIDE)
    small = grey.resize(size, Image.Resampling.BOX) if size != grey.size else grey
    return Region(small.width, small.height, small.tobytes())


def from_text(text: str) -> bytes:
    """Read a picture given as base64, with or without `data:image/png;base64,` before it.

    Raises:
        RegionTextError: it is not that.
    """
    start, comma, rest = text.partition(",")
    try:
        return base64.b64decode(rest if comma and start.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RegionTextError("the picture of a region must be base64") from error


def as_png(region: Region) -> bytes:
    """Return a region as a grey PNG file."""
    made = io.BytesIO()
    Image.frombytes("L", (region.width, region.height), region.cells).save(made, "PNG")
    return made.getvalue()


def _read(path: Path) -> Region | None:
    try:
        checked_name(path.stem)
        return read_picture(read_picture_file(path))
    except (OSError, ValueError) as error:
        logger.warning("remora: %s is no region: %s", path, error)
        return None
