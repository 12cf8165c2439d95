"""What every adapter kind can do beside its output: tell its delta, add up in any order, give a part of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lib_lora import AdapterFile, Engine, Entry, Stack, load_network, plan
from lib_lora.adapters.base import At
from lib_lora.execution.dense import DenseExecutor
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from lib_lora.naming.parsed import ParsedFile
from tests.fakes.contract import (
    BOUNDS,
    CASES,
    EACH,
    FILE,
    by_recipe,
    change_bias,
    in_folders,
    of_recipes,
    reference,
    run,
    worst,
    write,
)
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import LAYERS, NAMES, bias_of, exact, make, weight_of

DENSE = {"full", "loha, many ranks", "loha tucker, many ranks", "loha of PEFT", "lokr across, full"}
"""Samples that take an effective weight where they can."""


@pytest.mark.parametrize(
    ("sample", "layer"), [case for case in CASES if case.values[0].recipe == "loha" and case.values[1] == "linear"]
)
def test_a_pair_larger_than_what_it_is_made_of_is_not_kept(tmp_path, sample, layer):
    base, _ = make(layer)
    path, _ = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    served = Engine({"unet": base})
    served.activate(Stack([Entry(path)]))
    slot = slot_of(base.layer)
    assert slot is not None
    assert isinstance(slot.executor, DenseExecutor if sample.name in DENSE else LowRankExecutor)


@pytest.mark.parametrize(
    ("sample", "layer"),
    [case for case in CASES if case.values[0].name in DENSE and LAYERS[case.values[1]][0] in ("linear", "conv")],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_without_a_plain_weight_it_is_beside_the_layer(tmp_path, sample, layer, dtype, monkeypatch):
    """As on a quantized layer, whose weight does not lie there to be added to."""
    base, x = make(layer, dtype)
    path, tensors = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    monkeypatch.setattr(plan, "has_plain_weight", lambda *_: False)
    pristine, served = exact(base), Engine({"unet": base})
    served.activate(Stack([Entry(path, 1.5)]))
    slot = slot_of(base.layer)
    assert slot is not None
    assert isinstance(slot.executor, LowRankExecutor)
    want = run(reference(pristine, layer, sample, tensors, 1.5), x.double())
    assert worst(run(base, x), want) < max(BOUNDS[dtype], FILE)


@pytest.mark.parametrize(("sample", "layer", "dtype"), by_recipe(CASES, [torch.float16, torch.bfloat16]))
def test_a_file_in_half_precision(tmp_path, sample, layer, dtype):
    base, x = make(layer)
    path, tensors = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    halved = {
        key: value.to(dtype) if value.is_floating_point() and value.ndim else value
        for key, value in load_file(path).items()
    }
    save_file(halved, path, metadata)
    pristine, served = exact(base), Engine({"unet": base})
    served.activate(Stack([Entry(path, 1.5)]))
    rounded = {
        key: value.to(dtype).to(value.dtype) if value.is_floating_point() and value.ndim else value
        for key, value in tensors.items()
    }
    exact_x = x.double() if x.is_floating_point() else x
    want = run(reference(pristine, layer, sample, rounded, 1.5), exact_x)
    assert worst(run(base, x), want) < BOUNDS[torch.float32]


@pytest.mark.parametrize("alike", of_recipes(EACH))
def test_the_shape_that_parameters_were_made_for(tmp_path, alike):
    for folder, sample, layer in in_folders(tmp_path, alike):
        _the_shape_that_parameters_were_made_for(folder, sample, layer)


def _the_shape_that_parameters_were_made_for(tmp_path, sample, layer):
    """Compare outputs and inputs: with the kernel, with its places among the inputs, or without it; or none."""
    weight = weight_of(make(layer)[0], layer)
    path, _ = write(tmp_path, sample, layer, tuple(weight.shape))
    parsed = ParsedFile(AdapterFile.open(path))
    for group in parsed.groups:
        shape = None if group.own_site is None else group.own_site.shape
        assert shape in (None, tuple(weight.shape), (len(weight), weight[0].numel()), tuple(weight.shape[:2]))


@pytest.mark.parametrize(("sample", "layer"), by_recipe(CASES))
def test_a_network_tells_the_dense_delta(tmp_path, sample, layer):
    base, _ = make(layer)
    weight = weight_of(base, layer)
    path, tensors = write(tmp_path, sample, layer, tuple(weight.shape))
    network = load_network(path, {"unet": base})
    delta = network.delta_weight("unet", NAMES.get(layer, "layer"), torch.float64)
    want = sample.weight(tensors, weight, 1.0).reshape(weight.shape) - weight
    assert delta.shape == weight.shape
    assert worst(delta, want) < FILE


@pytest.mark.parametrize(
    ("sample", "layer"), by_recipe([case for case in CASES if case.values[1] in ("linear", "conv 3x3, stride")])
)
def test_entries_add_up_in_any_order(tmp_path, sample, layer):
    base, x = make(layer)
    weight = weight_of(base, layer)
    lora = next(one for one in SAMPLES if one.name == "lora")
    files = [write(tmp_path, one, layer, tuple(weight.shape), seed) for seed, one in enumerate((sample, lora, sample))]
    want = exact(base)
    total = weight_of(want, layer)
    for (_, tensors), one, multiplier in zip(files, (sample, lora, sample), (0.5, -1.0, 1.5), strict=True):
        total += one.weight(tensors, weight, multiplier).reshape(weight.shape) - weight
        change_bias(want, layer, one.bias_delta(tensors, multiplier, bias_of(base, layer)))
    entries = [Entry(path, multiplier) for (path, _), multiplier in zip(files, (0.5, -1.0, 1.5), strict=True)]
    served = Engine({"unet": base})
    outputs = []
    for order in (entries, entries[::-1]):
        served.activate(Stack(order))
        outputs.append(run(base, x))
    assert worst(outputs[0], run(want, x)) < FILE
    assert torch.equal(outputs[1], outputs[0]), "added up in one order, whatever the stack's"


def test_every_kind_of_the_registry_has_a_sample():
    from lib_lora.adapters import known_kinds, known_modifiers
    from lib_lora.adapters.base import Refused

    sampled = {name for sample in SAMPLES for name in sample.recipe.split("+")} | {"heads"}  # which needs a step
    missing = {one.name for one in (*known_kinds(), *known_modifiers()) if not issubclass(one, Refused)} - sampled
    assert not missing, f"add tests/fakes/kinds/<name>.py with SAMPLES for {', '.join(sorted(missing))}"


@pytest.mark.parametrize(
    ("sample", "layer"),
    by_recipe([case for case in CASES if case.values[1] in ("linear", "conv 3x5, same, dilation, no bias")]),
)
def test_a_part_of_a_delta_is_that_part_of_it(tmp_path, sample, layer):
    base, _ = make(layer)
    weight = weight_of(base, layer)
    path, _ = write(tmp_path, sample, layer, tuple(weight.shape))
    (bound,) = load_network(path, {"unet": base}).bindings
    adapter = bound.adapter.on(lambda: weight)
    at = At(torch.device("cpu"), torch.float64, 0.7, weight=weight)
    whole = adapter.delta_weight(at).reshape(weight.shape)
    for start, stop in ((0, 1), (3, 17), (5, 24)):
        if adapter.by_rows:
            part = adapter.delta_weight(replace(at, rows=(start, stop), weight=weight[start:stop]))
            assert worst(part.reshape(whole[start:stop].shape), whole[start:stop]) < 1e-12
