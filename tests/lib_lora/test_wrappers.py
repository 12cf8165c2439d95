"""Models in torch's wrappers, inputs that are no plain tensors, and gradients: as without a LoRA, or one sentence."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

from lib_lora import Engine, Entry, PerImage, RowsError, Stack
from lib_lora.execution.hooks import slot_of
from tests.covering import some_of
from tests.fakes import wrappers
from tests.fakes.contract import CASES, FILE, by_recipe, worst, write
from tests.fakes.files import save
from tests.fakes.layers import Model, make, weight_of
from tests.fakes.wrappers import STRENGTH, WRAPPERS, defined, differences, one_of_each

DOCS = Path(__file__).parents[2] / "docs" / "diffusers.md"
KINDS = [pytest.param(sample, layer, id=sample.recipe) for sample, layer in one_of_each()]
ON_LINEAR = [case for case in KINDS if case.values[1] == "linear"]


def activate(folder, model, sample, layer, shape=None):
    """Return the engine and the tensors of a sample that is in force on a model."""
    path, tensors = write(folder, sample, layer, shape or tuple(weight_of(model, layer).shape))
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, STRENGTH)]))
    return engine, tensors


# Processes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return wrapper -> kind -> what differs in any of two processes."""
    if not dist.is_available() or not hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("torch before 2.6 has no public fully_shard")
    folder = tmp_path_factory.mktemp("processes")
    processes.start_processes(wrappers.work, (2, str(folder)), nprocs=2, start_method="spawn")
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    return {name: {kind: first[name][kind] or second[name][kind] for kind in first[name]} for name in first}


@pytest.mark.long  # two processes of a minute
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_two_processes_compute_what_each_kind_defines(found, wrapper):
    """Outputs and gradients, activated before or after the model is wrapped."""
    assert {kind: wrong for kind, wrong in found[wrapper].items() if wrong} == {}


def test_the_table_of_kinds_by_wrapper_is_that_of_the_tests():
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\| (\d+) of \d+ ", DOCS.read_text(), re.MULTILINE))
    layers = [layer for _, layer in one_of_each()]
    tried = {name: len([one for one in layers if of is None or one in of]) for name, (_, of) in WRAPPERS.items()}
    assert {name: int(count) for name, count in rows.items()} == tried
    assert f" of {len(layers)} " in DOCS.read_text()


# Gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sample", "layer"), by_recipe(CASES))
def test_gradients_of_input_and_base_weights_are_those_of_the_definition(tmp_path, sample, layer):
    model, x = make(layer)
    path, tensors = write(tmp_path, sample, layer, tuple(weight_of(model, layer).shape))
    want, grads = defined(model, layer, sample, tensors, x)
    engine = Engine({"unet": model.requires_grad_().train()})
    engine.activate(Stack([Entry(path, STRENGTH)]))
    x.requires_grad_(x.is_floating_point())
    y = model(x)
    if y.requires_grad:  # a whole bias may be all that is left of a layer
        y.square().sum().backward()
    assert differences(model, x, y, want, grads) == []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine.close()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@some_of(("sample", "layer", "first"), ON_LINEAR, ["stack", "peft"], strength=1)
