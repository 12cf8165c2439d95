"""q, k and v of an attention, given one tensor: each layer's own first product, and one for the three of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from _common import DTYPES, Record, Samples, Spread, Variant, duration, measure_beside, parse, parser, report, table
from _models import check_equal, twin, write_lora
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from lib_lora.sharing import Sharing

NAMES = ("to_q", "to_k", "to_v")
SHAPES = ("16x1280", "64x1280", "256x640", "77x768")
"""Tokens and width: of SD 1.5 at 32 x 32 latents, and of its text."""
TINY = ("4x32",)
HEADERS = ("tokens", "width", "LoRAs", "own", "shared", "shared/own", "quartiles", "95 %", "of base: own", "shared")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=300)
    made.add_argument("--counts", type=int, nargs="+", default=[1, 4, 8], help="of LoRAs that act at once")
    made.add_argument("--shapes", nargs="+", help="tokens x width, such as 4096x640")
    made.add_argument("--calls", type=int, default=3, help="of the three layers, per timing")
    made.add_argument("--device", default="cpu", help="where, such as cuda")
    options = parse(made, arguments)
    shapes = options.shapes or (TINY if options.tiny else SHAPES)
    rows = []
    for shape in shapes:
        tokens, width = map(int, shape.split("x"))
        rows += rows_of(tokens, width, options)
    report("sharing", options, table(HEADERS, [cells(row) for row in rows]), rows)
    return 0


class Projections(nn.Module):
    """Three layers that are given the same tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.config = {"width": width}  # as diffusers' models have it
        for name in NAMES:
            self.add_module(name, nn.Linear(width, width, bias=False))

    @classmethod
    def from_config(cls, config: dict[str, int]) -> Projections:
        """The same layers with other weights."""
        return cls(**config)

    def forward(self, x: Tensor) -> Tensor:
        """All three, one behind the other."""
        return torch.cat([self.get_submodule(name)(x) for name in NAMES], -1)


def sharing(model: nn.Module) -> Engine:
    """An engine that makes one product wherever it can, and has no other kernels."""
    with patch.multiple("lib_lora.engine", Sharing=lambda: Sharing(lambda device: prefers_one()), Chooser=lambda: None):
        return Engine({"unet": model}, kernels="measured")


def prefers_one() -> Callable[[Callable[[], object]], float]:
    """A clock for which one product always takes less time than several: it is asked for that first."""
    turns = cycle([0.0, 1.0])
    return lambda run: next(turns)


@torch.no_grad()
def rows_of(tokens: int, width: int, options: argparse.Namespace) -> list[Record]:
    """Measure one shape with each number of LoRAs.

    Raises:
        RuntimeError: the outputs are not those of each layer's own product.
    """
    base = Projections(width).requires_grad_(False).to(options.device, DTYPES[options.dtype])
    models = {"base": base, "own": twin(base), "shared": twin(base)}
    engines = {"own": Engine({"unet": models["own"]}), "shared": sharing(models["shared"])}
    x = torch.randn(options.batch, tokens, width, device=options.device, dtype=DTYPES[options.dtype])
    rows = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        files = [
            write_lora(Path(folder), f"lora{i}", base, NAMES, options.rank).kohya for i in range(max(options.counts))
        ]
        for count in options.counts:
            for engine in engines.values():
                engine.activate(Stack([Entry(file, 0.8) for file in files[:count]]))
            for model in models.values():
                model(x)  # by which it is learned
            outputs = {name: model(x) for name, model in models.items()}
            check_equal(f"{count} LoRAs", outputs["shared"], outputs["own"], outputs["base"])
            variants = {name: Variant(partial(model, x), calls=options.calls) for name, model in models.items()}
            own = variants.pop("own")
            rows.append(record(tokens, width, count, measure_beside(own, variants, options.rounds)))
        for engine in engines.values():
            engine.close()
    return rows


def record(tokens: int, width: int, count: int, samples: dict[str, Samples]) -> Record:
    """One line, from times of each variant beside those of each layer's own product."""
    shared = Spread.of(samples["shared"].ratios("variant", "base"))
    base = samples["base"].ratio("variant", "base")
    return {
        "tokens": tokens,
        "width": width,
        "loras": count,
        "own_s": samples["shared"].median("base"),
        "shared_s": samples["shared"].median("variant"),
        "of_own": shared.median,
        "quartiles": (shared.lower, shared.upper),
        "interval": shared.interval,
        "own_of_base": 1 / base,
        "shared_of_base": shared.median / base,
    }


def cells(row: Record) -> list[str]:
    """One line of the table."""
    low, high = row["quartiles"]
    interval = "-" if row["interval"] is None else "{:.3f} to {:.3f}".format(*row["interval"])
    return [
        *(str(row[key]) for key in ("tokens", "width", "loras")),
        *(duration(row[key]) for key in ("own_s", "shared_s")),
        f"{row['of_own']:.3f}",
        f"{low:.3f} to {high:.3f}",
        interval,
        *(f"{row[key]:.3f}" for key in ("own_of_base", "shared_of_base")),
    ]


if __name__ == "__main__":
    sys.exit(main())
