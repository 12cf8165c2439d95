"""A stack that was in force before comes back at once, and is what it would be made anew."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import BlockWeights, Curve, Engine, Entry, Moment, PerImage, Stack, StackError, Strength, engine
from lib_lora.execution import hooks
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from lib_lora.placement import resident
from lib_lora.placement.budget import Budget
from lib_lora.placement.resident import Resident
from tests.fakes.accelerator import device, simulated
from tests.fakes.contract import CASES, by_recipe, write
from tests.fakes.files import pair, save
from tests.fakes.kinds.base import Sample
from tests.fakes.layers import Model, make, weight_of
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs

ON = ("linear", "linear, many tokens", "conv 3x3, stride", "attention q")
OF_EACH = by_recipe([case for case in CASES if case.values[1] in ON])
WIDTH = 16
BYTES = 2 * 2 * WIDTH * 4 * 4
"""Of one file, placed in fp32 beside two layers."""


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).requires_grad_(False)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    def tensors(seed: int) -> dict[str, Tensor]:
        return pair("lora_unet_0", (WIDTH, WIDTH), 4, seed=seed) | pair("lora_unet_1", (WIDTH, WIDTH), 4, seed=seed + 9)

    return [save(tmp_path / f"{i}.safetensors", tensors(i)) for i in range(3)]


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many plans were made since it was asked last."""
    made = []
    make_plan = engine.make_plan
    monkeypatch.setattr(engine, "make_plan", lambda *args: made.append(1) or make_plan(*args))

    def count() -> int:
        number = len(made)
        made.clear()
        return number

    return count


def stack(file: Path, multiplier: float = 0.8) -> Stack:
    return Stack([Entry(file, multiplier)])


def left(model: nn.Module, files: Sequence[Path], making: Callable[[], int] | None = None) -> Engine:
    """Return an engine that has left the first file for the second, and made no plan since."""
    own = Engine({"unet": model})
    for file in files[:2]:
        own.activate(stack(file))
    if making is not None:
        making()
    return own


def fresh(model: nn.Module, own: Stack, x: Tensor) -> Tensor:
    """Return the output of an engine without a history."""
    other = Engine({"unet": model})
    other.activate(own)
    found: Tensor = model(x)
    other.close()
    return found


@torch.no_grad()
def test_nothing_is_made_or_copied_anew(model, files, making, monkeypatch):
    own, x = Engine({"unet": model}), torch.randn(3, WIDTH)
    first = own.activate(stack(files[0]))
    want = model(x)
    own.activate(stack(files[1]))
    model(x)
    assert making() == 2
    monkeypatch.setattr(Resident, "_adapters", lambda *args: pytest.fail("it lies ready"))
    assert own.activate(stack(files[0])) == first
    assert torch.equal(model(x), want)
    own.activate(stack(files[1], 0.3))
    got = model(x)
    own.activate(Stack())
    own.activate(stack(files[1], 0.3))
    assert torch.equal(model(x), got)
    assert making() == 0
    monkeypatch.undo()
    own.close()
    assert torch.equal(fresh(model, stack(files[1], 0.3), x), got)


@torch.no_grad()
def test_every_layer_of_a_unet_and_no_other(tmp_path, making):
    unet, inputs = tiny_unet(0), unet_inputs(0)
    files = [kohya_lora(tmp_path / f"{i}.safetensors", {"unet": unet}, seed=i, conv=i == 0) for i in range(2)]
    own, want = Engine({"unet": unet}), []
    plain = unet(**inputs)[0]
    for file in files:
        own.activate(stack(file))
        want.append(unet(**inputs)[0])
    carriers = sum(slot_of(layer) is not None for layer in unet.modules())
    making()
    own.activate(stack(files[0]))
    assert sum(slot_of(layer) is not None for layer in unet.modules()) > carriers
    assert torch.equal(unet(**inputs)[0], want[0])
    own.activate(stack(files[1]))
    assert sum(slot_of(layer) is not None for layer in unet.modules()) == carriers
    assert torch.equal(unet(**inputs)[0], want[1])
    assert making() == 0
    own.activate(Stack())
    assert all(slot_of(layer) is None for layer in unet.modules())
    assert torch.equal(unet(**inputs)[0], plain)


