"""What a captured CUDA graph reads stays where it is, whatever stack of the same ranks is in force."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import RANK_BUCKETS, Engine, Entry, PerImage, Stack
from lib_lora.execution import opaque
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor, Parts, Placed
from tests.conftest import TORCH
from tests.fakes.accelerator import device, simulated
from tests.fakes.contract import worst
from tests.fakes.files import pair, save

WIDTH = 16
PATHS = ("a_b", "a.z", "c")
LAYERS = len(PATHS)


@pytest.fixture(autouse=True)
def accelerated() -> Iterator[None]:
    with simulated():
        yield
    _seen.clear()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    a_b, z, c = (nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
    modules = {"a_b": a_b, "a": nn.Sequential(OrderedDict(z=z)), "c": c}
    return nn.Sequential(OrderedDict(modules)).requires_grad_(False)


@pytest.fixture
def model() -> nn.Sequential:
    """On an accelerator, and compiled; tests call its `forward`, which runs as it is."""
    model = network().to(device())
    model.compile(backend="eager")
    return model


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Of ranks that are rounded up to the same, with alphas of their own; layers of the second are in another order."""

    def tensors(seed: int, rank: int) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for i, path in enumerate(PATHS):
            alpha = float(seed * i + 1)
            own = pair(f"lora_unet_{path.replace('.', '_')}", (WIDTH, WIDTH), rank, seed=seed + i, alpha=alpha)
            if seed == 1:  # in the spelling of others, which sorts otherwise
                down, up, scale = own.values()
                own = {f"unet.{path}.lora_A.weight": down, f"unet.{path}.lora_B.weight": up * (scale / rank)}
            made |= own
        return made

    return [save(tmp_path / f"{i}.safetensors", tensors(i, rank)) for i, rank in enumerate((8, 5, 7))]


def placed(model: nn.Module) -> list[Placed]:
    found = []
    for layer in model.modules():
        slot = slot_of(layer)
        if slot is not None:
            assert isinstance(slot.executor, LowRankExecutor)
            assert slot.executor._placed is not None
            found.append(slot.executor._placed)
    return found


_seen: list[Tensor] = []
"""Kept, so that no memory is given to others that was free meanwhile."""


def addresses(model: nn.Module, *, rows: bool = False) -> list[int]:
    tensors: list[Tensor] = []
    for one in placed(model):
        tensors += [tensor for _, tensor in one.content.tensors()]
        tensors += [one.strengths.rows[0] if rows else one.strengths.alike[0]]
    _seen.extend(tensors)
    return [tensor.data_ptr() for tensor in tensors]


def want(stack: Stack, x: Tensor) -> Tensor:
    """Return the stack's output on the CPU, in a model that is not compiled."""
    model = network()
    engine = Engine({"unet": model})
    engine.activate(stack)
    y: Tensor = model(x)
    return y


@torch.no_grad()
@pytest.mark.parametrize("storage", ["file", "float8"])
def test_stacks_of_the_same_ranks_are_in_the_same_memory(model: nn.Sequential, files: list[Path], storage) -> None:
    engine = Engine({"unet": model}, rank_buckets=RANK_BUCKETS, storage=storage)
    x = torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH)
    plain = model.forward(x.to(device())).cpu()
    seen: list[list[int]] = []
    for file, strength in ((0, 0.8), (1, -0.5), (2, 1.0), (0, 0.3)):
        stack = Stack([Entry(files[file], strength)])
        engine.activate(stack)
        got = model.forward(x.to(device())).cpu()
        assert worst(got, want(stack, x).double()) < (1e-5 if storage == "file" else 0.1)
        seen.append(addresses(model))
        engine.set_multiplier(0, 0.1)
        seen.append(addresses(model))
        if file == 1:
            engine.activate(Stack())
            assert torch.equal(model.forward(x.to(device())).cpu(), plain)
    assert len(set(map(tuple, seen))) == 1
    assert engine.memory().static > 0


