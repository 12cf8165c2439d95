"""Loading a LoRA of FLUX.1 as kohya's trainer writes it, against reading its bytes; safetensors, diffusers' keys.

The file has rank 32, 304 layers in 912 keys. The model is diffusers', which has 494 layers for them. "Open, resolve" is
all that an engine does with a new file: it reads the header and the alphas. "Read" copies every tensor into new memory.
"Place" places every layer's factors. The times are compared with reading the file's bytes, by default from the system's
cache into memory that was never used before. With `--cold` the file is read from the disk each time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _common import Record, Samples, Variant, duration, measure, parse, parser, report, table
from diffusers import FluxTransformer2DModel
from diffusers.loaders.lora_conversion_utils import _convert_kohya_flux_lora_to_diffusers
from safetensors.torch import load_file, save_file
from torch import nn

from lib_lora.files.file import AdapterFile
from lib_lora.naming.index import LayerIndex
from lib_lora.naming.network import Network
from lib_lora.naming.parsed import ParsedFile

BLOCKS, SINGLE_BLOCKS = 19, 38
SIDE = {"mod.lin": (6, 1), "attn.qkv": (3, 1), "attn.proj": (1, 1), "mlp.0": (4, 1), "mlp.2": (1, 4)}
SINGLE = {"modulation.lin": (3, 1), "linear1": (7, 1), "linear2": (1, 5)}
"""Layers of a block of Flux' own code: outputs and inputs, in widths of the model."""
WIDTH = 3072
READ = "read the bytes"
LOAD = "open, resolve, read"
RESOLVE = "open, resolve"
GOALS = {LOAD: 1.3}
"""Variant -> how many times the time of reading the bytes at most."""
RESOLVE_GOAL = 50e-3
"""Seconds for the keys of a file to become adapters on the layers of a model."""
HEADERS = ("way", "median", "of reading", "of minima", "goal")


def layers(double: int, single: int) -> dict[str, tuple[int, int]]:
    """Layer of Flux' own code -> (out, in)."""
    found = {
        f"double_blocks.{i}.{side}_{name}": size
        for i in range(double)
        for side in ("img", "txt")
        for name, size in SIDE.items()
    }
    found |= {f"single_blocks.{i}.{name}": size for i in range(single) for name, size in SINGLE.items()}
    return {name: (out * WIDTH, inside * WIDTH) for name, (out, inside) in found.items()}


def write(path: Path, sizes: dict[str, tuple[int, int]], rank: int) -> None:
    """Write random factors in bfloat16, three keys for each layer."""
    tensors = {}
    for name, (out, inside) in sizes.items():
        key = f"lora_unet_{name.replace('.', '_')}"
        tensors[f"{key}.lora_down.weight"] = torch.randn(rank, inside).bfloat16()
        tensors[f"{key}.lora_up.weight"] = torch.randn(out, rank).bfloat16()
        tensors[f"{key}.alpha"] = torch.tensor(float(rank)).bfloat16()
    save_file(tensors, path)


def resolve(path: Path, index: LayerIndex) -> Network:
    """Load a file as an engine does for the first time: it reads the header only."""
    return Network(ParsedFile(AdapterFile.open(path)), [index])


def load(path: Path, index: LayerIndex) -> list[torch.Tensor]:
    """Load the file and copy each tensor into memory of its own."""
    network = resolve(path, index)
    return [network.file.tensor(key).clone() for key in network.file.infos]


def place(path: Path, index: LayerIndex) -> list[torch.Tensor]:
    """Load the file and copy each layer's factors beside the layer: q, k and v get a copy of `down` each."""
    found = []
    for one in resolve(path, index).bindings:
        factors = one.adapter.factors()
        found += [factors.down.clone(), factors.up.clone()]
    return found


def forget(path: Path) -> None:
    """Have the system drop what it has cached of a file, so that the next to read it waits for the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def variants(path: Path, index: LayerIndex, *, cold: bool) -> dict[str, Variant]:
    """Return the ways to compare."""
    prepare = (lambda: forget(path)) if cold else None
    ways: dict[str, Callable[[], object]] = {
        READ: path.read_bytes,
        LOAD: lambda: load(path, index),
        "open, resolve, place": lambda: place(path, index),
        RESOLVE: lambda: resolve(path, index),
        "safetensors' load_file, read": lambda: [one.clone() for one in load_file(path).values()],
        "diffusers' conversion of the keys alone": lambda: _convert_kohya_flux_lora_to_diffusers(load_file(path)),
    }
    return {name: Variant(run, prepare) for name, run in ways.items()}


def check(path: Path, index: LayerIndex) -> None:
    """Stop if not every key acts: nothing would be compared then."""
    network = resolve(path, index)
    if network.report.unused or network.report.hit != network.report.layers:
        raise SystemExit(f"not everything resolved: {network.report.summary()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a goal is missed."""
    made = parser(__doc__, 15)
    made.set_defaults(return_memory=True)  # a file that is loaded for the first time gets memory that nobody had
    made.add_argument("--folder", type=Path, metavar="FOLDER", help="where to write the file; else the system's")
    made.add_argument("--cold", action="store_true", help="have the file read from the disk each time; not on Windows")
    options = parse(made, arguments)
    double, single = (1, 1) if options.tiny else (BLOCKS, SINGLE_BLOCKS)
    sizes = layers(double, single)
    with torch.device("meta"):
        model: nn.Module = FluxTransformer2DModel(num_layers=double, num_single_layers=single, guidance_embeds=True)
    index = LayerIndex("transformer", model)
    with TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "flux.safetensors"
        write(path, sizes, options.rank)
        check(path, index)
        samples = measure(variants(path, index, cold=options.cold), options.rounds)
        size = path.stat().st_size
    rows = records(samples, size, 3 * len(sizes), cold=options.cold)
    report("load", options, text(rows), rows)
    return 0 if options.tiny or all(row["goal_met"] for row in rows) else 1


def records(samples: Samples, size: int, keys: int, *, cold: bool) -> list[Record]:
    """Measure each way."""
    limits = {} if cold else {RESOLVE: RESOLVE_GOAL}
    rows = []
    for name, seconds in samples.seconds.items():
        ratio, goal = samples.ratio(name, READ), GOALS.get(name)
        met = goal is None or ratio <= goal
        if name in limits:
            met = samples.median(name) <= limits[name]
        rows.append(
            {
                "way": name,
                "bytes": size,
                "keys": keys,
                "median_s": samples.median(name),
                "of_reading": ratio,
                "of_minima": samples.minimum_ratio(name, READ),
                "goal": duration(limits[name]) if name in limits else goal,
                "goal_met": met,
                "seconds": seconds,
            }
        )
    return rows


def text(rows: Sequence[Record]) -> str:
    """Format the table below a line on the files that were loaded."""
    lines = [
        [
            row["way"],
            duration(row["median_s"]),
            f"{row['of_reading']:.2f}",
            f"{row['of_minima']:.2f}",
            "" if row["goal"] is None else f"{row['goal']} {'met' if row['goal_met'] else 'MISSED'}",
        ]
        for row in rows
    ]
    return f"{rows[0]['bytes'] / 1e6:.0f} MB, {rows[0]['keys']} keys\n\n{table(HEADERS, lines)}"


if __name__ == "__main__":
    sys.exit(main())
