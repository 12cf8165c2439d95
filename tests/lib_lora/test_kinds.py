"""The contract of every adapter kind: on every kind of layer, by every way, in every dtype, the weight it defines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, load_network, plan
from lib_lora.adapters.base import At
from lib_lora.factored import Factored
from lib_lora.patch import slot_of
from lib_lora.transient import Transient
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample, Tensors
from tests.fakes.layers import LAYERS, NAMES, Model, bias_of, exact, make, weight_of

BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Largest error over the largest value. In half precision: of the same product rounded at each of its few steps."""
FILE = 1e-6
"""What files hold is fp32, and products of factors that are made once are made in fp32."""

CASES = [
    pytest.param(sample, layer, id=f"{sample.name}-{layer}")
    for sample in SAMPLES
    for layer, (kind, _, _) in LAYERS.items()
    if {kind, layer} & sample.layers
]

DENSE = {"full", "loha, many ranks", "loha tucker, many ranks", "loha of PEFT", "lokr across, full"}
"""Samples that take an effective weight where they can."""
LIVE = re.compile("no bias to merge into|its ranks change from step to step")
"""Why a layer may stay live where merging is asked for."""


def write(folder: Path, sample: Sample, layer: str, shape: tuple[int, ...], seed: int = 0) -> tuple[Path, Tensors]:
    return sample.write(folder, shape, seed, NAMES.get(layer, "layer"))


def reference(base: Model, layer: str, sample: Sample, tensors: dict[str, Tensor], multiplier: float) -> Model:
    """The model with W' in the place of W, in fp64."""
    other = exact(base)
    weight = weight_of(other, layer)
    weight.copy_(sample.weight(tensors, weight, multiplier).reshape(weight.shape))
    change_bias(other, layer, sample.bias_delta(tensors, multiplier, bias_of(base, layer)))
    return other


def change_bias(model: Model, layer: str, delta: Tensor | None) -> None:
    """Add to the bias of the layer, which need not have one yet."""
    if delta is None:
        return
    if bias_of(model, layer) is None:
        model.layer.bias = nn.Parameter(torch.zeros_like(delta), requires_grad=False)
    bias = bias_of(model, layer)
    assert bias is not None
    bias.add_(delta)


def worst(got: Tensor, want: Tensor) -> float:
    """Largest error relative to the largest value."""
    return ((got.double() - want.double()).abs().max() / want.double().abs().max().clamp_min(1e-30)).item()


def run(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


@pytest.fixture(params=["chosen", "transient", "merged"])
def way(request, monkeypatch):
    """As the engine chooses, and each way by force where the kind has it."""
    if request.param == "transient":
        monkeypatch.setattr(plan, "live_way", lambda layer, bindings, strengths, **_: Transient(bindings, strengths))
    return request.param


@pytest.mark.parametrize(("sample", "layer"), CASES)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_output_is_that_of_the_weight_it_defines(tmp_path, sample, layer, dtype, way):
    base, x = make(layer, dtype)
    path, tensors = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    plain, pristine = run(base, x), exact(base)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    served = Engine({"unet": base})
    for multiplier in (1.0, -0.7, 2.5):
        activation = served.activate(Stack([Entry(path, multiplier)], mode="merged" if way == "merged" else "live"))
        report = activation.entries[0]
        assert way != "merged" or activation.merged == 1 or LIVE.search(activation.summary())
        assert dict(report.kinds) == {sample.recipe: 1}, report
        assert not report.unused, report.unused
        want = run(reference(pristine, layer, sample, tensors, multiplier), x if x.dtype == torch.int64 else x.double())
        got = run(base, x)
        assert got.dtype == plain.dtype
        assert worst(got, want) < max(BOUNDS[dtype], FILE)
        assert worst(got, plain) > 1e-2, "the adapter must show"
    served.activate(Stack([Entry(path, 0.0)]))
    assert torch.equal(run(base, x) + 0.0, plain + 0.0), "at 0 it is as if there were no file"
    served.deactivate()
    assert torch.equal(run(base, x), plain)
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


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
    assert isinstance(slot.way, Transient if sample.name in DENSE else Factored)


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
    assert isinstance(slot.way, Factored)
    want = run(reference(pristine, layer, sample, tensors, 1.5), x.double())
    assert worst(run(base, x), want) < max(BOUNDS[dtype], FILE)


@pytest.mark.parametrize(("sample", "layer"), CASES)
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
    ("sample", "layer"), [case for case in CASES if case.values[1] in ("linear", "conv 3x3, stride")]
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
    from lib_lora.recipe import _kinds, _modifiers

    sampled = {name for sample in SAMPLES for name in sample.recipe.split("+")}
    assert {one.name for one in (*_kinds(), *_modifiers())} <= sampled


@pytest.mark.parametrize(
    ("sample", "layer"), [case for case in CASES if case.values[1] in ("linear", "conv 3x5, same, dilation, no bias")]
)
def test_a_part_of_a_delta_is_that_part_of_it(tmp_path, sample, layer):
    base, _ = make(layer)
    weight = weight_of(base, layer)
    path, _ = write(tmp_path, sample, layer, tuple(weight.shape))
    (bound,) = load_network(path, {"unet": base}).bound
    adapter = bound.adapter.on(lambda: weight)
    at = At(torch.device("cpu"), torch.float64, 0.7, weight=weight)
    whole = adapter.delta_weight(at).reshape(weight.shape)
    for start, stop in ((0, 1), (3, 17), (5, 24)):
        if adapter.by_rows:
            part = adapter.delta_weight(replace(at, rows=(start, stop), weight=weight[start:stop]))
            assert worst(part.reshape(whole[start:stop].shape), whole[start:stop]) < 1e-12
        if adapter.by_columns:
            matrix, columns = weight.flatten(1), slice(start, stop)
            part = adapter.delta_weight(replace(at, columns=(start, stop), weight=matrix[:, columns]))
            assert part.shape == (weight.shape[0], stop - start)
            assert worst(part, whole.flatten(1)[:, columns]) < 1e-12