def test_a_lora_is_trained_on_top_of_an_active_stack(tmp_path, sample, layer, first):
    """As it is on a model that has the changed weight, with gradient checkpointing, by an optimizer."""
    losses = []
    for served in (True, False):
        model, x = make(layer)
        if served and first == "stack":
            engine, tensors = activate(tmp_path, model, sample, layer)
        elif not served:
            change(model, sample, tensors)
        torch.manual_seed(1)
        config = peft.LoraConfig(r=3, target_modules=["layer"], init_lora_weights="gaussian")
        trained = peft.inject_adapter_in_model(config, model).train()
        if served and first == "peft":
            engine, tensors = activate(tmp_path, model, sample, layer, (48, 24))
        assert isinstance(trained.layer, LoraLayer)
        base = trained.layer.get_base_layer().weight.clone()
        own = [value for value in trained.parameters() if value.requires_grad]
        optimizer = torch.optim.AdamW(own, lr=0.05)
        losses.append([])
        for _ in range(4):
            loss = checkpoint(trained, x, use_reentrant=False).square().mean()
            losses[-1].append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert torch.equal(trained.layer.get_base_layer().weight, base)
        if served:
            slot = slot_of(trained.layer.get_base_layer())
            placed = slot.executor._placed.content.tensors()
            assert placed
            assert not any(value.requires_grad for _, value in placed)
            engine.close()
    assert losses[0] == pytest.approx(losses[1], rel=FILE)
    assert losses[0][-1] < losses[0][0]


def change(model: Model, sample, tensors) -> None:
    """Write what the sample defines into the weights of a linear layer."""
    weight, bias = model.layer.weight, model.layer.bias
    delta = sample.bias_delta(tensors, STRENGTH, bias)
    with torch.no_grad():
        weight.copy_(sample.weight(tensors, weight, STRENGTH))
        if delta is not None:
            bias.add_(delta)


def two(folder, seeds=(0, 1)):
    """Return entries of two LoRA of unlike strengths, which are in tensors that later calls write to."""
    entries = []
    for seed in seeds:
        random = torch.Generator().manual_seed(seed)
        tensors = {
            f"lora_unet_layer.lora_{name}.weight": torch.randn(8, 8, generator=random) for name in ("up", "down")
        }
        entries.append(Entry(save(folder / f"{seed}.safetensors", tensors), 1.0 - 1.5 * seed))
    return Stack(entries)


@pytest.mark.parametrize("tokens", [3, 500])
def test_a_strength_may_change_before_the_gradient_is_computed(tmp_path, tokens):
    model, x = Model(nn.Linear(8, 8).double()), torch.randn(tokens, 8, dtype=torch.float64, requires_grad=True)
    engine = Engine({"unet": model})
    engine.activate(two(tmp_path))
    want = torch.autograd.grad(model(x).square().sum(), x)[0]
    y = model(x)
    engine.set_multiplier(0, 0.1)
    model(x.detach())
    assert torch.equal(torch.autograd.grad(y.square().sum(), x)[0], want)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("tokens", [3, 500])
def test_function_transforms_over_weights(tmp_path, tokens):
    model, x = Model(nn.Linear(8, 8).double()), torch.randn(tokens, 8, dtype=torch.float64)
    engine = Engine({"unet": model})
    engine.activate(two(tmp_path))
    params = dict(model.named_parameters())
    found = grad(lambda own: functional_call(model, own, (x,)).square().sum())(params)
    model(x).square().sum().backward()
    assert all(worst(found[name], value.grad) < 1e-12 for name, value in params.items())
    several = {name: torch.stack([value.detach(), 2 * value.detach()]) for name, value in params.items()}
    with torch.no_grad():
        both = vmap(lambda own: functional_call(model, own, (x,)))(several)
        assert worst(both[0], model(x)) < 1e-12


# Jagged tensors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "layer"), [case for case in KINDS if case.values[1] in ("linear", "layer norm", "embedding")]
)
def test_a_jagged_tensor_is_its_sequences(tmp_path, sample, layer):
    if not hasattr(torch.nested, "nested_tensor_from_jagged"):
        pytest.skip("this torch makes no jagged tensors of values")
    model, _ = make(layer)
    activate(tmp_path, model, sample, layer)
    lengths = (3, 5, 1)
    if layer == "embedding":
        rows = [torch.randint(0, 50, (length,)) for length in lengths]
    else:
        rows = [torch.randn(length, 24, dtype=torch.float64, requires_grad=True) for length in lengths]
    x = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    y = model(x)
    want = [model(row.unsqueeze(0)).squeeze(0) for row in rows]
    assert max(map(worst, y.unbind(), want)) < 1e-10
    assert (y + y).shape[:2] == x.shape[:2], "of the same lengths, so that a residual can be added"
    if layer != "embedding":
        found = torch.autograd.grad(y.values().square().sum(), rows)
        expected = torch.autograd.grad(sum(row.square().sum() for row in want), rows)
        assert max(map(worst, found, expected)) < 1e-10


