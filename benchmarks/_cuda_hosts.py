"""Single layers, dtypes, hosts and offload schemes for `count.py --device cuda`; models are in `_cuda_rows.py`.

The models of dtypes, offload, page-locked memory and strengths are SDXL's UNet with fewer transformers of one block
each.

kinds                   LyCORIS computes in torch's operations; the fused kernels that it has for some GPUs are off
offload                 copies that lines of Remora made; the scheme's own copies are not among them; the JSON has the
                        lines
by the general way      calls of layers that leave Remora's short way
placements of each pair bytes of adapters on the device, divided by the bytes of every pair once in half precision
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import _kinds as kinds
import torch
from _common import Record
from _cuda_rows import HALF, STRENGTH, Net, dora, files_for, models, row, sdxl, stack_of
from _fake_cuda import CUDA, OTHERS, FakeCuda, Figures, autocast, fake, to_fake
from _models import LoraFile, kohya_key, write_lora
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor

NO_PEERS = "SHIRA"
"""PEFT's forward makes sparse tensors, which a torch without CUDA does not have there, fake or not."""
FORGE: Any = import_module("tests.fakes.forge")
SCHEMES: Any = import_module("tests.fakes.schemes").SCHEMES
OFFLOADS = ("model", "sequential", "group-block", "group-leaf", "dispatched-spilled", "lowvram")
ALIGNED = 16
"""Bytes that inductor's kernels read at once."""


def _layers(*, tiny: bool) -> dict[str, tuple[Callable[[Any], nn.Module], tuple[int, ...]]]:
    """Return a linear layer and a convolution of SDXL, of a host's classes, and the shapes of their inputs."""
    width, channels, side = (512, 32, 8) if tiny else (1280, 640, 64)
    return {
        "linear": (lambda classes: classes.Linear(width, width), (2, 8 if tiny else 1024, width)),
        "conv": (lambda classes: classes.Conv2d(channels, channels, 3, padding=1), (2, channels, side, side)),
    }


def of_kinds(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count one adapter of each kind on one layer, by ours and by the library that trains it, in torch's operations."""
    with patch.dict(os.environ, LYCORIS_KERNEL_BACKEND="torch"):
        yield from _every_kind(count, folder, options)


def _every_kind(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    for shape, (build, size) in _layers(tiny=options.tiny).items():
        for name, kind in (*kinds.KINDS.items(), *kinds.OF_PEFT.items()):
            if shape in kind.layers:
                with TemporaryDirectory(dir=folder) as own:
                    yield from _of_kind(count, Path(own), (f"{name}, {shape}", kind), build, size, options.rank)


def _of_kind(
    count: FakeCuda,
    folder: Path,
    named: tuple[str, kinds.Kind],
    build: Callable[[Any], nn.Module],
    size: tuple[int, ...],
    rank: int,
) -> Iterator[Record]:
    name, kind = named
    with _disable_current_modes():
        model = kinds.OneLayer(build(nn).eval().requires_grad_(False))
        peer = kind.make(kinds.twin(model), rank, folder)
    x = fake(size, HALF)
    layer = to_fake(model, dtype=HALF)
    base = count.counted(partial(layer, x))
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(peer.file, STRENGTH)]))
        layer(x)
        yield row(name, 1, "ours", "steady call", count.counted(partial(layer, x)), base)
    if name.startswith(NO_PEERS):
        return
    for one in peer.modules:
        to_fake(one, dtype=HALF)
    ways = {peer.name: peer.run} | ({} if peer.name != "LyCORIS" else {"LyCORIS, weight": peer.trained})
    for way, run in ways.items():
        run(x)
        yield row(name, 1, way, "steady call", count.counted(partial(run, x)), base)


