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
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.architectures.base import fact, known_architectures, ranked
from lib_lora.naming.binding import Binding
from lib_lora.naming.index import LayerIndex
from lib_lora.naming.network import Network
from lib_lora.naming.places import Place
from lib_lora.report import NetworkReport
from tests.conftest import ROOT
from tests.covering import some_of
from tests.fakes.files import hollow, save
from tests.fakes.keys import parse_key
from tests.families import Family, Writer, families
from tests.families.base import List, linear_layers

FAMILIES = families()
CONVERTED = [name for name, family in FAMILIES.items() if family.convert is not None]
WRITERS = [(name, writer) for name, family in FAMILIES.items() for writer in family.writers]
LISTS = [(name, listed) for name, family in FAMILIES.items() for listed in family.lists]
MADE = [(name, made) for name, family in FAMILIES.items() for made in family.made]
RANK = 2
ALPHA = 1.0
"""Not the rank, so that a scale that is forgotten shows."""


@lru_cache
def model(name: str, full: bool = False) -> nn.Module:
    return FAMILIES[name].build(full)


@lru_cache
def encoder(name: str, component: str) -> nn.Module:
    return FAMILIES[name].encoders[component]()


def module(family: Family, component: str = "") -> nn.Module:
    return encoder(family.name, component) if component in family.encoders else model(family.name)


@lru_cache
def index(name: str, full: bool = False) -> LayerIndex:
    return LayerIndex(FAMILIES[name].component, model(name, full))


def weights(family: Family) -> dict[str, tuple[int, ...]]:
    """Weights of the native tree that are matrices."""
    assert family.native is not None
    return {name: shape for name, shape in family.native().items() if name.endswith(".weight") and len(shape) > 1}


Origin = tuple[str, int, int]
"""Native layer, first row, one past the last."""


@lru_cache
def origins(name: str) -> dict[str, list[Origin]]:
    """diffusers' layer -> the native rows it is made of, in order, by diffusers' own converter.

    Each native weight has the numbers of its rows in it, counted on from weight to weight, and one column.
    """
    family = FAMILIES[name]
    assert family.native is not None
    assert family.convert is not None
    given, starts, start = {}, {}, 0.0
    for key, shape in family.native().items():
        rows = torch.arange(start, start + shape[0], dtype=torch.float64)
        given[key] = rows.view(-1, *(1,) * (len(shape) - 1))
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
    """Return the native rows of a place in diffusers' tree, in order."""
    found: list[Origin] = []
    for window in place.windows:
        found += _cut(origins(name)[window.path], window.first, window.first + window.shape[0])
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
    native = LayerIndex(family.component, skeleton(family.native()))
    own = weights(family)
    for layer, rows in origins(name).items():
        place = native.find(layer)
        assert place is not None, layer
        assert [(one.path, one.first, one.first + one.shape[0]) for one in place.windows] == rows, layer
        assert place.shape[1:] == own[f"{rows[0][0]}.weight"][1:], layer


@pytest.mark.parametrize("name", FAMILIES)
def test_the_names_of_a_model_tell_its_family(name):
    """Of diffusers' model and of one under the names of the family's own code."""
    family = FAMILIES[name]
    trees = [layers_in(model(name))]
    if family.native is not None:
        trees.append({key.removesuffix(".weight"): shape for key, shape in weights(family).items()})
    for tree in trees:
        (found, _), *_ = ranked(known_architectures(), [fact(family.component, *one) for one in widths(tree)])
        assert found.name == family.known_as


def widths(tree: dict[str, tuple[int, ...]]) -> list[tuple[str, int]]:
    return [(layer, shape[1]) for layer, shape in tree.items()]


def layers_of(family: Family, writer: Writer) -> dict[str, list[Origin]]:
    """Return the native rows of each layer that a trainer writes; the model's rows where it has no other tree."""
    if writer.names == "native" and family.native is not None and not writer.fuse:
        rows = {key.removesuffix(".weight"): shape[0] for key, shape in weights(family).items()}
        return {name: [(name, 0, rows[name])] for name in linear_layers(rows, writer.layers)}
    known = rows_of(family, writer.component)
    parts = writer.fuse or {name: (name,) for name in linear_layers(known, writer.layers)}
    return {name: [row for part in own for row in known[part]] for name, own in parts.items()}


def rows_of(family: Family, component: str) -> dict[str, list[Origin]]:
    """Return the native rows of each layer of diffusers' model."""
    if family.convert is not None and component not in family.encoders:
        return origins(family.name)
    return {name: [(name, 0, shape[0])] for name, shape in layers_in(module(family, component)).items()}


@lru_cache
def layers_in(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        path: tuple(layer.weight.shape)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    }


