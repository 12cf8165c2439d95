"""Files on one model together: cosines and overlaps against dense matrices and against simulated chance."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lib_lora import BlockWeights, Element, Multiplier, StackError, Strength
from lib_lora.inspection.deltas import DenseDelta, KroneckerDelta, LowRankDelta
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.skeleton import mapped_model
from lib_lora.inspection.stacked import StackLayer, StackMeasures, measure_stack, naming_in, overlap_by_chance
from lib_lora.naming.architectures._ldm_unet import UNET_BLOCKS, UNET_LISTS
from lib_lora.naming.blocks import BlockNames
from tests.fakes.files import save
from tests.lib_lora.inspection.test_files import LORAS
from tests.lib_lora.inspection.test_files import MODEL as MODEL_FOLDER

NAMES = [f"lora_unet_down_blocks_{i}_attentions_{j}_proj_in" for i in range(3) for j in range(2)]

_LIST = {"IN01": 1.0, "IN02": 0.0, "IN04": -0.5, "IN05": 2.0, "IN07": 1.0, "IN08": 0.25}
MODEL = BlockNames((*UNET_BLOCKS[1:], "text_encoder", "text_encoder_2"))
WEIGHTS = BlockWeights((0.5, *[_LIST.get(one, 1.0) for one in UNET_LISTS[1][1:]]))


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


def test_products_and_singular_vectors_are_those_of_the_matrix() -> None:
    for name, one in DELTAS.items():
        dense = one.dense()
        assert dense.shape == one.shape
        assert (one.times(randn(11, 40, 3)) - dense @ randn(11, 40, 3)).abs().max() < 1e-10, name
        u, s, vh = torch.linalg.svd(dense)
        share = float(s[:2].square().sum() / s.square().sum())
        values, left, right = one.principal(share)
        assert (one.singular_values()[:3] - s[:3]).abs().max() < 1e-9, name
        assert (values[:3] - s[:3]).abs().max() < 1e-9, name
        assert ((left.T @ u[:, :2]).abs() - torch.eye(2)).abs().max() < 1e-7, name
        assert ((right.T @ vh[:2].T).abs() - torch.eye(2)).abs().max() < 1e-7, name


def test_overlap_by_chance_is_that_of_random_subspaces() -> None:
    tries = 4000
    for first, second, size in ((1, 1, 8), (3, 5, 20), (4, 4, 64), (7, 12, 16), (16, 3, 16)):
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
    measured, strengths = stack(*[path for path, *_ in made]), [0.8, -0.5, 1.2]
    found = measured.at(strengths)
    changes = [[s * up[i] @ down[i] for i in range(6)] for s, (_, up, down) in zip(strengths, made, strict=True)]
    total = torch.stack([sum(layer[1:], layer[0]) for layer in zip(*changes, strict=True)])
    assert found.norm == pytest.approx(total.norm().item(), rel=1e-5)
    alone = [torch.stack(own).norm().item() for own in changes]
    assert found.alone == pytest.approx(alone, rel=1e-5)
    left = [(torch.stack(own) * total).sum().item() / size**2 for own, size in zip(changes, alone, strict=True)]
    assert found.left == pytest.approx(left, rel=1e-4)
    for factor, norm in ((found.factor(), max(alone)), (found.factor(alone[1]), alone[1]), (found.factor(7.0), 7.0)):
        assert measured.at([factor * one for one in strengths]).norm == pytest.approx(norm, rel=1e-5)
    with pytest.raises(StackError, match="2 strengths for 3 files"):
        measured.at([1.0, 1.0])
    still = measured.at([0.0, 0.0, 0.0])
    assert (still.factor(), still.norm, still.left, still.pairs) == (1.0, 0.0, [0.0] * 3, ())


@pytest.mark.parametrize("of", [Strength({"text_encoder": -0.5, "unet": 0.8}, blocks=WEIGHTS), {"unet": -2.0}])
def test_a_stack_is_measured_as_it_acts(tmp_path: Path, of: Multiplier) -> None:
    """Block weights, and strengths of each component and sign, count like changes that were saved with them."""
    names = [*NAMES, *[f"lora_te{i}_text_model_encoder_layers_0_mlp_fc1" for i in (1, 2)]]
    ups, downs = [randn(i, 64, 4) for i in range(len(names))], [randn(50 + i, 4, 96) for i in range(len(names))]
    own = [-0.4 * up + 0.3 * randn(20 + i, 64, 4) for i, up in enumerate(ups)]
    if isinstance(of, Strength):  # IN01, IN02, IN04, IN05, IN07, IN08, and the text encoders
        factors = [0.8 * one for one in (1, 0, -0.5, 2, 1, 0.25)] + [-0.5 * 0.5] * 2
    else:
        factors = [-2.0] * 6 + [0.0] * 2
    scaled = [factor * up for factor, up in zip(factors, ups, strict=True)]
    first, same, other = (
        save(
            tmp_path / f"{name}.safetensors",
            {
                f"{layer}.lora_{side}.weight": one.float()
                for side, of_layers in (("up", changed), ("down", downs))
                for layer, one, up in zip(names, of_layers, changed, strict=True)
                if up.any()
            },
        )
        for name, changed in (("first", ups), ("same", scaled), ("other", own))
    )
    found, want = stack(first, other).at([of, 1.0], MODEL), stack(same, other)
    dense = [[up @ down for up, down in zip(one, downs, strict=True)] for one in (scaled, own)]
    total = torch.stack([one + another for one, another in zip(*dense, strict=True)])
    assert found.norm == pytest.approx(total.norm().item(), rel=1e-5)
    assert found.alone == pytest.approx([torch.stack(one).norm().item() for one in dense], rel=1e-5)
    assert found.factor() == pytest.approx(max(found.alone) / total.norm().item(), rel=1e-5)
    assert [(one.layers, one.relation) for one in found.pairs] == [(one.layers, one.relation) for one in want.pairs]
    for field in ("cosine", "cosine_by_chance", "mean_cosine", "mean_by_chance"):
        got, wanted = ([getattr(one, field) for one in measured.pairs] for measured in (found, want))
        assert got == pytest.approx(wanted, rel=1e-5)
    assert {one.relation for one in stack(first, other).pairs} == {"cancel"}
    if not isinstance(of, Strength):
        assert {one.relation for one in found.pairs} == {"reinforce"}, "the sign turns it round"


def test_rules_see_the_names_that_layers_have_in_the_model() -> None:
    measured = stack(LORAS / "night.safetensors", LORAS / "stripes.safetensors")
    rule = Element(("IN01",), ("input_blocks_1_1_transformer_blocks_0_attn1",), 0.0)
    strengths = [Strength(1.0, blocks=BlockWeights(None, (rule,))), 1.0]
    model = mapped_model(MODEL_FOLDER)
    of_file, of_model = measured.at(strengths, MODEL), measured.at(strengths, MODEL, naming_in(model))
    assert torch.equal(of_file.factors, measured.factors), "the file has diffusers' names"
    changed = {measured.layers[at].name for at in (of_model.factors[:, 0] == 0).nonzero().flatten().tolist()}
    before = "down_blocks_0_attentions_0_transformer_blocks_0_attn1"
    assert changed == {f"{before}_{part}" for part in ("to_q", "to_k", "to_v", "to_out_0")}


def together(gram: Tensor) -> StackMeasures:
    layer = StackLayer("denoiser", "M00", "mid_block_resnets_0_conv1", "M00")
    return StackMeasures(len(gram), (layer,), ({},), gram.unsqueeze(0), torch.ones(1, len(gram), dtype=torch.float64))


def test_strengths_that_leave_half_of_each_file() -> None:
    """Two files allow them if their cosine is above -0.5; three, wherever a search in small steps finds them."""
    for cosine in (0.9, 0.0, -0.3, -0.45, -0.55, -0.9):
        for size in (0.1, 1.0, 5.0):
            found = together(torch.tensor([[1.0, cosine * size], [cosine * size, size**2]], dtype=torch.float64))
            factors = found.alive()
            assert (factors is None) == (cosine < -0.5)
            if factors is not None:
                assert max(factors) == 1.0
                assert min(found.at(factors).left) >= 0.5 - 1e-12
            if min(found.left) >= 0.5:
                assert factors == [1.0, 1.0], "nothing to change"
    steps = torch.cartesian_prod(*[torch.logspace(-1.2, 0, 40, dtype=torch.float64)] * 3)
    counts = {True: 0, False: 0}
    for seed in range(60):
        changes = randn(seed, 3, 3)
        found = together(changes @ changes.T)
        gram = found.gram
        possible = bool(((steps @ gram) >= 0.55 * steps * gram.diagonal()).all(1).any())
        factors = found.alive()
        counts[possible] += 1
        if possible:
            assert factors is not None, seed
        if factors is not None:
            changed = changes * torch.tensor(factors, dtype=torch.float64)[:, None]
            left = changed @ changed.sum(0) / changed.square().sum(1)
            assert left.min() >= 0.5 - 1e-9
    assert min(counts.values()) > 5
    assert together(torch.zeros(2, 2, dtype=torch.float64)).alive() == [1.0, 1.0]


def test_files_without_a_common_layer_add_up(tmp_path: Path) -> None:
    found = stack(LORAS / "night.safetensors", LORAS / "stars.safetensors")
    assert found.pairs == ()
    assert found.at([1.0, 0.0]).norm > 0


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
