"""Budgets in the device's own figures, and an allocation that fails, at each place."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib_lora import Engine, Entry, Stack
from tests.device.conftest import needs_float8
from tests.fakes.accelerator import OutOfMemoryError
from tests.fakes.files import pair, save
from tests.fakes.net import Block, net, net_inputs, net_lora
from tests.fakes.offloading import assert_same
from tests.fakes.schemes import call

pytestmark = pytest.mark.device

CHUNK = 1 << 12  # bytes that an allocator may keep
ROUNDED = 1.25  # an allocator rounds the bytes of each tensor up


@pytest.fixture
def allocated(device: torch.device) -> Callable[[], int]:
    """Return a function that asks the device how many bytes its tensors have."""
    module = getattr(torch, device.type)
    if not hasattr(module, "memory_allocated"):
        pytest.skip(f"torch.{device.type} does not tell the bytes of its tensors")

    def ask() -> int:
        gc.collect()
        module.synchronize()
        return int(module.memory_allocated(device))

    return ask


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file whose tensors are large beside what an allocator rounds up."""
    return net_lora(tmp_path_factory.mktemp("memory") / "wide.safetensors", rank=128)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, None])
def test_a_budget_in_the_figures_of_the_device(
    share: float | None, wide: Path, device: torch.device, allocated: Callable[[], int]
) -> None:
    model, inputs, stack = net().to(device), net_inputs(), Stack([Entry(wide, 0.1)])
    base = call(model, inputs, device)
    empty = allocated()
    engine = Engine({"unet": model})
    engine.activate(stack)
    full = call(model, inputs, device)
    every = allocated() - empty
    placed = engine.memory().placed[str(device)]
    assert placed <= every <= ROUNDED * placed
    engine.close()
    assert allocated() - empty <= CHUNK
    budget = None if share is None else int(share * placed)
    engine = Engine({"unet": model}, device_budget=budget)
    engine.activate(stack)
    for _ in range(3):
        assert_same(call(model, inputs, device), full)
        kept = engine.memory().placed.get(str(device), 0)
        assert kept <= (placed if budget is None else budget)
        assert kept <= allocated() - empty <= ROUNDED * kept + every // 100, "strengths, too"
    assert (engine.memory().streaming > 0) == (share is not None and share < 1)
    engine.deactivate()
    assert_same(call(model, inputs, device), base)
    assert allocated() - empty <= CHUNK


@pytest.mark.parametrize("storage", ["file", "float8"])
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.filterwarnings("ignore:torchvulkan")  # it copies fp8 by the CPU
def test_calls_that_nothing_waits_for_change_no_bit(
    share: float, storage: str, wide: Path, device: torch.device
) -> None:
    """Layers that do not fit are copied for each call; the next copy may not overwrite what still computes."""
    if storage == "float8":
        needs_float8(device)
    model, stack = net().to(device), Stack([Entry(wide, 0.1)])
    inputs = {name: value.to(device) for name, value in net_inputs().items()}
    with Engine({"unet": model}, storage=storage) as engine:
        engine.activate(stack)
        want = model(**inputs)[0].cpu()
        placed = engine.memory().placed[str(device)]
    with Engine({"unet": model}, storage=storage, device_budget=int(share * placed)) as engine:
        engine.activate(stack)
        queued = [model(**inputs)[0] for _ in range(10)]
        assert engine.memory().streaming > 0
        for one in queued:
            assert_same(one.cpu(), want)


class Shortage(TorchDispatchMode):
    """Makes an allocation on a device fail. Views, and results that are an argument, do not count.

    Args:
        type_: of the device.
        fails: is told the number of each allocation, from 1, and whether Remora's code asked for it.
    """

    def __init__(self, type_: str, fails: Callable[[int, bool], bool]) -> None:
        super().__init__()
        self._type, self._fails, self.count = type_, fails, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if isinstance(out, Tensor) and out.device.type == self._type and not func.is_view and not name.endswith("_"):
            self.count += 1
            if self._fails(self.count, _is_ours(sys._getframe(1))):
                raise OutOfMemoryError(f"{self._type} out of memory. Tried to allocate {out.nbytes} bytes.")
        return out


