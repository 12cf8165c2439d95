"""A kind of input, and what takes it; see `target`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from hypothesis import strategies as st

from .changes import changed_text

Change: TypeAlias = Callable[[bytes, Random], bytes]
CORPUS = Path(__file__).with_name("corpus")
_OBJECT = "object at 0x"


@dataclass(frozen=True)
class Target:
    """A kind of input."""

    name: str
    run: Callable[[bytes], object]
    """Takes one input to its end; what it returns must be what can be written as JSON."""
    inputs: st.SearchStrategy[bytes]
    change: Change
    """Makes an input of another one."""
    refusals: tuple[type[Exception], ...]
    """Errors that are documented; each says in one sentence what is wrong."""

    @property
    def seeds(self) -> Sequence[Path]:
        """The inputs that are kept with the project."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())


_TARGETS: dict[str, Target] = {}


def target(
    inputs: st.SearchStrategy[bytes],
    change: Change = changed_text,
    refusals: tuple[type[Exception], ...] = (),
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """Make a function a target of its name.

    Args:
        inputs: what Hypothesis makes.
        change: makes an input of another one.
        refusals: errors that are documented.
    """

    def add(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        _TARGETS[run.__name__] = Target(run.__name__, run, inputs, change, refusals)
        return run

    return add


def all_targets() -> Mapping[str, Target]:
    """Return every target, by name; those of each module in `targets` are found."""
    from . import targets

    for module in sorted(one.name for one in pkgutil.iter_modules(targets.__path__)):
        importlib.import_module(f"{targets.__name__}.{module}")
    return _TARGETS


class Fault(Exception):  # noqa: N818  # in the words of this folder
    """What must not happen."""


def demand(holds: object, what: str) -> None:
    """Raise a fault unless something holds.

    Raises:
        Fault: it does not.
    """
    if not holds:
        raise Fault(what)


def check_answer(answer: object) -> None:
    """Check what a target returned, or said.

    Raises:
        Fault: it cannot be written as JSON, or a sentence of it shows the inside of the program.
    """
    try:
        text = json.dumps(answer, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Fault(f"the answer cannot be written as JSON: {error}") from error
    demand(_OBJECT not in text, "a sentence names an object by its address")
    demand("Traceback (most" not in text, "a sentence holds a traceback")


def is_there(package: str) -> bool:
    """Tell whether a package is installed; it is not imported."""
    return importlib.util.find_spec(package) is not None


def text_of(data: bytes) -> str:
    """Return an input that is text; what is no UTF-8 becomes halves of characters, as JSON and file names have them."""
    return data.decode("utf-8", "surrogateescape")


@cache
def folder(name: str) -> Path:
    """Return an empty folder of this process."""
    made = Path(tempfile.mkdtemp(prefix=f"remora-fuzz-{name}-"))
    _FOLDERS.append(made)
    return made


_FOLDERS: list[Path] = []


def remove_folders() -> None:
    """Remove those of this process."""
    for one in _FOLDERS:
        shutil.rmtree(one, ignore_errors=True)
    _FOLDERS.clear()
    folder.cache_clear()


def texts(tokens: Sequence[str], most: int = 30) -> st.SearchStrategy[bytes]:
    """Return a strategy for texts that are mostly made of these tokens, now and then with a run of one of them."""
    parts = st.sampled_from(tokens) | st.sampled_from(tokens) | st.text(max_size=4)
    run = st.builds(lambda unit: unit * (2000 // len(unit)), st.sampled_from([*tokens, " "]) | st.characters())
    runs = st.just("") | st.just("") | st.just("") | run
    return st.tuples(st.lists(parts, max_size=most), runs, st.integers(0, most)).map(
        lambda made: "".join([*made[0][: made[2]], made[1], *made[0][made[2] :]]).encode("utf-8", "surrogatepass")
    )


def json_values(names: Sequence[str], leaves: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON whose objects have some of these fields."""
    plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
    found = plain if leaves is None else plain | leaves
    keys = st.sampled_from(names) | st.text(max_size=5)
    return st.recursive(
        found, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6), max_leaves=20
    )


def as_json(value: Any) -> bytes:
    """Write JSON, halves of characters as escapes."""
    return json.dumps(value).encode()
