"""A model on disk, whose numbers are read from its files when they are needed: never more than a few rows at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ComponentError, FileError, printed
from ..files.file import AdapterFile, TensorInfo
from ..files.reading import read_object
from ..inspection.skeleton import COMPONENT_FOLDER, skeleton, weight_files
from ..naming.index import components_of
from .provenance import digest

INDEX = ".safetensors.index.json"
"""How the name of a file ends that says which shard has which tensor."""
PLAIN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Dtypes of weights that are stored as they are."""
_PACKED = frozenset({torch.int16, torch.int32})
_OTHER_WEIGHTS = frozenset({".bin", ".ckpt", ".pt", ".pth", ".msgpack", ".h5", ".onnx", ".onnx_data", ".pb", ".gguf"})
"""Endings of the names of files that have the same weights in another format."""
_AT_ONCE = 1 << 20  # numbers


class StoredRows(NamedTuple):
    """Some rows of a tensor, and the scale that their numbers have to be multiplied by."""

    stored: Tensor
    scale: Tensor
    """One number, or one of each row; 1 where there is none."""

    @property
    def numbers(self) -> Tensor:
        """Return what they mean, in fp64."""
        return self.stored.to(torch.float64) * self.scale

    def equals(self, other: StoredRows) -> bool:
        """Return whether the same bytes mean the same numbers in both."""
        is_same = self.stored.dtype == other.stored.dtype and torch.equal(self.stored, other.stored)
        return is_same and torch.equal(self.scale, other.scale)

    @property
    def last_places(self) -> Tensor:
        """Return the distance of each number to the next one."""
        limits, sizes = torch.finfo(self.stored.dtype), self.stored.to(torch.float64).abs()
        exponent = torch.frexp(sizes.clamp(min=limits.tiny)).exponent - 1
        return torch.ldexp(torch.full_like(sizes, limits.eps), exponent) * self.scale.abs()


class StoredTensor(NamedTuple):
    """A tensor of a file."""

    file: AdapterFile
    key: str

    @property
    def info(self) -> TensorInfo:
        return self.file.infos[self.key]

    @property
    def is_packed(self) -> bool:
        """Return whether it has the form of the numbers of a quantized weight."""
        dtype, shape, *_ = self.info
        is_small = dtype.itemsize == 1 and dtype is not torch.bool
        return len(shape) > 1 and (is_small or dtype in _PACKED)

    @property
    def scale_key(self) -> str | None:
        """Return the key of the scale of a weight in float8, one number or one of each row; None without one."""
        keys = [self.key.removesuffix("weight") + "scale_weight", f"{self.key}_scale"]
        is_scaled = self.is_packed and self.info.dtype.is_floating_point and self.key.endswith("weight")
        found = [one for one in keys if is_scaled and one in self.file.infos]
        fits = [one for one in found if math.prod(self.file.infos[one].shape) in (1, self.info.shape[0])]
        return fits[0] if fits else None

    def scaled(self, start: int, stop: int) -> StoredRows:
        """Read some rows, with their scale."""
        scale = torch.ones((), dtype=torch.float64)
        if (key := self.scale_key) is not None:
            scale = self.file.tensor(key).double().reshape(-1, 1)
            scale = scale if len(scale) == 1 else scale[start:stop]
        return StoredRows(self.rows(start, stop), scale)

    def rows(self, start: int, stop: int) -> Tensor:
        """Read some rows, each with all that is behind its number."""
        dtype, shape, first, end = self.info
        length = (end - first) // (shape[0] if shape else 1)
        with self.file.reading() as reader:
            return reader.flat(dtype, first + start * length, first + stop * length).reshape(stop - start, -1)


def joined_name(path: str, param: str) -> str:
    """Return the name of a parameter of the layer at a path, which is empty for the root."""
    return f"{path}.{param}" if path else param