@torch.no_grad()
def test_strengths_of_rows_are_too(model: nn.Sequential, files: list[Path]) -> None:
    engine = Engine({"unet": model}, rank_buckets=RANK_BUCKETS)
    x = torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH)
    seen = []
    for file, strengths in ((0, (0.8, -1.0)), (1, (0.0, 0.3)), (0, (0.1, 0.2))):
        stack = Stack([Entry(files[file], PerImage(strengths))])
        engine.activate(stack)
        assert model._forward_pre_hooks_with_kwargs, "it is heard which rows there are"
        got = model._call_impl(x.to(device())).cpu()
        apart = [want(Stack([Entry(files[file], one)]), x[i : i + 1]) for i, one in enumerate(strengths)]
        assert worst(got, torch.cat(apart).double()) < 1e-5
        seen.append(addresses(model, rows=True))
    assert seen[0] == seen[1] == seen[2]


@torch.no_grad()
def test_where_a_stack_fails_the_one_before_is_what_it_was(
    model: nn.Sequential, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine({"unet": model}, rank_buckets=RANK_BUCKETS)
    x = torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH).to(device())
    engine.activate(Stack([Entry(files[0], 0.8)]))
    before, calls, make = model.forward(x).cpu(), 0, LowRankExecutor._content

    def failing(self: LowRankExecutor, *args: object) -> tuple[Parts, bool]:
        nonlocal calls
        calls += 1
        if calls == LAYERS:
            raise MemoryError("no room")
        return make(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as context:
        context.setattr(LowRankExecutor, "_content", failing)
        with pytest.raises(MemoryError):
            engine.activate(Stack([Entry(files[1], -2.0)]))
    assert torch.equal(model.forward(x).cpu(), before)


@torch.no_grad()
def test_it_is_given_back(model: nn.Sequential, files: list[Path]) -> None:
    engine = Engine({"unet": model}, rank_buckets=RANK_BUCKETS)
    engine.activate(Stack([Entry(files[0])]))
    kept = engine.memory().static
    engine.activate(Stack())
    assert engine.memory().static == kept > 0, "for the next stack"
    engine.deactivate()
    assert engine.memory().static == 0
    engine.activate(Stack([Entry(files[0])]))
    model.cpu()
    assert engine.memory().static < kept / 4, "the strengths alone are left"


@torch.no_grad()
def test_where_a_device_has_no_room_nothing_is_kept_and_layers_stream(
    model: nn.Sequential, files: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine({"unet": model}, rank_buckets=RANK_BUCKETS)
    x = torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH)
    engine.activate(Stack([Entry(files[0], 0.8)]))
    assert engine.memory().static > 0
    engine._budget.shrink(device())
    assert engine.memory().static == 0
    for file in (0, 1):
        stack = Stack([Entry(files[file], 0.8)])
        engine.activate(stack)
        assert worst(model.forward(x.to(device())).cpu(), want(stack, x).double()) < 1e-5
        assert engine.memory().streaming > 0
        assert engine.memory().static == 0


@torch.no_grad()
def test_a_stack_that_comes_back_is_where_others_were(tmp_path: Path, model: nn.Sequential, files: list[Path]) -> None:
    """Also where the memory for strengths had to grow meanwhile: a larger rank in between."""
    large: dict[str, Tensor] = {}
    for path in PATHS:
        large |= pair(f"lora_unet_{path.replace('.', '_')}", (WIDTH, WIDTH), 60, seed=5)
    other = save(tmp_path / "large.safetensors", large)
    engine = Engine({"unet": model}, rank_buckets=RANK_BUCKETS)
    for file in (files[0], other, files[1]):
        engine.activate(Stack([Entry(file)]))
    before = addresses(model)
    engine.activate(Stack([Entry(files[0])]))
    assert addresses(model) == before


@torch.no_grad()
@pytest.mark.parametrize("why", ["not compiled", "no buckets", "a budget", "on the CPU"])
def test_others_keep_nothing(model: nn.Sequential, files: list[Path], why: str) -> None:
    if why == "not compiled":
        model._compiled_call_impl = None
    if why == "on the CPU":
        model.cpu()
    buckets = () if why == "no buckets" else RANK_BUCKETS
    engine = Engine({"unet": model}, rank_buckets=buckets, device_budget=1 << 30 if why == "a budget" else None)
    engine.activate(Stack([Entry(files[0])]))
    assert len(placed(model)) == LAYERS
    assert engine.memory().static == 0


@pytest.mark.skipif(TORCH < (2, 4) or not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this torch has no such tag")
def test_an_operation_that_computes_with_what_it_is_not_given_is_in_no_cuda_graph() -> None:
    namespace = opaque.__name__.replace(".", "_")
    assert torch.Tag.cudagraph_unsafe in getattr(torch.ops, namespace).served.default.tags
