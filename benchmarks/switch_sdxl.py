"""Switch and change of strength for a LoRA on all of SDXL, 722 layers of its UNet and 264 of its text encoders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _common import DTYPES, Record, Variant, duration, measure, parse, parser, report, table
from _models import LoraFile, check_equal, write_lora
from _sdxl import build_sdxl, sdxl_key, sdxl_layers, sdxl_step, twin_sdxl
from safetensors.torch import load_file
from switch import NAMES, Bake, HotSwap, Ours, Peft, Way, duration_of, row, strengthener, switcher, times
from torch import nn

GOAL = 30e-3
"""Seconds a switch may take at most."""
GOAL_OF_PEERS = 20.0
"""How many times faster at least than those that end in the same state, with the tensors of one file in the model."""
STRENGTH_CALLS = 100
HEADERS = ("operation", *NAMES, *(f"{name}/ours" for name in NAMES[1:]), "least: ours", "differ by", "goal")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=7)
    made.set_defaults(dtype="bfloat16", latent=16, rank=16)
    options = parse(made, arguments)
    base = build_sdxl(tiny=options.tiny, dtype=DTYPES[options.dtype])
    step = sdxl_step(base, options.latent)
    with TemporaryDirectory(ignore_cleanup_errors=True) as name, torch.no_grad():
        layers = sdxl_layers(base)
        files = [write_lora(Path(name), one, base, layers, options.rank, sdxl_key) for one in ("a", "b")]
        ours, other = (twin_sdxl(base, tiny=options.tiny) for _ in range(2))
        parts = dict(ours.named_children())
        bake = Bake(base, files)
        ways: dict[str, Way] = {"ours": Ours(ours, files, parts), "PEFT": Peft(other, files), "bake": bake}
        swap = HotSwap(twin_sdxl(base, tiny=options.tiny), files)
        switches = {key: Variant(switcher(way)) for key, way in (ways | {"hotswap": swap}).items()}
        found = {"switch": measure(switches, options.rounds, warm_up=2)}
        calls = {"ours": STRENGTH_CALLS}
        strengths = {key: Variant(strengthener(way), calls=calls.get(key, 1)) for key, way in ways.items()}
        found["strength"] = measure(strengths, options.rounds)
        for way in (*ways.values(), swap):
            way.switch(1)
            way.strength(1.0)
        check_bake(bake, files[1])
        bake.off()  # the others stand on the same weights
        if not all(torch.isfinite(step(model)).all() for model in (ours, other, swap.model, base)):
            raise RuntimeError("a step gives what is no number")
        models = (ours, swap.model)
        apart = max(check_layer(path, one, other, base) for one in models for path in some(files[1].layers))
    rows = [row(operation, files[0], samples, apart) for operation, samples in found.items()]
    shown = table(HEADERS, [cells(one, tiny=options.tiny) for one in rows])
    report("switch_sdxl", options, f"{len(files[0].layers)} layers\n\n{shown}", rows)
    return 0


def some(layers: Sequence[str]) -> Sequence[str]:
    """As many as are quickly compared, from all over the model."""
    return layers[:: max(len(layers) // 50, 1)]


def check_layer(path: str, ours: nn.Module, other: nn.Module, base: nn.Module) -> float:
    """Compare a layer of ours with PEFT's on the same input; a thousand layers in a row multiply each rounding."""
    layers = [model.get_submodule(path) for model in (ours, other, base)]
    weight = base.get_parameter(f"{path}.weight")
    x = torch.randn(16, weight.shape[1], generator=torch.Generator().manual_seed(2)).to(weight)
    return check_equal(path, *(layer(x) for layer in layers))


def check_bake(bake: Bake, file: LoraFile) -> None:
    """Compare some of its weights with their definition: rounded to half precision, outputs are no measure.

    Raises:
        RuntimeError: they are another's, by more than their last bit.
    """
    tensors = load_file(file.peft)
    for path in some(file.layers):
        weight = bake.model.get_parameter(f"{path}.weight")
        down, up = (tensors[f"{path}.lora_{half}.weight"].float() for half in "AB")
        want = bake.backup[path].float() + up @ down * (file.alpha / file.rank)
        if (weight.float() - want).abs().max() > torch.finfo(weight.dtype).eps * want.abs().max():
            raise RuntimeError(f"{path}: the bake is not what the file says")


def cells(row: Record, *, tiny: bool) -> list[str]:
    """One line of the table."""
    medians = [duration_of(row["median_s"], key) for key in NAMES]
    ratios = [times(row[key]) for key in ("peft_by_ours", "hotswap_by_ours", "bake_by_ours")]
    goal = "-"
    if row["operation"] == "switch" and not tiny:
        fast = row["median_s"]["ours"] < GOAL
        faster = min(row["hotswap_by_ours"], row["bake_by_ours"]) >= GOAL_OF_PEERS
        text = f">= {GOAL_OF_PEERS:.0f} x those that end in the same state"
        said = (f"< {duration(GOAL)} {'met' if fast else 'missed'}", f"{text} {'met' if faster else 'missed'}")
        goal = ", ".join(said)
    least = duration(row["minimum_s"]["ours"])
    return [row["operation"], *medians, *ratios, least, f"{row['differ_by']:.0e}", goal]


if __name__ == "__main__":
    sys.exit(main())
