"""First use of a LoRA file, switch to another one, change of strength: ours, PEFT, and a bake with backup.

first use  Remora with a new engine opens the file, matches its keys and places its tensors. PEFT, with a model that has
           other adapters, reads the file, makes its layers, assigns the tensors and activates them. The bake reads the
           file, saves the weights and writes the sums. The file is in the system's cache, so no disk is measured.
switch     From one file to another one, both used before, until the next forward has nothing left to do (for ours the
           program checks this). PEFT keeps both files loaded and placed, which costs memory. Remora keeps both files
           converted in memory, up to a limit (`Engine(parked_bytes=...)`), and one of them beside the layers.
strength   Another multiplier for the active files, on 16, 64 and 182 layers, and on these and all convolutions. For
           ours it is the average of 100 changes. It should not depend on the number of layers.

The bake is a small copy of A1111's built-in Lora: it keeps a copy of every changed weight on the CPU, computes W + dW
in float32 and rounds to the weight's dtype. Every change restores the copies and adds again. It is faster than the
original, which by default also reads the file again at every change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import torch
from _common import DTYPES, Record, Samples, Variant, duration, measure, parse, parser, report, table
from _models import (
    LoraFile,
    build_unet,
    check_equal,
    conv_layers,
    linear_layers,
    make_step,
    peft_activate,
    peft_delete,
    peft_layers,
    peft_load,
    peft_scale,
    twin,
    write_lora,
)
from peft import LoraConfig
from peft.utils.hotswap import hotswap_adapter_from_state_dict
from safetensors.torch import load_file
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.hooks import slot_of

GOALS = {"switch": 20.0}
"""Operation -> how many times faster than the bake at least."""
STRENGTH_GOAL = 100e-6
"""Seconds a change of strength may take at most, whatever the number of layers."""
STRENGTH_CALLS = 100
"""Changes of strength per timing of ours: one is too short for the clock."""
NAMES = ("ours", "PEFT", "hotswap", "bake")
HEADERS = (
    "operation",
    "layers",
    *NAMES,
    *(f"{name}/ours" for name in NAMES[1:]),
    "least: ours",
    *NAMES[1:],
    "goal",
)

Step = Callable[[nn.Module], Tensor]


class Way(Protocol):
    """One of the three programs, with two files it knows and one it is shown for the first time."""

    model: nn.Module

    def forget(self) -> None:
        """Be as before the first use."""
        ...

    def first(self) -> None:
        """Make the first file act, having seen nothing of it."""
        ...

    def switch(self, index: int) -> None:
        """Make one of the two files act, and only it."""
        ...

    def strength(self, multiplier: float) -> None:
        """Change the strength of what acts."""
        ...

    def off(self) -> None:
        """Leave the model as it was."""
        ...


class Ours:
    """Slots beside the layers."""

    def __init__(
        self, model: nn.Module, files: Sequence[LoraFile], parts: Mapping[str, nn.Module] | None = None
    ) -> None:
        self.model = model
        self.files = files
        self._parts = parts or {"unet": model}
        self.engine = Engine(self._parts)

    def forget(self) -> None:
        self.engine.close()

    def first(self) -> None:
        self.engine = Engine(self._parts)
        self.switch(0)

    def switch(self, index: int) -> None:
        self.engine.activate(Stack([Entry(self.files[index].kohya, 1.0)]))

    def strength(self, multiplier: float) -> None:
        self.engine.set_multiplier(0, multiplier)

    def off(self) -> None:
        self.engine.close()

    def check_placed(self, layers: Sequence[str]) -> None:
        """Raise unless everything lies where it is needed: the next forward then has nothing left to do."""
        slots = [slot_of(self.model.get_submodule(path)) for path in layers]
        if any(slot is None or getattr(slot.executor, "device", None) is None for slot in slots):
            raise RuntimeError("activation left work for the next forward")


class Peft:
    """PEFT's layers around the model's; adapters stay loaded, one is active."""

    def __init__(self, model: nn.Module, files: Sequence[LoraFile]) -> None:
        self.model = model
        self.files = files
        self.active = "lora0"
        for i, file in enumerate(files):
            peft_load(self.model, file, f"lora{i}")
        self.switch(0)

    def forget(self) -> None:
        self.switch(0)
        if any("new" in layer.lora_A for layer in peft_layers(self.model)):
            peft_delete(self.model, "new")

    def first(self) -> None:
        peft_load(self.model, self.files[0], "new")
        self._activate("new")

    def switch(self, index: int) -> None:
        self._activate(f"lora{index}")

    def strength(self, multiplier: float) -> None:
        peft_scale(self.model, self.active, multiplier)

    def off(self) -> None:
        self.strength(1.0)

    def _activate(self, name: str) -> None:
        peft_activate(self.model, [name])
        self.active = name


class HotSwap(Peft):
    """PEFT with one adapter, whose tensors are replaced by those of another file; both files are in memory."""

    def __init__(self, model: nn.Module, files: Sequence[LoraFile]) -> None:
        self._config = LoraConfig(r=files[0].rank, lora_alpha=files[0].alpha, target_modules=list(files[0].layers))
        self._states = [_state(file, next(model.parameters())) for file in files]
        super().__init__(model, files[:1])

    def switch(self, index: int) -> None:
        hotswap_adapter_from_state_dict(self.model, self._states[index], "lora0", self._config)


def _state(file: LoraFile, like: Tensor) -> dict[str, Tensor]:
    """Return a file's tensors by their names in the model, on the device of its weights."""
    tensors = load_file(file.peft).items()
    return {f"{key.removesuffix('.weight')}.lora0.weight": tensor.to(like) for key, tensor in tensors}


