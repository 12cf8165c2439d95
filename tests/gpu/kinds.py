"""Every kind of adapter on a linear layer and on a convolution, against its paper in fp64 on the CPU."""

from __future__ import annotations

from functools import partial

import torch

from lib_lora import Engine, Entry, Stack
from tests.fakes.contract import BOUNDS, reference, worst, write
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample
from tests.fakes.layers import LAYERS, exact, make, weight_of

from .check import Checks, Found, Setup

ON = ("linear", "conv 3x3, stride", "conv 1x1")
OTHERS = 4
"""How much further than on a CPU the error may reach: a device adds in another order, and some multiply faster."""


def checks(setup: Setup) -> Checks:
    """Try each sample on the first two of these layers that it is for; with small models, one for each kind."""
    kinds = {sample.recipe: sample for sample in reversed(SAMPLES)}
    for sample in kinds.values() if setup.small else SAMPLES:
        layers = [layer for layer in ON if {LAYERS[layer][0], layer} & sample.layers][:2]
        if layers:
            yield sample.name, partial(found, setup, sample, layers)


def found(setup: Setup, sample: Sample, layers: list[str]) -> Found:
    """Return the largest error in units of the bound of the dtype, over all layers and dtypes."""
    errors = {
        (layer, dtype): _error(setup, sample, layer, dtype)
        for layer in layers
        for dtype in (setup.dtypes[:1] if setup.small else setup.dtypes)
    }
    (layer, dtype), most = max(errors.items(), key=lambda item: item[1] / BOUNDS[item[0][1]])
    bound = OTHERS * BOUNDS[dtype]
    return Found(most <= bound, f"off by {most:.1e} (at most {bound:.1e}): {layer}, {dtype}")


def _error(setup: Setup, sample: Sample, layer: str, dtype: torch.dtype) -> float:
    """Return the largest error of the output, of the largest value; infinite where removal is not exact."""
    base, x = make(layer, dtype)
    folder = setup.folder / f"{layer} {dtype}"
    folder.mkdir(exist_ok=True)
    path, tensors = write(folder, sample, layer, tuple(weight_of(base, layer).shape))
    want = reference(exact(base), layer, sample, tensors, 0.7)(x.double())
    base.to(setup.device)
    own = x.to(setup.device)
    plain = base(own)
    with Engine({"unet": base}) as engine:
        engine.activate(Stack([Entry(path, 0.7)]))
        got = base(own)
    if not torch.equal(base(own), plain) or not worst(got.cpu(), plain.cpu()) > 1e-2:
        return float("inf")
    return worst(got.cpu(), want)
