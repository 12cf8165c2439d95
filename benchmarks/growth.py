"""How the time of a step grows with LoRAs, their rank, the layers they are on, tokens and batch; and the least it can.

The program times a step with more and more LoRA, of higher rank, on more layers, with more tokens and images, and
divides by the same step without LoRA. The floor is the least time that the step can take: for each layer, the cheaper
of the pair beside it and the sum of weight and pair, at the rate at which this machine multiplies large matrices. If
reading the bytes of the LoRA takes longer, it is that time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from _common import DTYPES, Record, Variant, measure, parse, parser, report, table
from _models import build_unet, check_equal, linear_layers, make_step, peft_activate, peft_load, twin, write_lora
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lib_lora import Engine, Entry, Stack

MULTIPLIER = 1.0
WIDE = 4
"""Of layers, tokens and images, for which the rank is so many times as large: what one costs drowns in the noise."""
HEADERS = ("what", "value", "rank", "base s", "ours/base", "PEFT/base", "floor/base", "above base: ours/floor")


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    what: str
    value: int
    """Of what is varied."""
    loras: int = 1
    rank: int = 32
    layers: int = 0
    """0 is all of them."""
    latent: int = 32
    batch: int = 1


def points(options: argparse.Namespace) -> Iterator[Point]:
    """All of them; what is not varied is as the options say."""
    usual = Point("", 0, rank=options.rank, latent=options.latent, batch=options.batch)
    wide = replace(usual, rank=WIDE * options.rank)
    small = options.tiny
    for count in (1,) if small else (1, 2, 4, 8):
        yield replace(usual, what="LoRAs", value=count, loras=count)
    for rank in (4,) if small else (8, 32, 128, 256):
        yield replace(usual, what="rank", value=rank, rank=rank)
    for layers in (4,) if small else (23, 46, 91, 182):
        yield replace(wide, what="layers", value=layers, layers=layers)
    for latent in (8,) if small else (16, 32, 48, 64):
        yield replace(wide, what="tokens", value=latent * latent, latent=latent)
    for batch in (1,) if small else (1, 2, 4):
        yield replace(wide, what="batch", value=batch, batch=batch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse(parser(__doc__, rounds=5), arguments)
    base = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype])
    rate, bandwidth = machine_rates(64 if options.tiny else 2048, DTYPES[options.dtype])
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = [measured(base, point, Path(folder), options.rounds, rate, bandwidth) for point in points(options)]
    shown = table(HEADERS, [cells(row) for row in rows])
    rates = f"{rate / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s read"
    report("growth", options, f"{rates}\n\n{shown}", rows)
    return 0


def machine_rates(size: int, dtype: torch.dtype) -> tuple[float, float]:
    """Operations a second of a product of large matrices, and bytes a second of reading."""
    one, other = (torch.randn(size, size).to(dtype) for _ in range(2))
    out = torch.empty_like(one)
    read = torch.randn(8 * size * size)

    def seconds(run: partial[object]) -> float:
        took = []
        for _ in range(7):
            began = time.perf_counter()
            run()
            took.append(time.perf_counter() - began)
        return median(took[2:])

    product = seconds(partial(torch.mm, one, other, out=out))
    return 2 * size**3 / product, read.nbytes / seconds(partial(torch.sum, read))


def measured(base: nn.Module, point: Point, folder: Path, rounds: int, rate: float, bandwidth: float) -> Record:
    """Measure one point, after a check that ours and PEFT make the same."""
    every = linear_layers(base)
    step = make_step(base, point.latent, point.batch)
    layers = every[:: max(len(every) // point.layers, 1)][: point.layers] if point.layers else every
    files = [write_lora(folder, f"{point.what}{i}", base, layers, point.rank) for i in range(point.loras)]
    models = {"base": base, "ours": twin(base), "PEFT": twin(base)}
    engine = Engine({"unet": models["ours"]})
    engine.activate(Stack([Entry(file.kohya, MULTIPLIER) for file in files]))
    for i, file in enumerate(files):
        peft_load(models["PEFT"], file, f"lora{i}")
    peft_activate(models["PEFT"], [f"lora{i}" for i in range(len(files))])
    with torch.no_grad():
        outputs = {name: step(model) for name, model in models.items()}
        apart = check_equal(f"{point.what} {point.value}", outputs["ours"], outputs["PEFT"], outputs["base"])
        rank = point.rank * point.loras
        work, nbytes = least(base, layers, partial(step, base), rank)
        samples = measure({name: Variant(partial(step, model)) for name, model in models.items()}, rounds)
    engine.close()
    base_s = samples.median("base")
    floor = 1 + max(work / rate, nbytes / bandwidth) / base_s
    return {
        "what": point.what,
        "rank": point.rank,
        "value": point.value,
        "base_s": base_s,
        "ours": samples.ratio("ours", "base"),
        "peft": samples.ratio("PEFT", "base"),
        "floor": floor,
        "flops": work,
        "bytes": nbytes,
        "differ_by": apart,
        "seconds": samples.seconds,
    }


def least(model: nn.Module, layers: Sequence[str], step: partial[Tensor], rank: int) -> tuple[float, int]:
    """Operations that LoRA of these layers need at the least in a step, and bytes that must be read for them."""
    tokens: dict[str, int] = {}

    def noted(path: str) -> RemovableHandle:
        def hook(_: nn.Module, arguments: tuple[Tensor]) -> None:
            tokens[path] = tokens.get(path, 0) + arguments[0][..., 0].numel()

        return model.get_submodule(path).register_forward_pre_hook(hook)

    handles = [noted(path) for path in layers]
    step()
    for handle in handles:
        handle.remove()
    work, nbytes = 0.0, 0
    for path in layers:
        weight = model.get_submodule(path).weight
        assert isinstance(weight, Tensor)
        out, inside = weight.shape
        work += 2 * rank * min(tokens[path] * (out + inside), out * inside)
        nbytes += rank * (out + inside) * weight.element_size()
    return work, nbytes


def cells(row: Record) -> list[str]:
    """One line of the table."""
    beyond = (row["ours"] - 1) / (row["floor"] - 1)
    numbers = [f"{row[key]:.3f}" for key in ("base_s", "ours", "peft", "floor")]
    return [row["what"], str(row["value"]), str(row["rank"]), *numbers, f"{beyond:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