class Bake:
    """What A1111's built-in Lora does: weights are saved on the CPU, then W + dW is written into the layers.

    Any change restores the saved weights and adds anew. Files stay in memory once read, which A1111 does only where
    its user asks for it. Works on the weights that the other models share; `off` puts them back.
    """

    def __init__(self, base: nn.Module, files: Sequence[LoraFile]) -> None:
        self.model = base
        self.files = files
        self.index = 0
        self.tensors: dict[int, dict[str, Tensor]] = {}
        self.backup: dict[str, Tensor] = {}

    def forget(self) -> None:
        self.off()
        self.tensors.clear()
        self.backup.clear()

    def first(self) -> None:
        self.switch(0)

    def switch(self, index: int) -> None:
        self.index = index
        self.strength(1.0)

    def strength(self, multiplier: float) -> None:
        file = self.files[self.index]
        if self.index not in self.tensors:
            device = next(self.model.parameters()).device
            self.tensors[self.index] = {key: value.to(device) for key, value in load_file(file.peft).items()}
        tensors = self.tensors[self.index]
        factor = multiplier * file.alpha / file.rank
        for path in file.layers:
            weight = self.model.get_parameter(f"{path}.weight")
            if path in self.backup:
                weight.copy_(self.backup[path])
            else:
                self.backup[path] = weight.to("cpu", copy=True)
            down, up = (tensors[f"{path}.lora_{half}.weight"].float().flatten(1) for half in "AB")
            weight.copy_(weight.float() + (up @ down).view(weight.shape) * factor)

    def off(self) -> None:
        for path, saved in self.backup.items():
            self.model.get_parameter(f"{path}.weight").copy_(saved)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=10)
    made.add_argument("--device", default="cpu", help="where, such as cuda")
    options = parse(made, arguments)
    base = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype]).to(options.device)
    step = make_step(base, options.latent, options.batch)
    linear, conv = linear_layers(base), conv_layers(base)
    sizes = sorted({min(16, len(linear)), min(64, len(linear)), len(linear), len(linear + conv)})
    rows = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as name, torch.no_grad():
        folder = Path(name)
        files = [write_lora(folder, name, base, linear, options.rank) for name in ("a", "b")]
        rows += file_rows(base, files, step, options.rounds)
        for size in sizes:
            file = write_lora(folder, f"strength{size}", base, (linear + conv)[:size], options.rank)
            rows.append(strength_row(base, file, step, options.rounds))
    report("switch", options, table(HEADERS, [cells(row, options) for row in rows]), rows)
    return 0


