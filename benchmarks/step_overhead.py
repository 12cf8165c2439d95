"""One step of a model: without LoRA, with ours, and with the same LoRAs in PEFT; eager or compiled.

The program times one call of Stable Diffusion 1.5's UNet with 1, 4 and 8 LoRA of rank 32 on its 182 linear layers (all
but the two of the time embedding). `--model sdxl-blocks` times one stack of ten transformer blocks, which take most of
SDXL's time, in the size for a picture of 1024 x 1024. `--model flux-blocks` times six of FLUX.1's 57 blocks. With
`--compile blocks`, torch compiles each block by itself, as diffusers' `compile_repeated_blocks` does; with `--compile
whole`, the model as one graph. All variants are compiled in the same way. In PEFT all adapters are loaded, and the
first n are active, as after `set_adapters`. Its dropout is 0.

base s               seconds of a step without LoRA
ours/base, PEFT/base time with LoRA, divided by the time of the base; and the same of minima
above base           (ours - base) / (PEFT - base), from the two ratios before
FLOPs                multiplications and additions divided by the base's, as torch's FlopCounterMode counts them, and
                     operations in place, which it would omit; on a machine that only computes, the ratio of times
                     cannot be better
differ by            largest difference of the two outputs, divided by the largest entry

Remora needs fewer FLOPs than PEFT, because in a layer with many tokens it adds the pair to the weight before the
layer's product.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _blocks import MODELS, compile_model
from _common import DTYPES, Record, Variant, measure, parse, parser, report, table
from _models import (
    LoraFile,
    check_equal,
    linear_layers,
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
GOAL_OF_FLOPS = 1.05
"""Time of a step at most, in units of the base's time and the ratio of FLOPs that pairs beside their layers make."""
GOAL_OF_PEFT = {1: 0.6, 4: 0.3, 8: 0.3}
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
    made.add_argument("--model", choices=sorted(MODELS), default="sd15", help="what is called")
    made.add_argument("--compile", choices=("no", "blocks", "whole"), default="no", help="what torch compiles of it")
    made.add_argument("--device", default="cpu", help="where, such as cuda")
    options = parse(made, arguments)
    model = MODELS[options.model]
    base = model.build(tiny=options.tiny, dtype=DTYPES[options.dtype]).to(options.device)
    layers = linear_layers(base)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        files = [write_lora(Path(folder), f"lora{i}", base, layers, options.rank) for i in range(max(options.counts))]
        step = model.step(base, options.latent, options.batch)
        bench = Bench(base, files, step, options.compile)
        rows = [bench.row(count, options.rounds) for count in options.counts]
        bench.engine.close()
    shown = table(HEADERS, [cells(row, goal(row, options)) for row in rows])
    report("step_overhead", options, f"{len(layers)} layers\n\n{shown}", rows)
    return 0


class Bench:
    """Three trees of modules over one set of weights: as it is, with our slots, with PEFT's layers.

    The class patch is installed for all three; what it costs a layer without a slot is measured in idle.py.
    """

    def __init__(self, base: nn.Module, files: Sequence[LoraFile], step: Step, compiled: str = "no") -> None:
        self.files = files
        self.step = step
        self.models = {"base": base, "ours": twin(base), "PEFT": twin(base)}
        self.engine = Engine({"unet": self.models["ours"]})
        for i, file in enumerate(files):
            peft_load(self.models["PEFT"], file, f"lora{i}")
            peft_scale(self.models["PEFT"], f"lora{i}", MULTIPLIER)
        for model in self.models.values():
            compile_model(model, compiled)

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
    torch.compiler.set_stance("force_eager")  # compiled code calls kernels that nobody counts
    try:
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            run()
    finally:
        torch.compiler.set_stance("default")
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
    if count not in GOAL_OF_PEFT or any(getattr(options, key) != value for key, value in reference.items()):
        return "-"
    most = GOAL_OF_FLOPS * row["flops_peft"]
    met = row["above"] is not None and row["above"] <= GOAL_OF_PEFT[count]
    return (
        f"<= {most:.2f} {'met' if row['ours'] <= most else 'missed'}, "
        f"<= {GOAL_OF_PEFT[count]:.2f} of PEFT {'met' if met else 'missed'}"
    )


def cells(row: Record, goal_text: str) -> list[str]:
    """One line of the table."""
    shares = ["-" if row[key] is None else f"{row[key]:.2f}" for key in ("above", "above_of_minima")]
    times = [f"{row[key]:.3f}" for key in ("base_s", "ours", "peft", "ours_of_minima", "peft_of_minima")]
    flops = [f"{row[key]:.3f}" for key in ("flops_ours", "flops_peft")]
    return [str(row["loras"]), *times, *shares, *flops, f"{row['differ_by']:.0e}", goal_text]


if __name__ == "__main__":
    sys.exit(main())
