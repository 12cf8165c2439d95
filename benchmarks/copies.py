"""The search for copies in a library of made LoRA files: seconds and memory a file, and what it does to a picture.

The files are random LoRA of 10 to 300 MB for Stable Diffusion 1.5, XL and FLUX.1, in bfloat16. Every sixteenth one is a
copy: the same, in half precision, scaled, with other factors, or the sum of two. The search runs as in a web UI: on a
thread of the lowest priority, which rests as long as it works. After half of the files, its process is killed, and a
new one goes on.

"Work" is processor time of the process. Memory is what the process has of its own beyond the list of files, at most;
pages of mapped files are not counted, because the system takes them back.

A step of Stable Diffusion 1.5's UNet is timed alone, while the search rests because a picture is made, and while it
does not rest.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
import torch
from _common import DTYPES, Record, parse, parser, report, table
from _models import SD15, TINY, build_unet, make_step
from library import SDXL, unet_layers
from load import layers as flux_layers
from safetensors.torch import load_file, save_file
from torch import Tensor

SMALLEST, LARGEST = 10 << 20, 300 << 20  # bytes
BANDS = ((0, 15), (15, 30), (30, 100), (100, 300))
"""Sizes in MB between which seconds a file are told."""
LOOK = 0.25  # seconds between two looks at a search
MOST_RANK = 256
EACH = 16
"""One of so many files is a copy."""
KINDS = ("same", "precision", "scaled", "rank", "merged")
"""What copies are, by turns."""
HEADERS = ("what", "measured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    made = parser(__doc__, rounds=10)
    made.add_argument("--files", type=int, default=48, help="how many")
    made.add_argument(
        "--lean", type=float, default=1, help="the higher, the more files are small; 5 makes 27 MB a file"
    )
    made.add_argument("--folder", type=Path, help="where to write the files; else the system's")
    options = parse(made, arguments)
    with TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        planted = generate(folder / "loras", 2 * EACH if options.tiny else options.files, options.tiny, options.lean)
        rows = searched(folder, planted)
        shutil.rmtree(folder / "data")
        rows += beside_a_picture(folder, options)
    cells = [[row["what"], f"{row['value']:.3g} {row['unit']}".strip()] for row in rows]
    report("copies", options, table(HEADERS, cells), rows)
    return 0


class Planted(NamedTuple):
    """A file that is a copy of others on purpose."""

    file: str
    of: tuple[str, ...]
    """The files that it is a copy of, or the two that it is the sum of."""
    alike: str


def generate(folder: Path, count: int, tiny: bool, lean: float) -> list[Planted]:
    """Write files of growing sizes, every sixteenth of them a copy; return the copies.

    The higher `lean`, the more of them are small.
    """
    folder.mkdir()
    families = [unet_layers(TINY)]
    if not tiny:
        families = [unet_layers(SD15), unet_layers(SDXL), flux_layers(19, 38)]
    noise = torch.randn(1 << (16 if tiny else 26)).bfloat16()
    chance, planted = random.Random(0), list[Planted]()
    for number in range(count):
        path = folder / f"{number:04d}.safetensors"
        if number % EACH == EACH - 1:
            planted.append(plant(path, KINDS[number // EACH % len(KINDS)]))
            continue
        sizes = families[(number + 1) // 2 % len(families)]
        wanted = SMALLEST * (LARGEST / SMALLEST) ** ((number / max(1, count - 1)) ** lean)
        each = 2 * sum(out + inside for out, inside in sizes.values())
        rank = 4 if tiny else max(1, min(MOST_RANK, round(wanted / each)))
        save_file(random_factors(sizes, rank, noise, chance), path)
    return planted


def random_factors(
    sizes: Mapping[str, tuple[int, int]], rank: int, noise: Tensor, chance: random.Random
) -> dict[str, Tensor]:
    """Return the factors of a plain LoRA under kohya's keys, cut from the noise at random places."""

    def some(*shape: int) -> Tensor:
        count = math.prod(shape)
        start = chance.randrange(len(noise) - count)
        return noise[start : start + count].view(shape).clone()

    tensors = {}
    for name, (out, inside) in sizes.items():
        key = f"lora_unet_{name.replace('.', '_')}"
        tensors[f"{key}.lora_down.weight"] = some(rank, inside)
        tensors[f"{key}.lora_up.weight"] = some(out, rank) / 8
        tensors[f"{key}.alpha"] = torch.tensor(float(rank)).bfloat16()
    return tensors


