"""Engines that threads use at the same time, and what an engine leaves in the process."""

from __future__ import annotations

import gc
import logging
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from lib_lora import Engine, Entry, Halves, PerImage, Region, RowsError, Stack, Strength, install, uninstall
from lib_lora.execution import hooks
from lib_lora.placement import resident
from lib_lora.strengths.table import StrengthTable
from tests.conftest import TORCH
from tests.fakes.files import pair, save
from tests.fakes.kinds import SAMPLES


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    torch._dynamo.reset()  # compiled code of other tests keeps the patches of its classes
    gc.collect()
    uninstall()
    yield
    uninstall()


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(*works: Callable[[], None], patience: float = 300) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # it is raised again below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def net(count: int = 1, layer: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    return nn.Sequential(*(layer(4, 4, bias=False) for _ in range(count))).requires_grad_(False)


def lora(path: Path, count: int = 1) -> Path:
    tensors: dict[str, Tensor] = {}
    for i in range(count):
        tensors |= pair(f"lora_unet_{i}", (4, 4), 1, seed=i)
    return save(path, tensors)


def class_attributes() -> dict[type[nn.Module], dict[str, object]]:
    return {cls: dict(cls.__dict__) for cls in hooks.CLASSES}


# two engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_quick_switches")
@pytest.mark.parametrize("turns", [2, pytest.param(12, marks=pytest.mark.long)])
def test_two_engines_in_two_threads_never_meet(tmp_path: Path, turns: int) -> None:
    count = 800
    file = lora(tmp_path / "a.safetensors", count)

    def work() -> None:
        model, x = net(count), torch.randn(2, 4)
        plain = model(x)
        with Engine({"unet": model}) as engine:
            for _ in range(turns):
                engine.activate(Stack([Entry(file, 0.5)]))
                assert all(hooks.slot_of(layer) is not None for layer in model)
                engine.deactivate()
                assert all(hooks.slot_of(layer) is None for layer in model)
        assert torch.equal(model(x), plain)

    in_threads(work, work)


@pytest.mark.usefixtures("_quick_switches")
def test_engines_that_come_and_go_in_threads_leave_all_others_served(tmp_path: Path) -> None:
    file, before = lora(tmp_path / "a.safetensors"), class_attributes()

    def work() -> None:
        for turn in range(200):
            model, x = net(), torch.randn(2, 4)
            plain = model(x)
            engine = Engine({"unet": model})
            engine.activate(Stack([Entry(file)]))
            assert not torch.equal(model(x), plain)
            if turn % 2:
                engine.close()
            del engine
            assert torch.equal(model(x), plain)

    in_threads(work, work)
    gc.collect()
    assert class_attributes() == before


