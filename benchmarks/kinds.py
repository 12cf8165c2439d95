"""One layer with an adapter of each kind: beside it, by a weight built for the call, and by the library it is from.

The program times one layer at rank 16 and 4,096 tokens or places: linear layers 1280 and 3072 wide, and a 3x3
convolution of 640 channels. LyCORIS or PEFT makes and saves each adapter, and its own forward must give the same
output.

way         "beside": beside the layer; only the base forward reads the base weight. "built": an effective weight
            for each call.
ours/base   time divided by the time of the base layer
built/base  the same, forced to build the weight
peer        LyCORIS' bypass forward, or PEFT's forward; "LyCORIS, weight" if there is no bypass. "(wrong)" marks a
            bypass whose output differs from the trainer's own weight: LyCORIS 4.1.3 also rotates and scales the bias.
            Only its speed is compared.

Goals: at most 1.5 beside the layer and 1.35 with a built weight; LoKr and OFT faster than LyCORIS' bypass. `--kind`,
`--shape` and `--merged` select. PEFT's OFT on convolutions is not measured, because its forward differs from its merged
weight.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from unittest import mock

import torch
from _common import DTYPES, Record, Variant, duration, measure, parse, parser, report, table
from _kinds import KINDS, Kind, OneLayer, Peer, twin
from _models import BOUNDS, check_equal
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, plan
from lib_lora.execution.dense import DenseExecutor
from lib_lora.execution.hooks import slot_of

GOAL, TRANSIENT_GOAL = 1.5, 1.35
"""Time at most, in units of the base layer's, of a kind that acts beside its layer and of one that builds a weight."""
HEADERS = (
    "kind",
    "layer",
    "base",
    "way",
    "ours/base",
    "of minima",
    "built/base",
    "merged/base",
    "peer",
    "peer/base",
    "peer/ours",
    "differ by",
    "peer's differs by",
    "goal",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer of as many outputs as inputs."""

    kind: Literal["linear", "conv"]
    width: int

    def layer(self, dtype: torch.dtype) -> nn.Module:
        """Return the layer; convolutions are 3x3."""
        linear = self.kind == "linear"
        made = nn.Linear(self.width, self.width) if linear else nn.Conv2d(self.width, self.width, 3, padding=1)
        return made.to(dtype).eval().requires_grad_(False)

    def input(self, options: argparse.Namespace) -> Tensor:
        """As many tokens as the latents have places."""
        places = (options.latent, options.latent)
        x = torch.randn(options.batch, self.width, *places, generator=torch.Generator().manual_seed(1))
        x = x.flatten(2).transpose(1, 2).contiguous() if self.kind == "linear" else x
        return x.to(DTYPES[options.dtype])


SHAPES = {"linear1280": Shape("linear", 1280), "linear3072": Shape("linear", 3072), "conv640": Shape("conv", 640)}
TINY = {"linear1280": Shape("linear", 64), "linear3072": Shape("linear", 96), "conv640": Shape("conv", 64)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=7)
    made.set_defaults(latent=64, rank=16)
    made.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND", help="which kinds")
    made.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="which layers")
    made.add_argument("--merged", action="store_true", help="time the merged way too")
    options = parse(made, arguments)
    shapes = TINY if options.tiny else SHAPES
    rows = []
    for name, kind in product(options.shape, options.kind):
        if shapes[name].kind in KINDS[kind].layers:
            with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                measured = row(KINDS[kind], shapes[name], Path(folder), options)
            rows.append({"kind": kind, "layer": name, **measured})
    shown = table(HEADERS, [cells(one, goal(one, options)) for one in rows])
    report("kinds", options, f"{options.batch * options.latent**2} tokens\n\n{shown}", rows)
    return 0


def row(kind: Kind, shape: Shape, folder: Path, options: argparse.Namespace) -> Record:
    """Measure one kind on one layer."""
    base = OneLayer(shape.layer(DTYPES[options.dtype]))
    peer = kind.make(twin(base), options.rank, folder)
    models = Models(base, peer.file, merged=options.merged)
    x = shape.input(options)
    with torch.no_grad():
        runs: dict[str, Callable[[], Tensor]] = {name: partial(model, x) for name, model in models.named.items()}
        apart, wrong = compare(runs, peer, x)
        runs["peer"] = partial(peer.run, x)
        samples = measure({name: Variant(run) for name, run in runs.items()}, options.rounds)
    models.close()
    others = {name: samples.ratio(name, "base") for name in runs if name not in ("base", "ours")}
    return {
        "way": models.way,
        "base_s": samples.median("base"),
        "ours": samples.ratio("ours", "base"),
        "ours_of_minima": samples.minimum_ratio("ours", "base"),
        "built": others.get("built"),
        "merged": others.get("merged"),
        "peer_name": peer.name,
        "peer": others["peer"],
        "peer_by_ours": samples.ratio("peer", "ours"),
        "differ_by": apart,
        "peer_differs_by": wrong,
        "peer_right": wrong <= BOUNDS[x.dtype],
        "faster": kind.faster,
        "seconds": samples.seconds,
    }


class Models:
    """Models over one set of weights: without the adapter, with it as the engine would have it, and as it is told to.

    The merged one has weights of its own.
    """

    def __init__(self, base: OneLayer, file: Path, *, merged: bool) -> None:
        self.named = {"base": base, "ours": twin(base)}
        self.engines = [activate(self.named["ours"], file)]
        slot = slot_of(self.named["ours"].layer)
        assert slot is not None
        assert slot.executor is not None
        built = isinstance(slot.executor, DenseExecutor)
        self.way = "built" if built else "beside"
        if not built:
            self.named["built"] = twin(base)
            self.engines.append(activate(self.named["built"], file, built=True))
        if merged:
            self.named["merged"] = twin(base, share=False)
            self.engines.append(activate(self.named["merged"], file, mode="merged"))

    def close(self) -> None:
        """Take the adapters off."""
        for engine in self.engines:
            engine.close()


def activate(model: OneLayer, file: Path, *, built: bool = False, mode: Literal["live", "merged"] = "live") -> Engine:
    """Return the engine that makes the file act on the model.

    Raises:
        RuntimeError: the layer got no adapter, or not all of the file was used.
    """
    engine = Engine({"unet": model})
    always = mock.patch.object(
        plan, "live_executor", lambda layer, bindings, strengths, **_: DenseExecutor(bindings, strengths)
    )
    with always if built else nullcontext():
        (found,) = engine.activate(Stack([Entry(file)], mode=mode)).entries
    if not found.kinds or found.unused:
        raise RuntimeError(f"{file.name} was not understood: {found}")
    return engine


def compare(runs: Mapping[str, Callable[[], Tensor]], peer: Peer, x: Tensor) -> tuple[float, float]:
    """How far ours are from what the adapter was trained as, and how far the peer's own way is.

    Raises:
        RuntimeError: ours are further away than rounding explains. The peer's may be: some are known to be wrong.
    """
    trained, base = peer.trained(x), runs["base"]()
    apart = max(check_equal(name, run(), trained, base) for name, run in runs.items() if name != "base")
    return apart, ((peer.run(x) - trained).abs().max() / trained.abs().max()).item()


def goal(row: Record, options: argparse.Namespace) -> str:
    """Say what was to be reached and whether it was, for the settings that the goals are for."""
    reference = {"latent": 64, "batch": 1, "rank": 16, "dtype": "float32", "tiny": False}
    if any(getattr(options, key) != value for key, value in reference.items()):
        return "-"
    most = GOAL if row["way"] == "beside" else TRANSIENT_GOAL
    said = [f"<= {most:.2f} {'met' if row['ours'] <= most else 'missed'}"]
    if row["faster"]:
        said.append(f"faster than {row['peer_name']} {'met' if row['peer_by_ours'] > 1 else 'missed'}")
    return ", ".join(said)


def cells(row: Record, goal_text: str) -> list[str]:
    """One line of the table."""
    keys = ("ours", "ours_of_minima", "built", "merged")
    ours = ["-" if row[key] is None else f"{row[key]:.2f}" for key in keys]
    peers = [row["peer_name"], f"{row['peer']:.2f}", f"{row['peer_by_ours']:.2f}"]
    wrong = f"{row['peer_differs_by']:.0e}" + ("" if row["peer_right"] else " (wrong)")
    start = [row["kind"], row["layer"], duration(row["base_s"]), row["way"]]
    return [*start, *ours, *peers, f"{row['differ_by']:.0e}", wrong, goal_text]


if __name__ == "__main__":
    sys.exit(main())
