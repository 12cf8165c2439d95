"""The mode `auto`: live for one call, then merged where the device was measured to gain by it; put back bit for bit."""

from __future__ import annotations

import gc
import json
import logging
from dataclasses import astuple, replace
from math import isfinite
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Curve, Engine, Entry, Moment, PerImage, Stack, StackError, Strength, tuning
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from lib_lora.execution.merged import MergedExecutor
from lib_lora.tuning import Tuner
from lib_lora.tuning.calibration import _seconds, measure
from lib_lora.tuning.rates import RateBook, Rates, Work
from tests.fakes.accelerator import device, simulated
from tests.fakes.files import pair, save
from tests.fakes.models import kohya_lora, tiny_text_encoder, tiny_unet, unet_inputs

CPU, F32 = torch.device("cpu"), torch.float32
MERGING = Rates(call=1.0, multiply=1.0, build=1.0, touch=0.0, entry=0.0)
"""Of a device on which merging costs next to nothing."""
LIVE = replace(MERGING, touch=1e9)
"""Of one on which it costs more than anything else."""
CALLS = 20


@pytest.fixture
def measured(monkeypatch):
    """Say what every device is measured to take."""

    def say(rates: Rates) -> list[tuple[torch.device, torch.dtype]]:
        asked: list[tuple[torch.device, torch.dtype]] = []
        monkeypatch.setattr(tuning, "measure", lambda *what: (asked.append(what), rates)[1])
        return asked

    say(MERGING)
    return say


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 8)).requires_grad_(False)


@pytest.fixture
def file(tmp_path):
    return save(tmp_path / "a.safetensors", pair("lora_unet_0", (12, 8), 4) | pair("lora_unet_1", (8, 12), 4))


def auto(file: Path, multiplier: float = 0.8, calls: int | None = CALLS) -> Stack:
    return Stack([Entry(file, multiplier)], mode="auto", calls=calls)


def ways(model: nn.Module) -> set[type]:
    return {type(slot.executor) for layer in model.modules() if (slot := slot_of(layer)) is not None}


def bits(model: nn.Module) -> list[bytes]:
    return [one.detach().cpu().numpy().tobytes() for one in model.parameters()]


def hooks(model: nn.Module) -> int:
    """Of the layers, and those in front of calls of the model: that its output is looked at is told elsewhere."""
    every = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())
    return every - len(model._forward_hooks) - len(model._forward_pre_hooks)


@torch.no_grad()
def test_the_first_call_is_live_and_those_after_it_are_merged(model, file, measured):
    own, before, x = Engine({"unet": model}, tuner=Tuner()), bits(model), torch.randn(5, 8)
    report = own.activate(auto(file))
    assert dict(report.live) == {"the first call measures where merging pays": 2}
    outputs = [model(x)]
    assert ways(model) == {LowRankExecutor}
    assert bits(model) == before
    outputs += [model(x), model(x)]
    assert ways(model) == {MergedExecutor}
    assert bits(model) != before
    assert (own.report.merged, dict(own.report.live)) == (2, {})
    for other in outputs[1:]:
        assert 0 < (other - outputs[0]).abs().max() < 1e-5 * outputs[0].abs().max()
    assert hooks(model) == 0
    own.deactivate()
    assert bits(model) == before


def test_without_a_tuner_it_is_refused_with_what_to_write(model, file):
    own = Engine({"unet": model})
    own.activate(Stack([Entry(file)]))
    with pytest.raises(StackError, match=r"Engine\(components, tuner=Tuner\(\)\); Tuner is in lib_lora.tuning"):
        own.activate(auto(file))
    assert own.stack == Stack([Entry(file)])


@torch.no_grad()
def test_a_picture_does_not_depend_on_those_before_it(model, file, measured):
    x = torch.randn(5, 8)

    def picture(own: Engine, multiplier: float = 0.8) -> list[Tensor]:
        own.activate(auto(file, multiplier))
        return [model(x) for _ in range(3)]

    own = Engine({"unet": model}, tuner=Tuner())
    want = picture(own)
    again = picture(own)
    picture(own, 0.3)
    own.activate(Stack([Entry(file)]))
    once_more = picture(own)
    own.close()
    fresh = picture(Engine({"unet": model}, tuner=Tuner()))
    for got in (again, once_more, fresh):
        assert all(map(torch.equal, got, want))