def _is_ours(frame: Any) -> bool:
    """Tell whether Remora's code allocates; the forward of a layer that Remora calls does not count."""
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if file.endswith(("torch/nn/modules/linear.py", "torch/nn/modules/conv.py")):
            if frame.f_code.co_name == "forward":  # and not the product of a convolution, which Remora calls, too
                return False
        elif "/lib_lora/" in file:
            return True
        frame = frame.f_back
    return False


class Small:
    """A block of three layers on a device, and two LoRA for it."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            self.model = Block(4, 8, nn).requires_grad_(False).eval().to(device)
        self.device, self.inputs = (
            device,
            [net_inputs()[name].to(device) for name in ("sample", "encoder_hidden_states")],
        )
        self.stacks = []
        for seed in range(2):
            tensors = {}
            for name in ("conv", "to_k", "to_out"):
                shape = tuple(self.model.get_parameter(f"{name}.weight").shape)
                tensors |= pair(f"lora_unet_{name}", shape, 4, seed=seed, size=0.3)
            self.stacks.append(Stack([Entry(save(folder / f"{seed}.safetensors", tensors))]))
        self.base = self.call()
        engine = Engine({"unet": self.model})
        self.full = []
        for stack in self.stacks:
            engine.activate(stack)
            self.full.append(self.call())
        engine.close()
        assert min((one - self.base).norm() for one in self.full) > 0.1 * self.base.norm()

    def call(self) -> Tensor:
        result: Tensor = self.model(*self.inputs).cpu()
        return result


@pytest.mark.parametrize("budget", [None, 600, 0])
def test_memory_that_runs_out_at_each_allocation(budget: int | None, tmp_path: Path, device: torch.device) -> None:
    """The call fails or does not; the next one has the bits of the stack in force, and nothing is left at the end."""
    small, number, raised, handled = Small(tmp_path, device), 0, 0, 0
    while True:
        number += 1
        engine = Engine({"unet": small.model}, device_budget=budget)
        engine.activate(small.stacks[0])
        first = small.call()
        assert_same(first, small.full[0])
        with Shortage(device.type, lambda count, ours, number=number: count == number) as shortage:
            try:
                engine.activate(small.stacks[1])
                assert_same(small.call(), small.full[1])
                handled += 1
            except OutOfMemoryError:
                raised += 1
        wanted = dict(zip(small.stacks, small.full, strict=True))
        assert_same(small.call(), wanted[engine.stack])
        engine.activate(small.stacks[1])
        assert_same(small.call(), small.full[1])
        engine.close()
        assert_same(small.call(), small.base)
        if shortage.count < number:
            break
    assert number > 20
    assert raised > 5
    assert handled > 5


def test_adapters_make_room_for_other_code(tmp_path: Path, device: torch.device) -> None:
    """As long as adapters lie on the device, nothing else has room there."""
    small = Small(tmp_path, device)
    engine = Engine({"unet": small.model})
    engine.activate(small.stacks[0])
    with Shortage(device.type, lambda _, ours: not ours and bool(engine.memory().placed)):
        for _ in range(3):
            try:
                got = small.call()
                break
            except OutOfMemoryError as error:
                failed = error
        else:
            raise failed
    assert_same(got, small.full[0])


def test_after_a_real_shortage_all_is_as_before(tmp_path: Path, device: torch.device) -> None:
    """The device's own error: a tensor larger than its memory."""
    small = Small(tmp_path, device)
    engine = Engine({"unet": small.model})
    engine.activate(small.stacks[0])
    small.call()
    with pytest.raises(RuntimeError, match=r"(?i)memory|alloc|buffer size"):
        torch.empty(1 << 46, dtype=torch.uint8, device=device)
    assert_same(small.call(), small.full[0])
    engine.close()
    assert_same(small.call(), small.base)
