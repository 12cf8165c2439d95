"""Draws how the losses fell."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from PIL import Image

_COLUMNS = 3


def plot_losses(tables: Sequence[Path], path: Path) -> None:
    """Draw one curve for each table that `write_losses` wrote, on logarithmic axes of their own."""
    rows = -(-len(tables) // _COLUMNS)
    figure, axes = pyplot.subplots(rows, _COLUMNS, figsize=(9, 2.2 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, table in zip(axes.flat, tables, strict=False):
        axis.set_axis_on()
        axis.semilogy(*_read(table), linewidth=1)
        axis.set_title(table.stem, fontsize=9)
        axis.tick_params(labelsize=7)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=90)
    pyplot.close(figure)
    few = Image.open(drawn).convert("RGB").quantize(16)
    few.convert("RGB").save(path, lossless=True, quality=100, method=6)


def _read(table: Path) -> tuple[list[int], list[float]]:
    with table.open(encoding="utf-8", newline="") as stream:
        rows = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(stream)]
    return [step for step, _ in rows], [loss for _, loss in rows]
