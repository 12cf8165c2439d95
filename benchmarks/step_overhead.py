"""One step of SD 1.5's UNet: without LoRA, with ours, and with the same LoRAs in PEFT."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _common import DTYPES, Record, Variant, measure, parse, parser, report, table
from _models import (
    LoraFile,
    build_unet,
    check_equal,
    linear_layers,
    make_step,
    peft_activate,
    peft_load,
    peft_scale,
    twin,
    write_lora,
)
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lib_lora import Engine, Entry, Stack

MULTIPLIER = 0.8
GOALS = {1: 1.08, 4: 1.10, 8: 1.20}
"""LoRAs -> time of a step at most, in units of the base's; for the default settings."""
GOAL_OF_PEFT = {4: 0.5, 8: 0.5}
"""LoRAs -> time above base at most, in units of PEFT's."""
HEADERS = (
    "LoRAs",
    "base s",
    "ours/base",
    "PEFT/base",
    "of minima: ours",
    "PEFT",
    "above base: ours/PEFT",
    "of minima",
    "FLOPs ours",
    "FLOPs PEFT",
    "differ by",
    "goal",
)

Step = Callable[[nn.Module], Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=15)
    made.add_argument("--counts", type=int, nargs="+", default=[1, 4, 8], help="of LoRAs that act at once")
    options = parse(made, arguments)
    base = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype])
    layers = linear_layers(base)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        files = [write_lora(Path(folder), f"lora{i}", base, layers, options.rank) for i in range(max(options.counts))]
        bench = Bench(base, files, make_step(base, options.latent, options.batch))
        rows = [bench.row(count, options.rounds) for count in options.counts]
        bench.engine.close()
    shown = table(HEADERS, [cells(row, goal(row, options)) for row in rows])
    report("step_overhead", options, f"{len(layers)} layers\n\n{shown}", rows)
    return 0


class Bench:
    """Three trees of modules over one set of weights: as it is, with our slots, with PEFT's layers.

    The class patch is installed for all three; what it costs a layer without a slot is measured in idle.py.
    """

    def __init__(self, base: nn.Module, files: Sequence[LoraFile], step: Step) -> None:
        self.files = files
        self.step = step
        self.models = {"base": base, "ours": twin(base), "PEFT": twin(base)}
        self.engine = Engine({"unet": self.models["ours"]})
        for i, file in enumerate(files):
            peft_load(self.models["PEFT"], file, f"lora{i}")
            peft_scale(self.models["PEFT"], f"lora{i}", MULTIPLIER)

    def row(self, count: int, rounds: int) -> Record:
        """Measure with the first `count` LoRAs."""
        self.engine.activate(Stack([Entry(file.kohya, MULTIPLIER) for file in self.files[:count]]))
        peft_activate(self.models["PEFT"], [f"lora{i}" for i in range(count)])
        outputs = {name: self.step(model) for name, model in self.models.items()}
        apart = check_equal(f"{count} LoRAs", outputs["ours"], outputs["PEFT"], outputs["base"])
        flops = {name: count_flops(partial(self.step, model)) for name, model in self.models.items()}
        samples = measure({name: Variant(partial(self.step, model)) for name, model in self.models.items()}, rounds)
        return {
            "loras": count,
            "base_s": samples.median("base"),
            "ours": samples.ratio("ours", "base"),
            "peft": samples.ratio("PEFT", "base"),
            "ours_of_minima": samples.minimum_ratio("ours", "base"),
            "peft_of_minima": samples.minimum_ratio("PEFT", "base"),
            "above": above(samples.ratio, "ours", "PEFT"),
            "above_of_minima": above(samples.minimum_ratio, "ours", "PEFT"),
            "flops_base": flops["base"],
            "flops_ours": flops["ours"] / flops["base"],
            "flops_peft": flops["PEFT"] / flops["base"],
            "differ_by": apart,
            "seconds": samples.seconds,
        }


def count_flops(run: Callable[[], object]) -> int:
    """Count the work of products and convolutions; those in place too, which torch's own table leaves out."""
    in_place = {torch.ops.aten.addmm_: _product_flops, torch.ops.aten.baddbmm_: _product_flops}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        run()
    total: int = counter.get_total_flops()
    return total


def _product_flops(_: torch.Size, one: torch.Size, other: torch.Size, **__: object) -> int:
    return 2 * one.numel() * other[-1]


def above(ratio: Callable[[str, str], float], one: str, other: str) -> float | None:
    """Time above base of `one` in units of that of `other`; None where noise leaves the other no such time."""
    rest = ratio(other, "base") - 1
    return (ratio(one, "base") - 1) / rest if rest > 0 else None


def goal(row: Record, options: argparse.Namespace) -> str:
    """Say what was to be reached and whether it was, for the settings that the goals are for."""
    reference = {"latent": 32, "batch": 1, "rank": 32, "dtype": "float32", "tiny": False}
    count = row["loras"]
    if count not in GOALS or any(getattr(options, key) != value for key, value in reference.items()):
        return "-"
    said = [f"<= {GOALS[count]:.2f} {'met' if row['ours'] <= GOALS[count] else 'missed'}"]
    if count in GOAL_OF_PEFT:
        met = row["above"] is not None and row["above"] <= GOAL_OF_PEFT[count]
        said.append(f"<= {GOAL_OF_PEFT[count]:.2f} of PEFT {'met' if met else 'missed'}")
    return ", ".join(said)


def cells(row: Record, goal_text: str) -> list[str]:
    """One line of the table."""
    shares = ["-" if row[key] is None else f"{row[key]:.2f}" for key in ("above", "above_of_minima")]
    times = [f"{row[key]:.3f}" for key in ("base_s", "ours", "peft", "ours_of_minima", "peft_of_minima")]
    flops = [f"{row[key]:.3f}" for key in ("flops_ours", "flops_peft")]
    return [str(row["loras"]), *times, *shares, *flops, f"{row['differ_by']:.0e}", goal_text]


if __name__ == "__main__":
    sys.exit(main())
