"""Kinds of files that are no adapters, recognised by their keys, shapes, names or first bytes.

Nothing of a pickle is run: the names in it are read as text.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ....registry import cached, discover
from ...reading import open_regular
from .. import strangers as folder

_READ = 8_000_000
"""The bytes of a pickle in which names are searched."""
_LINE = 300
"""The characters of a key that are read; a longer key must not take long."""
_TEXTS = re.compile(rb"(?:X(?P<two>..)\x00\x00|\x8c(?P<one>.))", re.DOTALL)
"""Begin of a text in a pickle, with its length. Source: CPython Lib/pickle.py, BINUNICODE and SHORT_BINUNICODE."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A kind of file that people take for a LoRA.

    A sign is a pattern searched in the lines of a file: `name:a.bin`, and `key:conv_in.weight:320x4x3x3` for each
    tensor. A pickle has no shapes: `key:conv_in.weight:?`.

    Raises:
        ValueError: a sign does not begin with `^`.
    """

    name: str
    title: str
    """For people, as in `a ControlNet`."""
    remedy: str
    """What reads it, as in `load it with ControlNet`."""
    sign: str = ""
    never: str = ""
    """A sign of other files."""
    most: int | None = None
    """How many tensors such a file has at most."""
    heads: tuple[bytes, ...] = ()
    """First bytes, in small letters, of a file that is no safetensors; one of them is enough."""
    general: int = 0
    """Kinds with a smaller number are tried first: they may have these signs, too."""

    def __post_init__(self) -> None:
        for sign in filter(None, [self.sign, self.never]):
            if not sign.startswith("^"):
                raise ValueError(f"{sign!r} must begin with ^")

    def __str__(self) -> str:
        return f"it is {self.title}: {self.remedy}"

    def matches(self, text: str) -> bool:
        """Return whether the lines of a file, each behind a line feed, have its sign."""
        if not self.sign or (self.most is not None and text.count("\nkey:") > self.most):
            return False
        return bool(_searched(self.sign)(text)) and not (self.never and _searched(self.never)(text))


@cached
def strangers() -> tuple[Stranger, ...]:
    """Return all kinds, in the order in which they are tried."""
    return tuple(sorted(discover(folder, Stranger).values(), key=lambda one: one.general))


def stranger_of(shapes: Mapping[str, Iterable[int] | None], name: str = "") -> Stranger | None:
    """Return the kind of a file that is no adapter; None if nothing tells it. A shape is None where it is not known."""
    lines = ["", f"name:{name}"]
    for key, shape in shapes.items():
        lines.append(f"key:{key[:_LINE]}:{'?' if shape is None else 'x'.join(map(str, shape))}")
    text = "\n".join(lines)
    return next((one for one in strangers() if one.matches(text)), None)


def stranger_by_head(head: bytes) -> Stranger | None:
    """Return what a file is by its first bytes; None where they do not tell."""
    start = head.lstrip().lower()
    return next((one for one in strangers() if start and one.heads and start.startswith(one.heads)), None)


def stranger_in_pickle(path: Path) -> Stranger | None:
    """Return what a pickle is by the names in it, which are read as text; None where nothing tells.

    Raises:
        OSError: it cannot be read.
    """
    return stranger_of(dict.fromkeys(_names_in(path)), name=path.name)


def _names_in(path: Path) -> Iterator[str]:
    """Yield the names in the pickle in a file of torch's: since torch 1.6 such a file is an archive with one in it.

    Of an archive without a pickle, they are the names of its files.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.endswith("data.pkl"):
                    with archive.open(info) as stream:
                        yield from _texts(stream.read(_READ))
                    return
            yield from archive.namelist()
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError):  # no archive, or damaged
        with open_regular(path) as stream:
            yield from _texts(stream.read(_READ))


def _texts(content: bytes) -> Iterator[str]:
    for found in _TEXTS.finditer(content):
        size = int.from_bytes(found["two"] or found["one"], "little")
        name = content[found.end() : found.end() + size]
        if 0 < size <= _LINE and name.isascii() and name.decode("ascii").isprintable():
            yield name.decode("ascii")


@cache
def _searched(sign: str) -> Callable[[str], re.Match[str] | None]:
    """Return a search in text of which each line begins with a line feed."""
    # not with ^ itself: it would be tried at every character instead of once for a line
    return re.compile(f"\n{sign[1:]}", re.MULTILINE).search
