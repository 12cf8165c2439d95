"""Adapters for which a device has no room: how much of the time of their copies is hidden behind what it computes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _blocks import MODELS
from _common import DTYPES, Record, Variant, duration, measure, parse, parser, report, table
from _models import check_equal, linear_layers, twin, write_lora
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.hooks import slot_of

GOAL = 0.8
"""Share of the copies' time that is hidden, at least."""
HEADERS = ("LoRAs", "adapters", "base", "resident", "streamed", "copies alone", "hidden", "differ by", "goal")
NO_DEVICE = "there is no CUDA device: on a CPU adapters are where they are, and nothing is copied"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=20)
    made.add_argument("--counts", type=int, nargs="+", default=[1, 4], help="of LoRAs")
    made.add_argument("--model", choices=sorted(MODELS), default="sdxl-blocks", help="what is called")
    made.add_argument("--device", default="cuda", help="where")
    options = parse(made, arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(NO_DEVICE)
        return 0
    model = MODELS[options.model]
    base = model.build(tiny=options.tiny, dtype=DTYPES[options.dtype]).to(options.device)
    step = model.step(base, options.latent, options.batch)
    layers = linear_layers(base)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        files = [write_lora(Path(folder), f"{i}", base, layers, options.rank) for i in range(max(options.counts))]
        stacks = [Stack([Entry(file.kohya, 0.8) for file in files[:count]]) for count in options.counts]
        rows = [measured(base, stack, step, options.rounds) for stack in stacks]
    shown = table(HEADERS, [cells(row, options) for row in rows])
    report("overlap", options, f"{len(layers)} layers\n\n{shown}", rows)
    return 0


def measured(base: nn.Module, stack: Stack, step: Callable[[nn.Module], Tensor], rounds: int) -> Record:
    """Measure a stack that stays on the device, and one of which each layer is brought in for its call."""
    models = {"base": base, "resident": twin(base), "streamed": twin(base)}
    engines = {
        "resident": Engine({"unet": models["resident"]}),
        "streamed": Engine({"unet": models["streamed"]}, device_budget=1),
    }
    for engine in engines.values():
        engine.activate(stack)
    for _ in range(2):  # home copies are made in the first, in the second it is learned who follows whom
        outputs = {name: step(model) for name, model in models.items()}
    apart = check_equal("streamed", outputs["streamed"], outputs["resident"], outputs["base"])
    variants = {name: Variant(partial(step, model)) for name, model in models.items()}
    samples = measure({**variants, "copies": Variant(copies(models["streamed"]))}, rounds)
    seconds = {name: samples.median(name) for name in samples.seconds}
    memory = engines["streamed"].memory()
    for engine in engines.values():
        engine.close()
    return {
        "loras": len(stack),
        "bytes": memory.home,
        "streaming": memory.streaming,
        "differ_by": apart,
        **{f"{name}_s": value for name, value in seconds.items()},
        "hidden": 1 - (seconds["streamed"] - seconds["resident"]) / seconds["copies"],
        "seconds": samples.seconds,
    }


def copies(model: nn.Module) -> Callable[[], None]:
    """Return a function that copies what is streamed, one layer after the other, and does nothing else."""
    ways = (slot.executor for layer in model.modules() if (slot := slot_of(layer)) is not None)
    homes = [home for way in ways if (home := getattr(way, "_home", None)) is not None]
    if not homes:
        raise RuntimeError("nothing is streamed there")
    device = homes[0].placed.device
    buffer = torch.empty(max(home.nbytes for home in homes), dtype=torch.uint8, device=device)

    def run() -> None:
        for home in homes:
            buffer[: home.nbytes].copy_(home.flat, non_blocking=True)

    return run


def cells(row: Record, options: argparse.Namespace) -> list[str]:
    """One line of the table."""
    times = [duration(row[f"{name}_s"]) for name in ("base", "resident", "streamed", "copies")]
    goal = "-" if options.tiny else f">= {GOAL:.0%} {'met' if row['hidden'] >= GOAL else 'missed'}"
    shares = [f"{row['hidden']:.0%}", f"{row['differ_by']:.0e}", goal]
    return [str(row["loras"]), f"{row['bytes'] / 1e6:.1f} MB", *times, *shares]


if __name__ == "__main__":
    sys.exit(main())