def plant(path: Path, alike: str) -> Planted:
    """Write a copy of the file before this one, or the sum of the two before it."""
    before = [path.with_name(f"{int(path.stem) - back:04d}.safetensors") for back in (1, 2)]
    first, second = (load_file(one) for one in before)
    if alike == "merged" and first.keys() != second.keys():
        raise RuntimeError(f"{before[0]} and {before[1]} are of two families")
    for key, value in list(first.items()):
        if alike == "precision":
            first[key] = value.half()
        elif alike == "scaled" and key.endswith("alpha"):
            first[key] = value * 0.5
        elif alike == "merged" and not key.endswith("alpha"):
            first[key] = torch.cat([value, second[key]], 0 if "lora_down" in key else 1)
        elif alike == "merged":
            first[key] = value + second[key]
        elif alike == "rank" and not key.endswith("alpha"):  # with more factors, half of which are zero
            first[key] = torch.cat([value, torch.zeros_like(value)], 0 if "lora_down" in key else 1)
        elif alike == "rank":
            first[key] = value * 2
    save_file(first, path)
    return Planted(path.name, tuple(one.name for one in before[: 2 if alike == "merged" else 1]), alike)


class Sample(NamedTuple):
    """A look at a search."""

    done: int
    """Files."""
    began: float
    """Seconds since the search began."""
    work: float
    """Seconds of processor time since then."""
    memory: int
    """Bytes since then."""


class Found(NamedTuple):
    """What a search found, by names of files."""

    groups: list[set[str]]
    merges: set[tuple[str, frozenset[str]]]