@torch.no_grad()
def test_measuring_draws_nothing_from_torchs_generator(model, file):
    """Otherwise the first picture of a seed differs from the second."""
    engine, x = Engine({"unet": model}, tuner=Tuner()), torch.randn(5, 8)
    before = torch.get_rng_state()
    engine.activate(auto(file, calls=40))
    for _ in range(2):
        model(x)
    assert torch.equal(torch.get_rng_state(), before)


@torch.no_grad()
def test_another_stack_takes_it_out_again(model, file, measured):
    own, before, x = Engine({"unet": model}, tuner=Tuner()), bits(model), torch.randn(5, 8)
    for after in (Stack([Entry(file, 0.3)]), Stack()):
        own.activate(auto(file))
        for _ in range(2):
            model(x)
        assert bits(model) != before
        own.activate(after)
        assert bits(model) == before


@torch.no_grad()
@pytest.mark.parametrize("other", [Strength(Curve(((0, 0), (4, 1)))), PerImage((0.8, 0.1))])
def test_a_strength_that_no_weight_can_hold_takes_it_out_again(model, file, measured, other):
    own, before, x = Engine({"unet": model}, tuner=Tuner()), bits(model), torch.randn(2, 8)
    own.activate(auto(file))
    for _ in range(2):
        model(x)
    own.set_moment(Moment(step=2))
    own.set_multiplier(0, other)
    got = [model(x), model(x)]
    assert bits(model) == before
    assert ways(model) == {LowRankExecutor}
    own.activate(Stack([Entry(file, other)]))
    assert all(torch.equal(one, model(x)) for one in got)


@torch.no_grad()
def test_nothing_is_merged_where_it_costs_more_than_it_saves(model, file, measured):
    measured(LIVE)
    own, before = Engine({"unet": model}, tuner=Tuner()), bits(model)
    own.activate(auto(file))
    for _ in range(3):
        model(torch.randn(5, 8))
    assert ways(model) == {LowRankExecutor}
    assert bits(model) == before
    assert dict(own.report.live) == {"merging would not pay": 2}
    assert hooks(model) == 0


@torch.no_grad()
@pytest.mark.parametrize("calls", [None, 0, 1])
def test_few_calls_or_an_unknown_number_are_live(model, file, measured, calls):
    own = Engine({"unet": model}, tuner=Tuner())
    report = own.activate(auto(file, calls=calls))
    for _ in range(3):
        model(torch.randn(5, 8))
    assert ways(model) == {LowRankExecutor}
    assert not report.merging
    assert hooks(model) == 0


@torch.no_grad()
def test_each_layer_is_decided_by_its_own_places_and_by_the_calls_that_are_left(file, measured, caplog):
    """The second layer sees a hundredth of the places of the first."""

    class Pooled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[1](self[0](x)[:1])

    model = Pooled(nn.Linear(8, 12), nn.Linear(12, 8)).requires_grad_(False)
    numbers = 4 * 20
    # at 19 remaining calls the first, which computes 7 places, saves 19 * 80 * 7
    measured(Rates(call=0.0, multiply=1.0, build=0.0, touch=19.0 * numbers * 7 - numbers * 96 / 20 - 1.0, entry=0.0))
    own = Engine({"unet": model}, tuner=Tuner())
    with caplog.at_level(logging.INFO):
        for calls, some in ((20, 1), (19, 0)):
            own.activate(auto(file, calls=calls))
            for _ in range(2):
                model(torch.randn(7, 8))
            assert own.report.merged == some
    assert isinstance(slot_of(model[0]).executor, LowRankExecutor)
    assert [one.message.partition(":")[0] for one in caplog.records] == ["auto"] * 2, "one line for each"
    assert "1 of 2 layers are merged" in caplog.records[0].message


@torch.no_grad()
def test_a_strength_that_changes_later_is_merged_anew(model, file, measured):
    own, before, x = Engine({"unet": model}, tuner=Tuner()), bits(model), torch.randn(5, 8)
    own.activate(auto(file))
    for _ in range(2):
        model(x)
    own.set_multiplier(0, -0.5)
    got = model(x)
    own.activate(Stack([Entry(file, -0.5)]))
    want = model(x)
    assert (got - want).abs().max() < 1e-5 * want.abs().max()
    own.deactivate()
    assert bits(model) == before