@pytest.mark.parametrize(("sample", "layer"), OF_EACH)
@torch.no_grad()
def test_every_kind_is_what_it_would_be_anew_also_where_the_weight_changed(
    tmp_path: Path, sample: Sample, layer: str
) -> None:
    base, x = make(layer, torch.float32)
    shape = tuple(weight_of(base, layer).shape)
    one, other = (write(tmp_path, sample, layer, shape, seed)[0] for seed in (0, 1))
    component = Model(base.layer)
    own = Engine({"unet": component})
    own.activate(stack(one))
    want = component(x)
    own.activate(stack(other))
    component(x)
    own.activate(stack(one))
    assert torch.equal(component(x), want)
    own.activate(stack(other))
    weight = weight_of(base, layer)
    weight.data.mul_(torch.linspace(0.5, 2, weight.numel()).view(weight.shape))
    own.activate(stack(one))
    got = component(x)
    own.close()
    assert torch.equal(got, fresh(component, stack(one), x))


@torch.no_grad()
def test_what_is_worked_out_of_several_layers_is_made_anew(tmp_path, making):
    """The q, k and v of a model that a file has as one, with a norm over all of them."""

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.to_q, self.to_k, self.to_v = (nn.Linear(8, 8) for _ in range(3))

    model = nn.Module()
    model.attn = Apart()
    model.requires_grad_(False)
    tensors = pair("lora_unet_attn_to_qkv", (24, 8), 2) | {"lora_unet_attn_to_qkv.dora_scale": torch.rand(1, 8) + 0.5}
    one = save(tmp_path / "whole.safetensors", tensors)
    other = save(tmp_path / "other.safetensors", pair("lora_unet_attn_to_q", (8, 8), 2))
    own, x = Engine({"unet": model}), torch.randn(3, 8)
    own.activate(stack(one))
    own.activate(stack(other))
    making()
    model.attn.to_k.weight.data.mul_(3)
    own.activate(stack(one))
    assert making() == 1
    got = model.attn.to_q(x)
    own.close()
    again = Engine({"unet": model})
    again.activate(stack(one))
    assert torch.equal(model.attn.to_q(x), got)


class TestMemory:
    """What is kept is counted apart, and has a limit."""

    def test_it_is_not_counted_as_placed(self, model, files):
        own = Engine({"unet": model})
        for i, file in enumerate(files):
            own.activate(stack(file))
            assert own.memory().placed == {"cpu": BYTES}
            assert own.memory().parked == i * BYTES
        own.activate(Stack())
        assert own.memory().placed == {}
        assert own.memory().parked == 3 * BYTES

    @pytest.mark.parametrize(("limit", "kept"), [(0, 0), (BYTES - 1, 0), (BYTES, 1), (2 * BYTES, 2)])
    def test_the_one_that_was_in_force_last_stays_longest(self, model, files, making, limit, kept):
        own = Engine({"unet": model}, parked_bytes=limit)
        for file in files:
            own.activate(stack(file))
        assert own.memory().parked == kept * BYTES
        making()
        own.activate(stack(files[1]))
        assert making() == (kept == 0)
        own.activate(stack(files[0]))
        assert making() == (kept < 2)

    @pytest.mark.parametrize("how", ["deactivate", "close", "components"])
    def test_nothing_is_left_where_all_is_to_go(self, model, files, how):
        own = left(model, files)
        if how == "components":
            own.components = {"unet": model}
        else:
            getattr(own, how)()
        assert own.memory().parked == 0
        gc.collect()
        assert not own._budget._accounts

    def test_it_goes_with_the_model(self, files):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        own, gone = left(model, files), weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
        assert own.memory().parked == 0

    def test_files_that_the_cache_drops_go_too(self, model, files):
        own = Engine({"unet": model}, cache_size=1)
        own.activate(stack(files[0]))
        own.activate(stack(files[1]))
        assert own.memory().parked == 0

    def test_many_without_tensors_are_not_kept_for_ever(self, model, files):
        with simulated():
            own = Engine({"unet": model.to(device())})
            for rank in range(1, 5):
                for i in range(3):
                    for j in range(3):
                        own.activate(Stack([Entry(files[i], rank=rank), Entry(files[j], rank=rank)]))
            assert len(own._plans._plans) == 16
            own.close()


