"""Every family: names, fused layers, files of every trainer, and the real key lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import load_network
from lib_lora.layer import LayerIndex
from lib_lora.network import Network, _parse, alias_table
from lib_lora.places import Place
from lib_lora.skeleton import skeleton
from tests.fakes.files import hollow, save
from tests.families import Family, Writer, families
from tests.families.base import linear_layers

FAMILIES = families()
CONVERTED = [name for name, family in FAMILIES.items() if family.convert is not None]
WRITERS = [(name, writer) for name, family in FAMILIES.items() for writer in family.writers]
LISTS = [(name, listed) for name, family in FAMILIES.items() for listed in family.lists]
RANK = 2


@lru_cache
def model(name: str, full: bool = False) -> nn.Module:
    return FAMILIES[name].build(full)


@lru_cache
def index(name: str, full: bool = False) -> LayerIndex:
    return LayerIndex(FAMILIES[name].component, model(name, full), alias_table())


def weights(family: Family) -> dict[str, tuple[int, ...]]:
    """Weights of the native tree that are matrices."""
    assert family.native is not None
    return {name: shape for name, shape in family.native().items() if name.endswith(".weight") and len(shape) > 1}


Origin = tuple[str, int, int]
"""Native layer, first row, one past the last."""


@lru_cache
def origins(name: str) -> dict[str, list[Origin]]:
    """diffusers' layer -> the native rows it is made of, in order, by diffusers' own converter.

    Each native weight has the numbers of its rows in it, counted on from weight to weight; it is as wide as a real one,
    but takes no memory.
    """
    family = FAMILIES[name]
    assert family.native is not None
    assert family.convert is not None
    given, starts, start = {}, {}, 0.0
    for key, shape in family.native().items():
        rows = torch.arange(start, start + shape[0], dtype=torch.float64)
        given[key] = rows.view(-1, *(1,) * (len(shape) - 1)).expand(shape)
        if key.endswith(".weight"):
            starts[key.removesuffix(".weight")] = start, start + shape[0]
        start += shape[0]
    found = {}
    for key, value in family.convert(dict(given)).items():
        if key.endswith(".weight") and value.ndim > 1:
            found[key.removesuffix(".weight")] = _runs(value[(slice(None), *(0,) * (value.ndim - 1))], starts)
    return found


def _runs(numbers: Tensor, starts: dict[str, tuple[float, float]]) -> list[Origin]:
    breaks = [0, *(torch.nonzero(numbers[1:] != numbers[:-1] + 1).flatten() + 1).tolist(), len(numbers)]
    found = []
    for low, high in pairwise(breaks):
        first, last = float(numbers[low]), float(numbers[high - 1]) + 1
        while first < last:  # a run may go on from one native weight into the next
            layer, (begin, end) = next(one for one in starts.items() if one[1][0] <= first < one[1][1])
            stop = min(last, end)
            found.append((layer, int(first - begin), int(stop - begin)))
            first = stop
    return found


def native_rows(place: Place, name: str) -> list[Origin]:
    """The native rows that a place of diffusers' tree has, in order."""
    found: list[Origin] = []
    for segment in place.segments:
        offset = segment.start + (segment.target.rows or (0,))[0]
        found += _cut(origins(name)[segment.target.path], offset, offset + segment.count)
    merged: list[Origin] = []
    for one in found:
        if merged and merged[-1][0] == one[0] and merged[-1][2] == one[1]:
            one = (one[0], merged.pop()[1], one[2])
        merged.append(one)
    return merged


def _cut(rows: list[Origin], start: int, stop: int) -> list[Origin]:
    found, offset = [], 0
    for layer, low, high in rows:
        first, last = max(start - offset, 0), min(stop - offset, high - low)
        if first < last:
            found.append((layer, low + first, low + last))
        offset += high - low
    return found


@pytest.mark.parametrize("name", CONVERTED)
def test_native_names_mean_what_the_converter_makes_of_them(name):
    """Each layer of the family's own code is found in diffusers' model, row by row where the converter puts it."""
    for key, shape in weights(FAMILIES[name]).items():
        layer = key.removesuffix(".weight")
        place = index(name).find(layer)
        assert place is not None, layer
        assert place.shape == shape, layer
        assert native_rows(place, name) == [(layer, 0, shape[0])], layer
        flat = index(name).find(layer.replace(".", "_"), flattened=True)
        assert flat == place, layer


@pytest.mark.parametrize("name", CONVERTED)
def test_the_native_tree_has_the_names_of_diffusers(name):
    """The other way round: a layer of diffusers' model is found in the native tree, the same rows of it."""
    family = FAMILIES[name]
    assert family.native is not None
    native = LayerIndex(family.component, skeleton(family.native()), alias_table())
    own = weights(family)
    for layer, rows in origins(name).items():
        place = native.find(layer)
        assert place is not None, layer
        assert [(one.target.path, one.start, one.stop) for one in place.segments] == rows, layer
        assert place.shape[1:] == own[f"{rows[0][0]}.weight"][1:], layer


def layers_of(family: Family, writer: Writer) -> dict[str, tuple[int, ...]]:
    """The layers a trainer writes -> shape."""
    if writer.fuse:
        shapes = layers_in(model(family.name))
        return {
            name: (sum(shapes[part][0] for part in parts), shapes[parts[0]][1]) for name, parts in writer.fuse.items()
        }
    if writer.names == "native" and family.native is not None:
        shapes = {key.removesuffix(".weight"): shape for key, shape in weights(family).items()}
    else:
        shapes = layers_in(model(family.name))
    return {name: shapes[name] for name in linear_layers(shapes, writer.layers)}


