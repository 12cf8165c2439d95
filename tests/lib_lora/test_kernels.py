"""A kernel of our own is used where it is faster and as exact, and nowhere else."""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from lib_lora import Engine, Entry, PerImage, Stack
from lib_lora.tuning import Tuner, kernels
from lib_lora.tuning.kernels import Chooser
from tests.fakes.contract import worst
from tests.fakes.files import pair, save


def exact(y, x, down, up, strength):
    """In double precision; strengths for groups of rows."""
    own = strength.double().repeat_interleave(y.shape[0] // strength.shape[0], 0)
    return y.double() + ((x.double() @ down.double().t()) * own) @ up.double().t()


def numbers(rows, inputs, outputs, rank, groups, dtype, device="cpu"):
    torch.manual_seed(rows + inputs)
    sizes = ((rows, outputs), (rows, inputs), (rank, inputs), (outputs, rank), (groups, rank))
    y, x, down, up, strength = (torch.randn(size).to(device, dtype) for size in sizes)
    return y, x, down / inputs**0.5, up / rank**0.5, strength


class Fake:
    """A kernel for any device, which notes its calls."""

    LARGEST_RANK = 32

    def __init__(self, error=0.0, raises=None):
        self.error, self.raises, self.calls, self.shapes = error, raises, [], []

    def blocks_for(self, rows, rank):
        return ["large", "small"]

    def add_pair_(self, y, x, down, up, strength, blocks):
        if self.raises is not None:
            raise self.raises
        self.calls.append(blocks)
        self.shapes.append((x.shape[1], y.shape[1]))
        y.copy_(y.double() + (1 + self.error) * exact(torch.zeros_like(y), x, down, up, strength))


def clock(**of):
    """Says how long torch's products and the ways of the fake take, one after the other, and runs each once."""
    turns = iter([of["torch"], of["large"], of["small"]])

    def seconds(run):
        run()
        return next(turns)

    return seconds


def chooser(fake, **of):
    return Chooser(lambda device: fake, clock(**of))


@pytest.mark.parametrize(
    ("times", "blocks"),
    [
        ({"torch": 1.0, "large": 0.5, "small": 0.7}, "large"),
        ({"torch": 1.0, "large": 0.9, "small": 0.7}, "small"),
        ({"torch": 1.0, "large": 0.97, "small": 1.5}, None),
    ],
)
def test_the_faster_way_is_found_once_and_kept(times, blocks):
    fake = Fake()
    own = chooser(fake, **times)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.bfloat16)
    for rows in (6, 5):  # of the same power of two
        fake_calls = len(fake.calls)
        got = y[:rows].clone()
        assert own.add_pair_(got, x[:rows], down, up, strength[0]) is (blocks is not None)
        if blocks is None:
            assert torch.equal(got, y[:rows])
            continue
        assert fake.calls[-1] == blocks
        assert torch.equal(got, exact(y[:rows], x[:rows], down, up, strength).to(got.dtype))
        assert rows == 6 or len(fake.calls) == fake_calls + 1, "not measured again"


@pytest.mark.parametrize("error", [0.05, -1.0])
@pytest.mark.parametrize("size", [1, 1000])
def test_a_coarse_kernel_is_refused_however_fast_and_whatever_it_is_added_to(caplog, error, size):
    own = chooser(Fake(error=error), torch=1.0, large=0.1, small=0.1)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.bfloat16)
    y = y * size
    before = y.clone()
    with caplog.at_level(logging.WARNING):
        assert not own.add_pair_(y, x, down, up, strength[0])
    assert "less exact than torch's products" in caplog.text
    assert torch.equal(y, before)


def test_a_kernel_that_fails_is_told_and_torch_goes_on(caplog):
    own = chooser(Fake(raises=RuntimeError("no such instruction")), torch=1.0, large=0.1, small=0.1)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float16)
    with caplog.at_level(logging.WARNING):
        assert not own.add_pair_(y, x, down, up, strength[0])
        assert not own.add_pair_(y, x, down, up, strength[0])
        other = numbers(6, 8, 12, 4, 1, torch.float16)
        assert not own.add_pair_(*other[:4], other[4][0])
    assert caplog.text.count("no such instruction") == 1, "once for the device, and no shape is tried again"


@pytest.mark.parametrize("where", [0, 1, 2])
def test_without_room_to_measure_torch_goes_on_and_it_is_asked_again(where):
    fake = Fake()
    turns = iter([*[1.0] * where, torch.cuda.OutOfMemoryError("no room"), 1.0, 0.1, 0.1])

    def seconds(run):
        turn = next(turns)
        if isinstance(turn, Exception):
            raise turn
        return turn

    own = Chooser(lambda device: fake, seconds)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float16)
    assert not own.add_pair_(y, x, down, up, strength[0])
    assert own.add_pair_(y, x, down, up, strength[0])


def test_what_is_not_finite_tells_nothing_of_a_kernel(caplog):
    own = chooser(Fake(), torch=1.0, large=0.1, small=0.1)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float16)
    assert not own.add_pair_(y, x * torch.inf, down, up, strength[0])
    assert not caplog.text
    assert not own._chosen