def of_layers(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count a LoRA on one layer of torch's classes and of hosts', in each storage."""
    classes: dict[str, Any] = {"torch's": nn, "Forge's": FORGE.ForgeOperations, "Classic's": FORGE.Ops}
    ways: dict[str, dict[str, Any]] = {
        "ours": {},
        "storage bfloat16": {"storage": "bfloat16"},
        "storage float8": {"storage": "float8"},
    }
    for shape, (build, size) in _layers(tiny=options.tiny).items():
        for host, own in classes.items():
            with _disable_current_modes():
                model = kinds.OneLayer(build(own))
                file = write_lora(folder, f"{host}{shape}", model, ["layer"], options.rank)
            to_fake(model, dtype=HALF)
            x = fake(size, HALF)
            base = count.counted(partial(model.layer, x))
            yield row(f"{host} {shape}", 0, "base", "steady call", base)
            for way, settings in ways.items():
                if host != "torch's" and way != "ours":
                    break
                with Engine({"unet": model}, **settings) as engine:
                    engine.activate(Stack([Entry(file.kohya, STRENGTH)]))
                    model.layer(x)
                    yield row(f"{host} {shape}", 1, way, "steady call", count.counted(partial(model.layer, x)), base)


def after_a1111(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count layers again in a process in which A1111's built-in replaced torch's forwards before the library came."""
    file, here = folder / "a1111.json", str(Path(__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {here!r}); import _fake_cuda; _fake_cuda.replace_forwards(); "
        "import count; sys.exit(count.main(sys.argv[1:]))"
    )
    asked = ["--device", "cuda", "--cases", "layers", "--rank", str(options.rank), "--json", str(file)]
    command = [sys.executable, "-c", code, *asked, *["--tiny"] * options.tiny]
    with _disable_current_modes():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for one in json.loads(file.read_text(encoding="utf-8"))["rows"]:
        if one["what"].startswith("torch's") and one["way"] in ("base", "ours"):
            yield {**one, "what": one["what"].replace("torch's", "A1111's")}


def of_dtypes(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count SDXL in the dtypes of web UIs."""
    half, full = torch.float16, torch.float32
    for name, dtype, of_input, casts in (
        ("bf16", HALF, HALF, False),
        ("fp16, autocast, fp16 input", half, half, True),
        ("fp16, autocast, fp32 input", half, full, True),
        ("fp32, autocast", full, full, True),
    ):
        net = sdxl(tiny=options.tiny, dtype=dtype, of_input=of_input, short=True)
        (file,) = files_for(folder, net, 1)
        mode: AbstractContextManager[None] = autocast(half) if casts else nullcontext()
        with mode, Engine({"unet": net.model}) as engine:
            base = count.counted(net.step)
            engine.activate(stack_of([file], alike=True))
            net.step()
            slow = patch.object(LowRankExecutor, "_run_any", autospec=True, side_effect=LowRankExecutor._run_any)
            with slow as calls:
                own = count.counted(net.step)
            in_place = sum(own.operations[name] for name in ("addmm_", "baddbmm_"))
            placed = sum(engine.memory().placed.values())
            once = placed_once(file, torch.finfo(half if casts else dtype).bits // 8)
            found = {"slow_calls": calls.call_count, "in_place": in_place, "layers": len(net.layers)}
            yield row(f"SDXL, {name}", 1, "ours", "steady step", own, base) | found | {"placements": placed / once}


def placed_once(file: LoraFile, size: int) -> int:
    """Return the bytes of all pairs of a file."""
    return size * sum(one.numel() for one in load_file(file.peft).values())


def offload(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count what the library's own copies are where an offload scheme moves SDXL's UNet."""
    for name in ("sequential",) if options.tiny else OFFLOADS:
        net = sdxl(tiny=options.tiny, short=True)
        (file,) = files_for(folder, net, 1)
        to_fake(net.model, "cpu")
        with SCHEMES[name](net.model, CUDA):
            found = {"no budget": _offloaded(count, net, file, None), "a budget of 0": _offloaded(count, net, file, 0)}
            base = count.counted(net.step)
        for budget, figures in found.items():
            yield row(f"offload {name}", 1, f"ours, {budget}", "steady step", ours_alone(figures, base))


def _offloaded(count: FakeCuda, net: Net, file: LoraFile, budget: int | None) -> Figures:
    with Engine({"unet": net.model}, device_budget=budget) as engine:
        engine.activate(stack_of([file], alike=True))
        net.step()
        return count.counted(net.step)


def page_locked(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count requests for page-locked memory with a budget of 0, granted and refused.

    CUDA's allocator of page-locked memory makes each piece as large as the next power of two.
    """
    net = sdxl(tiny=options.tiny, short=True)
    (file,) = files_for(folder, net, 1)
    for refuses in (False, True):
        count.pins[:], error = [], ""
        with Engine({"unet": net.model}, device_budget=0) as engine, patch.object(count, "refuses_pins", refuses):
            try:
                engine.activate(stack_of([file], alike=True))
                net.step()
            except RuntimeError as raised:
                if not refuses:
                    raise
                error = str(raised)
        rounded = sum(1 << (nbytes - 1).bit_length() for nbytes in count.pins)
        found = {"pieces": len(count.pins), "bytes": sum(count.pins), "rounded": rounded, "error": error}
        yield {"what": "page-locked memory", "refused": refuses, "layers": len(net.layers), **found}


def ours_alone(figures: Figures, base: Figures) -> Figures:
    """Keep the copies that lines of the library made, and subtract the other figures of the model alone."""
    for one in (figures.waiting, figures.passing, figures.waits, figures.copied):
        one.pop(OTHERS, None)
    figures.operations.subtract(base.operations)
    figures.allocated -= base.allocated
    return figures


def strengths(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Say where the strengths of layers begin that compiled code reads; a third of the layers has a bias, too."""
    net = sdxl(tiny=options.tiny, short=True)
    (file,) = files_for(folder, net, 1)
    tensors = load_file(file.kohya)
    for path in net.layers[::3]:
        width = net.model.get_parameter(f"{path}.weight").shape[0]
        tensors[f"{kohya_key(path)}.diff_b"] = torch.zeros(width).half()
    save_file(tensors, file.kohya)
    for buckets in ((), (8, 16, 32)):
        with Engine({"unet": net.model}, rank_buckets=buckets) as engine:
            engine.activate(stack_of([file], alike=True))
            entries = list(_offsets(net))
        for dtype in (torch.float16, HALF, torch.float32):
            off = [one * dtype.itemsize for one in entries if one * dtype.itemsize % ALIGNED]
            yield {
                "what": "strengths of LoRA with biases",
                "buckets": list(buckets),
                "dtype": str(dtype).removeprefix("torch."),
                "vectors": len(entries),
                "unaligned": len(off),
                "not_at_16_entries": sum(one % 16 != 0 for one in entries),
                "first_unaligned": off[:8],
            }


def _offsets(net: Net) -> Iterator[int]:
    """Yield the entry of the table at which each vector of strengths begins."""
    for path in net.layers:
        slot = slot_of(net.model.get_submodule(path))
        assert slot is not None
        assert slot.executor is not None
        placed: Any = slot.executor._placed
        for factors in placed.strengths.alike:
            if factors.numel():
                yield int(factors.storage_offset())


CASES: dict[str, Callable[[FakeCuda, Path, argparse.Namespace], Iterator[Record]]] = {
    "models": models,
    "dora": dora,
    "kinds": of_kinds,
    "layers": of_layers,
    "a1111": after_a1111,
    "dtypes": of_dtypes,
    "offload": offload,
    "page-locked": page_locked,
    "strengths": strengths,
}
