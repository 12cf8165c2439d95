"""Strengths that depend on row, region, half and step, on a device: near the same in fp64, wherever the LoRA lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib_lora import Curve, Engine, Entry, Halves, Moment, PerImage, Region, Row, Stack, Strength
from tests.covering import some_of
from tests.fakes.net import net, net_inputs, net_lora
from tests.fakes.offloading import assert_same
from tests.fakes.schemes import SCHEMES, call

pytestmark = pytest.mark.device

BATCH = 4
HALF = Region.rectangle(0, 0, 0.5, 1)
RAMP = Curve(((0.0, 0.0), (1.0, 1.2)))
STRENGTHS = {
    "numbers": (0.8, -0.5),
    "schedule": (Strength(RAMP), 0.5),
    "region": (Strength(0.8, region=HALF), 0.3),
    "outside": (Strength(0.8, region=HALF, outside=0.3), 0.3),
    "images": (PerImage((0.2, 0.9)), PerImage((0.0, 0.4))),
    "halves": (Halves(0.9, 0.0), 0.3),
    "all": (PerImage((Strength(RAMP, region=HALF), Halves(0.9, 0.1))), Halves(Strength(RAMP), 0.2)),
}
"""Of two LoRA, by what they depend on."""
MOMENTS = (Moment(step=2, steps=20), Moment(step=15, steps=20))
BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-2}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stack]:
    folder = tmp_path_factory.mktemp("strengths")
    files = [net_lora(folder / f"{i}.safetensors", seed=i) for i in range(2)]
    return {name: Stack(map(Entry, files, both)) for name, both in STRENGTHS.items()}


def rows(number: int) -> list[Row]:
    """Return two images, each with both of its prompts."""
    return [Row(i % 2, i >= number // 2) for i in range(number)]


def exactly(stack: Stack, dtype: torch.dtype) -> list[Tensor]:
    """Compute the pictures of all moments in fp64, from weights and inputs of a dtype."""
    model = net().to(dtype).double()
    engine = Engine({"unet": model})
    engine.set_rows(rows)
    engine.activate(stack)
    inputs = {name: value.double() for name, value in net_inputs(dtype, BATCH).items()}
    found = []
    for moment in MOMENTS:
        engine.set_moment(moment)
        found.append(call(model, inputs))
    return found


@some_of(
    ("name", "dtype", "scheme", "budget"),
    STRENGTHS,
    BOUNDS,
    ["resident", "sequential", "group-leaf"],
    [None, 4000, 0],
)
def test_as_in_fp64(
    name: str, dtype: torch.dtype, scheme: str, budget: int | None, stacks: dict[str, Stack], device: torch.device
) -> None:
    model, inputs = net().to(dtype), net_inputs(dtype, BATCH)
    engine, wanted = Engine({"unet": model}, device_budget=budget), exactly(stacks[name], dtype)
    engine.set_rows(rows)
    with SCHEMES[scheme](model, device):
        base = call(model, inputs, device)
        engine.activate(stacks["numbers"])
        call(model, inputs, device)
        engine.activate(stacks[name])
        for moment, want in zip(MOMENTS, wanted, strict=True):
            engine.set_moment(moment)
            got = call(model, inputs, device)
            assert (got.double() - want).abs().max() < BOUNDS[dtype] * want.abs().max()
            assert (got - base).norm() > 0.03 * base.norm(), "it must show"
        engine.deactivate()
        assert_same(call(model, inputs, device), base)


def test_each_row_is_what_it_is_alone(stacks: dict[str, Stack], device: torch.device) -> None:
    model, inputs = net().to(device), net_inputs(batch=BATCH)
    engine = Engine({"unet": model})
    engine.activate(stacks["all"])
    engine.set_moment(MOMENTS[1])
    engine.set_rows(rows)
    together = call(model, inputs, device)
    for row in range(BATCH):
        engine.set_rows(lambda number, row=row: [rows(BATCH)[row]] * number)
        alone = call(model, {name: value[row : row + 1] for name, value in inputs.items()}, device)
        assert (together[row] - alone[0]).abs().max() < BOUNDS[torch.float32] * together.abs().max()


class Captured(TorchDispatchMode):
    """A call's operations, as a CUDA graph has them: each reads and writes the memory of the call that was captured."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self._operations:
            if not func.is_view and not func._schema.name.startswith(("aten::detach", "aten::lift_fresh")):
                again = func(*args, **kwargs)
                for one, other in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if one is not other:
                        one.copy_(other)


OTHERS = {
    "numbers": (0.1, 0.7),
    "schedule": (Strength(Curve(((0.0, 1.0), (1.0, 0.3)))), -0.2),
    "region": (Strength(0.2, region=HALF), -0.3),
    "images": (PerImage((0.9, 0.0)), PerImage((0.3, -0.4))),
}
"""Strengths of the same form as those above."""


@pytest.mark.parametrize("name", OTHERS)
def test_a_graph_that_was_captured_has_the_strengths_of_now(
    name: str, stacks: dict[str, Stack], device: torch.device
) -> None:
    """Strengths are written to memory that never moves; a CUDA graph reads it from where it was."""
    model, inputs = net().to(device), {key: value.to(device) for key, value in net_inputs(batch=BATCH).items()}
    engine = Engine({"unet": model})
    engine.set_rows(rows)
    engine.activate(stacks[name])
    engine.set_moment(MOMENTS[0])
    model(**inputs)
    with Captured() as captured:
        picture = model(**inputs)[0]
    first = picture.cpu()
    for both, moment in ((OTHERS[name], MOMENTS[0]), (OTHERS[name], MOMENTS[1]), (STRENGTHS[name], MOMENTS[0])):
        for i, strength in enumerate(both):
            engine.set_multiplier(i, strength)
        engine.set_moment(moment)
        want = model(**inputs)[0].cpu()  # which tells the rows of the call
        captured.replay()
        assert_same(picture.cpu(), want)
        if both is OTHERS[name]:
            assert (picture.cpu() - first).norm() > 0.01 * first.norm()
    assert_same(picture.cpu(), first)
