"""Presets of block weights: those that come along, those of an extension beside us, and the user's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from .atomic import write_text
from .block_weights import (
    BUILT_IN,
    BlockPresets,
    BlockWeightsError,
    Value,
    checked_name,
    format_presets,
    read_list,
    read_presets,
    read_rules,
)

logger = logging.getLogger(__name__)

_FILE = "block_presets.txt"
_MOST = 1000
_LONGEST = 1 << 20  # bytes of a file


class BlockPresetsFile:
    """Keeps the user's own in `block_presets.txt` of a folder, in the block-weight extension's format.

    Args:
        folder: where; asked when it is needed. None keeps them only as long as the program runs.
        others: files of presets, as that extension has them; looked at again when they change.
    """

    def __init__(self, folder: Callable[[], Path | None], others: Callable[[], Sequence[Path]]) -> None:
        self._folder = folder
        self._others = others
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Value, ...]] = {}
        self._read: dict[Path, tuple[tuple[int, int], BlockPresets]] = {}

    @property
    def all(self) -> BlockPresets:
        """What a tag may name now; of the same name, the user's own, then those of the extension."""
        with self._lock:
            found = [BUILT_IN, *map(self._of_file, self._others()), BlockPresets(self._own())]
        lists = {name: values for one in found for name, values in one.lists.items()}
        return BlockPresets(lists, {name: rules for one in found for name, rules in one.elements.items()})

    @property
    def own(self) -> frozenset[str]:
        """Names of the user's own."""
        with self._lock:
            return frozenset(self._own())

    def put(self, name: str, values: str) -> None:
        """Keep a list under a name, in place of the user's own of that name.

        Raises:
            BlockWeightsError: the name or the list is none, or there are too many.
            OSError: it cannot be written; all is as before.
        """
        name, read = checked_name(name), read_list(values)
        if len(read) < 2:
            raise BlockWeightsError("a preset needs a value for each block, as 1,0,0,1")
        with self._lock:
            kept = {**self._own(), name: read}
            if len(kept) > _MOST:
                raise BlockWeightsError(f"there are {_MOST} presets of block weights already; delete some")
            self._write(kept)

    def delete(self, name: str) -> None:
        """Delete one of the user's own.

        Raises:
            BlockWeightsError: there is none of that name.
            OSError: it cannot be written; all is as before.
        """
        with self._lock:
            kept = dict(self._own())
            if name not in kept:
                raise BlockWeightsError(f"there is no preset of block weights {name[:60]!r} of your own")
            del kept[name]
            self._write(kept)

    def _own(self) -> dict[str, tuple[Value, ...]]:
        folder = self._folder()
        return self._kept if folder is None else dict(self._of_file(folder / _FILE).lists)

    def _write(self, kept: dict[str, tuple[Value, ...]]) -> None:
        folder = self._folder()
        if folder is not None:
            write_text(folder / _FILE, format_presets(kept))
            self._read.pop(folder / _FILE, None)
        self._kept = kept

    def _of_file(self, path: Path) -> BlockPresets:
        """What a file has, read again when it has changed; nothing where it cannot be read, which is said once."""
        try:
            stat = path.stat()
        except OSError:
            return BlockPresets()
        state = stat.st_mtime_ns, stat.st_size
        known = self._read.get(path)
        if known is None or known[0] != state:
            known = self._read[path] = state, _read(path, stat.st_size)
        return known[1]


def _read(path: Path, size: int) -> BlockPresets:
    try:
        if size > _LONGEST:
            raise ValueError(f"it has {size:,} bytes")
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        logger.warning("remora: the presets of block weights in %s cannot be read: %s", path, error)
        return BlockPresets()
    if path.name.startswith("elem"):
        return BlockPresets(elements=read_rules(text))
    return BlockPresets(read_presets(text))
