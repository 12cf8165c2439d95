"""A picture with LoRAs that stay as they are: put on, called for each step, taken off; and what is left behind.

The program applies LoRA, calls the model twenty times, and removes the LoRA: with ours live, with ours merged, and with
PEFT as after `set_adapters`. It also uses the ways that write into the weights: PEFT's `merge` and `unmerge`,
diffusers' `fuse_lora` and `unfuse_lora`, LyCORIS' `onfly_merge` and `onfly_restore`, and the bake of switch.py. All
outputs are compared first. "Weights after" counts the tensors of the model that differ in any bit after the LoRA were
removed.

With `--in-turns`, each step is timed beside a step of the base, in both orders. This shows differences of two percent
of a picture. Pictures one after the other do not show them, because the machine's speed changes over many steps.
`--ways` selects the ways.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _common import DTYPES, Record, Samples, Spread, Variant, measure, parse, parser, report, table, undisturbed
from _models import (
    LoraFile,
    build_unet,
    check_equal,
    linear_layers,
    make_step,
    peft_activate,
    peft_layers,
    peft_load,
    twin,
    write_lora,
)
from lycoris import create_lycoris_from_weights
from safetensors.torch import load_file
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack

logging.getLogger("LyCORIS").setLevel(logging.ERROR)  # it tells of every layer
HEADERS = ("way", "LoRAs", "picture s", "of base", "95 %", "of minima", "above base, in steps", "weights after")

Nothing = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Way:
    """One program's way to a picture."""

    model: nn.Module
    on: Nothing
    off: Nothing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=3)
    made.add_argument("--counts", type=int, nargs="+", default=[1, 4], help="of LoRAs")
    made.add_argument("--steps", type=int, default=20, help="of a picture")
    made.add_argument("--ways", nargs="+", default=[], help="those that are timed; all if absent")
    made.add_argument("--in-turns", action="store_true", help="each step beside one of the base: resolves a percent")
    made.add_argument("--device", default="cpu", help="where, such as cuda")
    options = parse(made, arguments)
    base = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype]).to(options.device)
    step = make_step(base, options.latent, options.batch)
    rows: list[Record] = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, torch.no_grad():
        layers = linear_layers(base)
        every = [write_lora(Path(folder), f"lora{i}", base, layers, options.rank) for i in range(max(options.counts))]
        for count in options.counts:
            rows += measured(base, every[:count], step, options)
    shown = table(HEADERS, [cells(row, options.steps) for row in rows])
    report("picture", options, f"{len(layers)} layers\n\n{shown}", rows)
    return 0


def measured(
    base: nn.Module, files: Sequence[LoraFile], step: Callable[[nn.Module], Tensor], options: argparse.Namespace
) -> list[Record]:
    """Measure all ways with the same files, and what each leaves of the weights."""
    pristine = {key: value.clone() for key, value in base.state_dict().items()}
    ways = ways_of(base, files)
    plain = step(base)
    apart, left = {}, {}
    for name, way in ways.items():
        way.on()
        output = step(way.model)
        way.off()
        left[name] = changed(way.model, base, pristine)
        base.load_state_dict(pristine)
        if name != "base":
            apart[name] = output
    differ = {name: check_equal(name, output, apart["PEFT"], plain) for name, output in apart.items()}

    samples = timed(ways, base, step, options, partial(base.load_state_dict, pristine))
    return [
        {
            "way": name,
            "loras": len(files),
            "picture_s": own.median("way"),
            "of_base": own.ratio("way", "base"),
            "of_minima": own.minimum_ratio("way", "base"),
            "interval": Spread.of(own.ratios("way", "base")).interval,
            "changed_weights": left[name],
            "differ_by": differ.get(name),
            "seconds": own.seconds["way"],
            "base_seconds": own.seconds["base"],
        }
        for name, own in samples.items()
    ]


def timed(
    ways: Mapping[str, Way],
    base: nn.Module,
    step: Callable[[nn.Module], Tensor],
    options: argparse.Namespace,
    restored: Nothing,
) -> dict[str, Samples]:
    """Time pictures of some ways, under the name `way`, and of the base beside each."""

    def picture(way: Way) -> None:
        way.on()
        for _ in range(options.steps):
            step(way.model)
        way.off()

    if not set(options.ways) <= set(ways):
        raise SystemExit(f"ways are {', '.join(ways)}")
    wanted = options.ways or ways
    chosen = {name: way for name, way in ways.items() if name in wanted or (name == "base" and not options.in_turns)}
    if options.in_turns:
        return {name: in_turns(way, base, step, options, restored) for name, way in chosen.items()}
    variants = {name: Variant(partial(picture, way), restored) for name, way in chosen.items()}
    seconds = measure(variants, options.rounds, warm_up=0).seconds
    return {name: Samples({"way": seconds[name], "base": seconds["base"]}) for name in chosen}