def test_a_kernel_that_fails_later_leaves_it_to_torch(caplog):
    fake = Fake()
    own = chooser(fake, torch=1.0, large=0.1, small=0.1)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float16)
    assert own.add_pair_(y, x, down, up, strength[0])
    fake.raises = RuntimeError("cannot be compiled while a graph is captured")
    before = y.clone()
    assert not own.add_pair_(y, x, down, up, strength[0])
    assert "while a graph is captured" in caplog.text
    fake.raises = None
    assert not own.add_pair_(y, x, down, up, strength[0])
    assert torch.equal(y, before)


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((4,), 1), ((2, 1, 4), 2), ((2, 3, 4), 6), ((1, 1, 4), 1), ((1, 3, 4), None), ((3, 4), None)],
)
def test_strengths_for_rows_and_places(shape, groups):
    fake = Fake()
    own = chooser(fake, torch=1.0, large=0.1, small=0.1)
    y, x, down, up, _ = numbers(6, 8, 10, 4, 1, torch.float16)
    strength = torch.randn(shape).half()
    h = (x.view(2, 3, 8).double() @ down.double().t()) * strength.double()
    want = (y.view(2, 3, 10).double() + h @ up.double().t()).half()
    got = y.clone().view(2, 3, 10)
    assert own.add_pair_(got, x.view(2, 3, 8), down, up, strength) is (groups is not None)
    assert torch.equal(got, y.view(2, 3, 10) if groups is None else want)


def test_what_it_is_not_for():
    own = chooser(Fake(), torch=1.0, large=0.1, small=0.1)
    y, x, down, up, strength = numbers(6, 8, 10, 40, 1, torch.float16)
    assert not own.add_pair_(y, x, down, up, strength[0]), "the rank is too large"
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float32)
    assert not own.add_pair_(y, x, down, up, strength[0]), "no tensor cores"
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float16)
    assert not own.add_pair_(y, x.t().contiguous().t(), down, up, strength[0]), "rows in pieces"
    assert not own.add_pair_(y[:0], x[:0], down, up, strength[0]), "nothing"


def test_nothing_is_measured_while_a_graph_is_captured(monkeypatch):
    own = chooser(Fake(), torch=1.0, large=0.1, small=0.1)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float16)
    monkeypatch.setattr(kernels, "captures", lambda device: True)
    assert not own.add_pair_(y, x, down, up, strength[0])
    monkeypatch.setattr(kernels, "captures", lambda device: False)
    assert own.add_pair_(y, x, down, up, strength[0])
    monkeypatch.setattr(kernels, "captures", lambda device: True)
    assert own.add_pair_(y, x, down, up, strength[0]), "what is known is used there"


def test_nothing_is_left_out_of_a_trace(monkeypatch):
    own = chooser(Fake(), torch=1.0, large=0.1, small=0.1)
    y, x, down, up, strength = numbers(6, 8, 10, 4, 1, torch.float16)
    monkeypatch.setattr(kernels, "tracing", lambda: True)
    assert not own.add_pair_(y, x, down, up, strength[0])


def test_there_is_none_for_the_cpu():
    assert kernels._triton(torch.device("cpu")) is None


@torch.no_grad()
def test_an_engine_asks_it_for_linear_layers_alone(tmp_path, monkeypatch):
    """Compared with the same engine without it, uniform and by rows; under compilation it is not asked."""
    fake = Fake()
    monkeypatch.setattr(kernels, "_triton", lambda device: fake)
    monkeypatch.setattr(kernels, "cuda_seconds", lambda run: 1.0 / (1 + len(fake.calls)))
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Flatten(2), nn.Linear(9, 12)).requires_grad_(False).bfloat16()
    tensors = pair("lora_unet_0", (8, 4, 1, 1), 4) | pair("lora_unet_2", (12, 9), 4)
    file = save(tmp_path / "a.safetensors", tensors)
    x = torch.randn(2, 4, 3, 3).bfloat16()
    for multiplier in (0.8, PerImage((0.5, -1.0))):
        outputs = {}
        for name in ("torch", "measured"):
            engine = Engine({"unet": model}, tuner=Tuner(kernels=name == "measured"))
            engine.activate(Stack([Entry(file, multiplier)]))
            outputs[name] = model(x)
            assert set(fake.shapes) == ({(9, 12)} if name == "measured" else set())
            calls = len(fake.calls)
            torch.compiler.reset()
            torch.compile(model, backend="eager", fullgraph=multiplier == 0.8)(x)  # rows are told in front of a call
            assert len(fake.calls) == calls
            engine.close()
        assert worst(outputs["measured"], outputs["torch"].double()) < 2**-7
        fake.calls.clear()
        fake.shapes.clear()


def imported(patch, *, interpreted):
    """Return the real kernel, for Triton's interpreter or its compiler."""
    name = "lib_lora.tuning.triton_pair"
    patch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
    patch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    patch.delitem(sys.modules, name)
    return module


@pytest.fixture
def triton_pair(monkeypatch):
    pytest.importorskip("triton", "3")
    return imported(monkeypatch, interpreted=not torch.cuda.is_available())