def test_a_deactivation_that_fails_leaves_no_lora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net(4), torch.randn(2, 4)
    plain = model(x)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(lora(tmp_path / "a.safetensors", 4))]))
    assert engine._plan is not None
    executor = next(iter(engine._plan.executors.values()))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(type(executor), "release", fail)
    monkeypatch.setattr(type(executor), "move", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.deactivate()
    assert torch.equal(model(x), plain)
    assert all(hooks.slot_of(layer) is None for layer in model)


# what stays in the process --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "collected"])
def test_the_last_engine_takes_the_patches_off(tmp_path: Path, how: str) -> None:
    gc.collect()  # engines of other tests
    before = class_attributes()
    models = [net() for _ in range(2)]
    engines = [Engine({"unet": model}) for model in models]
    for engine in engines:
        assert nn.Linear.forward is not before[nn.Linear]["forward"]
        engine.activate(Stack([Entry(lora(tmp_path / "a.safetensors"))]))
        if how == "closed":
            engine.close()
    del engine
    engines.clear()
    assert class_attributes() == before


def test_an_engine_that_was_closed_can_be_used_again(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    plain = model(x)
    engine = Engine({"unet": model})
    engine.close()
    engine.activate(Stack([Entry(lora(tmp_path / "a.safetensors"))]))
    assert not torch.equal(model(x), plain)


def test_patches_that_a_host_installed_stay_until_it_takes_them_off() -> None:
    before = class_attributes()
    install()
    installed = class_attributes()
    Engine({"unet": net()}).close()
    assert class_attributes() == installed
    uninstall()
    assert class_attributes() == before


def test_a_patch_of_others_on_top_stays_when_the_last_engine_goes() -> None:
    original = nn.Linear.forward
    engine = Engine({"unet": net()})
    ours = nn.Linear.forward

    def theirs(self: nn.Module, x: Tensor) -> Tensor:
        return ours(self, x) + 1

    nn.Linear.forward = theirs  # type: ignore[method-assign,assignment]
    try:
        engine.close()
        assert nn.Linear.forward is theirs
        assert torch.equal(net()(torch.zeros(2, 4)), torch.ones(2, 4))
    finally:
        nn.Linear.forward = original  # type: ignore[method-assign]


@pytest.mark.parametrize("installed", [False, True], ids=["", "installed by a host"])
def test_patched_classes_are_freed(tmp_path: Path, installed: bool) -> None:
    file, kept = lora(tmp_path / "a.safetensors"), Engine({"unet": net()})
    if installed:
        install()

    def serve() -> weakref.ref[type]:
        class Layer(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x)

        model = net(layer=Layer)
        engine = Engine({"unet": model})
        engine.activate(Stack([Entry(file)]))
        model(torch.randn(2, 4))
        return weakref.ref(Layer)

    classes = [serve() for _ in range(5)]
    gc.collect()
    assert [ref() for ref in classes] == [None] * 5
    kept.close()


@pytest.mark.parametrize("mode", ["live", "merged"])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("lora", (8, 8)),
        ("lora", (8, 8, 1, 1)),
        *[(kind, (10, 8)) for kind in ("vera", "randlora", "fourierft", "waveft")],
    ],
)
def test_nothing_draws_from_the_global_generator(tmp_path: Path, kind: str, shape: tuple[int, ...], mode: Any) -> None:
    """Even where a kind has random numbers, a weight is rounded at random, or a forward is replaced."""
    sample = next(sample for sample in SAMPLES if sample.name == kind)
    dtype = torch.bfloat16 if mode == "merged" else torch.float32
    layer = nn.Conv2d(8, 8, 1) if shape[2:] else nn.Linear(8, shape[0])
    model, x = nn.ModuleDict({"layer": layer}).to(dtype), torch.zeros(1, 8, *shape[2:], dtype=dtype)
    path, _ = sample.write(tmp_path, shape)
    engine = Engine({"unet": model})
    before = generators()
    ours: dict[type[nn.Module], Any] = {cls: cls.forward for cls in (nn.Linear, nn.Conv2d)}

    def theirs(self: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = ours[type(self)](self, x)
        return result

    try:
        for cls in ours:
            cls.forward = theirs
        assert engine.activate(Stack([Entry(path)], mode=mode)).entries[0].hit == 1
        for _ in range(3):
            layer(x)
        engine.deactivate()
    finally:
        for cls, forward in ours.items():
            cls.forward = forward
    assert generators() == before


def generators() -> tuple[object, ...]:
    """Return the states of the global generators of Python, numpy and torch."""
    return random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()


# an activation beside a call ------------------------------------------------------------------------------------------


def test_an_executor_that_is_taken_off_during_a_call_is_run_once_more(tmp_path: Path) -> None:
    """The forward reads which executor a slot has once: it may be gone at the second time."""
    model, x = net(), torch.randn(2, 4)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(lora(tmp_path / "a.safetensors"))]))
    want, slot = model(x), hooks.slot_of(model[0])
    assert slot is not None
    assert slot.executor is not None
    reads = [slot.executor]

    class Taken(hooks.Slot):
        executor = property(lambda _: reads.pop() if reads else None, lambda *_: None)  # type: ignore[assignment]

    taken = Taken.__new__(Taken)
    taken.patch, taken.called = slot.patch, False
    model[0]._remora_slot = taken
    assert torch.equal(model(x), want)
    model[0]._remora_slot = slot


