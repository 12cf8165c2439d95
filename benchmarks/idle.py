"""What the installed patches cost while no LoRA acts: one step of SD 1.5's UNet, and one call of one layer.

The program times one call of the UNet without the patches (`lib_lora.uninstall()`), with them (`install()`), and with
them on a model in which a LoRA was activated and deactivated. The outputs must be equal in every bit.

cost of a step  Median of the rounds' ratios, minus 1. Quartiles show the noise of a single round. The 95 % interval
                contains the true median with that probability; it is computed from the order of the values. The goal
                is met only if the whole interval is below it. If the interval contains the goal, the result is "not
                resolved".
one call        A layer of 8 x 8, in which nearly all the time is the call itself, with thousands of calls for each
                timing. The line below multiplies the difference by the number of patched layers in a step. This is the
                same cost without the noise of the step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _common import DTYPES, Record, Samples, Spread, Variant, duration, measure, parse, parser, report, table
from _models import build_unet, linear_layers, make_step, twin, write_lora
from torch import nn

from lib_lora import Engine, Entry, Stack, install, uninstall
from lib_lora.execution.hooks import CLASSES

GOAL = 0.005
"""Share of a step."""
NAMES = {"unpatched": "not installed", "patched": "installed", "after": "after activate and deactivate"}
HEADERS = ("patches", "step", "cost of a step", "quartiles", "95 % interval of the median", "of minima", "goal")
CALL_HEADERS = ("one call of a Linear", "median", "quartiles", "least")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=40)
    made.add_argument("--calls", type=int, default=5000, help="of the one layer, per timing")
    options = parse(made, arguments)
    base = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype])
    steps = step_samples(base, options)
    calls = call_samples(options)
    step_rows = [step_row(name, steps) for name in NAMES]
    call = call_row(calls, base, steps.minimum("unpatched"))
    text = "\n\n".join(
        [
            table(HEADERS, [step_cells(row, options) for row in step_rows]),
            table(CALL_HEADERS, call_cells(calls)),
            f"A step calls {call['calls_per_step']} patched layers: by the difference of the fastest calls, "
            f"{duration(call['cost_s'])} each, that is {call['cost_of_a_step']:.4%} of the fastest step.",
        ]
    )
    report("idle", options, text, [*step_rows, call])
    return 0


def step_samples(base: nn.Module, options: argparse.Namespace) -> Samples:
    """Time steps with the patches taken away, put back, and on a model that had a LoRA.

    Raises:
        RuntimeError: the outputs are not equal in every bit.
    """
    step = make_step(base, options.latent, options.batch)
    used = twin(base)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = write_lora(Path(folder), "lora", base, linear_layers(base), options.rank)
        engine = Engine({"unet": used})
        engine.activate(Stack([Entry(file.kohya)]))
        with_lora = step(used)
        engine.close()
    cases = {"unpatched": (uninstall, base), "patched": (install, base), "after": (install, used)}
    outputs = []
    for prepare, model in cases.values():
        prepare()
        outputs.append(step(model))
    if not all(torch.equal(output, outputs[0]) for output in outputs):
        raise RuntimeError("the patches change the output")
    if torch.equal(with_lora, outputs[0]):
        raise RuntimeError("the LoRA did not act")
    return measure(
        {name: Variant(partial(step, model), prepare) for name, (prepare, model) in cases.items()}, options.rounds
    )


def call_samples(options: argparse.Namespace) -> Samples:
    """Time calls of a layer so small that nothing but the way to it counts."""
    layer = nn.Linear(8, 8).requires_grad_(False)
    x = torch.zeros(1, 8)
    variants = {
        "unpatched": Variant(partial(layer, x), prepare=uninstall, calls=options.calls),
        "patched": Variant(partial(layer, x), prepare=install, calls=options.calls),
    }
    samples = measure(variants, options.rounds, warm_up=2)
    uninstall()
    return samples


def step_row(name: str, samples: Samples) -> Record:
    """Sum up one state of the patches, as a share of a step without them."""
    spread = Spread.of(samples.ratios(name, "unpatched"))
    return {
        "patches": name,
        "step_s": samples.median(name),
        "cost": spread.median - 1,
        "quartiles": [spread.lower - 1, spread.upper - 1],
        "interval": None if spread.interval is None else [end - 1 for end in spread.interval],
        "cost_of_minima": samples.minimum_ratio(name, "unpatched") - 1,
        "seconds": samples.seconds[name],
    }


def call_row(samples: Samples, unet: nn.Module, step: float) -> Record:
    """Sum up the calls, and what they come to in a step, in which each layer is called once."""
    layers = sum(isinstance(module, CLASSES) for module in unet.modules())
    cost = samples.minimum("patched") - samples.minimum("unpatched")
    return {
        "patches": "one call",
        "cost_s": cost,
        "median_cost_s": samples.median("patched") - samples.median("unpatched"),
        "calls_per_step": layers,
        "cost_of_a_step": cost * layers / step,
        "seconds": samples.seconds,
    }


def goal(row: Record, options: argparse.Namespace) -> str:
    """Say whether the goal was met; where the interval holds the goal, noise leaves it open."""
    if options.tiny or row["patches"] == "unpatched":
        return "-"
    if row["interval"] is None or row["interval"][0] < GOAL <= row["interval"][1]:
        return f"< {GOAL:.1%} not resolved: more rounds, or a quieter machine"
    return f"< {GOAL:.1%} {'met' if row['interval'][1] < GOAL else 'missed'}"


def step_cells(row: Record, options: argparse.Namespace) -> list[str]:
    """One line of the first table."""
    if row["patches"] == "unpatched":
        return [NAMES["unpatched"], duration(row["step_s"]), *["-"] * 5]
    ends = "-" if row["interval"] is None else _range(row["interval"])
    costs = [f"{row['cost']:+.3%}", _range(row["quartiles"]), ends, f"{row['cost_of_minima']:+.3%}"]
    return [NAMES[row["patches"]], duration(row["step_s"]), *costs, goal(row, options)]


def call_cells(samples: Samples) -> list[list[str]]:
    """Format the second table."""
    lines = []
    for name, values in samples.seconds.items():
        spread = Spread.of(values)
        numbers = (spread.median, spread.lower, spread.upper, samples.minimum(name))
        middle, lower, upper, least = (f"{number * 1e9:.0f} ns" for number in numbers)
        lines.append([NAMES[name], middle, f"{lower} to {upper}", least])
    return lines


def _range(ends: Sequence[float]) -> str:
    return f"{ends[0]:+.2%} to {ends[1]:+.2%}"


if __name__ == "__main__":
    sys.exit(main())