SIZES = [(7, 40, 50, 3, 1), (130, 64, 96, 16, 2), (64, 33, 130, 20, 64), (300, 64, 64, 40, 3), (20, 16, 16, 256, 1)]
BOUNDS = {torch.float16: 2**-10, torch.float32: 2**-20}  # of the largest output; the interpreter has no bf16 products


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_is_what_it_says(triton_pair, size, dtype):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    y, x, down, up, strength = numbers(*size, dtype, device)
    want = exact(y, x, down, up, strength)
    wide = torch.zeros(y.shape[0], y.shape[1] + 5, dtype=dtype, device=device)
    every = triton_pair.blocks_for(size[0], size[3])
    assert every
    for blocks in every:
        wide[:, : y.shape[1]] = y
        triton_pair.add_pair_(wide[:, : y.shape[1]], x, down, up, strength, blocks)
        assert (wide[:, : y.shape[1]].double() - want).abs().max() < BOUNDS[dtype] * want.abs().max()
        assert not wide[:, y.shape[1] :].any(), "nothing beside it is written"


@pytest.mark.parametrize("processors", [1, 8, 200])
def test_outputs_are_shared_out_where_rows_are_few(triton_pair, monkeypatch, processors):
    monkeypatch.setattr(triton_pair, "_processors", lambda device: processors)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    y, x, down, up, strength = numbers(9, 32, 500, 8, 1, torch.float16, device)
    want = exact(y, x, down, up, strength)
    triton_pair.add_pair_(y, x, down, up, strength, triton_pair.BLOCKS[-1])
    assert (y.double() - want).abs().max() < BOUNDS[torch.float16] * want.abs().max()


SHARED = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10}
"""Compute capability -> bytes of shared memory for a block of a kernel, by NVIDIA's CUDA C++ Programming Guide."""
CARDS = [(rank, card) for card in SHARED for rank in (24, 64, 256) if rank == 256 or card in (86, 120)]
"""Ranks and cards; the largest rank needs most, so it is tried for every card."""
TOO_LARGE = pytest.mark.xfail(strict=True, raises=AssertionError, reason="a tile of 64 rows for rank 256 is too large")


def compiled(name, rank, capability, patch):
    """Compile the kernel for a card as it is launched for a layer of SDXL, with each of its tile sizes."""
    pytest.importorskip("triton", minversion="3.3")
    compiler, backend = (importlib.import_module(f"triton.{one}compiler") for one in ("", "backends."))
    module = imported(patch, interpreted=False)
    numbers = {"rank": rank, "rows": 4096, "outputs": 1280, "inputs": 1280, "per_group": 4096, "share": 1280}
    names = module._kernel.arg_names
    for blocks in module.blocks_for(numbers["rows"], rank):
        constants = dict(zip(("block_rows", "block_outputs", "block_inputs"), blocks, strict=False))
        constants["block_rank"] = module._padded(rank)
        kinds = {one: f"*{name}" if i < 5 else "i32" for i, one in enumerate(names)}
        # tensors, strides and sizes that are multiples of 16 are told to the compiler
        aligned = {
            (i,): [["tt.divisibility", 16]]
            for i, one in enumerate(names)
            if one not in constants and numbers.get(one, 16) % 16 == 0
        }
        source = compiler.ASTSource(
            fn=module._kernel,
            signature=kinds | dict.fromkeys(constants, "constexpr"),
            constexprs=constants,
            attrs=aligned,
        )
        target = backend.GPUTarget("cuda", capability, 32)
        options = {"num_warps": blocks.warps, "enable_fp_fusion": True}
        yield compiler.compile(source, target=target, options=options)


# a rank that is no multiple of 16 is another program
@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize(("rank", "capability"), CARDS)
def test_it_compiles_for_each_card_without_spills(name, rank, capability, monkeypatch, tmp_path):
    """Without the card, by NVIDIA's assembler, which comes with Triton."""
    every = list(compiled(name, rank, capability, monkeypatch))
    assert every
    for made in every:
        assert "mma" in made.asm["ptx"], "products on tensor cores"
        assert spills(made.asm["ptx"], capability, tmp_path) == 0


@pytest.mark.parametrize(
    "capability", [pytest.param(one, marks=[TOO_LARGE] * (SHARED[one] < 100 << 10)) for one in SHARED]
)
def test_the_largest_rank_fits_into_the_shared_memory_of_each_card(capability, monkeypatch):
    for made in compiled("bf16", 256, capability, monkeypatch):
        assert made.metadata.shared <= SHARED[capability]


def spills(ptx, capability, folder):
    """Return the bytes of registers that NVIDIA's assembler writes to memory, as there are too few."""
    found = importlib.import_module("triton.backends.nvidia.compiler").get_ptxas(capability)
    program = found[0] if isinstance(found, tuple) else getattr(found, "path", found)
    target = re.search(r"\.target (\w+)", ptx)[1]
    (folder / "kernel.ptx").write_text(ptx)
    command = [program, "-v", f"--gpu-name={target}", "kernel.ptx", "-o", "kernel.cubin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    told = re.findall(r"(\d+) bytes spill", done.stderr)
    assert told, done.stderr
    return sum(map(int, told))