def in_turns(
    way: Way,
    base: nn.Module,
    step: Callable[[nn.Module], Tensor],
    options: argparse.Namespace,
    restored: Nothing,
) -> Samples:
    """Time pictures of a way and of the base whose steps take turns, as a machine's moods last for many steps."""
    seconds: dict[str, list[float]] = {"way": [], "base": []}
    turns = {name: Variant(partial(step, model)) for name, model in (("way", way.model), ("base", base))}
    with undisturbed():
        for number in range(options.rounds):
            restored()
            took = {"way": Variant(way.on).time(), "base": 0.0}
            for i in range(options.steps):
                for name in turns if (number + i) % 2 == 0 else reversed(turns):
                    took[name] += turns[name].time()
            took["way"] += Variant(way.off).time()
            for name, own in seconds.items():
                own.append(took[name])
    return Samples(seconds)


def changed(model: nn.Module, base: nn.Module, pristine: Mapping[str, Tensor]) -> int:
    """How many weights are not what they were, in the model or in the memory that all of them share."""
    own = model.state_dict()
    return sum(
        not (torch.equal(value, shared) and torch.equal(value, own.get(key, value)))
        for (key, value), shared in zip(pristine.items(), base.state_dict().values(), strict=True)
    )


def ways_of(base: nn.Module, files: Sequence[LoraFile]) -> Mapping[str, Way]:
    """All of them, on separate trees of modules over one set of weights."""
    ours = twin(base)
    engine = Engine({"unet": ours})
    entries = [Entry(file.kohya, 1.0) for file in files]
    ways = {"base": Way(base, _nothing, _nothing)}
    for mode in ("live", "merged"):
        on = partial(engine.activate, Stack(entries, mode=mode))
        ways[f"ours, {mode}"] = Way(ours, on, partial(engine.activate, Stack()))
    peft = peft_of(base, files)
    names = [f"lora{i}" for i in range(len(files))]
    ways["PEFT"] = Way(peft, partial(peft_activate, peft, names), _nothing)
    fused = peft_of(base, files)
    ways["PEFT, fused"] = Way(fused, partial(merge, fused, names), partial(unmerge, fused))
    diffused: Any = peft_of(base, files)
    ways["diffusers, fused"] = Way(
        diffused, partial(diffused.fuse_lora, adapter_names=names), lambda: quietly(diffused.unfuse_lora)
    )
    lycoris = twin(base)
    networks = [lycoris_of(lycoris, file) for file in files]
    ways["LyCORIS, merged"] = Way(
        lycoris,
        lambda: [one.onfly_merge() for one in networks],
        lambda: [one.onfly_restore() for one in reversed(networks)],
    )
    ways["bake"] = baking(base, files)
    return ways


def peft_of(base: nn.Module, files: Sequence[LoraFile]) -> nn.Module:
    """Return a model with the files loaded and active, as `set_adapters` leaves it."""
    made = twin(base)
    for i, file in enumerate(files):
        peft_load(made, file, f"lora{i}")
    peft_activate(made, [f"lora{i}" for i in range(len(files))])
    return made


def merge(model: nn.Module, names: Sequence[str]) -> None:
    """Have PEFT write its adapters into the weights."""
    for layer in peft_layers(model):
        layer.merge(adapter_names=list(names))


def unmerge(model: nn.Module) -> None:
    """Have PEFT subtract them again."""
    for layer in peft_layers(model):
        layer.unmerge()


def quietly(run: Nothing) -> None:
    """Run it without the warnings that are meant for users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()


def lycoris_of(model: nn.Module, file: LoraFile) -> Any:
    """LyCORIS' network of a file, which it wants with its own names."""
    state = {key.replace("lora_unet_", "lycoris_", 1): value for key, value in load_file(file.kohya).items()}
    network, _ = create_lycoris_from_weights(1.0, None, model, weights_sd=state)
    network.to(next(model.parameters()).device)
    network.apply_to()
    network.restore()
    return network


def baking(base: nn.Module, files: Sequence[LoraFile]) -> Way:
    """Bake several files as switch.py does; their tensors stay in memory, and each picture makes the backup."""
    tensors = [load_file(file.peft, device=str(next(base.parameters()).device)) for file in files]
    backup: dict[str, Tensor] = {}

    def on() -> None:
        for path in files[0].layers:
            weight = base.get_parameter(f"{path}.weight")
            backup[path] = weight.to("cpu", copy=True)
            total = weight.float()
            for file, own in zip(files, tensors, strict=True):
                down, up = (own[f"{path}.lora_{half}.weight"].float() for half in "AB")
                total = total + up @ down * (file.alpha / file.rank)
            weight.copy_(total)

    def off() -> None:
        for path, saved in backup.items():
            base.get_parameter(f"{path}.weight").copy_(saved)
        backup.clear()

    return Way(base, on, off)


def _nothing() -> None:
    """Nothing to put on or off."""


def cells(row: Record, steps: int) -> list[str]:
    """One line of the table."""
    above = (row["of_base"] - 1) * steps
    changed = f"{row['changed_weights']} changed" if row["changed_weights"] else "as before"
    interval = "-" if row["interval"] is None else "{:.3f} to {:.3f}".format(*row["interval"])
    of_base = [f"{row['of_base']:.3f}", interval, f"{row['of_minima']:.3f}"]
    numbers = [f"{row['picture_s']:.2f}", *of_base, f"{above:.2f}"]
    return [row["way"], str(row["loras"]), *numbers, changed]


if __name__ == "__main__":
    sys.exit(main())
