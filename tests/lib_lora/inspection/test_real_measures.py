"""Measures of real files: the norms that an independent reading gave."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.measures import measure


def test_norms_are_the_expected_ones(real_loras: Path) -> None:
    with (real_loras / "expected_deltas.tsv").open() as stream:
        rows = [row for row in csv.DictReader(stream, delimiter="\t") if row["file"].endswith(".safetensors")]
    found: dict[str, dict[str, float]] = {}
    for file in {row["file"] for row in rows}:
        found[file] = {}
        for one in measure(layers_of(real_loras / file)).layers:
            name = re.sub(r"(to_out)\.0$", r"\1", one.layer.name).replace(".", "_")
            found[file] |= dict.fromkeys((name, f"{one.layer.component}:{name}"), one.norm)
    for row in rows:
        name = re.sub(r"^lora_(te|unet)_", "", row["module"])
        name = re.sub(r"(to_out)\.0$", r"\1", name).replace(".", "_")
        assert found[row["file"]][name] == pytest.approx(float(row["frobenius"]), rel=1e-6), row
    assert len(rows) >= 38
