"""The search for copies in a library of made LoRA files: seconds and memory a file, and what it does to a picture.

The files are random LoRA of 10 to 300 MB for Stable Diffusion 1.5, XL and FLUX.1, in bfloat16. The search runs as in a
web UI: on a thread of the lowest priority, which rests as long as it works. "Work" is processor time of the process.
Memory is what the process has of its own beyond the list of files, at most; pages of mapped files are not counted,
because the system takes them back.

A step of Stable Diffusion 1.5's UNet is timed alone, while the search rests because a picture is made, and while it
does not rest. A library of 1,000 files is not made: the last row is twice the work, as the search rests half the time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from _common import DTYPES, Record, parse, parser, report, table
from _models import SD15, TINY, build_unet, make_step
from library import SDXL, unet_layers
from load import layers as flux_layers
from load import write

SMALLEST, LARGEST = 10 << 20, 300 << 20  # bytes
MOST_RANK = 256
HEADERS = ("what", "measured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    made = parser(__doc__, rounds=10)
    made.add_argument("--files", type=int, default=24, help="how many")
    made.add_argument("--divide", type=float, default=1, metavar="N", help="write files of 1/N of these sizes")
    options = parse(made, arguments)
    with TemporaryDirectory() as name:
        folder = Path(name)
        size = generate(folder / "loras", 3 if options.tiny else options.files, options.tiny, options.divide)
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # whose memory is nobody else's
            measured = pool.apply(search, (folder,))
        rows = [*measured, {"what": "size of a file", "value": size / 2**20, "unit": "MB"}]
        rows += beside_a_picture(folder, options)
    work = next(row["value"] for row in rows if row["what"] == "a file, work")
    rows.append({"what": "1,000 files, on a quiet machine", "value": 2 * work * 1000 / 60, "unit": "min"})
    cells = [[row["what"], f"{row['value']:.3g} {row['unit']}"] for row in rows]
    report("copies", options, table(HEADERS, cells), rows)
    return 0


def generate(folder: Path, count: int, tiny: bool, divide: float) -> float:
    """Write files, each of another size; return the mean of these."""
    folder.mkdir()
    families = [unet_layers(TINY)]
    if not tiny:
        families = [unet_layers(SD15), unet_layers(SDXL), flux_layers(19, 38)]
    for number in range(count):
        sizes = families[number % len(families)]
        wanted = SMALLEST / divide * (LARGEST / SMALLEST) ** (number / max(1, count - 1))
        each = 2 * sum(out + inside for out, inside in sizes.values())
        rank = 4 if tiny else max(1, min(MOST_RANK, round(wanted / each)))
        write(folder / f"{number}.safetensors", dict(sizes), rank)
    return sum(path.stat().st_size for path in folder.iterdir()) / count


def search(folder: Path) -> list[Record]:
    """Search until nothing is left to do; return the figures."""
    catalog = opened(folder, lambda: False)
    before, most, files = own_memory(), 0, len(catalog.files)
    began, work = time.perf_counter(), time.process_time()
    catalog.copies.ask()
    while catalog.copies.progress.running:
        most = max(most, own_memory())
        time.sleep(0.05)
    took, worked = time.perf_counter() - began, time.process_time() - work
    if catalog.copies.progress.left_out or catalog.copies.progress.done != files:
        raise RuntimeError("not all files were compared")
    catalog.close()
    return [
        {"what": "a file, work", "value": worked / files, "unit": "s"},
        {"what": "a file, with the rests", "value": took / files, "unit": "s"},
        {"what": "memory, at most", "value": max(0, most - before) / 2**20, "unit": "MB"},
    ]


def opened(folder: Path, busy: Callable[[], bool]) -> Any:
    """Return a catalog of the files that keeps nothing."""
    from extension.library.catalog import Catalog

    catalog = Catalog(lambda: [folder / "loras"], busy=busy)
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
