"""Verdicts: each on a file that is spoiled so, none on sound ones, and how often they are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from lib_lora.inspection.figures import figures_by_factors, figures_of, standings
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
    assert str(found["alpha"]).endswith("its strength by 0.125. Published for the scale: 0.5 to 1 (sd-scripts).")
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
    assert str(found["spike"]).endswith("Published for the spectral norm: at most 5 (ai-toolkit, issue 964).")
    assert found["spike"].numbers["largest"] == pytest.approx(80 * usual, rel=0.05)
    assert found["spike"].blocks == (f"IN{3 * int(name.split('_')[4]) + 1:02}",)
    weight = found["spike"].numbers["weight"]
    weaker = spoiled.scaled(spoiled.spiked(tensors, [name], 80 * usual), 0.999 * weight, [name])
    assert "spike" not in judge(tmp_path / "weaker.safetensors", weaker)


def test_a_few_layers_cannot_dominate_and_many_are_told_the_weight_at_which_none_does(tmp_path: Path) -> None:
    for count, expected in ((8, set()), (14, {"dominant"})):
        name = spoiled.layers(layers())[0]
        found = judge(tmp_path / f"{count}.safetensors", spoiled.scaled(layers(count), 8.0, [name]))
        assert found.keys() == expected
    tensors = spoiled.scaled(layers() | pair("lora_unet_down_blocks_0_attentions_0_proj_out", (32, 32), 4), 8.0, [name])
    (one,) = judge(tmp_path / "more.safetensors", tensors).values()
    assert one.blocks == ("IN01",)
    of_block = [key for key in spoiled.layers(tensors) if "_blocks_0_" in key]
    for times, expected in ((0.99, set()), (1.01, {"dominant"})):
        weaker = spoiled.scaled(tensors, times * one.numbers["weight"], of_block)
        assert judge(tmp_path / "weaker.safetensors", weaker).keys() == expected
    alone = {
        re.sub(r"down_blocks_(\d+)_attentions_0", r"mid_block_attentions_\1", key): t for key, t in tensors.items()
    }
    (one,) = judge(tmp_path / "alone.safetensors", alone).values()
    assert one.numbers.keys() == {"share"}, "a weight for all layers changes no share"


def test_a_strength_for_text_encoders_gives_them_half(tmp_path: Path) -> None:
    own = pair("lora_te_text_model_encoder_layers_0_mlp_fc1", (32, 32), 4, size=9.0)
    (one,) = judge(tmp_path / "a.safetensors", layers(8) | own).values()
    halved = spoiled.scaled(layers(8) | own, one.numbers["strength"], spoiled.layers(own))
    measured = measure(layers_of(save(tmp_path / "b.safetensors", halved)))
    assert measured.text_encoder_share == pytest.approx(0.5, rel=1e-5)


def test_each_verdict_has_its_figure_and_each_figure_its_place_among_other_files(tmp_path: Path) -> None:
    paths = [
        save(tmp_path / f"{i}.safetensors", spoiled.scaled(spoiled.padded(layers(), i), float(i))) for i in (1, 2, 3)
    ]
    figures = [figures_by_factors(layers_of(path)) for path in paths]
    for path, own in zip(paths, figures, strict=True):
        measured = measure(layers_of(path))
        assert own == figures_of(measured)
        assert own["norm"] == pytest.approx(measured.norm)
        assert own["resized"] == measured.rank
        assert own["spare_rank"] == pytest.approx(measured.rank / measured.rank_for(0.99))
        shares = [measured.share(part) for part in measured.parts(lambda one: one.layer.name).values()]
        assert own["dominant"] == max(shares)
    assert {one.figure for name in NAMES | {"text_encoder"} for one in [Verdict(name, True, "", "", "")]} <= {
        *figures[0]
    }
    found = standings(figures[1], [figures[0], figures[2], {}, {"norm": figures[1]["norm"]}])
    assert found["norm"] == (3, 1, 1)
    assert found["resized"] == found["spare_rank"] == (2, 1, 0)
    assert found["dead"] == (2, 0, 2)
    dense = {"lora_unet_mid_block_attentions_0_proj_in.diff": torch.ones(8, 8)}
    assert figures_by_factors(layers_of(save(tmp_path / "dense.safetensors", dense))) == {}


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


def test_a_header_with_no_finite_number_says_nothing(tmp_path: Path) -> None:
    for alpha in ("nan", "inf", "1e999", "-inf"):
        said = {"ss_network_alpha": alpha, "ss_network_dim": "4"}
        assert judge(tmp_path / "a.safetensors", layers(), said) == {}, alpha


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
