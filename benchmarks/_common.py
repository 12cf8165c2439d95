"""What every benchmark shares: command line, interleaved timing, statistics, tables, JSON.

In turns: a round times every variant once, such as base, ours, PEFT. The next round uses the reverse order, so a slow
phase of the machine affects all variants. The first round is not counted.

Ratios are medians of the ratios of the rounds, not ratios of medians. The columns "of minima" have the ratios of the
fastest times. If both differ much, the machine was not quiet, and more rounds are needed.

Equal results: before the measurement, a program compares the outputs of the variants. It stops if they differ by more
than 1e-4 of the largest entry (float32; 1e-2 float16, 6e-2 bfloat16). It also stops if the adapters change the output
by less than twice that, because the comparison would then show nothing.

Same weights: the variants are separate trees of modules over one set of weights, so no variant must be removed between
two timings. Nothing is downloaded. The model is the UNet of Stable Diffusion 1.5 in full size with random weights. The
LoRA are random, too, and are files in half precision. Times depend on the shapes of weights, not on their values.

Freed memory is kept. By default, glibc returns large blocks to the system, and the next layer takes their page faults
again. That costs a third of a step, and varies from step to step. The programs tell glibc to keep the memory, for all
variants, as the allocators of web UIs do. `--return-memory` uses glibc's default.

A goal is shown only for the settings for which it was set. With more threads than free cores the figures are
worthless.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that a program runs from anywhere, by its path alone
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_OFFLINE="1")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Record = dict[str, Any]


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The help shows a program's docstring as it is written, and the defaults of its options."""


def parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a command line with what every program takes; `rounds` is this program's default."""
    made = argparse.ArgumentParser(description=description, formatter_class=_Help)
    made.add_argument("--rounds", type=_positive, default=rounds, help="how often each variant is timed")
    made.add_argument("--threads", type=_positive, default=None, help="threads torch may use; torch's choice if absent")
    made.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="of the model")
    made.add_argument("--latent", type=_positive, default=32, help="width and height of the latents")
    made.add_argument("--batch", type=_positive, default=1, help="images at once")
    made.add_argument("--rank", type=_positive, default=32, help="of every LoRA")
    made.add_argument(
        "--tiny", action="store_true", help="a tiny model: shows that the program works, measures nothing"
    )
    made.add_argument(
        "--return-memory", action="store_true", help="let glibc give freed memory back to the system, as by default"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line and obey what is common to all programs."""
    options = made.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if not (options.tiny or options.return_memory):
        _keep_freed_memory()
    torch.manual_seed(0)
    return options


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed, as the allocators do that web UIs start with.

    By default it gives large blocks back to the system at once and takes the page faults again in the next layer:
    measured, a third of a step, differently from step to step, which hides what is compared.
    """
    trim_threshold, mmap_max = -1, -4  # the numbers in malloc.h
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # no glibc: nothing to set
        return
    mallopt(trim_threshold, -1)
    mallopt(mmap_max, 0)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def wait() -> None:
    """Wait for accelerators: a call returns before they have done what it wants."""
    for name in ("cuda", "xpu", "vulkan"):  # the last one is there once its package is imported
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            module.synchronize()
    if torch.backends.mps.is_available():
        torch.mps.synchronize()


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the things that are compared."""

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    """Called before each timing, untimed."""
    calls: int = 1
    """How often `run` is called per timing; the time noted is that of one call."""

    def time(self) -> float:
        """Seconds of one call."""
        if self.prepare is not None:
            self.prepare()
        wait()
        start = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        wait()
        return (time.perf_counter() - start) / self.calls


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and how far it is to be trusted."""

    median: float
    lower: float
    """Lower quartile."""
    upper: float
    """Upper quartile."""
    interval: tuple[float, float] | None
    """Holds the true median with a probability of 95 % or more; no fewer than six values give one."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up."""
        ordered = sorted(values)
        quarters = quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
        return cls(median(ordered), quarters[0], quarters[2], _interval(ordered))


def _interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """Return the narrowest pair of order statistics that holds the median surely enough, whatever the distribution."""
    found, outside = None, 0.0
    for away in range(len(ordered) // 2):
        outside += 2 * math.comb(len(ordered), away) / 2 ** len(ordered)
        if outside > 0.05:
            break
        found = (ordered[away], ordered[-1 - away])
    return found


class Samples:
    """Times of variants that were run in turns, so that what slows the machine down slows all of them down."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self.seconds = {name: list(values) for name, values in seconds.items()}

    def median(self, name: str) -> float:
        """Seconds of one call."""
        return median(self.seconds[name])

    def minimum(self, name: str) -> float:
        """Seconds of the fastest call: the time without disturbance, if there were enough rounds."""
        return min(self.seconds[name])

    def ratios(self, name: str, base: str) -> list[float]:
        """Per round, the time of `name` in units of the time of `base`."""
        return [one / other for one, other in zip(self.seconds[name], self.seconds[base], strict=True)]

    def ratio(self, name: str, base: str) -> float:
        """Median of the ratios of the rounds."""
        return median(self.ratios(name, base))

    def minimum_ratio(self, name: str, base: str) -> float:
        """Ratio of the fastest calls."""
        return self.minimum(name) / self.minimum(base)


def measure(variants: Mapping[str, Variant], rounds: int, *, warm_up: int = 1) -> Samples:
    """Run all variants in turns, in one order and then in the other, so that a steady drift cancels out."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for variant in (variant for _ in range(warm_up) for variant in variants.values()):
        variant.time()
    names = list(variants)
    with undisturbed():
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                seconds[name].append(variants[name].time())
    return Samples(seconds)


def measure_beside(base: Variant, variants: Mapping[str, Variant], rounds: int) -> dict[str, Samples]:
    """Run each variant next to the base and nothing between them, for differences smaller than a machine's moods.

    Returns:
        For each variant its times and those of the base beside it, under the names `variant` and `base`.
    """
    base.time()
    for variant in variants.values():
        variant.time()
    seconds: dict[str, dict[str, list[float]]] = {name: {"variant": [], "base": []} for name in variants}
    with undisturbed():
        for number in range(rounds):
            for name, variant in variants.items():
                both = [("base", base), ("variant", variant)]
                for key, one in both if number % 2 == 0 else both[::-1]:
                    seconds[name][key].append(one.time())
    return {name: Samples(pair) for name, pair in seconds.items()}


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage is collected inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def machine() -> Record:
    """Say what the figures were taken on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, readable as plain text too; the first column is left-aligned, the others right."""
    cells = [list(headers), *map(list, rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(headers))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(row: Sequence[str]) -> str:
        first, *others = [
            f"{text:<{w}}" if i == 0 else f"{text:>{w}}" for i, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join([first, *others])} |"

    return "\n".join([line(cells[0]), f"| {' | '.join(rule)} |", *map(line, cells[1:])])


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}" if abs(seconds) < 100 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def report(name: str, options: argparse.Namespace, text: str, rows: Sequence[Record]) -> None:
    """Print the tables below a line on the machine; write the rows as JSON if asked to."""
    found = machine()
    settings = {key: str(one) if isinstance(one, Path) else one for key, one in vars(options).items() if key != "json"}
    print(f"## {name}\n")
    print(f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads, torch {found['torch']}")
    print(", ".join(f"{key} {value}" for key, value in settings.items() if key != "threads"), end="\n\n")
    if options.tiny:
        print("**A tiny model: these figures say nothing.**\n")
    print(text, flush=True)
    if options.json is not None:
        written = {"benchmark": name, "machine": found, "settings": settings, "text": text, "rows": list(rows)}
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
