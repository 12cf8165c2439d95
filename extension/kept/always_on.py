"""The always-on stack: LoRA that every picture gets beside the ones in its prompt, kept in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..store import Store, json_bytes
from ..text.prompt import format_tag, number
from ..text.spelling import escaped
from ..text.tag import Tag

PARAMETER = "Remora stack"
"""Its name in a parameters text."""
VERSION = 1  # of the file
_FILE = "stack.json"
_MAX_BYTES = 16 << 20  # of the file
_MAX_NAME = 1000  # characters
_MAX_ENTRIES = 200
_MAX_MORE = 10_000  # characters
_NUMBERS = {"unet": "the UNet", "text_encoder": "the text encoder"}
_UNWRITABLE = frozenset("<>")  # in a tag, and the parameters text tells of the stack in tags


class StackRefusedError(ValueError):
    """Data is no stack; the message is one sentence that says where and why."""


@dataclass(frozen=True)
class AlwaysOnEntry:
    """One LoRA of the stack."""

    name: str
    on: bool = True
    unet: float = 1.0
    text_encoder: float = 1.0
    more: str = ""
    """Further fields of a tag, such as `lbw=OUTALL:stop=10`; their strengths override."""

    @property
    def written(self) -> str:
        """Return the text between `<lora:` and `>` of an equal tag."""
        own = f"{escaped(self.name)}:{number(self.text_encoder)}:{number(self.unet)}"
        return f"{own}:{self.more}" if self.more else own

    @property
    def is_off(self) -> bool:
        """Return whether it has no effect."""
        return not self.on or (not self.more and self.unet == self.text_encoder == 0)


@dataclass(frozen=True)
class AlwaysOn:
    """The always-on stack."""

    enabled: bool = False
    """Whether pictures get it; otherwise it stays in the tab only."""
    entries: tuple[AlwaysOnEntry, ...] = ()

    def wanted(self) -> tuple[AlwaysOnEntry, ...]:
        """Return the entries that every picture gets, in order."""
        return tuple(entry for entry in self.entries if self.enabled and not entry.is_off)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `read` reads."""
        return {"version": VERSION, "always_on": self.enabled, "entries": [vars(entry) for entry in self.entries]}


def read(data: object) -> AlwaysOn:
    """Read a stack from plain data; a missing field of an entry has its default.

    Raises:
        StackRefusedError: the data is no stack.
    """
    if not isinstance(data, Mapping):
        raise StackRefusedError("a stack is an object with the fields always_on and entries")
    _refuse_others(data, ("version", "always_on", "entries"), "a stack")
    version, enabled, entries = data.get("version", VERSION), data.get("always_on", False), data.get("entries", [])
    if version != VERSION:
        raise StackRefusedError(
            f"the stack is of version {version!r:.60}, and this Remora knows version {VERSION} only"
        )
    if not isinstance(enabled, bool):
        raise StackRefusedError(f"always_on must be true or false, not {enabled!r:.60}")
    if not isinstance(entries, list) or len(entries) > _MAX_ENTRIES:
        raise StackRefusedError(f"entries must be a list of no more than {_MAX_ENTRIES} LoRA")
    return AlwaysOn(enabled, tuple(_entry(entry, number) for number, entry in enumerate(entries, 1)))


def parameters(tags: Sequence[Tag], positions: Iterable[int]) -> dict[str, str]:
    """Return the parameters text of the active tags, which are at these positions."""
    text = " ".join(format_tag(tags[position]) for position in positions)
    return {PARAMETER: text} if text else {}


class AlwaysOnFile:
    """Keeps the stack in `stack.json` of a folder, across restarts.

    Args:
        folder: returns the folder; called on every access. None keeps the stack in memory only.
    """

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        def path() -> Path | None:
            found = folder()
            return None if found is None else found / _FILE

        self._store = Store(
            path, "the stack that is always on", AlwaysOn(), _read, _write, _MAX_BYTES, refusal=StackRefusedError
        )

    @property
    def stack(self) -> AlwaysOn:
        """Return the present stack."""
        return self._store.value

    @property
    def problem(self) -> str:
        """Return one sentence if the file cannot be read."""
        return self._store.problem

    def lock(self) -> AbstractContextManager[object]:
        """Exclude other changes in a `with` statement; see `Store.lock`."""
        return self._store.lock()

    def put(self, stack: AlwaysOn) -> None:
        """Replace the stack.

        Raises:
            StackRefusedError: the stack could not be read back; the previous one stays.
            OSError: the file cannot be written; the previous stack stays.
        """
        self._store.change(lambda _: stack)

    def rename(self, names: Mapping[str, str]) -> None:
        """Change names of LoRA; of two entries of one name, the first stays.

        Raises:
            OSError: the file cannot be written; the previous stack stays.
        """

        def change(stack: AlwaysOn) -> AlwaysOn:
            entries: dict[str, AlwaysOnEntry] = {}
            for entry in stack.entries:
                name = names.get(entry.name, entry.name)
                entries.setdefault(name, replace(entry, name=name))
            return replace(stack, entries=tuple(entries.values()))

        if any(entry.name in names for entry in self.stack.entries):
            self._store.change(change)


def _read(content: bytes) -> AlwaysOn:
    return read(json.loads(content.decode("utf-8")))


def _write(stack: AlwaysOn) -> bytes:
    return json_bytes(stack.to_json(), indent=1)


def _entry(data: object, number: int) -> AlwaysOnEntry:
    what = f"entry {number}"
    if not isinstance(data, Mapping):
        raise StackRefusedError(f"{what} must be an object with a name, not {data!r:.60}")
    _refuse_others(data, ("name", "on", *_NUMBERS, "more"), what)
    name, on, more = data.get("name"), data.get("on", True), data.get("more", "")
    if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME:
        raise StackRefusedError(f"the name of {what} must be a text of 1 to {_MAX_NAME} characters")
    what = f"{what} ({name:.60})"
    if _UNWRITABLE & set(name):
        raise StackRefusedError(f"{what} has < or > in its name, which a tag cannot contain; rename the file")
    if not isinstance(on, bool):
        raise StackRefusedError(f"{what}: on must be true or false, not {on!r:.60}")
    numbers = {
        field: _strength(data.get(field, 1.0), f"{what}: the strength for {of}") for field, of in _NUMBERS.items()
    }
    if not isinstance(more, str) or len(more) > _MAX_MORE or set("<>") & set(more):
        raise StackRefusedError(f"{what}: more must be fields of a tag, as lbw=OUTALL:stop=10, not {more!r:.60}")
    return AlwaysOnEntry(name.strip(), on, **numbers, more=more.strip().strip(":"))


def _strength(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e6 or not math.isfinite(value):
        raise StackRefusedError(f"{what} must be a number, not {value!r:.60}")
    return float(value)


def _refuse_others(data: Mapping[Any, object], known: tuple[str, ...], what: str) -> None:
    if others := [str(field) for field in data if field not in known]:
        raise StackRefusedError(f"{what} has no field {others[0]:.60}; the fields are {', '.join(known)}")
