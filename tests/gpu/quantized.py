"""Base weights in other storages, on the device: a LoRA and a DoRA on each."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lib_lora import Engine, Entry, Stack
from tests.fakes.contract import worst
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample
from tests.fakes.quantized import FORMATS, INSIDE, OUT, Model, dense_layer
from tests.fakes.quantized.bitsandbytes import bitsandbytes_4bit, bitsandbytes_8bit

from .check import Checks, Found, Setup, SkipError

ROWS = 32  # some kernels take no fewer
KINDS = ("lora", "dora of peft")
BOUND = 0.03
"""Largest error, of the largest value: of products in half precision, and of inputs that are rounded to 8 bits."""
NAMES = (
    "bitsandbytes nf4",
    "bitsandbytes int8",
    "torchao int8",
    "torchao fp8",
    "quanto int8",
    "quanto fp8",
    "fp8 e4m3 layerwise",
)

QUICK = ("torchao int8", "torchao fp8", "fp8 e4m3 layerwise")
"""Without libraries whose import takes long."""


def checks(setup: Setup) -> Checks:
    """Try each storage with each kind."""
    samples = {sample.name: sample for sample in SAMPLES}
    few = setup.small and not setup.on_cpu
    for name in QUICK if few else NAMES:
        for kind in KINDS:
            yield f"{name}, {kind}", partial(found, setup, name, samples[kind])


def found(setup: Setup, name: str, sample: Sample) -> Found:
    """Compare a layer with an adapter with the weight that the paper makes of the layer's own."""
    model, dtype = made(setup, name)
    x = torch.randn(ROWS, INSIDE, generator=torch.Generator().manual_seed(2)).to(setup.device, dtype)
    weight, bias = own(model, x)
    folder = setup.folder / name
    folder.mkdir(exist_ok=True)
    path, tensors = sample.write(folder, (OUT, INSIDE))
    plain = model(x)
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(path, 0.7)]))
        got = model(x)
    removed = torch.equal(model(x), plain)
    want = x.cpu().double() @ sample.weight(tensors, weight, 0.7).T + bias
    off, effect = worst(got.cpu(), want), worst(plain.cpu(), want)
    figure = f"off by {off:.1e} (at most {BOUND:.1e}), changed by {effect:.1e}"
    return Found(off <= BOUND < effect and removed, figure + ("" if removed else ", removal is not exact"))


def made(setup: Setup, name: str) -> tuple[Model, torch.dtype]:
    """Return a model of one such layer on the device, and the dtype of its inputs.

    Raises:
        SkipError: its library says why it does not work there.
    """
    makers = {
        "bitsandbytes nf4": bitsandbytes_4bit("nf4", device=str(setup.device)),
        "bitsandbytes int8": partial(bitsandbytes_8bit, device=str(setup.device)),
    }
    layer, dtype = dense_layer(), torch.float32
    if name not in makers:
        dtype = torch.float32 if name.endswith("layerwise") else setup.half
        layer = layer.to(setup.device, dtype)
    try:
        model = Model(makers.get(name, FORMATS[name].make)(layer))
        model(torch.ones(ROWS, INSIDE, device=setup.device, dtype=dtype)).cpu()
    except (ImportError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise SkipError(f"{type(error).__name__}: {error!s:.160}") from error
    return model, dtype


def own(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a layer in fp64, from its outputs for single inputs."""
    single = torch.eye(INSIDE, device=x.device, dtype=x.dtype)
    bias = model(torch.zeros_like(single)).cpu().double()
    return (model(single).cpu().double() - bias).T, bias[0]
