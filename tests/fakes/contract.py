"""The contract of every adapter kind: on every kind of layer, in every dtype, the weight it defines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.covering import chosen, covering, identity
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

EACH = chosen(CASES)
"""Every sample and every layer at least once."""


def by_recipe(cases: Iterable[Any], *axes: Iterable[Any]) -> list[Any]:
    """Return cases with every recipe, every layer and every value of other axes, for what no parameter changes.

    Samples of one recipe are computed alike; they differ in their parameters. `EACH` has every sample.
    """
    all_cases = chosen(cases, *axes, strength=len(axes) + 2)
    keys = [(case.values[0].recipe, *map(identity, case.values[1:])) for case in all_cases]
    return [all_cases[place] for place in covering(keys, 1)]


def of_recipes(cases: Iterable[Any]) -> list[Any]:
    """Return the arguments of all cases of a recipe as one case: they are computed alike, so they fail together."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for case in cases:
        own = case.values if hasattr(case, "values") else (case,)
        groups.setdefault(own[0].recipe, []).append(tuple(own))
    return [pytest.param(group, id=recipe) for recipe, group in groups.items()]


def in_folders(folder: Path, cases: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of each case behind a new folder of its own."""
    for number, case in enumerate(cases):
        own = folder / str(number)
        own.mkdir()
        yield own, *case


LIVE = re.compile("no bias to merge into|its ranks or heads change from step to step")
"""Why a layer may stay live where merging is asked for."""


def write(folder: Path, sample: Sample, layer: str, shape: tuple[int, ...], seed: int = 0) -> tuple[Path, Tensors]:
    return sample.write(folder, shape, seed, NAMES.get(layer, "layer"))


def reference(base: Model, layer: str, sample: Sample, tensors: dict[str, Tensor], multiplier: float) -> Model:
    """Return the model with W' in place of W, in fp64."""
    other = exact(base)
    weight = weight_of(other, layer)
    weight.copy_(sample.weight(tensors, weight, multiplier).reshape(weight.shape))
    change_bias(other, layer, sample.bias_delta(tensors, multiplier, bias_of(base, layer)))
    return other


def reference_of_all(base: Model, layer: str, parts: Iterable[tuple[Sample, Tensors, float]]) -> Model:
    """Return the model with the changes by several samples, in fp64; each acts on the model's own weight."""
    other, pristine = exact(base), exact(base)
    weight = weight_of(pristine, layer)
    for sample, tensors, multiplier in parts:
        weight_of(other, layer).add_(sample.weight(tensors, weight, multiplier).reshape(weight.shape) - weight)
        change_bias(other, layer, sample.bias_delta(tensors, multiplier, bias_of(pristine, layer)))
    return other


def common(first: Sample, second: Sample) -> str | None:
    """Return a layer that both samples are for."""
    fits = [[name for name, (kind, _, _) in LAYERS.items() if {kind, name} & one.layers] for one in (first, second)]
    return next((name for name in fits[0] if name in fits[1]), None)


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


def check_output(folder: Path, sample: Sample, layer: str, dtype: torch.dtype, mode: str = "live") -> None:
    """Put a sample on a layer and take it off again; compare the outputs with those of the weight it defines."""
    base, x = make(layer, dtype)
    path, tensors = write(folder, sample, layer, tuple(weight_of(base, layer).shape))
    plain, pristine = run(base, x), exact(base)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    served = Engine({"unet": base})
    for multiplier in (1.0, -0.7, 2.5):
        activation = served.activate(Stack([Entry(path, multiplier)], mode=mode))
        report = activation.entries[0]
        assert mode != "merged" or activation.merged == 1 or LIVE.search(activation.summary())
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
