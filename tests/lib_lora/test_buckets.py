"""Ranks rounded up: the same numbers, and compiled code that serves other stacks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lib_lora import (
    RANK_BUCKETS,
    Curve,
    Engine,
    Entry,
    Moment,
    PerImage,
    Region,
    Stack,
    StorageError,
    Strength,
    install,
)
from lib_lora.placement.static import padded_rank
from tests.conftest import TORCH
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs

compiles = pytest.mark.skipif(TORCH < (2, 3), reason="compilations are counted as torch 2.3 and later make them")
BUCKETS = (8, 16, 32)


@given(st.integers(1, 4000), st.lists(st.integers(1, 600), min_size=1, max_size=6, unique=True).map(sorted))
def test_a_rank_goes_into_the_least_bucket_that_holds_it(rank: int, buckets: list[int]) -> None:
    padded = padded_rank(rank, buckets)
    assert padded >= rank
    assert padded in buckets or padded % buckets[-1] == 0
    assert not any(rank <= size < padded for size in buckets)
    assert padded - rank < buckets[-1]
    assert padded_rank(padded, buckets) == padded


@pytest.mark.parametrize("buckets", [(0, 8), (8, 8), (16, 8), (8.5,), ("8",)])
def test_buckets_that_do_not_rise_are_refused(buckets: tuple[int, ...]) -> None:
    with pytest.raises(StorageError, match="whole numbers from 1 in rising order"):
        Engine({"unet": nn.Linear(2, 2)}, rank_buckets=buckets)


def _double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


@torch.no_grad()
@pytest.mark.parametrize(
    "multiplier",
    [
        0.8,
        PerImage((0.5, -1.0)),
        Strength(0.7, region=Region.rectangle(0, 0, 0.5, 1)),
        Strength(Curve(((0.0, 0.0), (10.0, 1.0)))),
    ],
    ids=["one", "images", "region", "schedule"],
)
def test_a_whole_unet_is_as_without_them(tmp_path: Path, multiplier: float) -> None:
    unet = tiny_unet(0)
    files = [
        kohya_lora(tmp_path / f"{rank}.safetensors", {"unet": unet}, rank, seed=rank, conv=True) for rank in (3, 5)
    ]
    unet.double()
    inputs = {name: _double(value) for name, value in unet_inputs(0).items()}
    got = []
    for buckets in ((), BUCKETS):
        engine = Engine({"unet": unet}, rank_buckets=buckets)
        engine.activate(Stack([Entry(file, multiplier) for file in files]))
        engine.set_moment(Moment(4, 20))
        got.append(unet(**inputs)[0])
        engine.close()
    assert worst(got[1], got[0]) < 1e-12
    assert worst(unet(**inputs)[0], got[0]) > 1e-3


def as_uncompiled(engine: Engine, bare: nn.Module, compiled: Callable[[Tensor], Tensor], stack: list[Entry]) -> Tensor:
    """Return compiled code's output with a stack, checked against a copy that is neither compiled nor padded."""
    x = torch.linspace(-2, 2, 24).view(3, 8)
    engine.activate(Stack(stack))
    plainly = Engine({"unet": bare})
    plainly.activate(Stack(stack))
    got = compiled(x)
    assert worst(got, bare(x)) < 1e-5
    plainly.close()
    return got


@torch.no_grad()
@compiles
def test_stacks_of_one_bucket_share_compiled_code(tmp_path: Path) -> None:
    testing = pytest.importorskip("torch._dynamo.testing")
    torch._dynamo.reset()
    install()
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)).requires_grad_(False)
    files = {
        rank: save(
            tmp_path / f"{rank}.safetensors",
            pair("lora_unet_0", (12, 8), rank, seed=rank) | pair("lora_unet_2", (8, 12), rank, seed=-rank),
        )
        for rank in (1, 3, 4, 7, 8)
    }
    counter = testing.CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    bare, engine = copy.deepcopy(model), Engine({"unet": model}, rank_buckets=RANK_BUCKETS)

    def run(*ranks: int, multiplier: float = 0.5) -> Tensor:
        return as_uncompiled(engine, bare, compiled, [Entry(files[rank], multiplier) for rank in ranks])

    plain = run()
    run(4)
    assert counter.frame_count == 2
    for ranks in ((8,), (4, 3), (1,), (7, 1), (), (1, 3, 4)):
        run(*ranks, multiplier=0.7)
    assert counter.frame_count == 2, "none of these stacks compiled again"
    run(8, 7)
    assert counter.frame_count == 3, "another bucket is other code"
    run(8, 1)
    run(4)
    assert torch.equal(run(), plain)
    assert counter.frame_count == 3, "code of either bucket stays"


@torch.no_grad()
@compiles
def test_blocks_that_are_compiled_one_by_one_share_their_code(tmp_path: Path) -> None:
    """As diffusers' `compile_repeated_blocks` does it: one graph for all blocks of a class, with LoRA as without."""
    testing = pytest.importorskip("torch._dynamo.testing")
    torch._dynamo.reset()
    install()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + self.down(torch.relu(self.up(x)))
            return y

    model = nn.Sequential(*[Block() for _ in range(6)]).requires_grad_(False)
    files = []
    for seed, rank in enumerate((4, 7, 3)):
        tensors: dict[str, Tensor] = {}
        for i in range(6):
            tensors |= pair(f"lora_unet_{i}_up", (12, 8), rank, seed=seed) | pair(f"lora_unet_{i}_down", (8, 12), rank)
        files.append(save(tmp_path / f"{rank}.safetensors", tensors))
    bare = copy.deepcopy(model)
    counter = testing.CompileCounter()
    for block in model:
        block.compile(backend=counter, fullgraph=True)
    engine = Engine({"unet": model}, rank_buckets=RANK_BUCKETS)

    def check(*stack: tuple[int, float]) -> None:
        as_uncompiled(engine, bare, model, [Entry(files[i], strength) for i, strength in stack])

    check()
    assert counter.frame_count == 1
    check((0, 0.5))
    assert counter.frame_count == 2
    for stack in (((1, 0.7),), ((0, 0.2), (2, 0.4)), (), ((2, -1.0),)):
        check(*stack)
    assert counter.frame_count == 2