def file_rows(base: nn.Module, files: Sequence[LoraFile], step: Step, rounds: int) -> list[Record]:
    """Measure the first use and the switch."""
    plain = step(base)
    ours, peft, bake = Ours(twin(base), files), Peft(twin(base), files), Bake(base, files)
    swap = HotSwap(twin(base), files)
    ways: dict[str, Way] = {"ours": ours, "PEFT": peft, "bake": bake}
    firsts = {name: Variant(way.first, prepare=way.forget) for name, way in ways.items()}
    found = [row("first use", files[0], measure(firsts, rounds), compare(ways, step, plain))]
    ways["hotswap"] = swap
    switches = {name: Variant(switcher(way)) for name, way in ways.items()}
    samples = measure(switches, rounds, warm_up=2)
    ours.check_placed(files[0].layers)
    for way in ways.values():
        way.switch(1)
    found.append(row("switch", files[0], samples, compare(ways, step, plain)))
    ours.engine.close()
    return found


def strength_row(base: nn.Module, file: LoraFile, step: Step, rounds: int) -> Record:
    """Measure changes of strength of one file."""
    plain = step(base)
    own, other = twin(base), twin(base)
    ways: dict[str, Way] = {"ours": Ours(own, [file]), "PEFT": Peft(other, [file]), "bake": Bake(base, [file])}
    for way in ways.values():
        way.switch(0)
    calls = {"ours": STRENGTH_CALLS}
    variants = {name: Variant(strengthener(way), calls=calls.get(name, 1)) for name, way in ways.items()}
    samples = measure(variants, rounds)
    for way in ways.values():
        way.strength(0.9)
    found = row("strength", file, samples, compare(ways, step, plain))
    for way in ways.values():
        way.off()
    return found


def switcher(way: Way) -> Callable[[], None]:
    """Return a function that makes the other of the two files act."""
    indexes = cycle((1, 0))
    return lambda: way.switch(next(indexes))


def strengthener(way: Way) -> Callable[[], None]:
    """Return a function that sets another strength each time."""
    multipliers = cycle((0.7, 1.1, 0.9))
    return lambda: way.strength(next(multipliers))


def compare(ways: dict[str, Way], step: Step, plain: Tensor) -> float:
    """Check that all three now make the same of the model; return how far they are apart."""
    baked = step(ways["bake"].model)
    ways["bake"].off()  # the others stand on the same weights
    outputs = {name: step(way.model) for name, way in ways.items() if name != "bake"}
    return max(check_equal(f"{name} and bake", output, baked, plain) for name, output in outputs.items())


def row(operation: str, file: LoraFile, samples: Samples, apart: float) -> Record:
    """Sum up one operation."""
    names = tuple(samples.seconds)
    return {
        "operation": operation,
        "layers": len(file.layers),
        "median_s": {name: samples.median(name) for name in names},
        "minimum_s": {name: samples.minimum(name) for name in names},
        "peft_by_ours": samples.ratio("PEFT", "ours"),
        "hotswap_by_ours": samples.ratio("hotswap", "ours") if "hotswap" in names else None,
        "bake_by_ours": samples.ratio("bake", "ours"),
        "differ_by": apart,
        "seconds": samples.seconds,
    }


def goal(row: Record, options: argparse.Namespace) -> str:
    """Say what was to be reached and whether it was."""
    if options.tiny:
        return "-"
    if row["operation"] == "strength":
        return f"< {duration(STRENGTH_GOAL)} {'met' if row['median_s']['ours'] < STRENGTH_GOAL else 'missed'}"
    least = GOALS.get(row["operation"])
    return "-" if least is None else f">= {least:.0f} x bake {'met' if row['bake_by_ours'] >= least else 'missed'}"


def duration_of(seconds: Mapping[str, float], name: str) -> str:
    """Format a time, or a dash."""
    return duration(seconds[name]) if name in seconds else "-"


def times(ratio: float | None) -> str:
    """Format a ratio, or a dash."""
    if ratio is None:
        return "-"
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}"


def cells(row: Record, options: argparse.Namespace) -> list[str]:
    """One line of the table."""
    medians, minima = ([duration_of(row[key], name) for name in NAMES] for key in ("median_s", "minimum_s"))
    ratios = [times(row[key]) for key in ("peft_by_ours", "hotswap_by_ours", "bake_by_ours")]
    return [row["operation"], str(row["layers"]), *medians, *ratios, *minima, goal(row, options)]


if __name__ == "__main__":
    sys.exit(main())
