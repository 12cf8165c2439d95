"""Every kind of adapter on a device: near its definition in fp64, whatever the dtypes, the storage and the budget."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lib_lora import Engine, Entry, Stack
from tests.covering import some_of
from tests.device.conftest import needs_float8
from tests.fakes.contract import LIVE, reference, worst, write
from tests.fakes.files import save
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Tensors
from tests.fakes.layers import LAYERS, exact, make, weight_of
from tests.fakes.offloading import assert_same
from tests.fakes.schemes import CPU

pytestmark = pytest.mark.device

KINDS = {sample.recipe: sample for sample in reversed(SAMPLES)}
"""The first sample of each recipe."""
BOUNDS = {torch.float32: 4e-5, torch.float16: 1e-2}
"""Largest error over the largest value."""
STORED = {"file": 0.0, "bfloat16": 1e-2, "float8": 8e-2}
"""What a storage may add to it."""


def layers_of(kind: str) -> list[str]:
    """Return the layers that a kind is tried on: a linear one and a convolution where it is for both."""
    known = KINDS[kind].layers
    wanted = [one for one in ("linear", "conv 3x3, stride") if {LAYERS[one][0], one} & known]
    return wanted or [next(one for one in LAYERS if {LAYERS[one][0], one} & known)]


ON_LAYERS = [(kind, layer) for kind in sorted(KINDS) for layer in layers_of(kind)]


@pytest.mark.quick
@some_of(("kind", "dtype"), sorted(KINDS), [torch.float32, torch.float16], strength=1)
def test_each_kind(kind: str, dtype: torch.dtype, tmp_path: Path, device: torch.device) -> None:
    layers = layers_of(kind)
    check(tmp_path, device, kind, layers[0] if dtype == torch.float32 else layers[-1], dtype)


PLACINGS = (("file", None, "live"), ("file", 0, "live"), ("bfloat16", 0, "live"), ("float8", None, "live"))
PLACINGS += (("file", None, "merged"),)
"""Storage, budget and mode."""
DTYPES = ((torch.float32, torch.float16), (torch.float32, torch.bfloat16), (torch.float16, torch.float32))
"""Of the model, and of the file."""


@pytest.mark.filterwarnings("ignore:torchvulkan")  # it computes bf16 and fp8 on the CPU
@some_of(
    ("kind", "layer", "dtypes", "placing"), [pytest.param(*each) for each in ON_LAYERS], DTYPES, PLACINGS, strength=1
)
def test_with_every_option(
    kind: str,
    layer: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    placing: tuple[str, int | None, str],
    tmp_path: Path,
    device: torch.device,
) -> None:
    (dtype, factors), (storage, budget, mode) = dtypes, placing
    if storage == "float8":
        needs_float8(device)
    check(tmp_path, device, kind, layer, dtype, factors, mode, storage=storage, device_budget=budget)


def check(
    folder: Path,
    device: torch.device,
    kind: str,
    layer: str,
    dtype: torch.dtype,
    factors: torch.dtype | None = None,
    mode: str = "live",
    **options: object,
) -> None:
    """Put a sample on a layer that lies on the device, move the layer away and back, and take the sample off.

    Args:
        factors: the dtype of the tensors in the file; as the sample has them, if it is None.
        options: of the engine.
    """
    sample, (model, x) = KINDS[kind], make(layer, dtype)
    path, tensors = write(folder, sample, layer, tuple(weight_of(model, layer).shape))
    if factors is not None:
        tensors = rewritten(path, tensors, factors)
    pristine, before = exact(model), {name: value.clone() for name, value in model.state_dict().items()}
    wide = x if x.dtype == torch.int64 else x.double()
    bound = max(BOUNDS[dtype], STORED[str(options.get("storage", "file"))])
    model.to(device)
    there = x.to(device)
    base = model(there).to(CPU)
    engine = Engine({"unet": model}, **options)
    for strength in (1.0, -0.7):
        report = engine.activate(Stack([Entry(path, strength)], mode=mode))
        assert dict(report.entries[0].kinds) == {sample.recipe: 1}
        assert mode == "live" or report.merged == 1 or LIVE.search(report.summary())
        want, got = reference(pristine, layer, sample, tensors, strength)(wide), model(there).to(CPU)
        assert got.dtype == base.dtype
        assert worst(got, want) < bound
        assert worst(got, base) > 1e-2, "it must show"
    model.layer.to(CPU)
    assert worst(model(x), want) < bound
    model.layer.to(device)
    assert_same(model(there).to(CPU), got)
    engine.deactivate()
    assert_same(model(there).to(CPU), base)
    assert all(torch.equal(value.to(CPU), before[name]) for name, value in model.state_dict().items())


def rewritten(path: Path, tensors: Tensors, dtype: torch.dtype) -> Tensors:
    """Write the matrices of a file in another dtype; return its tensors."""

    def cast(found: Tensors) -> Tensors:
        wide = {name for name, value in found.items() if value.is_floating_point() and value.ndim}
        return {name: value.to(dtype) if name in wide else value for name, value in found.items()}

    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    save(path, cast(load_file(path)), metadata)
    return cast(tensors)