def test_a_call_that_began_before_an_activation_tells_nothing_of_its_layers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = net(3), torch.randn(2, 4)
    engine = Engine({"unet": model})
    files = [lora(tmp_path / f"{i}.safetensors", 3) for i in range(2)]
    engine.activate(Stack([Entry(files[0])]))
    model(x)
    inside, activated = threading.Event(), threading.Event()

    def pause(*_: object) -> None:
        inside.set()
        assert activated.wait(30)

    hook = model[2].register_forward_pre_hook(pause)

    def activate() -> None:
        assert inside.wait(30)
        engine.activate(Stack([Entry(files[1])]))
        activated.set()

    with caplog.at_level(logging.WARNING):
        in_threads(lambda: model(x), activate)
        assert not engine.report.uncalled, "of the activation that is in force no call has ended"
        hook.remove()
        model(x)
    assert not engine.report.uncalled
    assert not caplog.records


@pytest.mark.parametrize("groups", [1, 2], ids=["low-rank", "dense"])
@pytest.mark.parametrize("name", ["images", "regions of images", "a region"])
def test_an_activation_inside_a_call_of_a_layer_ends_no_call(tmp_path: Path, groups: int, name: str) -> None:
    meddling: list[Callable[[], None]] = []

    class Layer(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            if meddling:
                meddling.pop()()
            return super().forward(x)

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer(8, 8, 3, padding=1, groups=groups)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x)
            return result

    left = Strength(0.5, region=Region.rectangle(0, 0, 0.5, 1))
    multiplier = {"images": PerImage((0.2, 1.5)), "regions of images": PerImage((1.5, left)), "a region": left}[name]
    file = save(tmp_path / "a.safetensors", pair("lora_unet_layer", (8, 8 // groups, 3, 3), 4))
    model, x = Denoiser(), torch.randn(4, 8, 6, 6)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file, 0.7)]))
    want = model(x)
    for other in (0.7, PerImage((0.7, 0.7, 0.7, 0.7)), Halves(0.7, 0.7)):
        engine.activate(Stack([Entry(file, multiplier)]))
        model(x)
        meddling.append(partial(engine.set_multiplier, 0, other))
        assert model(x).isfinite().all()
        assert not meddling
        assert torch.equal(model(x), want)


