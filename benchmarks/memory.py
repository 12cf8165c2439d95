"""Memory that stacks of adapters take on SD 1.5's UNet, beside the memory of the model and of its own forward.

The stacks have rank 16, on the UNet's 280 layers (full differences: the 182 linear ones). torch's profiler counts every
allocation of an activation and of a step. The base model's own step is subtracted.

factors           bytes of the adapters in their files' dtype, which here is the model's
kept beside       bytes beside the layers after the activation; rotations on linear layers are placed in the first call,
                  which has the number of tokens
activation, step  the highest use above the use before
most/factors      the larger of both, divided by the factors' bytes; the goal is 1.15, plus "largest built", the largest
                  effective weight, if there is one
left              bytes after the stack was removed; the line below the table is for 200 different stacks in a row
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import torch
from _common import DTYPES, Record, parse, parser, report, table
from _models import build_unet, conv_layers, linear_layers, make_step
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.dense import DenseExecutor
from lib_lora.execution.hooks import slot_of

GOAL = 1.15
"""Bytes at most, in units of the factors' own; a stack with layers whose weight is built may take the largest more."""
FACTOR, BLOCK = 8, 32
"""Of LoKr's first matrix; of OFT's rotations, at most."""
HEADERS = (
    "stack",
    "layers",
    "built",
    "factors",
    "kept beside",
    "activation",
    "step",
    "most/factors",
    "largest built",
    "left",
    "goal",
)
STEP_EVERY = 20
"""Changes of the stack from one step to the next."""
LEFT = 2**16
"""Bytes in use that may be more after all changes, for the interpreter's own ups and downs."""
MIB = 2**20

Tensors = dict[str, Tensor]
Weights = Mapping[str, Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=1)
    made.set_defaults(rank=16)
    made.add_argument("--stack", nargs="+", choices=list(STACKS), default=list(STACKS), metavar="STACK", help="which")
    made.add_argument("--changes", type=int, default=200, help="of the stack in a row, after which nothing may be left")
    options = parse(made, arguments)
    unet = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype])
    step = make_step(unet, options.latent, options.batch)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(unet, lambda: step(unet), Path(folder), options.rank)
        rows = [bench.row(name) for name in options.stack]
        change = bench.changes(options.changes)
    shown = table(HEADERS, [cells(row, options) for row in rows])
    report("memory", options, f"In MiB.\n\n{shown}\n\n{change_text(change)}", [*rows, change])
    return 0


def lora(weight: Tensor, rank: int, some: torch.Generator) -> Tensors:
    """Return a pair of factors as kohya's trainer writes it."""
    out, inside, *kernel = weight.shape
    return {
        "lora_down.weight": _randn(some, rank, inside, *kernel),
        "lora_up.weight": _randn(some, out, rank, *(1 for _ in kernel)),
    }


def dora(weight: Tensor, rank: int, some: torch.Generator) -> Tensors:
    """Return a pair of factors and the magnitude of each output."""
    norms = weight.float().flatten(1).norm(dim=1).view(-1, *(1,) * (weight.ndim - 1))
    return {**lora(weight, rank, some), "dora_scale": norms.half() * 1.1}


def loha(weight: Tensor, rank: int, some: torch.Generator) -> Tensors:
    """Two pairs."""
    out, inside = weight.flatten(1).shape
    return {
        f"hada_w{i}_{side}": _randn(some, *((out, rank) if side == "a" else (rank, inside)))
        for i in (1, 2)
        for side in "ab"
    }


def lokr(weight: Tensor, rank: int, some: torch.Generator) -> Tensors:
    """Return a small matrix and a pair, or a matrix where a pair would be larger."""
    out, inside, *kernel = weight.shape
    a, b = math.gcd(out, FACTOR), math.gcd(inside, FACTOR)
    rows, columns = out // a, inside // b
    made = {"lokr_w1": _randn(some, a, b)}
    if rank >= max(rows, columns) / 2:
        return {**made, "lokr_w2": _randn(some, rows, columns, *kernel)}
    columns *= math.prod(kernel)
    return {**made, "lokr_w2_a": _randn(some, rows, rank), "lokr_w2_b": _randn(some, rank, columns)}


