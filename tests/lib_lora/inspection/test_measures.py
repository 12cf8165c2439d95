"""Measures of a file: of every adapter kind those of its dense change in fp64, with the model and without it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.measures import LayerMeasures, measure
from tests.fakes.contract import CASES, by_recipe, in_folders, of_recipes, write
from tests.fakes.files import save
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample
from tests.fakes.layers import LAYERS, make, weight_of

BOUND = 2e-6
"""Relative error: files hold fp32, and some kinds make products of factors in fp32."""


def check(one: LayerMeasures, delta: Tensor) -> None:
    """Compare all measures of a layer with those by the SVD of the dense change in fp64."""
    values = torch.linalg.svdvals(delta)
    norm, spectral = delta.norm().item(), values[0].item()
    assert one.norm == pytest.approx(norm, rel=BOUND)
    assert one.spectral == pytest.approx(spectral, rel=BOUND)
    assert one.stable_rank == pytest.approx((norm / spectral) ** 2, rel=2 * BOUND)
    shares = values.square().cumsum(0) / norm**2
    for share in (0.9, 0.99):
        least = int((shares < share - BOUND).sum()) + 1
        most = int((shares < share + BOUND).sum()) + 1
        assert least <= one.effective_rank(share) <= most
    found = one.squares.sqrt()
    assert (values[len(found) :] < 2e-7 * norm).all()
    assert (found - values[: len(found)]).abs().max().item() < BOUND * spectral


@pytest.mark.parametrize(("sample", "layer"), by_recipe(CASES))
def test_measures_on_a_model(sample: Sample, layer: str, tmp_path: Path) -> None:
    base, _ = make(layer)
    weight = weight_of(base, layer)
    path, tensors = write(tmp_path, sample, layer, tuple(weight.shape))
    (one,) = measure(layers_of(path, {"unet": base})).layers
    delta = sample.weight(tensors, weight, 1.0).reshape(weight.shape) - weight
    if not delta.abs().max() > 0:  # the bias alone
        assert one.norm == 0
        assert one.is_dead == (sample.bias is None)
        return
    check(one, delta.reshape(len(delta), -1))
    assert one.relative == pytest.approx((delta.norm() / weight.norm()).item(), rel=BOUND)


def shape_of(sample: Sample) -> tuple[int, ...]:
    """Return the shape of a weight that a sample is for."""
    layer = next(layer for layer, (kind, _, _) in LAYERS.items() if {kind, layer} & sample.layers)
    return tuple(weight_of(make(layer)[0], layer).shape)


MODIFIERS = ("dora_scale", "lora_magnitude_vector", "bora_scale_r", "bora_scale_c")
MISFIT = "dora by columns of each group"
"""Its parameters fit no layer without groups."""


@pytest.mark.parametrize("alike", of_recipes(SAMPLES))
def test_measures_without_a_model(tmp_path: Path, alike: Sequence[tuple[Sample]]) -> None:
    for folder, sample in in_folders(tmp_path, alike):
        _measures_without_a_model(sample, folder)


def _measures_without_a_model(sample: Sample, tmp_path: Path) -> None:
    shape = shape_of(sample)
    path, tensors = sample.write(tmp_path, shape)
    found = measure(layers_of(path))
    if not found.layers:
        assert dict(found.unmeasured) == ({} if sample.name == MISFIT else {sample.recipe: 1})
        return
    (one,) = found.layers
    assert one.layer.kind == sample.recipe
    if sample.additive or sample.recipe == "lora+whole_bias":
        delta = sample.weight(tensors, torch.zeros(shape, dtype=torch.float64), 1.0).reshape(shape)
        check(one, delta.reshape(len(delta), -1))
        assert sum(found.spectrum()) == pytest.approx(1)
        assert found.spectrum()[0] == pytest.approx(one.first_share)
        return
    inner = {key: value for key, value in tensors.items() if not key.endswith(MODIFIERS)}
    assert len(inner) < len(tensors), "what depends on the base weight is not measured"
    (plain,) = measure(layers_of(save(path, inner, sample.metadata))).layers
    assert torch.equal(one.squares, plain.squares)
