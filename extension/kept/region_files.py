"""The user's own regions: grey pictures in a folder, white inside the region."""

from __future__ import annotations

import base64
import binascii
import io
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from PIL import Image

from lib_lora import Region

from ..library.pictures import PictureError, opened_picture
from ..store import Store, locked, one_problem
from ..text.regions import RegionTextError, checked_name

_FOLDER = "regions"
_SIDE = 64
"""Most cells along a side: finer than attention resolves, and small enough for a parameters text."""
_MOST = 500
_MAX_BYTES = 64 << 20  # of a picture


class RegionFiles:
    """Keeps regions as `regions/<name>.png` of a folder; the user may put pictures there too.

    Args:
        folder: returns the folder; called on every access. None keeps the regions in memory only.
    """

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        self._folder = folder
        self._alone = threading.RLock()
        self._kept: dict[str, Region] = {}
        """The regions without a folder."""
        self._stores: dict[Path, Store[Region | None]] = {}

    @property
    def all(self) -> Mapping[str, Region]:
        """Return the regions, by name."""
        folder = self._regions()
        if folder is None:
            return dict(self._kept)
        paths = sorted(folder.glob("*.png"))
        self._stores = {path: self._store(path) for path in paths}
        found = ((path.stem, self._store(path).value) for path in paths)
        return {name: region for name, region in found if region is not None}

    @property
    def problem(self) -> str:
        """Return one sentence if pictures in the folder cannot be read."""
        folder = self._regions()
        return "" if folder is None else one_problem(self._store(path).problem for path in sorted(folder.glob("*.png")))

    def lock(self) -> AbstractContextManager[object]:
        """Exclude other changes in a `with` statement; see `Store.lock`."""
        folder = self._regions()
        return self._alone if folder is None else locked(Path(os.path.realpath(folder)))

    def put(self, name: str, picture: bytes) -> Region:
        """Save a picture under a name, replacing the region of that name.

        Args:
            name: the name that tags use.
            picture: a file, of any size and format that Pillow reads.

        Raises:
            RegionTextError: the name or the picture is invalid, the picture is black, or there are too many regions.
            OSError: the file cannot be written; nothing has changed.
        """
        return self.keep(name, read_picture(picture))

    def keep(self, name: str, region: Region) -> Region:
        """Save a region under a name; see `put`."""
        name = checked_name(name)
        if not any(region.cells):
            raise RegionTextError("the region is empty: white is where the LoRA acts")
        with self.lock():
            kept = self.all
            same = next((one for one in kept if one != name and one.lower() == name.lower()), None)
            if same is not None:  # one file, where capitals make no difference
                raise RegionTextError(f"there is a region {same!r} already")
            if name not in kept and len(kept) >= _MOST:
                raise RegionTextError(f"there are {_MOST} regions already; delete some")
            path = self._path(name)
            if path is None:
                self._kept[name] = region
            else:
                self._store(path).change(lambda _: region)
        return region

    def delete(self, name: str) -> None:
        """Delete a region.

        Raises:
            RegionTextError: there is none of that name.
            OSError: the file cannot be deleted.
        """
        with self.lock():
            if name not in self.all:
                raise RegionTextError(f"there is no region {name[:60]!r} of your own")
            path = self._path(name)
            if path is None:
                del self._kept[name]
            else:
                path.unlink()

    def _regions(self) -> Path | None:
        folder = self._folder()
        return None if folder is None else folder / _FOLDER

    def _path(self, name: str) -> Path | None:
        folder = self._regions()
        return None if folder is None else folder / f"{name}.png"

    def _store(self, path: Path) -> Store[Region | None]:
        known = self._stores.get(path)
        if known is None:
            read = partial(_read, path.stem)
            known = Store(lambda: path, "a region", None, read, _write, _MAX_BYTES, refusal=RegionTextError)
        return known


def read_picture(content: bytes) -> Region:
    """Read a picture as a region: its brightness, with transparent pixels as black.

    Raises:
        RegionTextError: the content is no picture.
    """
    try:
        layers = opened_picture(content, _SIDE, "RGBA")
    except PictureError as error:
        raise RegionTextError(str(error)) from error
    black = Image.new("RGBA", layers.size, (0, 0, 0, 255))
    grey = Image.alpha_composite(black, layers).convert("L")
    size = min(grey.width, _SIDE), min(grey.height, _SIDE)
    small = grey.resize(size, Image.Resampling.BOX) if size != grey.size else grey
    return Region(small.width, small.height, small.tobytes())


def from_text(text: str) -> bytes:
    """Decode a picture from base64, with or without `data:image/png;base64,` before it.

    Raises:
        RegionTextError: the text is no base64.
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


def _read(name: str, content: bytes) -> Region | None:
    """Read a picture of the folder, which may have any name."""
    if checked_name(name) != name:
        raise RegionTextError(f"a tag cannot name {name[:60]!r}: remove the space at its end")
    return read_picture(content)


def _write(region: Region | None) -> bytes:
    assert region is not None, "no region is no picture"
    return as_png(region)
