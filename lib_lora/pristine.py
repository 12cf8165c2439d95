"""Where a merged weight's original comes from when it is put back: its memory, a copy, or the checkpoint itself."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

import torch
from torch import Tensor

from .errors import FileError
from .file import AdapterFile, Stamp
from .layer import LayerIndex
from .skeleton import prefixes_of


class Pristine(Protocol):
    """One parameter as it was."""

    def read(self) -> Tensor:
        """The parameter, on the CPU; not to be written to.

        Raises:
            FileError: it was left in a file, and the file was overwritten.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes to have it."""
        ...


class Backup:
    """A copy in memory."""

    def __init__(self, parameter: Tensor) -> None:
        self._copy = parameter.detach().to("cpu", copy=True)

    def read(self) -> Tensor:
        """The copy."""
        return self._copy

    @property
    def nbytes(self) -> int:
        return self._copy.numel() * self._copy.element_size()


class Held:
    """The parameter's own memory, which it has again when it is put back; meanwhile it has other."""

    def __init__(self, parameter: Tensor) -> None:
        self._own = parameter.data

    def read(self) -> Tensor:
        """The memory."""
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
        """The tensor in the file."""
        return self._checkpoint.tensor(self._key)


class Checkpoint:
    """The safetensors files a component was loaded from, and which of their tensors is which parameter.

    Args:
        paths: a single-file checkpoint, or the files of a diffusers folder.
        index: the component's layers.

    Raises:
        FileError: a file cannot be read.
    """

    def __init__(self, paths: Iterable[Path], index: LayerIndex) -> None:
        self._keys: dict[tuple[str, str], str] = {}
        self._owner: dict[str, tuple[AdapterFile, BinaryIO]] = {}
        for path in paths:
            # kept open: a file that is replaced or deleted stays what it was for whoever has it open and mapped
            file, stream = AdapterFile.open(path), path.open("rb")
            weakref.finalize(self, stream.close)
            for key in file.keys:
                self._note(key, (file, stream), index)

    def find(self, path: str, param: str, like: Tensor) -> InFile | None:
        """The tensor that is the parameter `param` of the layer `path` bit for bit; None where there is none."""
        key = self._keys.get((path, param))
        if key is None:
            return None
        info = self._owner[key][0].infos[key]
        if info.dtype != like.dtype or info.shape != tuple(like.shape):
            return None
        found = InFile(self, key)
        return found if torch.equal(found.read(), like.detach().cpu()) else None

    def tensor(self, key: str) -> Tensor:
        """One tensor of the files.

        Raises:
            FileError: its file was overwritten in place.
        """
        file, stream = self._owner[key]
        if Stamp.of(os.fstat(stream.fileno())) != file.stamp:
            text = f"was overwritten while {key} of it was merged; load the model again"
            raise FileError(file.path, text)
        return file.tensor(key)

    def _note(self, key: str, owner: tuple[AdapterFile, BinaryIO], index: LayerIndex) -> None:
        for prefix in (*prefixes_of(index.component), ""):
            if key.startswith(prefix):
                path, _, param = key.removeprefix(prefix).rpartition(".")
                place = index.find(path)
                target = None if place is None else place.target
                if target is not None and target.rows is None and target.name == target.path:
                    self._keys.setdefault((target.path, param), key)
                    self._owner[key] = owner