def test_sequences_of_a_jagged_tensor_have_no_strengths_of_their_own(tmp_path):
    if not hasattr(torch.nested, "nested_tensor_from_jagged"):
        pytest.skip("this torch makes no jagged tensors of values")
    model = Model(nn.Linear(8, 8).double())
    first, second = two(tmp_path)
    engine = Engine({"unet": model})
    engine.activate(Stack([replace(first, multiplier=PerImage((1.0, 0.2))), second]))
    x = torch.nested.nested_tensor([torch.randn(4, 8), torch.randn(4, 8)], dtype=torch.float64, layout=torch.jagged)
    with pytest.raises(RowsError, match="cannot be divided among 2 rows"):
        model(x)


def test_jagged_output_that_is_not_finite_is_told(tmp_path):
    if not hasattr(torch.nested, "nested_tensor_from_jagged"):
        pytest.skip("this torch makes no jagged tensors of values")
    model = Model(nn.Linear(8, 8))
    first, _ = two(tmp_path)
    engine = Engine({"unet": model})
    engine.activate(Stack([replace(first, multiplier=1e38)]))
    x = torch.nested.nested_tensor([torch.randn(4, 8), torch.randn(2, 8)], layout=torch.jagged)
    assert not model(x).values().isfinite().all()
    assert "is not finite from call 1 on" in engine.report.summary()


# ScriptModules, Conv1D ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:`torch.jit")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda layer: torch.jit.trace(layer, torch.randn(2, 8))])
def test_script_modules_in_a_model_are_left_alone(tmp_path, compiled):
    torch._dynamo.reset()  # the hooks that refuse are left off where they would have compiled code compiled again
    model, x = nn.Sequential(nn.Linear(8, 8), compiled(nn.Linear(8, 8))), torch.randn(2, 8)
    before, plain = model(x), model[1].state_dict()
    tensors = {f"lora_unet_{i}.lora_{name}.weight": torch.randn(8, 8) for i in range(2) for name in ("up", "down")}
    engine = Engine({"unet": model})
    report = engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))])).entries[0]
    assert (report.hit, len(report.unused)) == (1, 2)
    assert torch.equal(model(x), model[1](model[0](x)))
    assert all(torch.equal(value, plain[name]) for name, value in model[1].state_dict().items())
    with pytest.raises(AttributeError, match=r"call deactivate\(\) of its engine first"):
        torch.jit.script(model)
    engine.deactivate()
    assert torch.equal(torch.jit.script(model)(x), before)


@pytest.mark.parametrize(("sample", "layer"), ON_LINEAR)
def test_a_conv1d_of_transformers_is_a_linear_layer(tmp_path, sample, layer):
    linear, x = make(layer)
    model = Model(Conv1D(48, 24).double())
    model.layer.weight.data, model.layer.bias.data = linear.layer.weight.t().clone(), linear.layer.bias.data
    engine, tensors = activate(tmp_path, model, sample, layer, (48, 24))
    want, grads = defined(linear, layer, sample, tensors, x)
    grads["layer.weight"] = grads["layer.weight"].t()
    x.requires_grad_()
    y = model(x)
    y.square().sum().backward()
    assert differences(model, x, y, want, grads) == []
    path, *_ = tmp_path.rglob("*.safetensors")
    report = engine.activate(Stack([Entry(path, STRENGTH)], mode="merged"))
    assert (report.merged, sum(report.live.values())) == (0, 1), "it says that it cannot be merged, and works"
