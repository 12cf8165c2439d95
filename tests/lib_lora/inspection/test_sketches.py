"""Sketches: their definition, what they do not depend on, and which of two hundred variants they find."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lib_lora.inspection import sketches
from lib_lora.inspection.deltas import Delta
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.skeleton import mapped_model
from lib_lora.inspection.sketches import NUMBERS, Sketch, _signs, compare, later_epochs, sketch
from lib_lora.inspection.stacked import measure_stack
from tests.fakes import spoiled
from tests.fakes.files import pair, save
from tests.lib_lora.inspection.test_files import LORAS, MODEL
from tests.lib_lora.inspection.variants import NAMES, judged, write_variants

LEAST = 0.98


def part(name: str) -> spoiled.Tensors:
    """Return a few layers of a LoRA of the demo."""
    tensors = load_file(LORAS / f"{name}.safetensors")
    return {key: value for key, value in tensors.items() if "down_blocks_2_attentions_0" in key}


def of(path: Path, tensors: spoiled.Tensors) -> Sketch:
    return sketch(layers_of(save(path, tensors)))


def test_a_sketch_is_its_definition_and_layers_of_one_shape_share_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products: list[tuple[int, int]] = []
    numbers_of = sketches._numbers

    def counted(delta: Delta) -> torch.Tensor:
        products.append(delta.shape)
        return numbers_of(delta)

    monkeypatch.setattr(sketches, "_numbers", counted)
    names = [f"lora_unet_{number}" for number in range(40)]
    tensors = pair("lora_unet_conv", (12, 4, 3, 3), 2, size=1.0, seed=99)
    for seed, name in enumerate(names):
        tensors |= pair(name, (12, 8), 4, size=1.0, seed=seed)
    want = torch.zeros(NUMBERS, dtype=torch.float64)
    for name in (*names, "lora_unet_conv"):
        up, down = (tensors[f"{name}.lora_{side}.weight"].double().flatten(1) for side in ("up", "down"))
        dense = up @ down
        left, right = _signs(dense.shape[0], 0).double(), _signs(dense.shape[1], 1).double()
        want += torch.stack([left[:, k] @ dense @ right[:, k] for k in range(NUMBERS)]) / math.sqrt(NUMBERS)
    found = of(tmp_path / "a.safetensors", tensors).numbers
    assert (found - want).abs().max() < 1e-6 * want.abs().max()
    assert sorted(products) == [(12, 8), (12, 8), (12, 8), (12, 36)], "16 layers of rank 4 at a time, and the rest"


def test_signs_are_even_independent_and_the_same_everywhere() -> None:
    signs = _signs(640, 0).double()
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert signs.mean().abs() < 4 / math.sqrt(signs.numel())
    products = signs.T @ signs / 640 - torch.eye(NUMBERS)
    assert products.square().mean().sqrt() == pytest.approx(1 / math.sqrt(640), rel=0.05)
    assert ((_signs(640, 1).double() * signs).mean().abs()) < 4 / math.sqrt(signs.numel())
    assert _signs(3, 0)[:, :8].tolist() == FIRST


FIRST = [[-1, -1, 1, -1, -1, -1, 1, 1], [1, 1, -1, 1, -1, 1, 1, -1], [1, 1, -1, -1, -1, -1, 1, 1]]


def test_names_precision_and_factors_make_no_difference(tmp_path: Path) -> None:
    night = part("night")
    generator = torch.Generator().manual_seed(0)
    own = of(tmp_path / "own.safetensors", night).numbers
    changes = {
        "turned": spoiled.turned(night, generator),
        "padded": spoiled.padded(night, 3),
        "spelled": spoiled.spelled(night),
        "bf16": spoiled.cast(night, torch.bfloat16),
    }
    for name, tensors in changes.items():
        found = of(tmp_path / f"{name}.safetensors", tensors).numbers
        assert (found - own).norm() < (3e-3 if name == "bf16" else 1e-5) * own.norm(), name
    twice = of(tmp_path / "twice.safetensors", spoiled.with_alpha(night, 2.0)).numbers
    assert (twice - 2 * own).norm() < 1e-6 * own.norm(), "it is linear"


def test_cosines_of_sketches_are_near_those_of_the_changes() -> None:
    """Layers of one shape are added up, so cosines of files of many layers are only near each other."""
    files = [layers_of(LORAS / f"{name}.safetensors") for name in NAMES]
    numbers = torch.stack([sketch(file).numbers for file in files])
    norms = numbers.norm(dim=1)
    found, gram = numbers @ numbers.T / torch.outer(norms, norms), measure_stack(files).gram
    sizes = gram.diagonal().clamp_min(1e-30).sqrt()
    assert ((found - gram / torch.outer(sizes, sizes)).fill_diagonal_(0).abs() < 4 / math.sqrt(NUMBERS)).all()


@pytest.mark.parametrize(
    ("how", "alike", "factor"),
    [
        ("same", "same", 1.0),
        ("bf16", "precision", 1.0),
        ("padded", "rank", 1.0),
        ("alpha", "scaled", 0.25),
        ("rank 1", "resized", 1.0),
        ("noise", "near", 1.0),
        ("other", None, 0.0),
    ],
)
def test_how_two_files_are_alike(how: str, alike: str | None, factor: float, tmp_path: Path) -> None:
    stripes, generator = part("stripes"), torch.Generator().manual_seed(0)
    other = {
        "same": stripes,
        "bf16": spoiled.cast(stripes, torch.bfloat16),
        "padded": spoiled.padded(stripes, 2),
        "alpha": spoiled.with_alpha(stripes, 0.25),
        "rank 1": spoiled.cast(spoiled.resized(stripes, 1), torch.float16),
        "noise": spoiled.noisy(stripes, 0.2, generator),
        "other": part("night"),
    }[how]
    both = [of(tmp_path / "a.safetensors", stripes), of(tmp_path / "b.safetensors", other)]
    found, merges = compare(both)
    assert merges == []
    if alike is None:
        assert found == []
        return
    (one,) = found
    assert (one.files, one.alike) == ((0, 1), alike)
    assert one.factor == pytest.approx(factor, rel=0.1)


def test_a_sum_of_two_files_is_found_with_its_strengths(tmp_path: Path) -> None:
    night, stripes, neon = map(part, ("night", "stripes", "neon"))
    merged = spoiled.merged([(0.7, night), (0.9, stripes)], 12)
    found = [of(tmp_path / f"{i}.safetensors", one) for i, one in enumerate((neon, night, merged, stripes))]
    alike, (merge,) = compare(found)
    assert alike == [], "not like its larger part"
    assert (merge.file, merge.parents) == (2, (1, 3))
    assert merge.strengths == pytest.approx((0.7, 0.9), rel=0.01)
    assert merge.left < 1e-3


def test_files_of_one_training_are_its_epochs_however_little_they_are_alike(tmp_path: Path) -> None:
    """A file without a session, or of another one, is none of them; and what is between two is no sum of them."""
    night, other = part("night"), spoiled.redrawn(part("night"), torch.Generator().manual_seed(0))
    between = spoiled.merged([(0.5, night), (0.5, other)], 16)
    said = {"ss_session_id": "7", "ss_training_started_at": "1.5"}
    cases = [
        (night, said | {"ss_steps": "900"}),
        (other, said | {"ss_steps": "100"}),
        (between, said | {"ss_steps": "500"}),
        (spoiled.cast(night, torch.bfloat16), said | {"ss_steps": "900"}),
        (night, {"ss_steps": "950"}),
        (other, said | {"ss_session_id": "8", "ss_steps": "9" * 400}),
    ]
    files = [save(tmp_path / f"{i}.safetensors", *case) for i, case in enumerate(cases)]
    found = [Sketch.from_bytes(sketch(layers_of(file)).to_bytes()) for file in files]
    sketched = [one for one in found if one is not None]
    assert [one.training and one.training.steps for one in sketched] == [900, 100, 500, 900, None, None]
    assert later_epochs(sketched) == {1: 3, 2: 3}
    alike, merges = compare(sketched)
    kinds = {one.files: one.alike for one in alike}
    assert {pair for pair, kind in kinds.items() if kind == "epoch"} >= {(1, 3), (2, 3)}
    assert kinds[0, 3] == "precision"
    assert not {2} & {one.file for one in merges}


def test_files_whose_names_are_numbered_are_of_one_training_if_they_are_alike(tmp_path: Path) -> None:
    """Names alone prove nothing: other files are numbered, too."""
    night, other = part("night"), spoiled.redrawn(part("night"), torch.Generator().manual_seed(0))
    mixed = spoiled.merged([(1.0, night), (0.5, other)], 16)
    own, narrow = spoiled.merged([(1.0, night)], 16), spoiled.merged([(1.0, night)], 8)
    third = spoiled.redrawn(night, torch.Generator().manual_seed(1))
    apart, like = (spoiled.merged([(share, night), (1.0, third)], 16) for share in (0.0, 0.3))
    cases = (
        (("a-000002", "a-000010", "a"), {0: 2, 1: 2}),
        (("a-step00000100", "a-step00000050", "b-step00000200"), {1: 0}),
        (("a_000000250", "a_000000500", "a_00000750"), {0: 1}),
        (("checkpoint-500/x", "checkpoint-1000/x", "x"), {0: 2, 1: 2}),
        (("2025-01-31_12-00-00-save-50-1-0", "2025-01-31_13-00-00-save-900-9-0", "x"), {0: 1}),
        (("a1", "a2", "a3"), {}),
    )
    for case, (names, wanted) in enumerate(cases):
        paths = [tmp_path / str(case) / f"{name}.safetensors" for name in names]
        for path, tensors in zip(paths, (mixed, own, mixed), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            save(path, tensors)
        sketched = [sketch(layers_of(path)) for path in paths]
        assert later_epochs(sketched, paths) == wanted, names
        assert later_epochs(sketched) == {}, "names are not known"
        alike, _ = compare(sketched, paths)
        epochs = {one.files for one in alike if one.alike == "epoch"}
        assert epochs >= {(min(pair), max(pair)) for pair in wanted.items()}
        for tensors in (apart, like, narrow):
            save(paths[1], tensors)
            changed = [sketched[0], sketch(layers_of(paths[1])), sketched[2]]
            assert 1 not in {*later_epochs(changed, paths), *later_epochs(changed, paths).values()}, "another training"


def test_a_set_with_files_that_change_nothing_or_too_much(tmp_path: Path) -> None:
    tensors = pair("lora_unet_a", (12, 8), 2)
    dead = {key: value * 0 for key, value in tensors.items()}
    large = pair("lora_unet_a", ((1 << 18) + 1, 2), 1)
    found = [of(tmp_path / f"{i}.safetensors", one) for i, one in enumerate((tensors, dead, dead, large))]
    assert [one.numbers.norm().item() > 0 for one in found] == [True, False, False, False]
    assert compare(found) == ([], [])
    assert compare(found[:1]) == ([], [])


def test_with_a_model_the_sketch_is_of_the_change_of_its_weights(tmp_path: Path) -> None:
    """OFT at another strength is the same change then, and DoRA's magnitude is a part of it."""
    model = mapped_model(MODEL)
    for name in ("stars", "outline"):
        path = LORAS / f"{name}.safetensors"
        with_model, alone = sketch(layers_of(path, model)), sketch(layers_of(path))
        assert with_model.numbers.norm() > 0
        assert (with_model.numbers - alone.numbers).norm() > 0.1 * alone.numbers.norm()
        again = layers_of(save(tmp_path / f"{name}.safetensors", spoiled.cast(load_file(path), torch.bfloat16)), model)
        ((found,), _) = compare([with_model, sketch(again)])
        assert found.alike == "precision"


