"""What a call costs, counted and not timed: kernels, views, Python frames, bytes, products; the same on every machine.

The program counts a linear layer, a convolution and whole steps: without LoRA, with ours, with PEFT, and with the
shortest hand-written code (all LoRA as one pair, times a vector of strengths).

kernels   operations that compute
views     operations that only make another tensor object
frames    calls of Python functions, including torch's own; "frames of ours", with --kinds, are Remora's
bytes     what kernels read and write, from the shapes of their tensors
FLOPs     of products and convolutions
compiled  with --compile: kernels that inductor makes, products that it calls, and its own count of bytes

With `--kinds` one adapter of each kind is counted on a linear layer, with few tokens and with many.

With `--device cuda` the program counts what a CUDA device would be asked for, on any machine: see `_fake_cuda.py`.
Models are SDXL and FLUX.1 in full size, and `--cases` chooses tables: see `_cuda_rows.py` and `_cuda_hosts.py`.
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
from _blocks import MODELS
from _common import DTYPES, Record, parse, parser, report, table
from _models import by_hand, linear_layers, peft_activate, peft_load, peft_scale, twin, write_lora
from step_overhead import count_flops
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lib_lora
from lib_lora import Engine, Entry, Stack
from lib_lora.execution.hooks import slot_of

MULTIPLIER = 0.8
HEADERS = ("what", "LoRAs", "way", "kernels", "views", "frames", "bytes", "FLOPs", "compiled: kernels", "bytes")
LAYERS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "linear": (partial(nn.Linear, 640, 640), (1, 1024, 640)),
    "conv": (partial(nn.Conv2d, 320, 320, 3, padding=1), (1, 320, 32, 32)),
}
SMALL_LAYERS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "linear": (partial(nn.Linear, 16, 16), (1, 4, 16)),
    "conv": (partial(nn.Conv2d, 8, 8, 3, padding=1), (1, 8, 4, 4)),
}
KINDS_HEADERS = ("kind", "tokens", "way", "kernels", "views", "frames of ours", "bytes", "FLOPs")
TOKENS = (8, 1024)
CUDA_CASES = ("models", "dora", "kinds", "layers", "a1111", "dtypes", "offload", "page-locked", "strengths")
CUDA_HEADERS = {
    "kernels": "kernels",
    "kernels_beside": "beside the base's",
    "copies_waiting": "copies that wait",
    "copies_passing": "that do not",
    "waits": "reads",
    "bytes_copied": "bytes copied",
    "bytes_beside": "new memory beside the base's",
}
DTYPES_HEADERS = {
    "layers": "layers",
    "slow_calls": "by the general way",
    "in_place": "in place",
    "placements": "placements of each pair",
}
PINS_HEADERS = ("memory", "layers", "pieces", "bytes", "as CUDA rounds them", "error")
STRENGTHS_HEADERS = ("rank buckets", "dtype", "vectors", "not at a multiple of 16 bytes", "the first of these")
OURS = str(Path(lib_lora.__file__).parent)
_NO_KERNELS = ("empty", "detach", "alias", "lift_fresh", "_local_scalar_dense", "sym_")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=1)
    made.add_argument("--counts", type=int, nargs="+", default=[1, 4, 8], help="of LoRAs that act at once")
    made.add_argument(
        "--steps", nargs="*", choices=sorted(MODELS), default=["sd15", "sdxl-blocks"], help="counted, too"
    )
    made.add_argument("--compile", action="store_true", help="count compiled layers, too")
    made.add_argument("--kinds", action="store_true", help="count adapters of each kind, and nothing else")
    made.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: on fake tensors, and nothing else"
    )
    made.add_argument("--cases", nargs="+", choices=CUDA_CASES, default=list(CUDA_CASES), help="with --device cuda")
    options = parse(made, arguments)
    if options.device == "cuda":
        text, rows = on_cuda(options)
        report("count", options, text, rows)
        return 0
    if options.kinds:
        rows = list(of_kinds(64 if options.tiny else 640, DTYPES[options.dtype], options.rank))
        shown = [[row["what"], f"{row['tokens']:,}", row["way"], *numbers(row, "ours")] for row in rows]
        report("count", options, table(KINDS_HEADERS, shown), rows)
        return 0
    dtype, rows = DTYPES[options.dtype], []
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, torch.no_grad():
        for name, (build, shape) in (SMALL_LAYERS if options.tiny else LAYERS).items():
            layer, x = OneLayer(build(), dtype), torch.randn(shape, dtype=dtype)
            call = partial(_called, x=x)
            bench = Bench(Path(folder), layer, ["layer"], max(options.counts), options.rank, call)
            rows += bench.rows(name, options.counts, compiled=options.compile)
        for name in options.steps:
            model = MODELS[name]
            base = model.build(tiny=options.tiny, dtype=dtype)
            step = model.step(base, options.latent, options.batch)
            bench = Bench(Path(folder), base, linear_layers(base), max(options.counts), options.rank, step)
            rows += bench.rows(name, options.counts, compiled=False)
    report("count", options, table(HEADERS, [cells(row) for row in rows]), rows)
    return 0


def on_cuda(options: argparse.Namespace) -> tuple[str, list[Record]]:
    """Return tables and rows of what a CUDA device is asked for."""
    from _cuda_hosts import CASES  # which needs LyCORIS
    from _fake_cuda import NoGuardError, fake_cuda

    tables, rows = list[str](), list[Record]()
    try:
        with fake_cuda() as count, TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for case in options.cases:
                found = list(CASES[case](count, Path(folder), options))
                tables.append({"strengths": _strengths_table, "page-locked": _pins_table}.get(case, _cuda_table)(found))
                rows += [{**row, "case": case} for row in found]
    except NoGuardError as error:
        return f"Nothing is counted: {error}.", [{"left_out": str(error)}]
    return "\n\n".join(tables), rows


def _cuda_table(rows: Sequence[Record]) -> str:
    more = [key for key in DTYPES_HEADERS if key in rows[0]]
    headers = ["what", "LoRAs", "way", "phase", *CUDA_HEADERS.values(), *(DTYPES_HEADERS[key] for key in more)]
    keys = (*CUDA_HEADERS, *more)
    return table(
        headers, [[*(str(row[k]) for k in ("what", "loras", "way", "phase")), *_cells(row, keys)] for row in rows]
    )


def _cells(row: Record, keys: Sequence[str]) -> list[str]:
    return [f"{row[key]:,}" for key in keys]


def _pins_table(rows: Sequence[Record]) -> str:
    keys = ("layers", "pieces", "bytes", "rounded")
    cells = [["refused" if row["refused"] else "granted", *_cells(row, keys), row["error"] or "-"] for row in rows]
    return table(PINS_HEADERS, cells)


def _strengths_table(rows: Sequence[Record]) -> str:
    def listed(numbers: Sequence[int]) -> str:
        return ", ".join(map(str, numbers)) or "-"

    return table(
        STRENGTHS_HEADERS,
        [
            [
                listed(row["buckets"]),
                row["dtype"],
                *_cells(row, ("vectors", "unaligned")),
                listed(row["first_unaligned"]),
            ]
            for row in rows
        ],
    )


def of_kinds(width: int, dtype: torch.dtype, rank: int) -> Iterator[Record]:
    """Count one adapter of each kind on a linear layer of `width` inputs and outputs."""
    import _kinds as kinds  # which needs LyCORIS

    for name, kind in (*kinds.KINDS.items(), *kinds.OF_PEFT.items()):
        if "linear" not in kind.layers:
            continue
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            model = kinds.OneLayer(nn.Linear(width, width).to(dtype).eval().requires_grad_(False))
            file = kind.make(kinds.twin(model), rank, Path(folder)).file
            engine = Engine({"unet": model})
            engine.activate(Stack([Entry(file, MULTIPLIER)]))
            slot = slot_of(model.layer)
            assert slot is not None
            assert slot.executor is not None
            for tokens in TOKENS:
                x = torch.randn(1, tokens, width).to(dtype)
                with torch.no_grad():
                    model.layer(x)
                    found = counted(partial(model.layer, x))
                yield {"what": name, "loras": 1, "way": slot.executor.name, "tokens": tokens, **found}
            engine.close()


def _called(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return y


class OneLayer(nn.Module):
    """A model of one layer."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer.to(dtype).eval().requires_grad_(False), dtype

    def forward(self, x: Tensor) -> Tensor:
        """Call the layer."""
        y: Tensor = self.layer(x)
        return y


