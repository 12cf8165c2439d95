"""What CUDA is asked for by adapters, counted by `benchmarks/count.py --device cuda` on fake tensors of tiny models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.full  # the program takes a minute

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "count.py"
LAYERS = 48
"""Linear layers in the tiny SDXL's transformers."""
FEW = 8
Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[Row]:
    for package in ("peft", "diffusers", "lycoris", "accelerate"):
        pytest.importorskip(package)
    if not (torch.backends.cuda.is_built() or any(map(shutil.which, ("c++", "g++", "clang++")))):
        pytest.skip('this torch has no CUDA, and there is no C++ compiler to make fake tensors on "cuda"')
    file = tmp_path_factory.mktemp("counts") / "out.json"
    asked = ["--device", "cuda", "--tiny", "--counts", "1", "2", "--rank", "4", "--json", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *asked], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return found


def one(rows: list[Row], case: str, what: str, way: str, phase: str, loras: int = 1) -> Row:
    wanted = {"case": case, "what": what, "way": way, "phase": phase, "loras": loras}
    (found,) = (row for row in rows if row.items() >= wanted.items())
    return found


def sdxl(rows: list[Row], phase: str, way: str = "ours", loras: int = 1) -> Row:
    return one(rows, "models", "SDXL", way, phase, loras)


def call(rows: list[Row], case: str, what: str, way: str = "ours") -> Row:
    return one(rows, case, what, way, "steady call")


def quiet(row: Row) -> bool:
    return (row["copies_waiting"], row["copies_passing"], row["waits"]) == (0, 0, 0)


def test_a_steady_step_of_one_lora_is_two_kernels_a_layer(rows) -> None:
    row = sdxl(rows, "steady step")
    assert row["kernels_beside"] == 2 * LAYERS
    products = row["operations_beside"]
    assert products.pop("addmm_") == LAYERS
    assert products.keys() == {"mm", "bmm"}, "an input that is not contiguous is multiplied as it is"
    assert quiet(row)


def test_a_steady_step_of_unlike_strengths_is_three_kernels_a_layer(rows) -> None:
    row = sdxl(rows, "steady step", "ours, unlike", 2)
    assert row["kernels_beside"] == 3 * LAYERS
    assert quiet(row)


def test_steps_after_a_change_of_strength_and_of_a_schedule_are_steady_ones(rows) -> None:
    steady = sdxl(rows, "steady step")
    for phase in ("step after it", "step of a schedule"):
        row = sdxl(rows, phase)
        assert row["kernels"] == steady["kernels"]
        assert quiet(row)


@pytest.mark.parametrize("loras", [1, 2])
def test_ours_is_fewer_kernels_than_pefts(rows, loras) -> None:
    ours = sdxl(rows, "steady step", "ours" if loras == 1 else "ours, unlike", loras)
    assert ours["kernels_beside"] < sdxl(rows, "steady step", "PEFT", loras)["kernels_beside"]


def test_a_plain_layer_is_two_kernels_in_place(rows) -> None:
    assert call(rows, "layers", "torch's linear")["operations_beside"] == {"mm": 1, "addmm_": 1}
    assert call(rows, "layers", "torch's conv")["operations_beside"] == {"convolution": 1, "baddbmm_": 1}


def test_layers_that_an_offload_scheme_brings_for_one_call_make_one_passing_copy_within_a_budget(rows) -> None:
    row = one(rows, "offload", "offload sequential", "ours, a budget of 0", "steady step")
    assert (row["copies_passing"], row["copies_waiting"]) == (LAYERS, 0)


def test_placed_pairs_of_a_plan_make_one_placement_in_half_precision(rows) -> None:
    assert one(rows, "dtypes", "SDXL, fp16, autocast, fp32 input", "ours", "steady step")["placements"] == 1
    every = [row for row in rows if row["case"] == "dtypes"]
    assert all(row["in_place"] == row["layers"] == LAYERS for row in every)


def test_a_steady_step_of_equal_strengths_is_two_kernels_a_layer(rows) -> None:
    assert sdxl(rows, "steady step", "ours, equal", 2)["kernels_beside"] <= 2 * LAYERS


def test_an_input_that_is_not_contiguous_is_not_copied(rows) -> None:
    assert "clone" not in sdxl(rows, "steady step")["operations_beside"]


def test_a_change_of_strength_makes_no_waiting_copy(rows) -> None:
    for phase in ("change of strength", "moment of a schedule"):
        assert sdxl(rows, phase)["copies_waiting"] == 0


def test_runs_with_a_dora_compute_norms_once_and_wait_once_to_compare_weights(rows) -> None:
    first, *others = (row for row in rows if row["case"] == "dora")
    assert (first["copies_waiting"], first["waits"]) == (0, 0)
    assert first["copies_passing"] <= FEW
    assert len(others) == 3
    for row in others:
        assert row["copies_waiting"] + row["waits"] == 1
        assert row["copies_passing"] <= 1
        assert row["kernels_beside"] < first["kernels_beside"] / 2


