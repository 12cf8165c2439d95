"""What an engine takes is counted, and given back."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.hooks import slot_of
from lib_lora.placement.arena import Arena, Piece
from lib_lora.placement.budget import Budget
from lib_lora.placement.storage import Placement
from lib_lora.tensors import TensorFields
from tests.conftest import TORCH
from tests.fakes.files import pair, save

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 64
STACKS = 200
SETTLED = 40  # stacks after which caches are full
ALLOWED_GROWTH = 16 << 20  # bytes of the process: its allocator keeps some; what is ours is counted exactly beside it


def layers():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).requires_grad_(False)


@pytest.fixture
def model():
    return layers()


@pytest.fixture
def files(tmp_path):
    files = []
    for i in range(4):
        tensors = {}
        for layer in range(4):
            tensors |= pair(f"lora_unet_{layer}", (WIDTH, WIDTH), 32, seed=i)
        files.append(save(tmp_path / f"{i}.safetensors", tensors))
    return files


def placed_bytes(model):
    ways = [slot.executor for layer in model if (slot := slot_of(layer)) is not None]
    placements = [way._placed for way in ways if way._placed is not None]
    return sum(tensor.nbytes for one in placements for _, tensor in one.content.tensors())


def ours():
    """How many objects that hold tensors of ours are alive."""
    gc.collect()
    return sum(issubclass(type(one), (TensorFields, Placement, Piece)) for one in gc.get_objects())


@torch.no_grad()
def churn(folder, storage):
    """Bytes that a process has grown by after many stacks; what is counted exactly is asserted."""
    files, model = sorted(Path(folder).glob("*.safetensors")), layers()
    engine = Engine({"unet": model}, storage=storage, cache_size=2)
    x, process, memory, alive = torch.randn(2, WIDTH), psutil.Process(), 0, 0
    plain = model(x)
    for i in range(STACKS):
        entries = [Entry(files[(i + j) % 4], 0.1 * (i % 7), rank=(i + j) % 5 + 1) for j in range(i % 3 + 1)]
        engine.activate(Stack(entries))
        model(x)
        assert engine.memory().placed == {"cpu": placed_bytes(model)}
        if i == SETTLED:
            engine.deactivate()
            alive = ours()  # first: the list of all objects takes memory as well
            memory = process.memory_info().rss
    assert len(engine._cache._networks) <= 3
    engine.deactivate()
    assert torch.equal(model(x), plain)
    assert ours() <= alive
    grown = process.memory_info().rss - memory
    report = engine.memory()
    assert (report.placed, report.host_copies, report.backups) == ({}, 0, 0)
    assert not engine._budget._accounts
    engine.close()
    assert engine.memory().files == 0
    return grown


@pytest.mark.parametrize("storage", ["file", "float8"])
def test_many_stacks_in_a_row_end_where_they_began(files, storage):
    """In a process of its own: what other tests leave to the allocator, or collect meanwhile, is not ours."""
    code = f"from tests.lib_lora.test_memory import churn; print(churn({str(files[0].parent)!r}, {storage!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < ALLOWED_GROWTH


@torch.no_grad()
def test_the_report_counts_every_byte(files, model):
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(files[0]), Entry(files[1], rank=8)]))
    model(torch.randn(1000, WIDTH))  # so many rows that the weight is added up first
    report = engine.memory()
    assert report.placed == {"cpu": 4 * 2 * WIDTH * (32 + 8) * 4} == {"cpu": placed_bytes(model)}
    assert report.files == 2 * 4 * 2 * WIDTH * 32 * 4
    assert (report.streaming, report.host_copies, report.backups) == (0, 0, 0)
    engine.activate(Stack([Entry(files[0])], mode="merged"))
    assert engine.memory().backups == 4 * WIDTH * WIDTH * 4
    assert engine.memory().placed == {}
    engine.deactivate()
    assert engine.memory().backups == 0


@torch.no_grad()
@pytest.mark.parametrize(("storage", "share"), [("bfloat16", 1 / 2), ("float8", 1 / 4 + 1 / WIDTH / 2)])
def test_fewer_bytes_are_fewer_bytes(files, model, storage, share):
    sizes = {}
    for name in ("file", storage):
        engine = Engine({"unet": model}, storage=name)
        engine.activate(Stack([Entry(files[0])]))
        sizes[name] = engine.memory().placed["cpu"]
        engine.close()
    assert sizes[storage] == share * sizes["file"]


class Tenant:
    """Something that takes room."""

    def __init__(self, budget):
        self.budget, self.share = budget, budget.join(self.evict)

    def place(self, where, nbytes):
        return self.budget.charge(self.share, where, nbytes)

    def evict(self, why):
        self.budget.free(self.share)


def test_accounts_of_the_dead_are_not_counted_from_any_thread():
    """Finalizers run wherever the garbage collector does, here in the middle of other threads' sums."""
    budget, where = Budget(), torch.device("meta")

    def churn():
        for i in range(100):
            tenant = Tenant(budget)
            tenant.place(where, 1 + i % 7)
            tenant.itself = tenant  # so that only the collector frees it
            if i % 25 == 0:
                gc.collect()

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert budget.usage() == ({}, 0, 0)
    assert not budget._accounts


def test_one_device_does_not_take_from_another():
    budget = Budget(10)
    tenants = [Tenant(budget) for _ in range(4)]
    places = [torch.device("meta", 0), torch.device("meta", 1), torch.device("cpu")]
    assert [tenant.place(where, 8) for tenant, where in zip(tenants, places, strict=False)] == [True] * 3
    assert not tenants[3].place(places[0], 3)
    assert budget.usage() == ({places[0]: 11, places[1]: 8, places[2]: 8}, 1, 0)
    assert [budget.room(where) for where in places] == [-1, 2, math.inf]


@pytest.mark.skipif(TORCH < (2, 3), reason="compilations are counted as torch 2.3 and later make them")
@torch.no_grad()
def test_compiled_layers_stay_or_stream(files, model, monkeypatch):
    testing = pytest.importorskip("torch._dynamo.testing")
    torch._dynamo.reset()
    monkeypatch.setattr("lib_lora.placement.budget.UNLIMITED", "no device")  # the CPU has a limit, too
    engine = Engine({"unet": model}, device_budget=2 * 2 * WIDTH * 32 * 4)
    engine.activate(Stack([Entry(files[0])]))
    x = torch.randn(3, WIDTH)
    want = model(x)
    counter = testing.CompileCounter()
    kept = [torch.compile(layer, backend=counter, fullgraph=True) for layer in model[:2]]
    streamed = [torch.compile(layer, backend="eager") for layer in model[2:]]
    for _ in range(4):
        y = x
        for layer in (*kept, *streamed):
            y = layer(y)
        torch.testing.assert_close(y, want)  # in a graph, strengths are tensors
    assert engine.memory().streaming == 2
    compiled = counter.frame_count
    engine.set_multiplier(0, 0.3)
    y = kept[1](kept[0](x))
    torch.testing.assert_close(y, model[:2](x))
    assert counter.frame_count == compiled <= 2


@dataclass(frozen=True)
class Expanded(TensorFields):
    numbers: torch.Tensor


def test_an_expanded_tensor_is_in_the_arena_once():
    numbers = torch.tensor([[1.0], [2.0]]).expand(2, 5000)
    piece = Arena().add(Expanded(numbers), torch.device("cpu"), None)
    assert torch.equal(piece.content.numbers, numbers)
    assert piece.nbytes < 1000
