"""One step of SD 1.5's UNet with LoRAs whose strength is a function, and with the same at a constant strength.

The strength depends on the step, on the block, on both, on the prompt or on the image. Each call has two rows. All
steps are of one model. Each variant is timed next to a constant strength, after a step that is not counted, in which
everything that stays the same for a picture is made.

A step takes seconds, and in that time the machine's speed changes by more than the difference. So "by layers" calls
each layer in the middle of the step, on its input there, in turns with the same layer of another model over the same
weights that has the constant strength. It adds the differences of all layers, and divides by the time of a step. The
goals are for this column. The line "constant again" and the intervals, which contain the true median with 95 %, show
how exact the figures are.

A changing strength costs the writing of its numbers, which is timed by itself. Block weights cost nothing in a call.
With strengths for images or places, Remora multiplies by a matrix in place of a vector.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from _common import DTYPES, Record, Spread, Variant, measure_beside, parse, parser, report, table
from _layers import extra_seconds
from _models import build_unet, linear_layers, make_step, twin, write_lora
from torch import Tensor, nn

from lib_lora import (
    BlockWeights,
    Curve,
    Engine,
    Entry,
    Halves,
    Moment,
    Multiplier,
    PerImage,
    Region,
    Row,
    Stack,
    Strength,
    Window,
)

MULTIPLIER = 0.8
STEPS = 20
GOAL = 1.02
REGIONAL_GOAL = 1.05
"""Time of a step at most, in units of that at a constant strength."""
CONSTANT = "constant"
AGAIN = "constant again"
"""The same as the base: what its ratio is away from one is the error of all of them."""
_LEFT = Region.rectangle(0, 0, 0.5, 1).feathered(0.1)
FUNCTIONS: Mapping[str, Multiplier | Halves | PerImage] = {
    "schedule": Strength(Curve(((0.0, 0.0), (0.5, 1.0), (1.0, MULTIPLIER)))),
    "steps": Strength(MULTIPLIER, during=Window(start=2, stop=STEPS)),
    "blocks": Strength(MULTIPLIER, blocks=BlockWeights(tuple(0.5 + 0.02 * i for i in range(26)))),
    "schedule and blocks": Strength(
        Curve(((0.0, 0.0), (1.0, MULTIPLIER))), blocks=BlockWeights(tuple(0.5 + 0.02 * i for i in range(26)))
    ),
    "halves": Halves(MULTIPLIER, 0.5),
    "images": PerImage((MULTIPLIER, 0.5)),
    "images apart": PerImage((MULTIPLIER, 0.0)),  # every second LoRA; the others are for the other image
    "left": Strength(MULTIPLIER, region=_LEFT),
    "left and right": Strength(MULTIPLIER, region=_LEFT.inverted()),  # every second LoRA; the others are left
}
REGIONAL = ("left", "left and right")
WRITES = 300
TURNS = 2
"""Calls of each layer, in turns with its like, each time layers are timed."""
HEADERS = ("LoRAs", "strength", "constant s", "of constant", "95 %", "by layers", "95 %", "written in us", "goal")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=25)
    made.set_defaults(batch=2)
    made.add_argument("--counts", type=int, nargs="+", default=[1, 4], help="of LoRAs that act at once")
    made.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS), help="what is measured")
    options = parse(made, arguments)
    base = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype])
    layers = linear_layers(base)
    step = make_step(base, options.latent, max(options.batch, 2))
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        files = [
            write_lora(Path(folder), f"lora{i}", base, layers, options.rank).kohya for i in range(max(options.counts))
        ]
        rows = [row for count in options.counts for row in compare(base, files[:count], step, options)]
    shown = table(HEADERS, [cells(row, options) for row in rows])
    report("strength", options, f"{len(layers)} layers\n\n{shown}", rows)
    return 0


class Served:
    """One model with one engine, step by step through a picture again and again; what is compared is its strengths.

    With another set of modules for each strength, the places of their weights in memory made more of a difference than
    the strengths did.
    """

    def __init__(self, base: nn.Module, files: Sequence[Path], step: Callable[[nn.Module], Tensor]) -> None:
        self._base, self._paths = base, linear_layers(base)
        self._files, self._step, self._calls = files, step, 0
        self.model = twin(base)
        self.engine = Engine({"unet": self.model})
        self.engine.set_clock(self._now)
        self.engine.set_rows(lambda rows: [Row(row % 2, row < rows // 2) for row in range(rows)])

    def variant(self, name: str) -> Variant:
        """Run a step with the named strengths, after one step that makes everything that a picture makes once."""

        def prepare() -> None:
            self.write(name)
            self.step()

        return Variant(self.step, prepare=prepare)

    def step(self) -> Tensor:
        """One step with what is in force."""
        return self._step(self.model)

    def write(self, name: str) -> None:
        """Have these strengths from now on, from the second step on."""
        self._calls = 0
        self.engine.activate(self._stack(name))

    def written(self, name: str) -> float:
        """Seconds that it takes to write the strengths of another moment, which is all a schedule adds to a call."""
        self.write(name)
        took = []
        for step in range(WRITES):
            began = time.perf_counter()
            self.engine.set_moment(Moment(step, WRITES))
            took.append(time.perf_counter() - began)
        return median(took)

    def extra(self, names: Sequence[str], rounds: int) -> dict[str, list[float]]:
        """Seconds that the layers of a step take longer than with a constant strength, round by round."""
        model = twin(self._base)
        constant = Engine({"unet": model})
        constant.activate(self._stack(CONSTANT))
        found: dict[str, list[float]] = {name: [] for name in names}
        with torch.no_grad():
            for number in range(rounds):
                for name in names:
                    self.write(name)
                    self.step()
                    own_first = number % 2 == 0
                    took = extra_seconds(self.step, self.model, model, self._paths, own_first=own_first, times=TURNS)
                    found[name].append(took)
        constant.close()
        return found

    def _stack(self, name: str) -> Stack:
        return Stack([Entry(file, _multiplier(name, i)) for i, file in enumerate(self._files)])

    def _now(self, timestep: Callable[[], float | None]) -> Moment:
        self._calls += 1
        return Moment(self._calls % STEPS, STEPS)


def _multiplier(name: str, place: int) -> Multiplier | Halves | PerImage:
    """Return the strength of the file at a position of the stack."""
    if name == "left and right" and place % 2 == 0:
        return FUNCTIONS["left"]
    if name == "images apart":
        return PerImage((MULTIPLIER, 0.0) if place % 2 == 0 else (0.0, MULTIPLIER))
    return MULTIPLIER if name in (CONSTANT, AGAIN) else FUNCTIONS[name]


def compare(
    base: nn.Module, files: Sequence[Path], step: Callable[[nn.Module], Tensor], options: argparse.Namespace
) -> list[Record]:
    """Measure every function beside a constant strength, and that beside itself."""
    names = (AGAIN, *options.functions)
    served = Served(base, files, step)
    check(served, options.functions)
    written = {name: served.written(name) for name in names}
    variants = {name: served.variant(name) for name in names}
    samples = measure_beside(served.variant(CONSTANT), variants, options.rounds)
    extra = served.extra(names, options.rounds)
    served.engine.close()
    return [
        {
            "loras": len(files),
            "strength": name,
            "constant_s": samples[name].median("base"),
            "of_constant": samples[name].ratio("variant", "base"),
            "interval": Spread.of(samples[name].ratios("variant", "base")).interval,
            "extra_s": extra[name],
            **by_layers(extra[name], samples[name].median("base")),
            "write_s": written[name],
            "seconds": samples[name].seconds,
        }
        for name in names
    ]


def by_layers(extra: Sequence[float], constant: float) -> Record:
    """Return the cost of a step whose layers alone differ, as a multiple of a step at a constant strength."""
    spread = Spread.of([1 + one / constant for one in extra])
    return {"by_layers": spread.median, "by_layers_interval": spread.interval}


def check(served: Served, names: Sequence[str]) -> None:
    """Fail where a function is without effect, or is there after it: then nothing would be measured."""

    def step(name: str) -> Tensor:
        served.write(name)
        return served.step()

    with torch.no_grad():
        want = step(CONSTANT)
        for name in names:
            if torch.equal(step(name), want):
                raise RuntimeError(f"{name}: the output is that of a constant strength")
            if not torch.equal(step(CONSTANT), want):
                raise RuntimeError(f"{name}: a constant strength after it is another")


def cells(row: Record, options: argparse.Namespace) -> list[str]:
    """One line of the table."""
    most = REGIONAL_GOAL if row["strength"] in REGIONAL else GOAL
    reached = "met" if row["by_layers"] <= most else "missed"
    goal = "-" if options.tiny or row["strength"] == AGAIN else f"<= {most:.2f} {reached}"
    constant, ratio, layers = (f"{row[key]:.3f}" for key in ("constant_s", "of_constant", "by_layers"))
    sure, surer = (
        "-" if row[key] is None else "{:.3f} to {:.3f}".format(*row[key]) for key in ("interval", "by_layers_interval")
    )
    written = f"{row['write_s'] * 1e6:.0f}"
    return [str(row["loras"]), row["strength"], constant, ratio, sure, layers, surer, written, goal]


if __name__ == "__main__":
    sys.exit(main())
