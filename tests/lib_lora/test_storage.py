"""Adapters stored in fewer bytes: what that costs in precision, and what is spared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, StorageError
from lib_lora.execution.hooks import slot_of
from lib_lora.placement import storage
from lib_lora.placement.storage import Packed, Placement, Storage, is_packed, store
from lib_lora.tensors import TensorFields
from tests.fakes.files import pair, save

BOUNDS = {"file": 2.0**-20, "bfloat16": 2.0**-8, "float8": 0.04}
"""Error of a LoRA's delta in fp32, root mean square relative to the delta's."""

LAYERS = {
    "linear": (lambda: nn.Linear(48, 64), (2, 10, 48)),
    "conv": (lambda: nn.Conv2d(24, 32, 3, padding=1), (2, 24, 6, 6)),
}


@dataclass(frozen=True, slots=True)
class Sample(TensorFields):
    matrix: Tensor
    value: Tensor
    vector: Tensor
    index: Tensor

    exact: ClassVar[frozenset[str]] = frozenset({"value"})


def sample(dtype: torch.dtype) -> Sample:
    matrix = torch.randn(6, 40, dtype=torch.float64).to(dtype)
    return Sample(matrix, matrix.clone(), matrix[0].clone(), torch.arange(12).view(3, 4))


def stored_as(content: Sample, storage: Storage) -> Placement[Sample]:
    dtype = torch.float32
    stored = store(content, storage)
    return Placement(torch.device("cpu"), dtype, dtype, stored, is_packed(stored))


def rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


@torch.no_grad()
@pytest.mark.parametrize("storage", BOUNDS)
@pytest.mark.parametrize("kind", LAYERS)
def test_error_of_the_delta(tmp_path, kind, storage):
    make, shape = LAYERS[kind]
    model = nn.Sequential(make()).double().requires_grad_(False)
    x = torch.randn(shape)
    file = save(tmp_path / "a.safetensors", pair("lora_unet_0", tuple(model[0].weight.shape), 16, alpha=8.0, size=0.4))
    base = model(x.double())
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file)]))
    want = model(x.double()) - base
    engine.close()
    model.float()
    engine = Engine({"unet": model}, storage=storage)
    engine.activate(Stack([Entry(file)]))
    for multiplier in (1.0, -0.5):  # strengths are written through, however factors are stored
        engine.set_multiplier(0, multiplier)
        assert rms(model(x) - base - multiplier * want) < BOUNDS[storage] * rms(multiplier * want)
    assert slot_of(model[0]).executor._placed.dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("storage", BOUNDS)
def test_error_of_an_effective_weight(tmp_path, storage):
    """The transient way: a grouped convolution has no pair beside it."""
    model = nn.Sequential(nn.Conv2d(24, 32, 3, groups=4)).requires_grad_(False)
    x = torch.randn(2, 24, 6, 6)
    file = save(tmp_path / "a.safetensors", pair("lora_unet_0", (32, 6, 3, 3), 8))
    base = model(x)
    outputs = {}
    for name in ("file", storage):
        engine = Engine({"unet": model}, storage=name)
        engine.activate(Stack([Entry(file)]))
        outputs[name] = model(x) - base
        engine.close()
    assert rms(outputs[storage] - outputs["file"]) < BOUNDS[storage] * rms(outputs["file"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-3, 30.0])
def test_each_entry_of_a_float8_matrix(dtype, size):
    content = sample(dtype)
    matrix = (content.matrix.double() * size * torch.logspace(0, -4, 6)[:, None]).to(dtype)
    for want in (matrix, matrix.t().contiguous()):
        stored = stored_as(Sample(want, want, want[0], content.index), "float8")
        got = stored.get()
        line = want.abs().amax(1 if want is matrix else 0, keepdim=True)
        allowed = (want.abs() / 16).maximum(line * 2.0**-18).maximum(torch.tensor(2.0**-24).to(dtype))
        assert got.matrix.dtype == dtype
        assert bool(((got.matrix.double() - want.double()).abs() <= allowed.double()).all())
        assert torch.equal(stored_as(got, "float8").get().matrix, got.matrix), "stored twice is stored once"


@pytest.mark.parametrize("storage", ["bfloat16", "float8"])
def test_what_is_left_as_it_is(storage):
    content = sample(torch.float32)
    stored = stored_as(content, storage)
    assert isinstance(stored.content.matrix, Packed)
    assert all(getattr(stored.content, name) is getattr(content, name) for name in ("value", "vector", "index"))
    bytes_of_matrix = 240 * 2 if storage == "bfloat16" else 240 + 6 * 4
    assert stored.content.nbytes == bytes_of_matrix + 240 * 4 + 40 * 4 + 12 * 8


def test_half_precision_gains_nothing_from_bfloat16():
    content = sample(torch.float16)
    assert stored_as(content, "bfloat16").get().matrix is content.matrix


def test_odd_matrices_survive_float8():
    for matrix in (torch.zeros(3, 4), torch.empty(0, 4), torch.full((2, 2), 1e-30)):
        got = stored_as(Sample(matrix, matrix, matrix, matrix), "float8").get().matrix
        assert got.shape == matrix.shape
        assert torch.equal(got, matrix) or bool(((got - matrix).abs() <= matrix / 16).all())


def test_storage_that_cannot_be(monkeypatch):
    with pytest.raises(StorageError, match="'int4' must be one of file, bfloat16, float8"):
        Engine({}, storage="int4")
    monkeypatch.setattr(storage, "_FLOAT8", None)
    with pytest.raises(StorageError, match=r"has no float8; use storage 'bfloat16'"):
        Engine({}, storage="float8")
    Engine({}, storage="bfloat16")