@torch.no_grad()
def test_a_merge_that_fails_leaves_the_stack_live(model, file, measured, monkeypatch, caplog):
    own, before, x = Engine({"unet": model}, tuner=Tuner()), bits(model), torch.randn(5, 8)
    own.activate(auto(file))
    want = model(x)
    merge, done = MergedExecutor._merge, []

    def fail(way: MergedExecutor, layer: nn.Module, values: dict[int, float]) -> None:
        if done:
            raise torch.cuda.OutOfMemoryError("nothing left")
        done.append(merge(way, layer, values))

    monkeypatch.setattr(MergedExecutor, "_merge", fail)
    assert torch.equal(model(x), want)
    assert "stays live: nothing left" in caplog.text
    assert bits(model) == before
    assert ways(model) == {LowRankExecutor}


@torch.no_grad()
def test_a_device_that_cannot_be_measured_leaves_the_stack_live(model, file, monkeypatch, caplog):
    def fail(*_: object) -> Rates:
        raise torch.cuda.OutOfMemoryError("not even a layer")

    monkeypatch.setattr(tuning, "measure", fail)
    own, x = Engine({"unet": model}, tuner=Tuner()), torch.randn(5, 8)
    own.activate(auto(file))
    outputs = [model(x) for _ in range(3)]
    assert torch.equal(outputs[0], outputs[2])
    assert "could not be measured: not even a layer" in caplog.text
    assert ways(model) == {LowRankExecutor}
    assert dict(own.report.live) == {"merging would not pay": 2}


@torch.no_grad()
def test_a_first_call_that_fails_leaves_nothing_half_done(model, file, measured):
    own, x = Engine({"unet": model}, tuner=Tuner()), torch.randn(5, 8)
    own.activate(auto(file))
    with pytest.raises(RuntimeError):
        model(torch.randn(5, 7))
    want = fresh_live(model, file, x)
    assert (model(x) - want).abs().max() < 1e-5 * want.abs().max()
    own.activate(auto(file))
    assert (model(x) - want).abs().max() < 1e-5 * want.abs().max()
    own.deactivate()
    assert hooks(model) == 0


def fresh_live(model: nn.Module, file: Path, x: Tensor) -> Tensor:
    """Return the output of a copy with a live stack."""
    other = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 8))
    other.load_state_dict(model.state_dict())
    own = Engine({"unet": other.requires_grad_(False)}, tuner=Tuner())
    own.activate(Stack([Entry(file, 0.8)]))
    made: Tensor = other(x)
    own.close()
    return made


@torch.no_grad()
def test_text_encoders_are_live_and_components_are_decided_each_by_itself(tmp_path, measured):
    unet, encoder = tiny_unet(0), tiny_text_encoder(0)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": unet, "text_encoder": encoder})
    own = Engine({"unet": unet, "text_encoder": encoder}, tuner=Tuner())
    report = own.activate(auto(path))
    assert set(report.live) == {"the first call measures where merging pays"}
    for _ in range(2):
        encoder(torch.ones(1, 4, dtype=torch.int64))
        unet(**unet_inputs(0))
    assert MergedExecutor in ways(unet)
    assert MergedExecutor not in ways(encoder), "a text encoder is called once"


@torch.no_grad()
def test_a_compiled_model_is_left_as_it_was_compiled(model, file, measured):
    model[1].compile(backend="eager")
    own = Engine({"unet": model}, tuner=Tuner())
    report = own.activate(auto(file))
    assert dict(report.live) == {"the model is compiled, and merging would compile it again": 2}
    assert hooks(model) == 0


@torch.no_grad()
def test_an_engine_that_is_dropped_leaves_nothing_on_the_model(model, file, measured):
    before = bits(model)
    for calls in range(3):
        own = Engine({"unet": model}, tuner=Tuner())
        own.activate(auto(file))
        for _ in range(calls):
            model(torch.randn(5, 8))
        del own
        gc.collect()
        assert hooks(model) == 0
        assert bits(model) == before
        assert ways(model) == set()