class Bench:
    """Four trees of modules over one set of weights, which compute the same."""

    def __init__(
        self,
        folder: Path,
        base: nn.Module,
        layers: Sequence[str],
        count: int,
        rank: int,
        step: Callable[[nn.Module], Tensor],
    ) -> None:
        self.step, self.layers, self.base = step, layers, base
        self.files = [write_lora(folder, f"lora{i}", base, layers, rank) for i in range(count)]
        self.ours, self.peft = self._like(), self._like()
        self.engine = Engine({"unet": self.ours})
        for i, file in enumerate(self.files):
            peft_load(self.peft, file, f"lora{i}")
            peft_scale(self.peft, f"lora{i}", MULTIPLIER)

    def rows(self, what: str, counts: Sequence[int], *, compiled: bool) -> list[Record]:
        """Count with nothing, and with so many LoRAs in each way."""
        found = [self._row(what, 0, "base", self.base, compiled)]
        for count in counts:
            self.engine.activate(Stack([Entry(file.kohya, MULTIPLIER) for file in self.files[:count]]))
            peft_activate(self.peft, [f"lora{i}" for i in range(count)])
            ways = {"ours": self.ours, "PEFT": self.peft, "by hand": self._by_hand(count)}
            found += [self._row(what, count, way, model, compiled) for way, model in ways.items()]
        self.engine.close()
        return found

    def _row(self, what: str, count: int, way: str, model: nn.Module, compiled: bool) -> Record:
        self.step(model)
        row = {"what": what, "loras": count, "way": way, **counted(partial(self.step, model))}
        kernels, nbytes = count_compiled(model, self.step) if compiled else (None, None)
        return row | {"compiled_kernels": kernels, "compiled_bytes": nbytes}

    def _by_hand(self, count: int) -> nn.Module:
        model = self._like()
        by_hand(model, self.layers, self.files[:count], MULTIPLIER)
        return model

    def _like(self) -> nn.Module:
        return copy.deepcopy(self.base) if isinstance(self.base, OneLayer) else twin(self.base)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that arrive below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = self.views = self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        if func.is_view:
            self.views += 1
        elif not name.startswith(_NO_KERNELS):
            self.kernels += 1
            self.nbytes += sum(map(_nbytes, (*args, *(kwargs or {}).values(), result)))
        return result