class Served(nn.Module):
    """A layer of each executor: low-rank, dense, and one of the prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.grouped = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.to_q, self.add_q_proj = nn.Linear(8, 8), nn.Linear(8, 8)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.grouped(self.conv(x))
        tokens = self.to_q(y.flatten(2).transpose(1, 2)) + self.add_q_proj(y.mean((2, 3))).unsqueeze(1)
        result: Tensor = tokens.transpose(1, 2).reshape(y.shape)
        return result


def stacks(folder: Path) -> list[Stack]:
    """Return stacks of all sorts, on two files that share no plan."""
    shapes = {"conv": (8, 8, 3, 3), "grouped": (8, 4, 3, 3), "to_q": (8, 8), "add_q_proj": (8, 8)}
    first, second = (
        save(
            folder / f"{seed}.safetensors",
            {key: one for name in names for key, one in pair(f"lora_unet_{name}", shapes[name], 4, seed=seed).items()},
        )
        for seed, names in enumerate([shapes, ["conv", "to_q"]])
    )
    left = Strength(0.5, region=Region.rectangle(0, 0, 0.5, 1))
    return [
        Stack([Entry(first, PerImage((0.2, 1.5)))]),
        Stack([Entry(first, PerImage((left, 0.7)))]),
        Stack([Entry(first, PerImage((1.5, left))), Entry(second, 0.3)]),
        Stack([Entry(first, left)]),
        Stack([Entry(first, 0.4)]),
        Stack([Entry(first, 0.4), Entry(second, PerImage((0.0, 1.0)))], mode="merged"),
        Stack([Entry(second, 0.4)], mode="merged"),
        Stack([Entry(second, PerImage((1.0, 0.1, 0.0, -1.0)))]),
        Stack(),
    ]


@pytest.mark.parametrize(
    ("calls", "activations"), [(150, 150), pytest.param(20_000, 50_000, marks=pytest.mark.long)], ids=["", "long"]
)
@torch.no_grad()
def test_calls_beside_activations_raise_nothing_and_say_nothing_false(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, calls: int, activations: int
) -> None:
    """After them, each stack is what it is without threads."""
    model, x, every = Served(), torch.randn(4, 8, 6, 6), stacks(tmp_path)
    engine, choose, done = Engine({"unet": model}), random.Random(5), threading.Event()
    want = []
    for stack in every:
        engine.activate(stack)
        want.append(model(x))

    def call() -> None:
        made = 0
        while made < calls or not done.is_set():
            assert model(x).isfinite().all()
            made += 1

    def activate() -> None:
        try:
            for i in range(activations):
                engine.activate(choose.choice(every))
                if i % 8 == 0:
                    assert not engine.report.uncalled
                if engine.stack.entries:
                    engine.set_multiplier(0, choose.choice(every[:5]).entries[0].multiplier)
        finally:
            done.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with caplog.at_level(logging.WARNING):
            in_threads(torch.no_grad()(call), torch.no_grad()(activate), patience=300 + activations / 10)
    finally:
        sys.setswitchinterval(before)
    assert not caplog.records
    for stack, one in zip(every, want, strict=True):
        engine.activate(stack)
        assert torch.equal(model(x), one)


@torch.no_grad()
def test_no_thread_writes_while_a_call_looks_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other regions are written in between, the call has none that layers have met, and said so falsely."""
    model, x, is_placed, held = Served(), torch.randn(4, 8, 6, 6), StrengthTable.is_placed, list[bool]()

    def looked(table: StrengthTable) -> bool:
        held.append(table.lock._is_owned())  # type: ignore[attr-defined]
        return bool(is_placed.fget(table))  # type: ignore[attr-defined]

    monkeypatch.setattr(StrengthTable, "is_placed", property(looked))
    with Engine({"unet": model}) as engine:
        for stack in stacks(tmp_path):
            engine.activate(stack)
            model(x)
    assert held
    assert all(held)


def test_a_denoiser_that_calls_another_one_keeps_the_lock_and_its_rows(tmp_path: Path) -> None:
    """The other one has other rows, and other threads wait until the outer one is done."""
    inner, order = Denoising(), list[str]()

    class Outer(Denoising):
        def forward(self, sample: Tensor, timestep: float = 0.0) -> Tensor:
            order.append("begins")
            y = inner(sample[:2], timestep=3.0)
            waiting.wait(0.3)
            order.append("goes on")
            result: Tensor = self.layer(sample) + y.mean()
            return result

    outer, x, waiting = Outer(), torch.randn(4, 8), threading.Event()
    file = save(tmp_path / "a.safetensors", pair("lora_unet_layer", (8, 8), 4) | pair("transformer.layer", (8, 8), 4))
    engine = Engine({"unet": outer, "transformer": inner})
    strengths = 0.5, 1.5
    alone = []
    for strength in strengths:
        engine.activate(Stack([Entry(file, strength)]))
        alone.append(outer.layer(x))
    base, calm = torch.stack(alone)[[0, 1, 0, 1], range(4)], list[Tensor]()
    engine.activate(Stack([Entry(file, PerImage(strengths))]))
    added = inner(x[:2]).mean()
    order.clear()

    def call() -> None:
        calm.append(outer(x))

    def call_later() -> None:
        while not order:
            time.sleep(0.001)
        inner(x[:2])
        order.append("another thread")
        waiting.set()

    in_threads(call, call_later)
    assert order == ["begins", "goes on", "another thread"]
    assert (calm[0] - base - added).abs().max() < 1e-5
    with pytest.raises(RowsError):
        outer(x[:3])
    assert not engine._calls.lock.is_held()
    assert (outer(x) - base - added).abs().max() < 1e-5