def test_a_stored_sketch_is_read_again_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    own = of(tmp_path / "a.safetensors", part("night"))
    stored = own.to_bytes()
    read = Sketch.from_bytes(stored)
    assert read is not None
    assert len(stored) < 1200
    assert (read.numbers - own.numbers).abs().max() <= 1e-7 * own.numbers.abs().max()
    assert (read.dtypes, read.ranks, dict(read.kinds)) == (own.dtypes, own.ranks, dict(own.kinds))
    head, _, rest = stored.partition(b"\n")
    for damaged in (
        b"",
        b"?",
        stored[:-1],
        stored + b"x",
        b"{}\n" + rest,
        b"[]\n" + rest,
        b"[" * 100_000 + b"\n" + rest,
        head.replace(b'"version": 1', b'"version": 2') + b"\n" + rest,
        head.replace(b'"ranks": [', b'"ranks": ["x"') + b"\n" + rest,
        head.replace(b'"training": null', b'"training": ["x"]') + b"\n" + rest,
        b"\xff" + stored,
    ):
        assert Sketch.from_bytes(damaged) is None


def test_no_file_has_no_copies() -> None:
    assert compare([]) == ([], [])


def test_parts_are_found_among_many_copies_of_the_larger_one() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(400, NUMBERS, dtype=torch.float64, generator=generator)
    copies = drawn[0] * (1 + torch.rand(100, 1, dtype=torch.float64, generator=generator))
    numbers = torch.cat([drawn, copies, (0.9 * drawn[0] + 0.6 * drawn[1]).unsqueeze(0)])
    found, merges = compare([Sketch(one, frozenset(), None, {}) for one in numbers])
    assert [(one.file, set(one.parents)) for one in merges] == [(500, {0, 1})]
    assert sorted(merges[0].strengths) == pytest.approx([0.6, 0.9])
    assert len(found) == 101 * 100 // 2
    assert {one.alike for one in found} <= {"scaled", "same"}
    assert all(one.cosine == pytest.approx(1) for one in found)