@lru_cache
def factors(name: str, component: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Native layer -> down and up with a number for each row and rank, so that nothing can be mistaken for another."""
    family = FAMILIES[name]
    if family.native is not None and component not in family.encoders:
        shapes = {key.removesuffix(".weight"): shape for key, shape in weights(family).items()}
    else:
        shapes = layers_in(module(family, component))
    return {layer: random_factors(shape, seed) for seed, (layer, shape) in enumerate(shapes.items())}


def random_factors(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(RANK, *shape[1:], generator=generator)
    up = torch.randn(shape[0], RANK, *(1,) * (len(shape) - 2), generator=generator)
    return down, up


def write(family: Family, writer: Writer, folder: Path, alpha: float = ALPHA) -> Path:
    """Return a file as the trainer writes it, with the factors of each of its layers."""
    tensors: dict[str, Tensor] = {}
    made = factors(family.name, writer.component)
    for layer, rows in layers_of(family, writer).items():
        down = made[rows[0][0]][0].clone()  # as layers that are trained apart have each their own
        up = torch.cat([made[native][1][low:high] for native, low, high in rows])
        for param, tensor in (("lora_down.weight", down), ("lora_up.weight", up), ("alpha", torch.tensor(alpha))):
            key = writer.key(layer, param)
            if key is not None:
                assert key not in tensors, key
                tensors[key] = tensor
    return save(folder / f"{len(list(folder.iterdir()))}.safetensors", tensors, dict(writer.metadata))


@lru_cache
def components(name: str) -> dict[str, nn.Module]:
    family = FAMILIES[name]
    return {family.component: model(name), **{one: encoder(name, one) for one in family.encoders}}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_is_recognised_by_its_own_names(name):
    """In both trees, by its layers alone."""
    family = FAMILIES[name]
    trees = [model(name)] + ([] if family.native is None else [skeleton(family.native())])
    for tree in trees:
        facts = [fact(family.component, layer, shape[1]) for layer, shape in layers_in(tree).items()]
        (found, _), *_ = ranked(known_architectures(), facts)
        assert found.name == family.known_as


@pytest.mark.full
def test_the_documents_have_the_table_of_families(pytestconfig):
    """All of it, or a few rows, as it makes every model."""
    from tests.families.__main__ import HEADER, table

    text = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    (found,) = (part.splitlines() for part in text.split("\n\n") if part.startswith("\n".join(HEADER)))
    if pytestconfig.getoption("--all"):
        assert list(table()) == found
    else:
        assert set(table(list(FAMILIES)[::12])) <= set(found)
        assert len(found) == len(HEADER) + len(FAMILIES)


@some_of(("name", "writer"), [pytest.param(*each) for each in WRITERS], strength=1)
def test_what_a_trainer_writes_comes_back(name, writer, tmp_path):
    """Known factors in, the same factors out, each row on the layer of diffusers' model that it is for."""
    family = FAMILIES[name]
    how = family.writers[writer]
    network = load_network(write(family, how, tmp_path), components(name))
    report = network.report
    assert report.unused == ()
    assert not network.parsed.stranger
    assert (report.format, report.architecture) == (how.format, family.known_as if how.tells else None)
    layers = layers_of(family, how)
    assert (report.hit, report.layers) == (len(layers), len(layers))
    assert {one.component for one in network.bindings} == {how.component or family.component}
    check(network, family, how, layers)


def check(network: Network, family: Family, how: Writer, layers: dict[str, list[Origin]]) -> None:
    """Each layer of the model has the factors of the native rows that it is; all rows of the file are met."""
    downs = {native: layer_rows[0][0] for layer_rows in layers.values() for native, _, _ in layer_rows}
    made = factors(family.name, how.component)
    scale = 1.0 if how.key(next(iter(layers)), "alpha") is None else ALPHA / RANK
    met: dict[str, int] = {}
    for one in network.bindings:
        rows = bound_rows(family, one)
        assert one.adapter.form().pair.scale == scale
        found = one.adapter.factors()
        expected = torch.cat([made[native][1][low:high].flatten(1) for native, low, high in rows])
        assert torch.equal(found.up.flatten(1), expected), one.target.name
        assert torch.equal(found.down.flatten(), made[downs[rows[0][0]]][0].flatten()), one.target.name
        for native, low, high in rows:
            met[native] = met.get(native, 0) + high - low
    wanted: dict[str, int] = {}
    for native, low, high in (row for layer_rows in layers.values() for row in layer_rows):
        wanted[native] = wanted.get(native, 0) + high - low
    assert met == wanted


def bound_rows(family: Family, one: Binding) -> list[Origin]:
    """Return the native rows that an adapter of diffusers' model changes."""
    target = one.target
    start, stop = target.rows or (0, layers_in(module(family, one.component))[target.path][0])
    return _cut(rows_of(family, one.component)[target.path], start, stop)


@some_of(
    ("name", "writer"),
    [
        pytest.param(name, writer)
        for name, family in FAMILIES.items()
        for writer, how in family.writers.items()
        if family.both_trees and not how.component
    ],
    strength=1,
)
def test_what_a_trainer_writes_is_found_in_the_native_tree(name, writer, tmp_path):
    family = FAMILIES[name]
    how = family.writers[writer]
    path = write(family, how, tmp_path)
    native = load_network(path, {family.component: native_tree(name)})
    report = native.report
    assert report.unused == ()
    assert (report.format, report.hit, report.layers) == (how.format, *(len(layers_of(family, how)),) * 2)
    for one in native.bindings:
        found, start = one.adapter.factors().up.flatten(1), (one.target.rows or (0,))[0]
        made = factors(name, "")[one.target.path][1].flatten(1)
        assert torch.equal(found, made[start : start + len(found)]), one.target.name


@lru_cache
def native_tree(name: str) -> nn.Module:
    family = FAMILIES[name]
    assert family.native is not None
    return skeleton(family.native())


@pytest.mark.parametrize("name", [name for name in CONVERTED if len(FAMILIES[name].writers) > 1])
def test_one_adapter_is_the_same_in_every_format(name, tmp_path):
    """Fused or apart, under whatever name: the same factors and scale, bit for bit, on each layer of the model."""
    family = FAMILIES[name]
    found: dict[tuple[str, tuple[int, int] | None], list[tuple[Tensor, Tensor, float]]] = {}
    for how in family.writers.values():
        layers = layers_of(family, how)
        shared = {file for file, rows in layers.items() if len({native for native, _, _ in rows}) > 1}
        if how.component or not shared <= set(how.fuse):
            continue
        # one `down` where others have several is another adapter
        other = {path for file in shared for path in how.fuse[file]}
        for one in load_network(write(family, how, tmp_path, RANK), {family.component: model(name)}).bindings:
            if one.target.path in other:
                continue
            pair = one.adapter.factors()
            same = found.setdefault((one.target.path, one.target.rows), [])
            same.append((pair.down.flatten(1), pair.up.flatten(1), one.adapter.form().pair.scale))
    assert max(map(len, found.values())) > 1
    for same in found.values():
        for down, up, scale in same[1:]:
            assert torch.equal(down, same[0][0])
            assert torch.equal(up, same[0][1])
            assert scale == same[0][2]


@pytest.mark.parametrize(("name", "listed"), LISTS)
def test_real_key_lists(name, listed, real_keys, tmp_path):
    """Every key parsed by one format, every path found on the full model, as many layers as there are."""
    family, wanted = FAMILIES[name], FAMILIES[name].lists[listed]
    path = hollow(tmp_path / "file.safetensors", infos_of(real_keys, listed, name))
    report = load_network(path, {**components(name), family.component: model(name, True)}).report
    if not wanted.shapes:  # then a name that is found is one whose shape is complained of
        assert {one.cause for one in report.unused} <= {"shape"}
        assert (report.format, report.layers) == (wanted.format, wanted.layers)
        return
    check_list(report, wanted, family)


@pytest.mark.parametrize(("name", "made"), MADE)
def test_made_key_lists(name, made, tmp_path):
    """Files of other kinds than LoRA, as their trainer's source has them."""
    family, wanted = FAMILIES[name], FAMILIES[name].made[made]
    path = save(tmp_path / "file.safetensors", {key: torch.ones(shape) for key, shape in wanted.shapes().items()})
    report = load_network(path, components(name)).report
    check_list(report, wanted.becomes, family)
    assert report.kinds == wanted.kinds


def check_list(report: NetworkReport, wanted: List, family: Family) -> None:
    assert {reason: len(keys) for reason, keys in report.reasons().items()} == dict(wanted.left)
    assert report.format == wanted.format
    assert report.architecture == (family.known_as if wanted.tells else None)
    unhit = report.layers - report.hit
    assert (report.layers, report.changed) == (wanted.layers, wanted.changed)
    assert unhit == 0 or wanted.left


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
    parsed = parse_key(key)[1]
    assert parsed is not None, key
    place = index(name, True).find(parsed.module, flattened=parsed.flattened)
    assert place is not None, key
    return {
        "lora_down.weight": (RANK, *place.shape[1:]),
        "lora_up.weight": (place.shape[0], RANK, *(1 for _ in place.shape[2:])),
        "alpha": (),
    }[parsed.param]
