"""The plot of the losses: one curve per table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.curves import plot_losses
from training.loop import write_losses


@pytest.mark.parametrize("count", [3, 4])
def test_each_table_has_a_curve(count: int, tmp_path: Path) -> None:
    tables = [tmp_path / f"part{number}.csv" for number in range(count)]
    for table in tables:
        write_losses([(0, 1.0), (10, 0.1), (20, 0.02)], table)
    plot_losses(tables, tmp_path / "losses.webp")
    with Image.open(tmp_path / "losses.webp") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    assert pixels.shape[1] == 810
    blue = pixels[..., 2] - pixels[..., 0] > 100  # the colour of a first curve
    columns = [blue[:, start : start + 270].any() for start in (0, 270, 540)]
    assert columns == [True] * 3
    lower = blue[pixels.shape[0] // 2 :, :].any() if count > 3 else False
    assert lower == (count > 3)