def parts_of(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first row, and the one behind the last, of parts of a tensor that are worked on at once."""
    count = shape[0] if shape else 1
    step = max(1, _AT_ONCE // max(1, math.prod(shape[1:])))
    for start in range(0, count if math.prod(shape) else 0, step):
        yield start, min(start + step, count)


class ModelFiles:
    """The components of a model on disk, and which tensor of which file is which parameter.

    Args:
        path: of a checkpoint, of the index of its shards, of the folder of a component, or of a diffusers folder.

    Raises:
        FileError: a weight file cannot be read.
        ComponentError: there is no component in `path`.
    """

    def __init__(self, path: Path) -> None:
        self.path = (path.parent if path.name.endswith(INDEX) else path).absolute()
        self.files: list[AdapterFile] = []
        self.names: dict[StoredTensor, tuple[str, str]] = {}
        """The component and the name of the parameter that a tensor is."""
        self.stored: dict[tuple[str, str], StoredTensor] = {}
        """The same the other way round; the first one where several files have it."""
        for component, paths in _groups(self.path):
            self._add(component, paths)
        if not self.names:
            raise ComponentError(f"{path}: no unet, transformer or text encoder with safetensors weights there")

    def _add(self, component: str | None, paths: list[Path]) -> None:
        files = [AdapterFile.open(path) for path in paths]
        by_key: dict[str, list[StoredTensor]] = {}
        for one in [StoredTensor(file, key) for file in files for key in file.infos]:
            by_key.setdefault(one.key, []).append(one)
        self.files += files
        for name, own in (components_of(by_key) if component is None else {component: by_key}).items():
            for parameter, tensors in own.items():
                self.stored.setdefault((name, parameter), tensors[0])
                self.names.update(dict.fromkeys(tensors, (name, parameter)))

    @cached_property
    def components(self) -> dict[str, nn.Module]:
        """Return the layers, with weights that are read from the disk where a program reads them.

        Quantized weights stay on meta.
        """
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for (component, name), one in self.stored.items():
            shapes.setdefault(component, {})[name] = one.info.shape
        found = {component: skeleton(own) for component, own in shapes.items()}
        for component, root in found.items():
            for path, layer in root.named_modules():
                self._map_weights(component, path, layer)
        return found

    def _map_weights(self, component: str, path: str, layer: nn.Module) -> None:
        for param, former in list(layer._parameters.items()):
            one = self.stored.get((component, joined_name(path, param)))
            has_numbers = one is not None and one.info.dtype in PLAIN
            if one is None and param == "bias":
                layer._parameters[param] = None  # the model has none
            elif one is not None and has_numbers and former is not None and former.shape == one.info.shape:
                layer._parameters[param] = nn.Parameter(one.file.tensor(one.key), requires_grad=False)

    def below(self, path: Path) -> Path:
        """Return where a file of the model is in its folder."""
        return path.relative_to(self.path) if path != self.path else Path(path.name)

    def places(self) -> dict[str, Path]:
        """Return the files of its weights by where they are in its folder."""
        return {self.below(file.path).as_posix(): file.path for file in self.files}

    def hashes(self) -> dict[str, str]:
        """Return their SHA-256 likewise."""
        return {place: digest(path) for place, path in self.places().items()}

    def others(self) -> list[Path]:
        """List the files of a folder that belong to the model beside the weights of its components.

        Weights in other formats or precisions are none of them.
        """
        own, found = {file.path for file in self.files}, list[Path]()
        for path in sorted(self.path.rglob("*")) if self.path.is_dir() else ():
            place = self.below(path)
            is_component = len(place.parts) == 1 or COMPONENT_FOLDER.fullmatch(place.parts[0])
            is_weight = path.suffix in _OTHER_WEIGHTS or (path.suffix == ".safetensors" and is_component)
            is_hidden = any(part.startswith(".") for part in place.parts)
            if path.is_file() and path not in own and not is_weight and not is_hidden:
                found.append(path)
        return found

    def release_pages(self) -> None:
        """Give the memory back that was read through the maps of the files."""
        for file in self.files:
            file.release_pages()

    def quantized(self, component: str) -> StoredTensor | None:
        """Return a tensor of a component that is quantized; None without one."""
        return next((one for (owner, _), one in self.stored.items() if owner == component and one.is_packed), None)


def _groups(path: Path) -> Iterator[tuple[str | None, list[Path]]]:
    """Yield the files that belong together, and the component that they are; None where their keys tell."""
    if path.is_file():
        yield None, [path]
        return
    if not path.is_dir():
        raise FileError(path, "there is no such file or folder; give a checkpoint or the folder of a model")
    for index in (*path.glob(f"*{INDEX}"), *path.glob(f"*/*{INDEX}")):
        _check_shards(index)
    folders = [child for child in sorted(path.glob("*")) if child.is_dir() and COMPONENT_FOLDER.fullmatch(child.name)]
    found = {folder.name: weight_files(folder) for folder in folders}
    if any(found.values()):
        yield from found.items()
    else:
        yield (path.name if COMPONENT_FOLDER.fullmatch(path.name) else None), weight_files(path)


def _check_shards(index: Path) -> None:
    """Raise FileError where a shard is missing, without which the model would be written without its layers."""
    shards = read_object(index).get("weight_map")
    for name in sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else ():
        if not (index.parent / name).is_file():
            raise FileError(index, f"its shard {printed(name)} is missing; download it again")
