"""The layers of a file one by one, each with its adapter: on the weights that it was made for, or on a model's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ..adapters.base import Adapter
from ..errors import ComponentError
from ..files.components import DENOISER, EXACT, EXPERTS, role
from ..files.file import AdapterFile
from ..files.reading import USUAL, Reading, with_sidecar
from ..files.sources import component_files
from ..naming.binding import FusedWeight
from ..naming.blocks import block_of
from ..naming.index import LayerIndex
from ..naming.network import Network, each_part, fitted, reported
from ..naming.parsed import Group, ParsedFile
from ..naming.places import Target
from ..report import NetworkReport
from ..weights.readers.base import read_base_weight
from .deltas import Delta, delta_of

UNKNOWN = "unknown"
"""The component of a layer of which neither the file nor a model tells it."""
Progress: TypeAlias = Callable[[int, int], object]
"""Is called with the number of layers that are done, and of all. What it raises stops the work."""
_APART = EXACT - {"unet", "prior", EXPERTS[0]}
"""Components whose layers have the names of another component's; files call any other denoiser as they like."""
_Item = TypeVar("_Item")
_NUMBER = re.compile(r"(?:(?<=mid_block)|(?<=middle_block))_|_(?=\d+(?:_|$))|(?<=_\d)_|(?<=_\d\d)_")
"""The underscores of a flattened name that stand around numbers, and behind the middle block."""


def unheard(done: int, count: int) -> None:
    """Pass over the progress of the work."""


def counted(items: Sequence[_Item], progress: Progress) -> Iterator[_Item]:
    """Yield items, and tell how many are done before each of them."""
    for done, item in enumerate(items):
        progress(done, len(items))
        yield item


@dataclass(frozen=True, slots=True)
class ModelWeight:
    """The weight of a model that an adapter changes."""

    root: nn.Module
    """Of the component, which an index holds weakly."""
    index: LayerIndex
    target: Target
    fused: FusedWeight

    def read(self) -> Tensor:
        """Return the weight; raise ComponentError where it cannot be read."""
        return read_base_weight(self.index.module(self.target.path), self.target.param).detach()[self.target.slice]

    def read_whole(self) -> Tensor:
        """Return the weight of the file's layer, likewise."""
        return self.fused.read()


@dataclass(frozen=True, slots=True)
class FileLayer:
    """One layer of a file."""

    file: AdapterFile
    component: str
    """Of the model, or what the file's keys say, by diffusers' names."""
    name: str
    """Of the model's layer, or as the file spells it."""
    adapter: Adapter
    shape: tuple[int, ...]
    keys: tuple[str, ...] = ()
    """Of its parameters in the file; none where the file was resolved against a model."""
    weight: ModelWeight | None = None
    rank: int | None = None
    """How many rank components are used, if not all."""

    @property
    def kind(self) -> str:
        """Return the names of its algorithm and of the modifiers around it, as `lora+dora`."""
        names = [getattr(one, "name", "") for one in self._nested]  # some rows of an adapter have none
        return "+".join(filter(None, reversed(names)))

    @property
    def scale(self) -> float | None:
        """Return the file's factor on the change, alpha / rank; None where its algorithm has none."""
        scales = [getattr(one, "scale", None) for one in self._nested]
        return next((float(scale) for scale in scales if isinstance(scale, int | float)), None)

    @property
    def _nested(self) -> list[Adapter]:
        """Return its adapter, the one inside it, and so on."""
        found = [self.adapter]
        while isinstance(inner := getattr(found[-1], "inner", None), Adapter):  # VeRA's is a tensor
            found.append(inner)
        return found

    @property
    def place(self) -> tuple[str, str]:
        """Return what the layers of two files have in common that change the same weight."""
        if self.weight is not None:
            return self.component, self.name
        own = self.component if self.component in _APART else role(self.component)
        return own, self.name.replace(".", "_")

    @property
    def block(self) -> str:
        """Return the name that block weights have for its block; empty for a layer in no block."""
        component = DENOISER if self.component == UNKNOWN else self.component
        is_flat = self.weight is None and "." not in self.name
        return block_of(component, _NUMBER.sub(".", self.name) if is_flat else self.name)

    def delta(self) -> Delta | None:
        """Return the change of the weight; None where it depends on a base weight that cannot be read.

        Raises:
            FileError: the file changed on disk.
        """
        adapter = self.file.private(self.adapter)
        stacked = self.weight is not None and self.weight.target.kind == "experts"
        try:
            return delta_of(adapter, self.weight, stacked=stacked, rank=self.rank)
        except ComponentError:
            return delta_of(adapter, stacked=stacked, rank=self.rank)

    def base_norm(self) -> float | None:
        """Return the Frobenius norm of the base weight; None where it cannot be read."""
        try:
            weight = None if self.weight is None else self.weight.read()
        except ComponentError:
            return None
        if weight is None:
            return None
        # a row in fp32 is exact enough, and four times as fast as a copy of the weight in fp64
        dtype = torch.promote_types(weight.dtype, torch.float32)
        rows = torch.linalg.vector_norm(weight.reshape(len(weight), -1), dim=1, dtype=dtype)
        return float(rows.double().norm())


