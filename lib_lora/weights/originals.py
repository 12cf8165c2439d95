"""The originals of merged weights: their own memory, a copy, or the checkpoint; and marks, which tell of a change."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import FileError
from ..files.file import AdapterFile, stamp_of
from ..files.reading import open_regular
from .readers.base import is_wrapper, stored


@dataclass(frozen=True, slots=True)
class OriginalWeight:
    """A parameter as it was before adapters were merged into it, and where it is kept."""

    source: Literal["memory", "copy", "file"]
    """Its own memory, while the parameter has other memory; a copy on the CPU; or a tensor of a checkpoint."""
    read: Callable[[], Tensor]
    """Returns the parameter, which is not to be written to; raises FileError where the checkpoint was overwritten."""
    nbytes: int = 0
    """Bytes of memory that it occupies."""


def kept(parameter: Tensor) -> OriginalWeight:
    """Keep a parameter: on the CPU its own memory, so that the parameter must get other memory; else a copy."""
    if parameter.device.type == "cpu" and not parameter.is_inference():
        own = parameter.data
        return OriginalWeight("memory", lambda: own, own.nbytes)
    copy = parameter.data.to("cpu", copy=True)
    return OriginalWeight("copy", lambda: copy, copy.nbytes)


class Checkpoint:
    """The safetensors files a component was loaded from, and which of their tensors is which parameter.

    Args:
        paths: a single-file checkpoint, or the files of a diffusers folder.
        parameter_of: gives path and parameter of the layer that a key of the files is of; None where there is none.

    Raises:
        FileError: a file cannot be read.
    """

    def __init__(self, paths: Iterable[Path], parameter_of: Callable[[str], tuple[str, str] | None]) -> None:
        self._places: dict[tuple[str, str], tuple[AdapterFile, BinaryIO, str]] = {}
        for path in paths:
            # kept open: a file that is replaced or deleted keeps its bytes while it is open and mapped
            file, stream = AdapterFile.open(path), open_regular(path)
            weakref.finalize(self, stream.close)
            for key in file.infos:
                if (place := parameter_of(key)) is not None:
                    self._places.setdefault(place, (file, stream, key))

    def find(self, path: str, param: str, like: Tensor) -> OriginalWeight | None:
        """Return the tensor that equals `param` of the layer `path` bit for bit; None if there is none."""
        if (path, param) not in self._places:
            return None
        file, stream, key = self._places[path, param]

        def read() -> Tensor:
            size_and_time = stamp_of(os.fstat(stream.fileno()))[:2]  # to replace the file changes the others
            if size_and_time != file.stamp[:2]:
                raise FileError(file.path, f"it was overwritten while {key} of it was merged; load the model again")
            return file.tensor(key)

        is_like = file.infos[key][:2] == (like.dtype, tuple(like.shape))
        return OriginalWeight("file", read) if is_like and torch.equal(read(), like.data.cpu()) else None


_SAMPLES = 64

WeightMark: TypeAlias = tuple[int | None, Tensor]
"""A base weight at the time it was read: its version counter and some of its numbers, on its device."""


def mark_weight(layer: nn.Module, param: str) -> WeightMark | None:
    """Return the mark of a weight as it is stored now, without a wait; None if its numbers are elsewhere."""
    weight = stored(layer, param)
    samples = None if weight is None else _sampled(weight)
    return None if weight is None or samples is None else (version_of(weight), samples)


_PLAIN = (nn.Parameter, Tensor)  # the latter in `functional_call`


class WeightWatch:
    """Tells whether weights may have been written to, moved or replaced since it looked last; reads no number.

    Args:
        weights: layers, and the dotted names of parameters below them.
    """

    def __init__(self, weights: Iterable[tuple[nn.Module, str]]) -> None:
        self._weights = [(weakref.ref(layer), param) for layer, param in weights]
        self._seen = self._now()

    def changed(self) -> bool:
        """Tell whether anything differs."""
        return self._seen != self._now()

    def _now(self) -> list[object]:
        layers = [(module(), param) for module, param in self._weights]
        weights = [None if layer is None else layer._parameters.get(param) for layer, param in layers]
        plain = [weight for weight in weights if weight is not None and type(weight) in _PLAIN]
        found: list[object] = [*map(id, weights), *map(version_of, plain)]
        found += [weight.data_ptr() for weight in plain]
        if len(plain) < len(weights):  # packed ones, and ones that are computed from others, such as by weight_norm
            pairs = zip(layers, weights, strict=True)
            others = [layer for (layer, _), weight in pairs if layer is not None and type(weight) not in _PLAIN]
            found += [(id(one), version_of(one)) for layer in others for one in (*layer.parameters(), *layer.buffers())]
        return found


def version_of(weight: Tensor) -> int | None:
    """Return how often a tensor was written to in place; None where torch does not count that."""
    try:
        return weight._version
    except RuntimeError:  # made in inference mode, though `is_inference` may say no after its memory was exchanged
        return None


def samples_of(weight: Tensor) -> bytes | None:
    """Return some of the numbers of a weight, which waits for its device; None if they are elsewhere."""
    samples = _sampled(weight)
    return None if samples is None else bytes(samples.to("cpu").view(torch.uint8).tolist())


def _sampled(weight: Tensor) -> Tensor | None:
    """Return some of the numbers of a weight, on its device; None if they are elsewhere."""
    while is_wrapper(weight):
        inner: Any = weight
        weight = getattr(inner, inner.__tensor_flatten__()[0][0])
        assert isinstance(weight, Tensor)
    if weight.device.type == "meta" or weight.layout != torch.strided or not weight.numel():
        return None
    span = 1 + sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    count = min(span, _SAMPLES)
    step = (span // count - 1) | 1  # an odd one, or all would be in one column
    samples = weight.data.as_strided((count,), (step,), weight.storage_offset())
    return (samples.view(torch.uint8) if samples.element_size() == 1 else samples).clone()  # torch stacks no float8
