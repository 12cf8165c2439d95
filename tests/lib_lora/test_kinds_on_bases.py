"""Every kind on every base: what it changes is what it defines for the weight that the base stands for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, plan
from lib_lora.execution import dense
from lib_lora.execution.dense import DenseExecutor
from lib_lora.weights.readers import base as readers
from lib_lora.weights.readers.base import WeightReader, read_base_weight, weight_reader
from tests.covering import some_of
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample
from tests.fakes.quantized import FORMATS, INSIDE, OUT, contents, made

KINDS = {sample.recipe: sample for sample in reversed(SAMPLES) if "linear" in sample.layers}
"""The first sample of each recipe."""
ROUGH = {"bitsandbytes int8": 0.99, "nunchaku svdq int4": 0.85}
"""The product itself rounds its input, to 8 bits or 4, once for each output that is compared. Of a kind that changes
little, 4 bits are a large part."""


def similarity(one: Tensor, other: Tensor) -> float:
    return F.cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0).item()


@some_of(("name", "kind"), FORMATS, sorted(KINDS), strength=1)
def test_the_change_is_that_of_the_weight_it_stands_for(tmp_path, name, kind):
    model, sample = made(name), KINDS[kind]
    x = torch.randn(2, 7, INSIDE, generator=torch.Generator().manual_seed(2)).to(FORMATS[name].dtype)
    path, tensors = sample.write(tmp_path, (OUT, INSIDE))
    plain = model(x)
    before = contents(model.state_dict().items())
    weight = read_base_weight(model.layer, "weight").double()
    engine = Engine({"unet": model})
    for multiplier in (0.8, -0.5):
        report = engine.activate(Stack([Entry(path, multiplier)])).entries[0]
        assert (report.hit, report.unused) == (1, ())
        want = defined(sample, tensors, weight, model.layer.bias, x, multiplier)
        assert similarity(model(x).double() - plain.double(), want) > ROUGH.get(name, 0.999)
    engine.activate(Stack([Entry(path, 0.0)]))
    assert torch.equal(model(x), plain)
    engine.deactivate()
    assert torch.equal(model(x), plain)
    assert contents(model.state_dict().items()) == before


@pytest.mark.parametrize("name", FORMATS)
def test_at_zero_a_layer_computes_by_itself_whatever_the_way(tmp_path, name, monkeypatch):
    """A product with the decoded weight has other bits than that of a packed one."""
    monkeypatch.setattr(
        plan, "live_executor", lambda layer, bindings, strengths, **_: DenseExecutor(bindings, strengths)
    )
    model = made(name)
    x = torch.randn(2, 7, INSIDE, generator=torch.Generator().manual_seed(2)).to(FORMATS[name].dtype)
    path, _ = KINDS["lora"].write(tmp_path, (OUT, INSIDE))
    plain, engine = model(x), Engine({"unet": model})
    for multiplier in (0.5, 0.0):
        engine.activate(Stack([Entry(path, multiplier)]))
        assert torch.equal(model(x), plain) == (multiplier == 0.0)


def defined(
    sample: Sample, tensors: dict[str, Tensor], weight: Tensor, own: Tensor | None, x: Tensor, multiplier: float
) -> Tensor:
    """Return the change of the output in fp64."""
    changed = F.linear(x.double(), sample.weight(tensors, weight, multiplier).reshape(weight.shape))
    bias = sample.bias_delta(tensors, multiplier, own)
    return changed - F.linear(x.double(), weight) + (0 if bias is None else bias)


def test_a_packed_weight_is_unpacked_once_per_activation_and_only_for_kinds_that_need_it(tmp_path, monkeypatch):
    model, reads = made("bitsandbytes nf4"), []

    def counted(layer: nn.Module, param: str) -> type[WeightReader]:
        reads.append(param)
        return weight_reader(layer, param)

    for module in (readers, dense):  # where a weight is read at placement, and in a call
        monkeypatch.setattr(module, "weight_reader", counted)
    x = torch.randn(2, 7, INSIDE)
    engine = Engine({"unet": model})
    for kind, want in {
        "lora": 0,
        "lokr": 0,
        "loha": 0,
        "glora": 0,
        "diag_oft": 0,
        "set_weight": 0,
        "lora+dora": 1,
    }.items():
        reads.clear()
        engine.activate(Stack([Entry(KINDS[kind].write(tmp_path, (OUT, INSIDE))[0])]))
        for multiplier in (1.0, 0.5):
            engine.set_multiplier(0, multiplier)
            model(x), model(x)
        assert len(reads) == want, kind