@dataclass(frozen=True, slots=True)
class FileLayers:
    """A LoRA and its layers that can be measured."""

    files: tuple[ParsedFile, ...]
    """Its file; of a folder that PEFT saved, the file of each component."""
    report: NetworkReport
    layers: tuple[FileLayer, ...]
    shapeless: tuple[tuple[AdapterFile, Group], ...]
    """Layers whose parameters do not tell the weight that they are for, as OFT's; only a model tells."""
    not_finite: tuple[str, ...]
    """Keys of tensors with numbers that are NaN or infinite; their layers are not in `layers`."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the files open while their layers are read.

        Raises:
            FileError: a file changed on disk.
        """
        with ExitStack() as opened:
            for one in self.files:
                opened.enter_context(one.file.reading())
            yield


def layers_of(
    path: str | Path,
    components: Mapping[str, nn.Module] | None = None,
    reading: Reading = USUAL,
    rank: int | None = None,
) -> FileLayers:
    """Open a file and list its layers; their tensors are read later, layer by layer.

    Args:
        path: of the file, or of a folder that PEFT saved component by component.
        components: of a model, by diffusers' names, to resolve the file against; its weights are read where needed.
        reading: how to read files that other programs read otherwise than they were trained.
        rank: how many rank components are used, if not all.

    Raises:
        FileError: the file cannot be read, or is no adapter that Remora knows, or does not fit the model.
    """
    if component_files(folder := Path(path)):
        parts, faults = each_part(folder, lambda parsed: _layers_of(parsed, components, reading, rank))
        found = list(parts.values())
        return FileLayers(
            tuple([file for one in found for file in one.files]),
            reported(folder, {name: one.report for name, one in parts.items()}, faults),
            tuple([layer for one in found for layer in one.layers]),
            tuple([group for one in found for group in one.shapeless]),
            tuple([f"{name}/{key}" for name, one in parts.items() for key in one.not_finite]),
        )
    return _layers_of(ParsedFile(AdapterFile.open(path)), components, reading, rank)


def _layers_of(
    parsed: ParsedFile, components: Mapping[str, nn.Module] | None, reading: Reading, rank: int | None
) -> FileLayers:
    """List the layers of one file, likewise."""
    file, reading = parsed.file, with_sidecar(parsed.file.path, reading)
    bad = file.not_finite([key for group in parsed.groups for key in group.reads])
    sound = [group for group in parsed.groups if group.recipe is not None and bad.isdisjoint(group.reads)]
    if components is not None:
        report, layers = _on_model(parsed, components, reading)
        return FileLayers((parsed,), report, tuple([replace(one, rank=rank) for one in layers]), (), tuple(sorted(bad)))
    layers, usable = list[FileLayer](), {id(group) for group in sound}
    for group, adapter in parsed.by_themselves(reading)[0]:
        if group.own_site is not None and id(group) in usable:
            component = group.component or UNKNOWN
            shape, keys = group.own_site.shape, group.reads
            layers.append(FileLayer(file, component, group.module, adapter, shape, keys, rank=rank))
    shapeless = tuple([(file, group) for group in sound if group.own_site is None])
    return FileLayers((parsed,), parsed.report(reading=reading), tuple(layers), shapeless, tuple(sorted(bad)))


def _on_model(
    parsed: ParsedFile, components: Mapping[str, nn.Module], reading: Reading
) -> tuple[NetworkReport, list[FileLayer]]:
    """Return the layers of a model that a file changes; raise NoMatchError where it does not fit."""
    indexes = {name: LayerIndex(name, module) for name, module in components.items()}
    network = fitted(Network(parsed, list(indexes.values()), reading))
    found = []
    for one in network.bindings:
        index, target = indexes[one.component], one.target
        weight = ModelWeight(components[one.component], index, target, FusedWeight(one.place, index))
        layer = FileLayer(parsed.file, one.component, target.name, one.adapter, target.shape, weight=weight)
        found.append(layer)
    return network.report, found