def test_signs_of_a_long_side_are_those_of_a_short_one() -> None:
    """They are made in pieces."""
    sketches._signs.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "_HASHED", 1000)
        pieces = _signs(77, 1)
    sketches._signs.cache_clear()
    assert torch.equal(pieces, _signs(77, 1))


def test_a_layer_that_would_take_too_much_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = part("night")
    full = {f"{name}.diff": spoiled.delta(night, name).float() for name in spoiled.layers(night)}
    assert of(tmp_path / "a.safetensors", full).numbers.norm() > 0
    monkeypatch.setattr(sketches, "_LARGEST", 10)
    assert of(tmp_path / "b.safetensors", full).numbers.norm() == 0
    assert of(tmp_path / "c.safetensors", night).numbers.norm() > 0


def test_the_progress_counts_layers_and_may_stop_the_work(tmp_path: Path) -> None:
    file = layers_of(save(tmp_path / "a.safetensors", part("night")))
    told: list[tuple[int, int]] = []
    sketch(file, lambda done, count: told.append((done, count)))
    assert told == [(done, len(file.layers)) for done in range(len(file.layers))]

    def stop(done: int, count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketch(file, stop)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2])
def test_two_hundred_variants_of_twelve_files(seed: int, tmp_path: Path) -> None:
    """The thresholds were set with seed 0. docs/doctor.md has the figures of whole files."""
    variants = write_variants(tmp_path, seed, every=6)
    assert sum(one.how != "original" for one in variants) == 200
    counts = judged(variants, [sketch(layers_of(one.path)) for one in variants])
    assert counts.found >= LEAST * counts.pairs > 1000, "recall"
    assert counts.found >= LEAST * (counts.found + len(counts.wrong)), "precision"
    assert counts.merges >= 0.9 * counts.sums
    assert len(counts.wrong_merges) <= 0.02 * counts.sums