def layers_in(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        path: tuple(layer.weight.shape)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    }


def factors(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """down and up with a number for each row and rank, so that nothing can be mistaken for anything else."""
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(RANK, *shape[1:], generator=generator)
    up = torch.randn(shape[0], RANK, *(1,) * (len(shape) - 2), generator=generator)
    return down, up


def write(family: Family, writer: Writer, folder: Path) -> tuple[Path, dict[str, tuple[Tensor, Tensor]]]:
    """A file as the trainer writes it, and the factors of each of its layers."""
    tensors, made = {}, {}
    for seed, (layer, shape) in enumerate(layers_of(family, writer).items()):
        down, up = made[layer] = factors(shape, seed)
        params = {"lora_down.weight": down, "lora_up.weight": up, "alpha": torch.tensor(float(RANK))}
        for param, tensor in params.items():
            key = writer.key(layer, param)
            if key is not None:
                assert key not in tensors, key
                tensors[key] = tensor
    return save(folder / "file.safetensors", tensors, dict(writer.metadata)), made


@pytest.mark.parametrize(("name", "writer"), WRITERS)
def test_what_a_trainer_writes_comes_back(name, writer, tmp_path):
    """Known factors in, the same factors out, each row on the layer of diffusers' model that it is for."""
    family = FAMILIES[name]
    how = family.writers[writer]
    path, made = write(family, how, tmp_path)
    network = load_network(path, {family.component: model(name)})
    report = network.report
    assert report.unused == ()
    assert (report.format, report.architecture) == (how.format, name)
    assert (report.hit, report.layers) == (len(made), len(made))
    check(network, family, how, made)


def check(network: Network, family: Family, how: Writer, made: dict[str, tuple[Tensor, Tensor]]) -> None:
    met: dict[str, int] = dict.fromkeys(made, 0)
    for one in network.bound:
        form = one.adapter.form()
        assert form is not None
        assert form.pair is not None
        assert form.pair.scale == 1.0
        found = one.adapter.factors()
        sources = sources_of(family, how, one.target.path, one.target.rows)
        layers = {layer for layer, _, _ in sources}
        assert len(layers) == 1, one.target.name
        (layer,) = layers
        down, up = made[layer]
        expected = torch.cat([up.flatten(1)[low:high] for _, low, high in sources])
        assert torch.equal(found.up.flatten(1), expected), one.target.name
        assert torch.equal(found.down.flatten(), down.flatten()), one.target.name
        met[layer] += expected.shape[0]
    assert met == {layer: up.shape[0] for layer, (_, up) in made.items()}


def sources_of(family: Family, how: Writer, path: str, rows: tuple[int, int] | None) -> list[Origin]:
    """The layer and rows of the file that a layer of diffusers' model must have."""
    count = layers_in(model(family.name))[path][0]
    start, stop = rows or (0, count)
    if how.fuse:
        for layer, parts in how.fuse.items():
            offset = 0
            for part in parts:
                if part == path:
                    return [(layer, offset + start, offset + stop)]
                offset += layers_in(model(family.name))[part][0]
    if how.names == "native" and family.native is not None:
        return _cut(origins(family.name)[path], start, stop)
    return [(path, start, stop)]


@pytest.mark.parametrize(("name", "listed"), LISTS)
def test_real_key_lists(name, listed, real_keys, tmp_path):
    """Every key parsed by one format, every path found on the full model, as many layers as there are."""
    family, wanted = FAMILIES[name], FAMILIES[name].lists[listed]
    path = hollow(tmp_path / "file.safetensors", infos_of(real_keys, listed, name))
    components = {family.component: model(name, True), **{one: build() for one, build in family.encoders.items()}}
    report = load_network(path, components).report
    assert {reason: len(keys) for reason, keys in report.reasons().items()} == dict(wanted.left)
    assert report.format == wanted.format
    assert report.architecture == name
    assert (report.hit, report.layers, report.changed) == (wanted.layers, wanted.layers, wanted.changed)


def infos_of(folder: Path, listed: str, name: str) -> dict[str, tuple[Sequence[int], str]]:
    """Shape and dtype of each key of a list; where it has no shapes, those that the model's layers would have."""
    shapes = json.loads((folder / f"invokeai_{listed}.json").read_text())
    beside = folder / f"invokeai_{listed}.meta.json"
    dtypes = json.loads(beside.read_text())["dtypes"] if beside.exists() else {}
    return {
        key: (shape_for(key, name) if shape is None else shape, _DTYPES[dtypes.get(key, "torch.float16")])
        for key, shape in shapes.items()
    }


_DTYPES = {"torch.float16": "F16", "torch.float32": "F32"}


def shape_for(key: str, name: str) -> tuple[int, ...]:
    parsed = _parse(key)[1]
    assert parsed is not None, key
    place = index(name, True).find(parsed.module, flattened=parsed.flattened)
    assert place is not None, key
    return {
        "lora_down.weight": (RANK, *place.shape[1:]),
        "lora_up.weight": (place.shape[0], RANK, *(1 for _ in place.shape[2:])),
        "alpha": (),
    }[parsed.param]