def _nbytes(value: object) -> int:
    """Return the bytes of tensors; of one that is expanded, those that it has."""
    if isinstance(value, list | tuple):
        return sum(map(_nbytes, value))
    if not isinstance(value, Tensor):
        return 0
    entries = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        entries *= size if stride or size == 0 else 1
    return entries * value.element_size()


def counted(run: Callable[[], object]) -> Record:
    """Count one run that has run before."""
    with _Operations() as operations:
        run()
    frames = ours = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal frames, ours
        frames += event == "call"
        ours += event == "call" and frame.f_code.co_filename.startswith(OURS)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return {
        "kernels": operations.kernels,
        "views": operations.views,
        "frames": frames,
        "ours": ours,
        "bytes": operations.nbytes,
        "flops": count_flops(run),
    }


def count_compiled(model: nn.Module, step: Callable[[nn.Module], Tensor]) -> tuple[int, int]:
    """Return the kernels and products of a model that is compiled as a whole, and inductor's count of their bytes."""
    from torch._inductor import compile_fx, metrics
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    log: Any = getattr(compile_fx, "inductor_metrics_log", logging.getLogger())
    log.setLevel(logging.INFO)  # or nothing counts the bytes
    log.propagate = False
    metrics.reset()
    compiled: Any = torch.compile(model, fullgraph=True, dynamic=False)
    with torch._inductor.config.patch(force_disable_caches=True):  # what is found there is not counted
        _, code = run_and_get_code(partial(step, compiled))
    lines = [line.strip() for one in code for line in one.splitlines()]
    products = sum(line.startswith("extern_kernels.") or "= extern_kernels." in line for line in lines)
    return metrics.generated_kernel_count + products, metrics.num_bytes_accessed


def cells(row: Record) -> list[str]:
    """Return one line of the table."""
    compiled = [row["compiled_kernels"], row["compiled_bytes"]]
    return [
        row["what"],
        str(row["loras"]),
        row["way"],
        *numbers(row, "frames"),
        *("-" if one is None else f"{one:,}" for one in compiled),
    ]


def numbers(row: Record, frames: str) -> list[str]:
    """Return the counts of a line, with all frames or `ours`."""
    return [f"{row[key]:,}" for key in ("kernels", "views", frames, "bytes", "flops")]


if __name__ == "__main__":
    sys.exit(main())
