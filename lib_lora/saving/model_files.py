"""A model on disk, whose numbers are read from its files when they are needed: never more than a few rows at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from ..errors import ComponentError, FileError, printed
from ..files.file import AdapterFile
from ..files.reading import read_object
from ..inspection.skeleton import COMPONENT_FOLDER, skeleton, weight_files
from ..naming.index import components_of
from .packings.base import Packing, StoredTensor, packing_of
from .packings.gguf import SUFFIX as GGUF
from .packings.gguf import open_model_file
from .provenance import digest

INDEX = ".safetensors.index.json"
"""How the name of a file ends that says which shard has which tensor."""
PLAIN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Dtypes of weights that are stored as they are."""
_OTHER_WEIGHTS = frozenset({".bin", ".ckpt", ".pt", ".pth", ".msgpack", ".h5", ".onnx", ".onnx_data", ".pb", GGUF})
"""Endings of the names of files that have the same weights in another format."""
_AT_ONCE = 1 << 20  # numbers


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
        path: of a checkpoint, of the index of its shards, of the folder of a component, or of a diffusers folder. A
            checkpoint may be GGUF.

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
        self.packings: dict[tuple[str, str], Packing] = {}
        """How the numbers of each are stored, where that is known."""
        for component, paths in _groups(self.path):
            self._add(component, paths)
        if not self.names:
            raise ComponentError(f"{path}: no unet, transformer or text encoder with safetensors weights there")

    def _add(self, component: str | None, paths: list[Path]) -> None:
        files = [open_model_file(path) for path in paths]
        by_key: dict[str, list[StoredTensor]] = {}
        for one in [StoredTensor(file, key) for file in files for key in file.infos]:
            by_key.setdefault(one.key, []).append(one)
        self.files += files
        beside = {key: tensors[0] for key, tensors in by_key.items()}
        packings = {key: found for key, one in beside.items() if (found := packing_of(one, beside)) is not None}
        for packing in packings.values():  # whose parts are no parameters
            for part in packing.parts.values():
                by_key.pop(part.key, None)
        for name, own in (components_of(by_key) if component is None else {component: by_key}).items():
            for parameter, tensors in own.items():
                self.stored.setdefault((name, parameter), tensors[0])
                if (key := tensors[0].key) in packings:
                    self.packings.setdefault((name, parameter), packings[key])
                self.names.update(dict.fromkeys(tensors, (name, parameter)))

    @cached_property
    def components(self) -> dict[str, nn.Module]:
        """Return the layers, with weights that are read from the disk where a program reads them.

        Quantized weights stay on meta.
        """
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for place, one in self.stored.items():
            known = self.packings.get(place)
            shapes.setdefault(place[0], {})[place[1]] = one.info.shape if known is None else known.shape
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
