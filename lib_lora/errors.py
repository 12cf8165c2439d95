"""The errors of lib_lora. Each text is one sentence for the user: the fault, its place, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_LONGEST = 120  # characters of a name in a sentence


def printed(name: str) -> str:
    """Return a name as one line has it."""
    return name if name.isprintable() and len(name) <= _LONGEST else f"{name!r:.{_LONGEST}}"


class LoraError(Exception):
    """Base of all errors of lib_lora."""


class ArgumentError(LoraError, TypeError):
    """An argument is of a type that its function does not take; the text says what to write."""


class FileError(LoraError, ValueError):
    """An adapter file at `path` cannot be read, for a `reason` that does not name the file."""

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
