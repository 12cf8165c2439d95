"""Block-weight presets: Remora's, the ones of the block-weight extension, and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from ..store import FileValue, Store, one_problem
from ..text.block_weights import (
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

_FILE = "block_presets.txt"
_MOST = 1000
_LONGEST = 1 << 20  # bytes of a file
_WHAT = "presets of block weights"


class BlockPresetsFile:
    """Keeps the user's own presets in `block_presets.txt` of a folder, in the block-weight extension's format.

    Args:
        folder: returns the folder; called on every access. None keeps the presets in memory only.
        others: returns that extension's preset files; they are read again when they change.
    """

    def __init__(self, folder: Callable[[], Path | None], others: Callable[[], Sequence[Path]]) -> None:
        def path() -> Path | None:
            found = folder()
            return None if found is None else found / _FILE

        self._others = others
        # as text: lines that are no presets are the user's, too
        self._store = Store(path, _WHAT, "", _text, _content, _LONGEST, refusal=BlockWeightsError)
        self._read: dict[Path, FileValue[BlockPresets]] = {}

    @property
    def all(self) -> BlockPresets:
        """Return all presets that a tag may name; the user's own override the extension's."""
        found = [BUILT_IN, *(self._file(path).value for path in self._others()), BlockPresets(self._own())]
        lists = {name: values for one in found for name, values in one.lists.items()}
        return BlockPresets(lists, {name: rules for one in found for name, rules in one.elements.items()})

    @property
    def own(self) -> frozenset[str]:
        """Return the names of the user's own presets."""
        return frozenset(self._own())

    @property
    def problem(self) -> str:
        """Return one sentence if the user's own presets, or the extension's files, cannot be read."""
        return one_problem([self._store.problem, *(self._file(path).problem for path in self._others())])

    def lock(self) -> AbstractContextManager[object]:
        """Exclude other changes of the user's own presets in a `with` statement; see `Store.lock`."""
        return self._store.lock()

    def put(self, name: str, values: str) -> None:
        """Save a list under a name, replacing the user's own preset of that name.

        Raises:
            BlockWeightsError: the name is invalid or that of a built-in preset, the list is invalid, or there are too
                many.
            OSError: the file cannot be written; nothing has changed.
        """
        name, read = checked_name(name), read_list(values)
        if len(read) < 2:
            raise BlockWeightsError("a preset needs a value for each block, as 1,0,0,1")
        if name in BUILT_IN.lists or name in BUILT_IN.elements:
            raise BlockWeightsError(f"{name!r} is a built-in preset; choose another name")

        def change(text: str) -> str:
            if len(read_presets(text).keys() | {name}) > _MOST:
                raise BlockWeightsError(f"there are {_MOST} presets of block weights already; delete some")
            return _with(text, name, format_presets({name: read}))

        self._store.change(change)

    def delete(self, name: str) -> None:
        """Delete one of the user's own presets.

        Raises:
            BlockWeightsError: there is none of that name.
            OSError: the file cannot be written; nothing has changed.
        """

        def change(text: str) -> str:
            if name not in read_presets(text):
                raise BlockWeightsError(f"there is no preset of block weights {name[:60]!r} of your own")
            return _with(text, name, "")

        self._store.change(change)

    def _own(self) -> dict[str, tuple[Value, ...]]:
        return read_presets(self._store.value)

    def _file(self, path: Path) -> FileValue[BlockPresets]:
        """Read a file of the extension; if it cannot be read, return nothing and log that once."""
        if path not in self._read:
            self._read[path] = FileValue(lambda: path, _WHAT, BlockPresets(), partial(_presets_of, path), _LONGEST)
        return self._read[path]


def _text(content: bytes) -> str:
    return content.decode("utf-8-sig")


def _content(text: str) -> bytes:
    """Encode a text for `_text`, which removes one byte-order mark: a text that starts with one gets another."""
    return text.encode("utf-8-sig" if text.startswith("\ufeff") else "utf-8", "replace")


def _presets_of(path: Path, content: bytes) -> BlockPresets:
    text = _text(content)
    if path.name.startswith("elem"):
        return BlockPresets(elements=read_rules(text))
    return BlockPresets(read_presets(text))


def _with(text: str, name: str, line: str) -> str:
    """Replace the line of a name, or append one; all other lines stay."""
    lines = text.splitlines(keepends=True)
    if lines and lines[-1].splitlines() == lines[-1:]:
        lines[-1] += "\n"
    changed = []
    for one in lines:
        if name in read_presets(one):
            changed.append(line)
            line = ""  # should the name be there twice, once is enough
        else:
            changed.append(one)
    return "".join(changed) + line