class Denoising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, sample: Tensor, timestep: float = 0.0) -> Tensor:
        result: Tensor = self.layer(sample)
        return result


def test_a_call_that_was_broken_off_holds_no_other_thread(tmp_path: Path) -> None:
    """No hook is called after KeyboardInterrupt, and a debugger keeps its traceback."""
    model, x, kept = Denoising(), torch.randn(2, 8), list[BaseException]()
    engine, file = Engine({"unet": model}), save(tmp_path / "a.safetensors", pair("lora_unet_layer", (8, 8), 4))
    engine.activate(Stack([Entry(file, PerImage((1, 0)))]))
    want = model(x)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.layer.register_forward_pre_hook(stop)
    try:
        model(x)
    except KeyboardInterrupt as error:
        kept.append(error)
    hook.remove()
    assert torch.equal(model(x), want)
    got = list[Tensor]()
    in_threads(lambda: got.append(model(x)))
    assert torch.equal(got[0], want)


def test_after_an_activation_that_failed_the_report_speaks_of_calls_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former layers come back unseen, and a call that ends meanwhile had none of them."""
    model, x = net(3), torch.randn(2, 4)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(lora(tmp_path / "a.safetensors", 3))]))
    model(x)

    def fail(*_: object) -> None:
        in_threads(lambda: model(x))
        raise RuntimeError("the device is gone")

    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(resident, "place_together", fail)
        with pytest.raises(RuntimeError, match="the device is gone"):
            engine.activate(Stack([Entry(lora(tmp_path / "b.safetensors", 1))]))
        monkeypatch.undo()
        assert not engine.report.uncalled
        model(x)
    assert not engine.report.uncalled
    assert not caplog.records


# compiled code --------------------------------------------------------------------------------------------------------


def compiled(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], list[int]]:
    """Compile a model; return it, and a list that grows with each compilation."""
    compilations: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        compilations.append(len(compilations))
        return graph.forward

    call: Callable[[Tensor], Tensor] = torch.compile(model, backend=backend)
    return call, compilations


@pytest.mark.skipif(TORCH < (2, 6), reason="torch forgets all compiled code")
@torch._dynamo.config.patch(recompile_limit=64)  # all models here share their code
@torch.no_grad()
def test_a_new_class_compiles_models_that_have_it_again_and_no_other(tmp_path: Path) -> None:
    torch.compiler.reset()
    install()
    other, compilations = compiled(net(2))
    x = torch.randn(2, 4)
    other(x)
    for i in range(4):

        class Layer(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return nn.functional.linear(x, self.weight)

        model = net(layer=Layer)
        call, own_compilations = compiled(model)
        plain = call(x)
        engine = Engine({"unet": model})
        engine.activate(Stack([Entry(lora(tmp_path / f"{i}.safetensors"))]))
        assert (call(x) - model(x)).abs().max() < 1e-6
        assert not torch.equal(call(x), plain)
        assert len(own_compilations) == 2, "once before the engine, and once with the LoRA"
        engine.close()
        assert torch.equal(call(x), plain)
        other(x)
    assert len(compilations) == 1


@torch.no_grad()
def test_an_engine_more_or_less_compiles_nothing_of_another_model(tmp_path: Path) -> None:
    torch.compiler.reset()
    first = Engine({"unet": net()})
    other, compilations = compiled(net(2))
    x = torch.randn(2, 4)
    want = other(x)
    first.close()
    model = net()
    for _ in range(3):
        with Engine({"unet": model}) as engine:
            engine.activate(Stack([Entry(lora(tmp_path / "a.safetensors"))]))
            assert torch.equal(other(x), want)
        assert torch.equal(other(x), want)
    assert len(compilations) == 1
    torch.compiler.reset()
