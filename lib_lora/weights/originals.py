"""The originals of merged weights: their own memory, a copy, or the checkpoint."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

import torch
from torch import Tensor

from ..errors import FileError
from ..files.file import AdapterFile, Stamp


class Pristine(Protocol):
    """One parameter as it was."""

    def read(self) -> Tensor:
        """Return the parameter on the CPU; never write to it.

        Raises:
            FileError: it was left in a file, and the file was overwritten.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that it occupies."""
        ...


class Backup:
    """A copy in memory."""

    def __init__(self, parameter: Tensor) -> None:
        self._copy = parameter.detach().to("cpu", copy=True)

    def read(self) -> Tensor:
        """Return the copy."""
        return self._copy

    @property
    def nbytes(self) -> int:
        return self._copy.numel() * self._copy.element_size()


class Held:
    """The parameter's own memory; while merged, the parameter has other memory."""

    def __init__(self, parameter: Tensor) -> None:
        self._own = parameter.data

    def read(self) -> Tensor:
        """Return the memory."""
        return self._own

    @property
    def nbytes(self) -> int:
        return self._own.numel() * self._own.element_size()


class InFile:
    """A tensor of a checkpoint, mapped; costs no memory."""

    nbytes = 0

    def __init__(self, checkpoint: Checkpoint, key: str) -> None:
        self._checkpoint = checkpoint
        self._key = key

    def read(self) -> Tensor:
        """Return the tensor in the file."""
        return self._checkpoint.tensor(self._key)


class Checkpoint:
    """The safetensors files a component was loaded from, and which of their tensors is which parameter.

    Args:
        paths: a single-file checkpoint, or the files of a diffusers folder.
        parameter_of: gives path and parameter of the layer that a key of the files is of; None where there is none.

    Raises:
        FileError: a file cannot be read.
    """

    def __init__(self, paths: Iterable[Path], parameter_of: Callable[[str], tuple[str, str] | None]) -> None:
        self._keys: dict[tuple[str, str], str] = {}
        self._owner: dict[str, tuple[AdapterFile, BinaryIO]] = {}
        for path in paths:
            # kept open: a file that is replaced or deleted keeps its bytes while it is open and mapped
            file, stream = AdapterFile.open(path), path.open("rb")
            weakref.finalize(self, stream.close)
            for key in file.keys:
                place = parameter_of(key)
                if place is not None:
                    self._keys.setdefault(place, key)
                    self._owner[key] = file, stream

    def find(self, path: str, param: str, like: Tensor) -> InFile | None:
        """Return the tensor that equals `param` of the layer `path` bit for bit; None if there is none."""
        key = self._keys.get((path, param))
        if key is None:
            return None
        info = self._owner[key][0].infos[key]
        if info.dtype != like.dtype or info.shape != tuple(like.shape):
            return None
        found = InFile(self, key)
        return found if torch.equal(found.read(), like.detach().cpu()) else None

    def tensor(self, key: str) -> Tensor:
        """Return one tensor of the files.

        Raises:
            FileError: its file was overwritten in place.
        """
        file, stream = self._owner[key]
        if Stamp.of(os.fstat(stream.fileno())) != file.stamp:
            text = f"was overwritten while {key} of it was merged; load the model again"
            raise FileError(file.path, text)
        return file.tensor(key)