@torch.no_grad()
def test_nothing_is_left_on_a_device_without_headroom(model, files, monkeypatch):
    monkeypatch.setattr(Budget, "has_headroom", lambda self, device: device.type == "cpu")
    with simulated():
        own, x = Engine({"unet": model.to(device())}), torch.randn(3, WIDTH).to(device())
        own.activate(stack(files[0]))
        want = model(x)
        own.activate(stack(files[1]))
        assert own.memory().placed == {str(device()): BYTES}
        own.activate(stack(files[0]))
        assert torch.equal(model(x), want)
        model.to("cpu")
        own.activate(stack(files[1]))
        own.activate(stack(files[0]))
        model.to(device())
        assert torch.equal(model(x), want)
        own.close()


@torch.no_grad()
def test_a_switch_asks_the_driver_once_for_all_layers(model, files, monkeypatch):
    asked, has_headroom = [], Budget.has_headroom
    monkeypatch.setattr(Budget, "has_headroom", lambda *args: asked.append(args) or has_headroom(*args))
    with simulated():
        own = Engine({"unet": model.to(device())})
        for number in (0, 1, 0):
            own.activate(stack(files[number]))
        own.activate(Stack())
        assert len(asked) == 3
        own.close()


@torch.no_grad()
def test_with_headroom_it_stays_on_its_device_until_memory_runs_out(model, files, monkeypatch):
    monkeypatch.setattr(Budget, "has_headroom", lambda self, device: True)
    with simulated():
        own, x = Engine({"unet": model.to(device())}), torch.randn(3, WIDTH).to(device())
        own.activate(stack(files[0]))
        want = model(x)
        own.activate(stack(files[1]))
        kept = next(iter(own._plans._plans.values()))
        assert kept.placed_bytes[device()] == BYTES
        assert own.memory().placed == {str(device()): BYTES}
        with monkeypatch.context() as context:
            context.setattr(resident, "all_to_device", None)  # nothing is copied again
            own.activate(stack(files[0]))
            assert torch.equal(model(x), want)
        own._budget.shrink(device())
        assert next(iter(own._plans._plans.values())).placed_bytes == {}
        own.activate(stack(files[1]))
        own.activate(stack(files[0]))
        assert torch.equal(model(x), want)
        own.close()
        assert own.memory().placed == {}


@torch.no_grad()
def test_a_file_that_was_replaced_meanwhile_is_read_again(model, files, tmp_path, making):
    own, x = left(model, files, making), torch.randn(3, WIDTH)
    os.utime(files[2], (1, 1))  # those here were written within one tick of the clock
    files[2].replace(files[0])
    own.activate(stack(files[0]))
    assert making() == 1
    got = model(x)
    own.close()
    assert torch.equal(got, fresh(model, stack(files[0]), x))


@torch.no_grad()
def test_a_model_in_another_dtype_meanwhile(model, files):
    own, x = left(model, files), torch.randn(3, WIDTH, dtype=torch.float64)
    model.double()
    own.activate(stack(files[0]))
    got = model(x)
    own.close()
    assert torch.equal(got, fresh(model, stack(files[0]), x))


@torch.no_grad()
def test_a_class_that_was_put_back_meanwhile_is_patched_again(model, files, monkeypatch, caplog):
    own, x = Engine({"unet": model}), torch.randn(3, WIDTH)
    own.activate(stack(files[0]))
    want = model(x)
    own.activate(stack(files[1]))
    monkeypatch.setattr(nn.Linear, "forward", hooks.patch_of(nn.Linear).base_forward)
    own.activate(stack(files[0]))
    assert torch.equal(model(x), want)
    assert "patched again" in caplog.text


@torch.no_grad()
def test_a_class_that_another_engine_patched_again_meanwhile_calls_what_was_parked(model, files, monkeypatch):
    own, x = left(model, files), torch.randn(3, WIDTH)
    original = hooks.patch_of(nn.Linear).base_forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, given: original(layer, given))
    second = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    other = Engine({"unet": second})
    other.activate(stack(files[2]))
    own.activate(stack(files[0]))
    got = model(x)
    own.close()
    other.close()
    assert torch.equal(got, fresh(model, stack(files[0]), x))


