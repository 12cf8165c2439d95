"""Verdicts: each on a file that is spoiled so, none on sound ones, and how often they are right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.measures import measure
from lib_lora.inspection.stacked import measure_stack
from lib_lora.inspection.verdicts import Verdict, verdicts
from tests.fakes import spoiled
from tests.fakes.files import pair, save
from tests.lib_lora.inspection.copies import judged

LEAST = 0.9
NAMES = {"alpha", "clipped", "dead", "dominant", "not_finite", "resized", "spare_rank", "spike", "strong", "weak"}


def layers(count: int = 14, rank: int = 4) -> spoiled.Tensors:
    made: spoiled.Tensors = {}
    for i in range(count):
        made |= pair(f"lora_unet_down_blocks_{i}_attentions_0_proj_in", (32, 32), rank, alpha=rank, seed=i)
    return made


def judge(path: Path, tensors: spoiled.Tensors, metadata: dict[str, str] | None = None) -> dict[str, Verdict]:
    return {one.name: one for one in verdicts(measure(layers_of(save(path, tensors, metadata))))}


def test_nothing_is_wrong_with_a_sound_file(tmp_path: Path) -> None:
    said = {"ss_network_alpha": "4", "ss_network_dim": "4"}
    assert judge(tmp_path / "a.safetensors", layers(), said) == {}


def test_numbers_that_are_counted_are_certain_and_come_first(tmp_path: Path) -> None:
    first, second, third, *_ = spoiled.layers(layers())
    tensors = spoiled.with_nan(layers(), [first], float("inf"))
    tensors = spoiled.clipped(spoiled.zeroed(tensors, [second]), [third], 2.0)
    found = judge(tmp_path / "a.safetensors", tensors)
    assert list(found)[:3] == ["not_finite", "clipped", "dead"]
    assert all(found[name].sure for name in ("not_finite", "clipped", "dead"))
    assert found["not_finite"].layers == (f"{first}.lora_up.weight",)
    assert found["clipped"].layers == (f"{third}.lora_up.weight",)
    assert found["dead"].value == "1 of 13"
    assert str(found["dead"]) == (
        f"layers that change nothing: 1 of 13 ({second.removeprefix('lora_unet_')}). These layers were not trained."
    )
    assert not any(one.sure for name, one in found.items() if name not in ("not_finite", "clipped", "dead"))


def test_alpha_and_rank_are_compared_with_the_header(tmp_path: Path) -> None:
    said = {"ss_network_alpha": "4", "ss_network_dim": "4"}
    found = judge(tmp_path / "a.safetensors", spoiled.with_alpha(layers(), 8.0), said)
    assert found.keys() == {"alpha"}
    assert found["alpha"].value == "8, and 1 by the header"
    assert "recommends 0.5 to 1" in str(found["alpha"])
    found = judge(tmp_path / "b.safetensors", spoiled.resized(layers(), 2), said)
    assert found.keys() == {"resized"}, "another rank and alpha, and the same scale"
    assert judge(tmp_path / "c.safetensors", layers(), said | {"ss_network_alpha": "none"}) == {}


def test_a_spike_is_far_above_the_other_layers(tmp_path: Path) -> None:
    tensors, name = layers(), spoiled.layers(layers())[3]
    usual = spoiled.delta(tensors, name).norm().item() / 2
    for times, expected in ((10, set()), (80, {"spike", "dominant"})):
        found = judge(tmp_path / f"{times}.safetensors", spoiled.spiked(tensors, [name], times * usual))
        assert found.keys() - {"dominant"} == expected - {"dominant"}
        assert "spike" not in found or found["spike"].layers == (name.removeprefix("lora_unet_"),)
    assert str(found["spike"]).startswith("hint: the spectral norm is up to ")
    assert "takes 5 as a limit (ai-toolkit, issue 964)" in str(found["spike"])
    assert found["spike"].numbers["largest"] == pytest.approx(80 * usual, rel=0.05)


def test_a_few_layers_cannot_dominate(tmp_path: Path) -> None:
    for count, expected in ((8, set()), (14, {"dominant"})):
        name = spoiled.layers(layers())[0]
        found = judge(tmp_path / f"{count}.safetensors", spoiled.scaled(layers(count), 8.0, [name]))
        assert found.keys() == expected


def test_rank_that_is_not_used(tmp_path: Path) -> None:
    found = judge(tmp_path / "a.safetensors", spoiled.padded(layers(), 4))
    assert found.keys() == {"spare_rank"}
    assert found["spare_rank"].value == "rank 4 of 16"


def test_a_scale_that_nothing_tells(tmp_path: Path) -> None:
    layer = "base_model.model.layer"
    tensors = {f"{layer}.lora_A.weight": torch.ones(2, 8), f"{layer}.lora_B.weight": torch.ones(8, 2)}
    assert "no_scale" in judge(tmp_path / "a.safetensors", tensors)


@pytest.mark.full
def test_verdicts_on_copies_that_are_spoiled_on_purpose(tmp_path: Path) -> None:
    """The thresholds were set with seed 0. docs/doctor.md has the figures of whole files."""
    right, wrong, missed, lines = judged(tmp_path, seed=3, every=2)
    assert right.keys() >= NAMES
    for name in right + wrong + missed:
        assert right[name] >= LEAST * (right[name] + wrong[name]), lines
        assert right[name] >= LEAST * (right[name] + missed[name]), lines


def test_the_numbers_of_a_verdict_are_the_ones_that_it_says(tmp_path: Path) -> None:
    said = {"ss_network_alpha": "2", "ss_network_dim": "8"}
    tensors = spoiled.padded(spoiled.scaled(layers(), 8.0, spoiled.layers(layers())[:1]), 2)
    found = judge(tmp_path / "a.safetensors", spoiled.zeroed(tensors, spoiled.layers(tensors)[-2:]), said)
    assert found["dead"].numbers == {"count": 2, "total": 14}
    assert found["alpha"].numbers == {"low": 1.0, "high": 1.0, "said": 0.25}
    assert found["spare_rank"].numbers == {"needed": 4, "rank": 8}
    assert f"{found['dominant'].numbers['share']:.0%} of the energy" == found["dominant"].value
    (path,) = tmp_path.iterdir()
    hash(verdicts(measure(layers_of(path)))[0])


@pytest.mark.parametrize("alpha", ["nan", "inf", "1e999", "-inf"])
def test_a_header_with_no_finite_number_says_nothing(tmp_path: Path, alpha: str) -> None:
    assert judge(tmp_path / "a.safetensors", layers(), {"ss_network_alpha": alpha, "ss_network_dim": "4"}) == {}


def test_what_its_progress_raises_stops_a_measure_and_leaves_the_file_alone(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", layers(5))
    told: list[tuple[int, int]] = []

    def progress(done: int, count: int) -> None:
        told.append((done, count))
        if done == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        measure(layers_of(path), progress)
    assert told == [(0, 5), (1, 5), (2, 5), (3, 5)]
    told.clear()
    with pytest.raises(InterruptedError):
        measure_stack([layers_of(path), layers_of(path)], progress)
    assert told == [(0, 5), (1, 5), (2, 5), (3, 5)]
    path.unlink()