def oft(weight: Tensor, rank: int, some: torch.Generator) -> Tensors:
    """Rotations of blocks of the outputs."""
    size = math.gcd(weight.shape[0], BLOCK)
    return {"oft_blocks": _randn(some, weight.shape[0] // size, size, size)}


def full(weight: Tensor, rank: int, some: torch.Generator) -> Tensors:
    """Return a difference as large as the weight."""
    return {"diff": _randn(some, *weight.shape) * 0.1}


def _randn(some: torch.Generator, *shape: int) -> Tensor:
    return (torch.randn(*shape, generator=some) * 0.05).half()


Make = Callable[[Tensor, int, torch.Generator], Tensors]
STACKS: dict[str, tuple[Make, ...]] = {
    "LoRA": (lora,),
    "4 LoRAs": (lora,) * 4,
    "DoRA": (dora,),
    "LoHa": (loha,),
    "LoKr": (lokr,),
    "OFT": (oft,),
    "full": (full,),
    "LoRA, LoHa, OFT": (lora, loha, oft),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """What was allocated in a part of a recording, in bytes above what was at the beginning of the recording."""

    before: int
    most: int
    after: int


class Bench:
    """A model, and files that act on it."""

    def __init__(self, unet: nn.Module, step: Callable[[], Tensor], folder: Path, rank: int) -> None:
        self.unet = unet
        self.step = step
        self.folder = folder
        self.rank = rank
        linear = linear_layers(unet)
        self.weights = {path: unet.get_parameter(f"{path}.weight") for path in (*linear, *conv_layers(unet))}
        self.linear = {path: self.weights[path] for path in linear}  # a full difference of all were half the model
        self.written: dict[tuple[Make, int], tuple[Path, int]] = {}
        self.engine = Engine({"unet": unet})
        self.plain = step()

    def row(self, name: str) -> Record:
        """Measure one stack: how much more memory its activation and its steps take than steps without it."""
        files = [self.file(make, i) for i, make in enumerate(STACKS[name])]
        stack = Stack([Entry(path) for path, _ in files])
        sizes: list[int] = []
        phases = record(
            {
                "base": self.step,
                "activate": lambda: self.engine.activate(stack),
                "look": lambda: sizes.extend(self._built()),
                "steps": self._acting,
                "deactivate": self.engine.deactivate,
            }
        )
        if not torch.equal(self.step(), self.plain):
            raise RuntimeError("the adapters were taken off and still act")
        start, own = phases["activate"].before, phases["base"].most - phases["base"].before
        activation, steps = phases["activate"].most - start, phases["steps"].most - start - own
        return {
            "stack": name,
            "layers": len(sizes),
            "built": sum(size > 0 for size in sizes),
            "factors": sum(size for _, size in files),
            "kept": phases["activate"].after - start,
            "activation": activation,
            "steps": steps,
            "most": max(activation, steps),
            "largest_built": max(sizes),
            "left": phases["deactivate"].after - start,
        }

    def changes(self, count: int) -> Record:
        """Make `count` stacks act one after the other, no two of them equal, with a step now and then."""
        makes = [(lora, i) for i in range(4)] + [(make, 0) for make in (dora, loha, lokr, oft)]
        files = [self.file(*make)[0] for make in makes]
        stacks = [Stack([Entry(path) for path in some]) for some in islice(permutations(files, 3), count)]
        for stack in stacks[::STEP_EVERY]:  # what is made once per file and shape, and kept: also the libraries do so
            self._change(stack, step=True)
        for stack in stacks:
            self._change(stack, step=False)
        before = self._at_rest()
        for i, stack in enumerate(stacks):
            self._change(stack, step=i % STEP_EVERY == 0)
        after = self._at_rest()
        return {"stack": "changes", "changes": len(stacks), "in_use": after[0] - before[0], "rss": after[1] - before[1]}

    def file(self, make: Make, number: int) -> tuple[Path, int]:
        """Return a file and the bytes that its numbers take in the model's dtype."""
        if (make, number) not in self.written:
            some = torch.Generator().manual_seed(number)
            weights = self.linear if make is full else self.weights
            tensors = {
                f"lora_unet_{path.replace('.', '_')}.{param}": value
                for path, weight in weights.items()
                for param, value in make(weight, self.rank, some).items()
            }
            path = self.folder / f"{make.__name__}{number}.safetensors"
            save_file(tensors, path)
            size = sum(tensor.numel() for tensor in tensors.values()) * self.plain.element_size()
            self.written[make, number] = path, size
        return self.written[make, number]

    def _acting(self) -> None:
        """Two steps: what the first one makes and keeps is there in the second."""
        if any(torch.equal(self.step(), self.plain) for _ in range(2)):
            raise RuntimeError("the adapters did not act")

    def _built(self) -> list[int]:
        """Of each layer with adapters the size of the weight that is built in its forward, 0 if none is."""
        sizes = []
        for path, weight in self.weights.items():
            slot = slot_of(self.unet.get_submodule(path))
            if slot is not None and slot.executor is not None:
                sizes.append(weight.nbytes if isinstance(slot.executor, DenseExecutor) else 0)
        return sizes

    def _change(self, stack: Stack, *, step: bool) -> None:
        self.engine.activate(stack)
        if step:
            self._acting()

    def _at_rest(self) -> tuple[int, int]:
        """Bytes in use by the process, and those it has from the system, with no adapter active."""
        self.engine.deactivate()
        gc.collect()
        return in_use(), psutil.Process().memory_info().rss


def record(runs: Mapping[str, Callable[[], object]]) -> dict[str, Phase]:
    """Run one after the other, and follow every allocation of torch's, those inside of its operations too.

    In one recording, for the profiler knows the sizes only of what was allocated in it.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded, torch.no_grad():
        for name, run in runs.items():
            with record_function(name):
                run()
    result = recorded.profiler.kineto_results
    assert result is not None
    events = sorted(result.events(), key=lambda event: event.start_ns())
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return {event.name(): phase(changes, event.start_ns(), event.end_ns()) for event in events if event.name() in runs}


def phase(changes: Sequence[tuple[int, int]], start: int, end: int) -> Phase:
    """Sum up what happened in a span of time; changes are (when, bytes) in their order."""
    level = before = sum(size for when, size in changes if when < start)
    most = before
    for when, size in changes:
        if start <= when <= end:
            level += size
            most = max(most, level)
    return Phase(before, most, level)


class _Heap(ctypes.Structure):
    """glibc's struct mallinfo2."""

    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in names]


def in_use() -> int:
    """Bytes that are allocated and not freed, by torch and all other C code; 0 where there is no glibc to tell."""
    try:
        mallinfo = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return 0
    mallinfo.restype = _Heap
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


def allowed(row: Record) -> float:
    """Bytes that a stack may take."""
    return float(GOAL * row["factors"] + row["largest_built"])


def goal(row: Record, options: argparse.Namespace) -> str:
    """Say what was to be reached and whether it was."""
    if options.tiny:
        return "-"
    said = f"<= {GOAL:.2f} factors" + (" + largest" if row["built"] else "")
    return f"{said} {'met' if row['most'] <= allowed(row) and row['left'] == 0 else 'missed'}"


def cells(row: Record, options: argparse.Namespace) -> list[str]:
    """One line of the table."""
    parts = ("factors", "kept", "activation", "steps")
    sizes = [f"{row[key] / MIB:.1f}" for key in parts]
    counts = [row["stack"], str(row["layers"]), str(row["built"])]
    most = [f"{row['most'] / row['factors']:.2f}", f"{row['largest_built'] / MIB:.1f}", f"{row['left'] / MIB:.1f}"]
    return [*counts, *sizes, *most, goal(row, options)]


def change_text(change: Record) -> str:
    """Format the last line."""
    sizes = f"{change['in_use'] / MIB:+.2f} MiB in use, {change['rss'] / MIB:+.2f} MiB taken from the system"
    met = "met" if change["in_use"] <= LEFT else "missed"
    text = f"After {change['changes']} different stacks in a row, compared to before: {sizes}"
    return f"{text} (goal: <= {LEFT / MIB:.2f} in use, {met})."


if __name__ == "__main__":
    sys.exit(main())
