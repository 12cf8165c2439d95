"""The errors of lib_lora, checks of arguments that raise them, and the base classes of public values.

The text of an error is one sentence for the user: the fault, its place, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import Any, ClassVar, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V", covariant=True)

_SHOWN = 120  # characters of one field
_PRINTED = (str, int, float, bool, bytes, Fraction, Decimal)
_ITEMS, _DEEPEST = 3, 2  # of a list
_LONGEST = 120  # characters of a name in a sentence


def printed(name: str) -> str:
    """Return a name as one line has it."""
    return name if name.isprintable() and len(name) <= _LONGEST else f"{name!r:.{_LONGEST}}"


class LoraError(Exception):
    """Base of all errors of lib_lora."""


class ArgumentError(LoraError, TypeError):
    """An argument is of a type that its function does not take; the text says what to write."""


class FileError(LoraError, ValueError):
    """An adapter file at `path` cannot be read or written, for a `reason` that does not name the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # by which it is pickled
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{printed(self.path.name)}: {self.reason}"


class PickleError(FileError):
    """The file is a pickle; loading one can run any code its author put in."""


class UnknownFormatError(FileError):
    """No key format claims any key of the file."""


class UnknownAdapterError(UnknownFormatError):
    """The keys are understood, but no adapter kind claims their parameters."""


class NoMatchError(FileError):
    """Nothing in the file fits a layer of the given components, or too little to matter."""


class NumberError(ValueError):
    """A number of a file is not finite; the text says which. Only its layer is left out."""


class UnsupportedError(ValueError):
    """The parameters of a layer cannot be used as they are saved; the text says why. Only its layer is left out."""


class StackError(LoraError, ValueError):
    """An invalid stack; `index` is the position of the entry at fault, if there is one."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class ActivationError(LoraError):
    """Entries of a stack failed, so the former stack stays in force; `causes` has the error of each by position."""

    def __init__(self, names: Sequence[str], causes: Mapping[int, LoraError]) -> None:
        super().__init__(names, causes)
        self.causes = causes

    def __str__(self) -> str:
        names, causes = self.args
        return "; ".join(f"entry {i + 1} ({printed(names[i])}) was not applied: {causes[i]}" for i in causes)


class RowsError(LoraError, ValueError):
    """The rows of a call do not fit the images of the stack."""


class RegionError(LoraError, ValueError):
    """An entry has a region, and a model call does not tell where its tokens lie in the picture."""


class MomentError(LoraError, ValueError):
    """A strength depends on the step or the noise, which a model call does not tell."""


class StorageError(LoraError, ValueError):
    """Adapters cannot be stored on the device in the requested way."""


class ComponentError(LoraError, KeyError):
    """A component or layer is missing, gone, or hooked by another engine."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr


class RegistryError(LoraError):
    """A plug-in lacks something, its name is taken, or its `before` is unknown or circular."""


class FrozenMapping(Mapping[K, V], Generic[K, V]):
    """A mapping that nothing changes; unlike `MappingProxyType` it can be hashed, copied and pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[type[FrozenMapping[K, V]], tuple[dict[K, V]]]:
        return FrozenMapping, (self._items,)


def frozen(mapping: Mapping[K, V], what: str) -> FrozenMapping[K, V]:
    """Return a mapping that nothing changes, or raise ArgumentError where it is none."""
    check_type(mapping, Mapping, what, "a mapping")
    return mapping if isinstance(mapping, FrozenMapping) else FrozenMapping(mapping)


def check_type(value: object, wanted: type[Any] | tuple[type[Any], ...], what: str, example: str) -> None:
    """Raise ArgumentError where a value is of other types than the wanted ones; no bool is an `int`.

    `what` is the argument, and `example` what to write.
    """
    types = wanted if isinstance(wanted, tuple) else (wanted,)
    is_unwanted_bool = isinstance(value, bool) and bool not in types and object not in types
    if is_unwanted_bool or not isinstance(value, types):
        raise ArgumentError(f"{what} must be {example}, not {shown(value)}")


def check_count(value: object, what: str) -> None:
    """Raise ArgumentError where a value is no whole number from 0 up."""
    if type(value) is not int or value < 0:
        raise ArgumentError(f"{what} must be a whole number from 0 up, not {shown(value)}")


def check_path(value: object, example: str) -> None:
    """Raise ArgumentError where a value is no path that a file can have."""
    if not isinstance(value, str | PathLike) or not isinstance(fspath(value), str) or "\0" in str(fspath(value)):
        raise ArgumentError(f"a path is a text or a Path, not {shown(value)}; write {example}")


def check_choice(value: object, choices: Sequence[str], what: str, error: type[LoraError] = StackError) -> None:
    """Raise an error where a value is none of some texts."""
    if not (isinstance(value, str) and value in choices):
        raise error(f"{what} {shown(value)} must be one of {', '.join(choices)}")


def listed(value: Iterable[T], what: str, example: str) -> tuple[T, ...]:
    """Return what a list has, or raise ArgumentError where it is none."""
    check_type(value, Iterable, what, example)
    try:
        return tuple(value)
    except TypeError as error:  # as of a tensor of one number
        raise ArgumentError(f"{what} must be {example}, not {shown(value)}") from error


def texts(value: Iterable[str], what: str) -> tuple[str, ...]:
    """Return a list of texts as it is kept, or raise ArgumentError where it is none."""
    example = "a list of texts, as ('IN05', 'OUT05')"
    if isinstance(value, str):  # a text is a list of texts, too
        raise ArgumentError(f"{what} must be {example}, not {shown(value)}")
    kept = listed(value, what, example)
    for text in kept:
        check_type(text, str, f"each of {what}", "a text")
    return kept


def shown(value: object, depth: int = 0) -> str:
    """Return a value of an argument in one short line; only its type where it may be of any length."""
    if isinstance(value, list | tuple | set | dict) and depth < _DEEPEST:
        left, right = {list: ("[", "]"), tuple: ("(", ")")}.get(type(value), ("{", "}"))
        items = [shown(item, depth + 1) for item in islice(value, _ITEMS)]
        if isinstance(value, dict):
            items = [f"{key}: {shown(item, depth + 1)}" for key, item in zip(items, value.values(), strict=False)]
        return f"{left}{', '.join(items)}{', …' if len(value) > _ITEMS else ''}{right}"
    if value is None or isinstance(value, OneLine | PurePath) or type(value) in _PRINTED:
        try:
            return f"{value!r:.100}"
        except ValueError:  # Python prints no number of more than 4,300 digits
            return "a number of many digits"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


class OneLine:
    """A dataclass whose mappings do not change; its form of one line leaves out defaults and shortens long values."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Mapping) and not isinstance(value, FrozenMapping):
                object.__setattr__(self, field.name, FrozenMapping(value))

    def __repr__(self) -> str:
        given = []
        for field in fields(self):
            value = getattr(self, field.name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if field.repr and (default is MISSING or value != default):
                text = repr(value)
                is_short = len(text) <= _SHOWN
                given.append(f"{field.name}={text if is_short else f'{text[: _SHOWN // 2]}…{text[-_SHOWN // 4 :]}'}")
        return f"{type(self).__name__}({', '.join(given)})"


class NotCopied:
    """What can be neither copied nor pickled, as it is tied to one model in one process."""

    _copy_instead: str

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        text = f"{shown(self)} can be neither copied nor pickled, as it is tied to one model in one process"
        raise ArgumentError(f"{text}; {self._copy_instead}")