@torch.no_grad()
def test_on_a_device(file, measured):
    asked = measured(MERGING)
    with simulated():
        model = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 8)).requires_grad_(False)
        before = bits(model)
        model.to(device())
        own, x = Engine({"unet": model}, tuner=Tuner()), torch.randn(5, 8).to(device())
        own.activate(auto(file))
        first, second = (model(x).to("cpu") for _ in range(2))
        assert ways(model) == {MergedExecutor}
        own.deactivate()
        model.to("cpu")
    assert asked == [(device(), F32)]
    assert (first - second).abs().max() < 1e-5 * first.abs().max()
    assert bits(model) == before


class TestRates:
    def test_a_pair_costs_by_its_places_until_the_sum_is_cheaper(self):
        work = Work(numbers=4 * 20, entries=96, sides=20, builds=False)
        rates = Rates(call=2.0, multiply=0.5, build=100.0, touch=7.0, entry=0.25)
        assert rates.live(work, 3, exact=True) == 2 + 0.5 * 80 * 3
        assert rates.live(work, 100, exact=True) == pytest.approx(2 + 0.5 * 80 * 1.5 * 96 / 20)
        assert rates.live(work, 100, exact=False) == 2 + 0.5 * 80 * 100
        assert rates.live(replace(work, builds=True), 3, exact=True) == 2 + 100 * 96 + 0.5 * 4 * 96
        assert rates.merging(work) == 7 + 0.25 * 96 + 0.5 * 4 * 96

    @pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16])
    def test_a_device_is_measured(self, dtype):
        rates = measure(CPU, dtype)
        assert all(isfinite(one) and one >= 0 for one in astuple(rates))
        assert min(rates.call, rates.touch) > 0
        large = Work(numbers=16 * 2048, entries=1 << 20, sides=2048, builds=False)
        assert rates.merging(large) > rates.touch

    def test_a_moment_in_which_the_machine_is_busy_does_not_decide(self, monkeypatch):
        calls: list[float] = []
        before: list[int] = []
        # the time of this machine, which others use, too, would make the test fail at random
        monkeypatch.setattr("lib_lora.tuning.calibration.time", SimpleNamespace(perf_counter=lambda: sum(calls)))

        def run() -> Tensor:
            calls.append(0.002 if len(calls) < 20 else 0.0001)
            return torch.zeros(1)

        def turn() -> Tensor:
            before.append(len(calls))
            return torch.zeros(())

        assert _seconds(run, turn) == pytest.approx(0.0001)
        assert len(calls) > 40
        assert before == list(range(1, len(calls))), "before each but the first, which only warms up"

    def test_a_simulated_device_is_measured(self):
        with simulated():
            assert measure(device(), F32).touch > 0


class TestBook:
    def test_a_device_is_measured_once_for_all_processes(self, tmp_path):
        asked, path = [], tmp_path / "deep" / "rates.json"

        def ask(*what: object) -> Rates:
            asked.append(what)
            return MERGING

        for _ in range(2):
            book = RateBook(ask, path)
            assert book.of(CPU, F32) == book.of(CPU, F32) == MERGING
        assert asked == [(CPU, F32)]
        assert RateBook(ask, path).of(CPU, torch.bfloat16) == MERGING
        assert len(json.loads(path.read_text())) == 2, "what others measured stays"
        assert [one.name for one in path.parent.iterdir()] == ["rates.json"]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"call": 1.0}}', "\x00"])
    def test_a_damaged_file_is_said_and_made_anew(self, tmp_path, text, caplog):
        path = tmp_path / "rates.json"
        path.write_text(text)
        assert RateBook(lambda *_: MERGING, path).of(CPU, F32) == MERGING
        assert "rates.json cannot be read" in caplog.text
        assert RateBook(lambda *_: LIVE, path).of(CPU, F32) == MERGING

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, "1", None])
    def test_numbers_that_are_no_times_are_measured_anew(self, tmp_path, wrong):
        path = tmp_path / "rates.json"
        RateBook(lambda *_: MERGING, path).of(CPU, F32)
        ((key, rates),) = json.loads(path.read_text()).items()
        path.write_text(json.dumps({key: {**rates, "touch": wrong}}))
        assert RateBook(lambda *_: LIVE, path).of(CPU, F32) == LIVE

    def test_a_file_that_cannot_be_written_is_said(self, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        assert RateBook(lambda *_: MERGING, tmp_path / "file" / "rates.json").of(CPU, F32) == MERGING
        assert "cannot be" in caplog.text