def searched(folder: Path, planted: Sequence[Planted]) -> list[Record]:
    """Search in a process that is killed at half of the files, and in another one; return the figures."""
    from extension.library.index import Index

    sizes = sorted(path.stat().st_size for path in (folder / "loras").iterdir())
    first, _ = followed(folder, len(sizes) // 2)
    kept = sum(bool(row.sketch) for row in Index(folder / "data").rows())
    second, found = followed(folder, len(sizes) + 1)
    if found is None or second[-1].done != len(sizes):
        raise RuntimeError("not all files were compared")
    work, samples = dict.fromkeys(BANDS, 0.0), (first, second)
    for before, after in (pair for run in samples for pair in pairwise(run)):
        size = sizes[min(before.done, len(sizes) - 1)]  # the smallest come first
        work[band_of(size)] += after.work - before.work
    files = Counter(map(band_of, sizes))
    right, wrong = judged(found, planted)
    total = sum(work.values())
    return [
        {"what": "size of a file", "value": sum(sizes) / len(sizes) / 2**20, "unit": "MB"},
        {"what": "a file, work", "value": total / len(sizes), "unit": "s"},
        *[
            {"what": f"of {low} to {high} MB, {files[low, high]} files", "value": work[low, high] / count, "unit": "s"}
            for (low, high), count in files.items()
        ],
        {"what": "all files, work", "value": total, "unit": "s"},
        {"what": "all files, with the rests", "value": sum(run[-1].began for run in samples), "unit": "s"},
        {"what": "memory, at most", "value": max(one.memory for run in samples for one in run) / 2**20, "unit": "MB"},
        {"what": "files measured again after the kill", "value": first[-1].done - kept, "unit": ""},
        {"what": f"copies found, of {len(planted)}", "value": right, "unit": ""},
        {"what": "wrong copies", "value": wrong, "unit": ""},
    ]


def band_of(size: int) -> tuple[int, int]:
    """Return the band of a size in bytes."""
    return next((band for band in BANDS if size < band[1] << 20), BANDS[-1])


def followed(folder: Path, most: int) -> tuple[list[Sample], Found | None]:
    """Return what a search in a new process tells until it ends, or is killed after so many files."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=search, args=(folder, sender))
    child.start()
    sender.close()
    samples, found = list[Sample](), None
    with suppress(EOFError):
        while found is None and (not samples or samples[-1].done < most):
            told = receiver.recv()
            if isinstance(told, Sample):
                samples.append(told)
            else:
                found = told
    if found is None:
        child.kill()
    child.join()
    return samples, found


def search(folder: Path, told: Connection) -> None:
    """Search until nothing is left to do, and tell how far it is."""
    catalog = opened(folder, lambda: False)
    copies, memory, began, work = catalog.copies, own_memory(), time.perf_counter(), time.process_time()

    def tell() -> None:
        spent, worked = time.perf_counter() - began, time.process_time() - work
        told.send(Sample(copies.progress.done, spent, worked, own_memory() - memory))

    copies.ask()
    while copies.progress.running:
        tell()
        time.sleep(LOOK)
    tell()
    if copies.progress.left_out:
        raise RuntimeError(f"not compared: {list(copies.progress.left_out.values())[:3]}")
    compared = copies.compared
    merges = {(one.file.path.name, frozenset(part.path.name for part in one.parents)) for one in compared.merges}
    told.send(Found([{one.file.path.name for one in group} for group in compared.groups], merges))
    catalog.close()


def judged(found: Found, planted: Sequence[Planted]) -> tuple[int, int]:
    """Return how many copies were found, and how many groups and sums are wrong."""
    groups = [{one.file, *one.of} for one in planted if one.alike != "merged"]
    merges = {(one.file, frozenset(one.of)) for one in planted if one.alike == "merged"}
    right = sum(group in found.groups for group in groups) + len(merges & found.merges)
    return right, len(found.groups) + len(found.merges) - right


def opened(folder: Path, busy: Callable[[], bool]) -> Any:
    """Return a catalog of the files."""
    from extension.library.catalog import Catalog

    catalog = Catalog(lambda: [folder / "loras"], lambda: folder / "data", busy=busy)
    catalog.start()
    if not catalog.wait(600):
        raise RuntimeError("the files were not read")
    return catalog


def own_memory() -> int:
    """Return the bytes that the process does not share with files."""
    info = psutil.Process().memory_info()
    return int(info.rss) - int(getattr(info, "shared", 0))


def beside_a_picture(folder: Path, options: argparse.Namespace) -> list[Record]:
    """Time steps alone, while the search rests, and while it does not."""
    unet = build_unet(tiny=options.tiny, dtype=DTYPES[options.dtype])
    step = make_step(unet, options.latent, options.batch)
    resting = threading.Event()
    rows = []
    for what, is_searching, rests in (
        ("a step, alone", False, False),
        ("a step, while the search rests", True, True),
        ("a step, beside the search", True, False),
    ):
        catalog = opened(folder, resting.is_set)
        (resting.set if rests else resting.clear)()
        if is_searching:
            catalog.copies.ask()
            time.sleep(0 if options.tiny else 2)
        seconds = []
        for _ in range(options.rounds + 1):
            began = time.perf_counter()
            step(unet)
            seconds.append(time.perf_counter() - began)
        if is_searching and not options.tiny and not catalog.copies.progress.running:
            raise RuntimeError("the search ended before the steps")
        catalog.close()
        rows.append({"what": what, "value": median(seconds[1:]), "unit": "s"})
    return rows


if __name__ == "__main__":
    sys.exit(main())