@torch.no_grad()
def test_a_layer_that_was_exchanged_meanwhile_is_served(model, files, making):
    own, x = left(model, files, making), torch.randn(3, WIDTH)
    model[1] = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    own.activate(stack(files[0]))
    assert making() == 1
    got = model(x)
    own.close()
    assert torch.equal(got, fresh(model, stack(files[0]), x))


@torch.no_grad()
def test_strengths_are_those_of_now(model, files, making):
    """Of a schedule, of a batch, and of neither."""
    own, x = Engine({"unet": model}), torch.randn(2, WIDTH)
    schedule = Stack([Entry(files[0], Strength(Curve(((0, 0), (4, 1)))))])
    own.activate(schedule)
    own.set_moment(Moment(3, 10))
    model(x)
    own.activate(stack(files[1]))
    own.activate(stack(files[0]))
    assert torch.equal(model(x), fresh_beside(model, stack(files[0]), x))
    own.activate(stack(files[1]))
    own.activate(Stack([Entry(files[0], PerImage((0.2, 0.9)))]))
    got = model(x)
    assert making() == 3  # of the two files, and the one to compare with
    for i, multiplier in enumerate((0.2, 0.9)):
        assert (got[i] - fresh_beside(model, stack(files[0], multiplier), x)[i]).abs().max() < 1e-6
    own.activate(stack(files[1]))
    own.activate(schedule)
    own.set_moment(Moment(0, 10))
    assert torch.equal(model(x), fresh_beside(model, stack(files[0], 0.0), x))


def fresh_beside(model: nn.Module, own: Stack, x: Tensor) -> Tensor:
    """Return the same as `fresh` while another engine serves the model."""
    other = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in model.children()))
    other.load_state_dict(model.state_dict())
    return fresh(other.requires_grad_(False), own, x)


@torch.no_grad()
def test_what_is_merged_is_taken_out(model, files):
    own, before = Engine({"unet": model}), [one.weight.clone() for one in model]
    own.activate(Stack([Entry(files[0], 0.8)], mode="merged"))
    assert not torch.equal(model[0].weight, before[0])
    own.activate(stack(files[1]))
    assert all(torch.equal(one.weight, old) for one, old in zip(model, before, strict=True))
    own.activate(Stack([Entry(files[0], 0.8)], mode="merged"))
    assert not torch.equal(model[0].weight, before[0])
    own.activate(Stack())
    assert all(torch.equal(one.weight, old) for one, old in zip(model, before, strict=True))
    assert own.memory().parked == BYTES


@torch.no_grad()
def test_a_stack_that_cannot_come_back_leaves_what_is_in_force(model, files, making):
    own, x = left(model, files, making), torch.randn(3, WIDTH)
    want = model(x)
    wrong = Strength(0.8, blocks=BlockWeights((1.0,) * 399))
    with pytest.raises(StackError, match="399"):
        own.activate(Stack([Entry(files[0], wrong)]))
    assert making() == 0, "it failed while coming back"
    assert torch.equal(model(x), want)
    assert own.stack == stack(files[1])
    own.activate(stack(files[0]))
    got = model(x)
    own.close()
    assert torch.equal(got, fresh(model, stack(files[0]), x))


@torch.no_grad()
def test_a_failure_while_another_is_placed_brings_back_what_was_in_force(model, files, monkeypatch):
    own, x = left(model, files), torch.randn(3, WIDTH)
    want = model(x)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(LowRankExecutor, "_content", fail)
    with pytest.raises(MemoryError):
        own.activate(stack(files[2]))
    assert own.stack == stack(files[1])
    assert own.memory().placed == {"cpu": BYTES}
    assert torch.equal(model(x), want), "nothing is made anew"


def test_what_there_is_no_room_for_is_dropped_before_the_next_is_placed(model, files, monkeypatch):
    own, released = Engine({"unet": model}, parked_bytes=BYTES - 1), []
    own.activate(stack(files[0]))
    release = LowRankExecutor.release

    def watched(self, layer):
        released.append(layer)
        release(self, layer)

    monkeypatch.setattr(LowRankExecutor, "release", watched)
    own.activate(stack(files[1]))
    own.activate(Stack())
    assert len(released) == 2 * len(set(released)) > 0
