"""Files on one model together: cosines and overlaps against dense matrices and against simulated chance."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lib_lora.inspection.deltas import DenseDelta, KroneckerDelta, LowRankDelta
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.stacked import StackMeasures, measure_stack, overlap_by_chance
from tests.fakes.files import save
from tests.lib_lora.inspection.test_files import LORAS

NAMES = [f"lora_unet_down_blocks_{i}_attentions_{j}_proj_in" for i in range(3) for j in range(2)]


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


DELTAS = {
    "low rank": LowRankDelta(randn(0, 24, 3), randn(1, 3, 40)),
    "another": LowRankDelta(randn(2, 24, 5), randn(3, 5, 40)),
    "kronecker": KroneckerDelta(randn(4, 4, 5), randn(5, 6, 8)),
    "split alike": KroneckerDelta(randn(6, 4, 5), randn(7, 6, 8)),
    "split otherwise": KroneckerDelta(randn(8, 8, 8), randn(9, 3, 5)),
    "dense": DenseDelta(randn(10, 24, 40)),
    "tall": DenseDelta(randn(10, 40, 24).T),
}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(DELTAS, DELTAS)))
def test_inner_products_are_those_of_the_matrices(first: str, second: str) -> None:
    one, other = DELTAS[first], DELTAS[second]
    want = (one.dense() * other.dense()).sum().item()
    assert one.inner(other) == pytest.approx(want, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("name", DELTAS)
def test_products_and_singular_vectors_are_those_of_the_matrix(name: str) -> None:
    one = DELTAS[name]
    dense = one.dense()
    assert dense.shape == one.shape
    assert (one.times(randn(11, 40, 3)) - dense @ randn(11, 40, 3)).abs().max() < 1e-10
    u, s, vh = torch.linalg.svd(dense)
    share = float(s[:2].square().sum() / s.square().sum())
    values, left, right = one.principal(share)
    assert (one.singular_values()[:3] - s[:3]).abs().max() < 1e-9
    assert (values[:3] - s[:3]).abs().max() < 1e-9
    assert ((left.T @ u[:, :2]).abs() - torch.eye(2)).abs().max() < 1e-7
    assert ((right.T @ vh[:2].T).abs() - torch.eye(2)).abs().max() < 1e-7


@pytest.mark.parametrize(("first", "second", "size"), [(1, 1, 8), (3, 5, 20), (4, 4, 64), (7, 12, 16), (16, 3, 16)])
def test_overlap_by_chance_is_that_of_random_subspaces(first: int, second: int, size: int) -> None:
    tries = 4000
    left, _ = torch.linalg.qr(randn(0, tries, size, first))
    right, _ = torch.linalg.qr(randn(1, tries, size, second))
    overlaps = (left.mT @ right).square().sum((1, 2)) / min(first, second)
    mean, variance = overlap_by_chance(first, second, size)
    assert overlaps.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / tries) + 1e-12)
    assert overlaps.var().item() == pytest.approx(variance, rel=0.15, abs=1e-12)


def test_cosine_by_chance_is_that_of_random_changes() -> None:
    one = LowRankDelta(randn(0, 24, 2), randn(1, 2, 40))
    cosines = []
    for seed in range(0, 2000, 2):
        other = LowRankDelta(randn(seed + 10, 24, 3), randn(seed + 11, 3, 40))
        cosines.append(one.inner(other) / one.dense().norm().item() / other.dense().norm().item())
    assert torch.tensor(cosines).std().item() == pytest.approx(1 / math.sqrt(24 * 40), rel=0.1)


def lora(folder: Path, name: str, ups: list[Tensor], downs: list[Tensor]) -> Path:
    tensors = {}
    for layer, up, down in zip(NAMES, ups, downs, strict=True):
        tensors |= {f"{layer}.lora_up.weight": up.float(), f"{layer}.lora_down.weight": down.float()}
    return save(folder / f"{name}.safetensors", tensors)


def stack(*paths: Path) -> StackMeasures:
    return measure_stack([layers_of(path) for path in paths])


def random_lora(folder: Path, seed: int, rank: int = 4) -> tuple[Path, list[Tensor], list[Tensor]]:
    ups = [randn(100 * seed + i, 64, rank) for i in range(len(NAMES))]
    downs = [randn(100 * seed + 50 + i, rank, 96) for i in range(len(NAMES))]
    return lora(folder, str(seed), ups, downs), ups, downs


@pytest.mark.parametrize("seed", range(1, 5))
def test_what_two_files_do_to_each_other(tmp_path: Path, seed: int) -> None:
    path, ups, downs = random_lora(tmp_path, seed)
    other, *_ = random_lora(tmp_path, seed + 100, rank=3)
    shapes = {
        "independent": other,
        "reinforce": lora(tmp_path, "more", [up * 0.4 + 0.3 * randn(i, 64, 4) for i, up in enumerate(ups)], downs),
        "cancel": lora(tmp_path, "less", [-0.4 * up + 0.3 * randn(i, 64, 4) for i, up in enumerate(ups)], downs),
        # the same outputs from the same inputs, otherwise put together
        "collide": lora(tmp_path, "turned", [up.roll(1, 1) for up in ups], downs),
    }
    for relation, against in shapes.items():
        found = stack(path, against).pairs
        assert {pair.relation for pair in found} == {relation}


def against(first: list[Tensor], downs: list[Tensor], own: list[Tensor], own_downs: list[Tensor], share: float) -> Any:
    """Return factors of changes that undo so much of the first ones, beside their own."""
    ups = [torch.cat([-share * one, other], 1) for one, other in zip(first, own, strict=True)]
    return ups, [torch.cat(pair) for pair in zip(downs, own_downs, strict=True)]


def test_files_cancel_where_most_layers_turn_against_each_other(tmp_path: Path) -> None:
    """As after a training against another file; the layers with most of the energy need not."""
    big = 30.0  # times the norm of the others: it alone decides the cosine of the sums
    (path, ups, downs), (_, own, own_downs) = random_lora(tmp_path, 1, rank=16), random_lora(tmp_path, 2, rank=16)
    for share, relation in ((0.15, "cancel"), (0.0, "independent"), (-0.15, "reinforce")):
        rival, rival_downs = against(ups, downs, own, own_downs, share)
        rival[0], rival_downs[0] = big * own[0], own_downs[0]
        found = stack(path, lora(tmp_path, "rival", rival, rival_downs))
        first, *others = found.pairs
        assert first.band == "IN01 to IN02"
        assert abs(first.cosine) < 0.05
        cosines = [
            torch.nn.functional.cosine_similarity((a @ b).flatten(), (c @ d).flatten(), 0).item()
            for a, b, c, d in zip(ups, downs, rival, rival_downs, strict=True)
        ]
        for at, pair in enumerate(found.pairs):
            assert pair.mean_cosine == pytest.approx(sum(cosines[2 * at : 2 * at + 2]) / 2, rel=1e-5)
            assert pair.mean_by_chance == pytest.approx(1 / math.sqrt(2 * 64 * 96))
        assert {pair.relation for pair in others} == {relation}
        assert found.cancelling == ([(0, 1)] if relation == "cancel" else [])


def test_pairs_by_band_and_component(tmp_path: Path) -> None:
    found = stack(random_lora(tmp_path, 1)[0], random_lora(tmp_path, 2)[0]).pairs
    assert [(pair.component, pair.band, pair.layers) for pair in found] == [
        ("denoiser", "IN01 to IN02", 2),
        ("denoiser", "IN04 to IN05", 2),
        ("denoiser", "IN07 to IN08", 2),
    ]


def test_overlaps_are_those_of_dense_singular_vectors(tmp_path: Path) -> None:
    (one, ups, downs), (other, ups2, downs2) = random_lora(tmp_path, 1), random_lora(tmp_path, 2, rank=3)
    pair = stack(one, other).pairs[0]
    wants = []
    for i in range(2):
        spaces = []
        for up, down in ((ups[i], downs[i]), (ups2[i], downs2[i])):
            u, s, vh = torch.linalg.svd(up @ down, full_matrices=False)
            count = int((s.square().cumsum(0) < 0.9 * s.square().sum()).sum()) + 1
            spaces.append((u[:, :count], vh[:count].T))
        wants.append(
            [((a.T @ b).square().sum() / min(a.shape[1], b.shape[1])).item() for a, b in zip(*spaces, strict=True)]
        )
    for side in (0, 1):
        assert pair.overlap(side)[0] == pytest.approx(sum(want[side] for want in wants) / 2, rel=1e-5)


def test_norm_of_the_sum_and_the_strength_at_which_it_is_that_of_one(tmp_path: Path) -> None:
    made = [random_lora(tmp_path, seed) for seed in (1, 2, 3)]
    found, strengths = stack(*[path for path, *_ in made]), [0.8, -0.5, 1.2]
    total = [sum(s * up[i] @ down[i] for s, (_, up, down) in zip(strengths, made, strict=True)) for i in range(6)]
    norm = math.sqrt(sum(one.square().sum().item() for one in total))
    assert found.norm(strengths) == pytest.approx(norm, rel=1e-5)
    alone = [found.norm([s if i == j else 0.0 for j in range(3)]) for i, s in enumerate(strengths)]
    factor = found.factor(strengths)
    assert found.norm([factor * one for one in strengths]) == pytest.approx(max(alone), rel=1e-9)
    assert found.factor([0.0, 0.0, 0.0]) == 1.0


def test_files_without_a_common_layer_add_up(tmp_path: Path) -> None:
    found = stack(LORAS / "night.safetensors", LORAS / "stars.safetensors")
    assert found.pairs == ()
    assert found.norm([1.0, 0.0]) > 0


def test_kinds_of_the_demo_against_their_dense_changes() -> None:
    files = [layers_of(LORAS / f"{name}.safetensors") for name in ("neon", "night", "stripes", "zorp")]
    found = measure_stack(files)
    want = torch.zeros(4, 4, dtype=torch.float64)
    by_place = [{layer.place: layer.delta() for layer in file.layers} for file in files]
    for i, j in itertools.product(range(4), range(4)):
        for place in by_place[i].keys() & by_place[j].keys():
            one, other = by_place[i][place], by_place[j][place]
            assert one is not None
            assert other is not None
            want[i, j] += (one.dense() * other.dense()).sum()
    assert (found.gram - want).abs().max() < 1e-9 * want.abs().max()
    assert {pair.relation for pair in found.pairs} == {"independent"}
