"""Every parameter of every kind in many shapes: a file is taken and can be computed, or is refused with a reason.

`test_resolution_properties.py` draws such files at random. This file tries the same ones each time: with `--all` each
of them on every layer, else on one layer of each kind, as most of what a shape does depends on the kind alone.
"""

import json
from collections import defaultdict
from contextlib import suppress
from itertools import islice

import pytest
import torch

from lib_lora import LoraError, load_network
from tests.fakes.contract import in_folders, of_recipes
from tests.fakes.files import save
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import LAYERS, NAMES, Model, weight_of

SHAPES = [(), (0,), (2,), (48,), (0, 4), (1, 1), (2, 3), (48, 24), (1, 1, 1), (4, 24, 1, 1), (1, 1, 1, 1, 1)]


def deformed(tensors, site):
    """Yield the tensors with one of another shape, and with a length that is not the layer's changed in all."""
    for key, tensor in tensors.items():
        own = tuple(tensor.shape)
        for shape in [*SHAPES, own[1:], own[:-1], (*own, 1), (1, *own), own[::-1]]:
            yield {**tensors, key: torch.full(shape, 0.1)}
    for length in {size for tensor in tensors.values() for size in tensor.shape} - set(site):
        for other in (0, 1, length + 1):
            shapes = {key: [other if size == length else size for size in one.shape] for key, one in tensors.items()}
            yield {key: torch.full(shape, 0.1) for key, shape in shapes.items()}


@pytest.mark.parametrize("alike", of_recipes(SAMPLES))
def test_parameters_of_any_shape_are_taken_or_refused(tmp_path, pytestconfig, alike):
    for folder, sample in in_folders(tmp_path, alike):
        _parameters_of_any_shape_are_taken_or_refused(folder, sample, pytestconfig)


def _parameters_of_any_shape_are_taken_or_refused(tmp_path, sample, pytestconfig):
    if sample.config is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(sample.config))
    path = tmp_path / "adapter_model.safetensors"
    of_kind = defaultdict(list)
    for layer, (kind, _, _) in LAYERS.items():
        if {kind, layer} & sample.layers:
            of_kind[kind].append(layer)
    for layer, (kind, make, _) in LAYERS.items():
        if layer not in of_kind[kind]:
            continue
        turn, turns = of_kind[kind].index(layer), 1 if pytestconfig.getoption("--all") else len(of_kind[kind])
        model = Model(make())
        site = tuple(weight_of(model, layer).shape)
        name = NAMES.get(layer, "layer")
        prefix = sample.prefix.replace("layer", name if "." in sample.prefix[:-1] else name.replace(".", "_"))
        for tensors in islice(deformed(sample.tensors(site), site), turn % turns, None, turns):
            renamed = {key.replace(sample.prefix, prefix): value for key, value in tensors.items()}
            with suppress(LoraError):
                network = load_network(save(path, renamed, sample.metadata), {"unet": model})
                assert len(network.report.unused) == (0 if network.bindings else len(renamed)), renamed
                for one in network.bindings:
                    shape = site if one.target.rows else one.target.shape  # of an embedding with fewer tokens
                    assert network.delta_weight("unet", name).shape == shape


OF_LENGTH_1 = {
    "as many factors as it likes": {"boft", "boft bounded and rescaled", "boft of peft, two factors"}
    | {"boft of peft, three factors", "hra", "hra in pairs", "hra, orthogonal", "deft of removal alone"},
    "as many entries as it likes": {"fourierft", "waveft", "waveft, no wavelets"},
    "a block that all inputs or outputs share": {"miss", "bone, r no divisor", "miss, mini", "glora of peft"}
    | {"oft of peft", "oft of peft, shared", "oft of peft, exact", "oft of peft, constrained"}
    | {"oft of onetrainer", "oft of onetrainer, scaled and shared"},
}
"""Reason -> samples of which a parameter may have the length 1 in place of another, all else being equal."""


@pytest.mark.parametrize("alike", of_recipes(SAMPLES))
def test_a_length_of_1_is_not_spread_over_a_layer(tmp_path, alike):
    for folder, sample in in_folders(tmp_path, alike):
        _a_length_of_1_is_not_spread_over_a_layer(folder, sample)


def _a_length_of_1_is_not_spread_over_a_layer(tmp_path, sample):
    """As torch would do it. Of embeddings, a file may change a few tokens."""
    if sample.config is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(sample.config))
    path, taken, kinds = tmp_path / "adapter_model.safetensors", [], set()
    for layer, (kind, make, _) in LAYERS.items():
        if not {kind, layer} & sample.layers or kind in kinds | {"embedding"}:
            continue
        kinds.add(kind)
        model, name = Model(make()), NAMES.get(layer, "layer")
        prefix = sample.prefix.replace("layer", name if "." in sample.prefix[:-1] else name.replace(".", "_"))
        own = sample.tensors(tuple(weight_of(model, layer).shape))
        tensors = {key.replace(sample.prefix, prefix): tensor for key, tensor in own.items()}
        for key, tensor in tensors.items():
            for dim in [dim for dim, length in enumerate(tensor.shape) if length > 1]:
                other = {**tensors, key: tensor.narrow(dim, 0, 1).contiguous()}
                with suppress(LoraError):
                    if load_network(save(path, other, sample.metadata), {"unet": model}).bindings:
                        taken.append((layer, key, tuple(tensor.shape), dim))
    name = sample.name.removesuffix(", beside a whole bias")
    assert bool(taken) == any(name in names for names in OF_LENGTH_1.values()), taken


@pytest.mark.parametrize("shape", [(), (0,), (0, 24)])
def test_a_change_of_an_embedding_that_has_no_tokens_is_refused(tmp_path, shape):
    path = save(tmp_path / "a.safetensors", {"lora_unet_layer.diff": torch.zeros(shape)})
    network = load_network(path, {"unet": Model(torch.nn.Embedding(50, 24))})
    assert [one.key for one in network.report.unused] == ["lora_unet_layer.diff"]