@pytest.mark.parametrize("loras", [1, 2])
def test_first_use_makes_a_few_copies(rows, loras) -> None:
    row = sdxl(rows, "activation", "ours" if loras == 1 else "ours, unlike", loras)
    assert row["copies_waiting"] + row["copies_passing"] <= FEW


def test_a_former_stack_comes_back_without_a_copy(rows) -> None:
    assert quiet(sdxl(rows, "the former again and a step"))


def test_layers_that_an_offload_scheme_brings_for_one_call_make_one_passing_copy_without_a_budget(rows) -> None:
    row = one(rows, "offload", "offload sequential", "ours, no budget", "steady step")
    assert row["copies_waiting"] == 0
    assert row["copies_passing"] <= LAYERS


def test_page_locked_memory_and_strengths_are_counted_at_all(rows) -> None:
    assert all(row["pieces"] > 0 for row in rows if row["case"] == "page-locked" and not row["refused"])
    assert all(row["vectors"] > 0 for row in rows if row["case"] == "strengths")
    assert {row["case"] for row in rows} >= {"page-locked", "strengths"}


def test_a_step_needs_no_page_locked_memory(rows) -> None:
    (row,) = (row for row in rows if row["case"] == "page-locked" and row["refused"])
    assert row["error"] == ""


def test_page_locked_memory_is_asked_for_in_a_few_pieces(rows) -> None:
    (row,) = (row for row in rows if row["case"] == "page-locked" and not row["refused"])
    assert row["pieces"] <= FEW


MORE = {"full": 3, "LN_TUNING": 5, "SUPERTUNING": 3}
"""Kinds whose trainers have no strength, and put a weight in place of the layer's or add to it in its own dtype."""


def test_no_kind_is_more_kernels_than_its_trainers_forward_or_reads_the_device(rows) -> None:
    every = [row for row in rows if row["case"] == "kinds"]
    least = dict[str, int]()
    for row in every:
        if row["way"] != "ours":
            least[row["what"]] = min(row["kernels_beside"], least.get(row["what"], 1000))
    ours = {row["what"]: row["kernels_beside"] for row in every if row["way"] == "ours"}
    assert len(ours) > 60
    assert {name for name, number in ours.items() if number > MORE.get(name.split(",")[0], least.get(name, 3))} == set()
    assert all(quiet(row) for row in every if row["way"] == "ours")


def test_a_full_difference_of_one_block_is_nine_kernels(rows) -> None:
    assert call(rows, "kinds", "full, conv")["kernels"] <= 9


def test_a_full_difference_of_a_large_weight_is_no_more_kernels_than_of_a_small_one(rows) -> None:
    assert call(rows, "kinds", "full, linear")["kernels"] <= 9


@pytest.mark.parametrize("layer", ["linear", "conv"])
@pytest.mark.parametrize(("case", "host"), [("a1111", "A1111's"), ("layers", "Forge's"), ("layers", "Classic's")])
def test_in_hosts_a_layer_is_no_more_kernels_and_memory_than_on_its_own(rows, case, host, layer) -> None:
    ours, on_its_own = call(rows, case, f"{host} {layer}"), call(rows, "layers", f"torch's {layer}")
    assert ours["kernels_beside"] <= on_its_own["kernels_beside"]
    assert ours["bytes_beside"] <= on_its_own["bytes_beside"]


def test_under_autocast_no_layer_takes_the_general_way(rows) -> None:
    assert one(rows, "dtypes", "SDXL, fp16, autocast, fp16 input", "ours", "steady step")["slow_calls"] == 0


def test_a_pair_is_placed_once_under_autocast(rows) -> None:
    assert one(rows, "dtypes", "SDXL, fp32, autocast", "ours", "steady step")["placements"] == 1


@pytest.mark.parametrize("way", ["storage bfloat16", "storage float8"])
def test_a_smaller_storage_is_no_more_than_two_kernels_more(rows, way) -> None:
    plain = call(rows, "layers", "torch's linear")["kernels_beside"]
    more = {"storage bfloat16": 0, "storage float8": 2}[way]
    assert call(rows, "layers", "torch's linear", way)["kernels_beside"] <= plain + more


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("buckets", [[], [8, 16, 32]])
def test_strengths_begin_at_multiples_of_16_entries(rows, buckets, dtype) -> None:
    every = [row for row in rows if row["case"] == "strengths"]
    (row,) = (row for row in every if (row["buckets"], row["dtype"]) == (buckets, dtype))
    assert (row["unaligned"], row["not_at_16_entries"]) == (0, 0)
