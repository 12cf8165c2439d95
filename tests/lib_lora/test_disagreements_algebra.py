"""Where programs disagree about what a file means, and where half precision would: what is right here, pinned."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lib_lora import Reading
from lib_lora.adapters import Operation, known_kinds, recipe_of
from lib_lora.adapters.base import Adapter, Alpha, At, Origin, RankSchedule, Site
from lib_lora.adapters.lokr import LoKr, _cheapest
from tests.selection import examples

CPU = torch.device("cpu")


def build(params: Mapping[str, Tensor], shape: tuple[int, ...], **origin: object) -> Adapter:
    """Return the adapter of these parameters, `alpha` among them, for a weight of a shape."""
    recipe = recipe_of({name: tuple(tensor.shape) for name, tensor in params.items()})
    assert recipe is not None
    alpha = Alpha(float(params["alpha"])) if "alpha" in params else Alpha()
    site = Site(shape, "conv" if len(shape) > 2 else "linear")
    return recipe.build(params, site, Origin(**{"alpha": alpha, **origin}))


def dense(adapter: Adapter, weight: Tensor | None = None, rank: int | None = None) -> Tensor:
    return adapter.delta_weight(At(CPU, torch.float64, rank=rank, weight=weight))


def kohya(module: str = "lycoris.kohya", when: str | None = None, **arguments: object) -> dict[str, str]:
    """Return a header as sd-scripts writes it."""
    metadata = {"ss_network_module": module, "ss_network_args": json.dumps(arguments)}
    return metadata if when is None else {**metadata, "modelspec.date": when}


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def close(got: Tensor, want: Tensor, bound: float = 1e-12) -> bool:
    return got.shape == want.shape and bool((got - want).abs().max() <= bound * want.abs().max())


LORA = {"lora_up.weight": torch.ones(8, 4), "lora_down.weight": torch.ones(4, 6), "alpha": torch.tensor(2.0)}


# --- the scale --------------------------------------------------------------------------------------------------------


def test_the_scale_of_lokr_with_two_full_matrices_is_1_whatever_alpha_is_stored():
    params = {"lokr_w1": randn(2, 3), "lokr_w2": randn(4, 5), "alpha": torch.tensor(1e9)}
    assert close(dense(build(params, (8, 15))), torch.kron(params["lokr_w1"], params["lokr_w2"]))


def test_but_in_peft_it_is_alpha_over_the_rank_of_the_configuration():
    params = {"lokr_w1": randn(2, 3), "lokr_w2": randn(4, 5)}
    own = build(params, (8, 15), spelling="peft", alpha=Alpha(6.0), config={"r": 8})
    assert close(dense(own), 6 / 8 * torch.kron(params["lokr_w1"], params["lokr_w2"]))


def test_the_rank_of_lokr_is_that_of_its_second_matrix_where_both_are_factored():
    params = {
        "lokr_w1_a": randn(2, 1),
        "lokr_w1_b": randn(1, 3),
        "lokr_w2_a": randn(4, 2),
        "lokr_w2_b": randn(2, 5),
        "alpha": torch.tensor(3.0),
    }
    want = torch.kron(params["lokr_w1_a"] @ params["lokr_w1_b"], params["lokr_w2_a"] @ params["lokr_w2_b"])
    own = build(params, (8, 15))
    assert close(dense(own), 3 / 2 * want)
    assert own.rank == 2


def test_loha_lokr_and_glora_have_their_scale_once():
    """LyCORIS 3.x merges the first two, and bypasses the third, at its square."""
    loha = {
        "hada_w1_a": randn(8, 2),
        "hada_w1_b": randn(2, 6),
        "hada_w2_a": randn(8, 2),
        "hada_w2_b": randn(2, 6),
    }
    lokr = {"lokr_w1": randn(2, 2), "lokr_w2_a": randn(4, 2), "lokr_w2_b": randn(2, 3)}
    glora = {"a1.weight": randn(6, 2), "a2.weight": randn(2, 6), "b1.weight": randn(8, 2), "b2.weight": randn(2, 6)}
    weight = randn(8, 6)
    for params in (loha, lokr, glora):
        plain = dense(build(params, (8, 6)), weight)
        scaled = dense(build({**params, "alpha": torch.tensor(0.5)}, (8, 6)), weight)
        assert close(scaled, 0.25 * plain)


@pytest.mark.parametrize("alpha", [None, 0.0])
def test_no_alpha_and_alpha_0_are_a_scale_of_1(alpha):
    params = {"lokr_w1": randn(2, 2), "lokr_w2_a": randn(4, 2), "lokr_w2_b": randn(2, 3)}
    want = torch.kron(params["lokr_w1"], params["lokr_w2_a"] @ params["lokr_w2_b"])
    params |= {} if alpha is None else {"alpha": torch.tensor(alpha)}
    assert close(dense(build(params, (8, 6))), want)


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({}, 1),  # as everybody reads it
        (kohya(algo="dylora", block_size="2"), 2),
        (kohya(algo="DyLoRA", block_size=2), 2),
        (kohya(algo="dylora"), 4),  # LyCORIS' default
        (kohya(algo="dylora", block_size="3"), 1),  # no block of this rank
        (kohya(algo="dylora", block_size="many"), 1),
        (kohya("networks.dylora", unit="2"), 1),  # kohya's own
        (kohya(algo="lora", block_size="2"), 1),
        ({"ss_network_args": "no JSON"}, 1),
        ({"ss_network_args": "[" * 100_000}, 1),
        ({"ss_network_args": "[1]"}, 1),
    ],
)
def test_lycoris_dylora_is_scaled_by_its_blocks_where_the_file_says_that_it_is_one_and_the_user_wants_it(
    metadata, factor
):
    ones = torch.full((8, 6), 2.0, dtype=torch.float64)
    assert close(dense(build(LORA, (8, 6), metadata=metadata)), ones), "as everybody reads it"
    trained = build(LORA, (8, 6), metadata=metadata, reading=Reading(dylora_as_trained=True))
    assert close(dense(trained), factor * ones)


def fused(parts: int, rank: int, out: int, inside: int) -> tuple[dict[str, Tensor], Tensor]:
    """kohya's split_qkv: LoRA of `rank` for each part of a layer, fused as `state_dict` does; and their change."""
    downs, ups = [randn(rank, inside) for _ in range(parts)], [randn(out // parts, rank) for _ in range(parts)]
    up = torch.block_diag(*ups)
    params = {"lora_up.weight": up, "lora_down.weight": torch.cat(downs), "alpha": torch.tensor(3.0)}
    return params, torch.cat([3.0 / rank * one @ down for one, down in zip(ups, downs, strict=True)])


SPLIT = kohya("networks.lora_flux", split_qkv="True")


@pytest.mark.parametrize(
    ("module", "parts"),
    [
        ("double_blocks_0_img_attn_qkv", 3),
        ("joint_blocks_1_context_block_attn_qkv", 3),  # SD3
        ("single_blocks_7_linear1", 4),
        ("single_blocks.7.linear1", 4),  # converted, with the metadata it had
    ],
)
def test_what_split_qkv_fused_acts_as_trained_where_the_user_wants_it(module, parts):
    params, want = fused(parts, 2, 24, 6)
    kohyas = build(params, (24, 6), metadata=SPLIT, module=module)
    assert close(dense(kohyas), want / parts), "as everybody reads it"
    trained = build(params, (24, 6), metadata=SPLIT, module=module, reading=Reading(split_qkv_as_trained=True))
    assert close(dense(trained), want)
    rows = ((0, 24 // parts),)
    assert close(dense(trained.take(rows)), want[: 24 // parts]), "on a model that has them apart"


@pytest.mark.parametrize(
    ("metadata", "module", "params"),
    [
        ({}, "double_blocks_0_img_attn_qkv", fused(3, 2, 24, 6)[0]),
        (kohya(split_qkv="False"), "double_blocks_0_img_attn_qkv", fused(3, 2, 24, 6)[0]),
        (kohya(split_qkv="true"), "double_blocks_0_img_attn_qkv", fused(3, 2, 24, 6)[0]),  # the trainer does not split
        (SPLIT, "double_blocks_0_img_attn_proj", fused(3, 2, 24, 6)[0]),
        (SPLIT, "single_blocks_7_linear2", fused(4, 2, 24, 6)[0]),
        (SPLIT, "single_blocks_7_linear1", fused(3, 2, 24, 6)[0]),  # a rank of 6 is no four
        (SPLIT, "double_blocks_0_img_attn_qkv", fused(2, 3, 24, 6)[0]),  # its last row is not that of three parts
        (
            SPLIT,
            "double_blocks_0_img_attn_qkv",
            LORA | {"lora_up.weight": torch.ones(8, 6), "lora_down.weight": randn(6, 6)},
        ),
    ],
)
def test_split_qkv_changes_nothing_but_layers_that_are_fused_so(metadata, module, params):
    shape = (params["lora_up.weight"].shape[0], 6)
    plain = build(params, shape, metadata=metadata, module=module)
    wanted = build(params, shape, metadata=metadata, module=module, reading=Reading(split_qkv_as_trained=True))
    assert wanted.scale == plain.scale


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_split_qkv_is_seen_in_every_dtype_of_a_file(dtype):
    params = {name: tensor.to(dtype) for name, tensor in fused(3, 2, 24, 6)[0].items()} | {"alpha": torch.tensor(3.0)}
    module = "double_blocks_0_img_attn_qkv"
    built = build(params, (24, 6), metadata=SPLIT, module=module, reading=Reading(split_qkv_as_trained=True))
    assert built.scale == 3 * 3.0 / 6


@pytest.mark.parametrize(
    ("when", "raw"),
    [
        ("2024-04-04T23:59:59", False),
        ("2024-04-05", True),
        ("2024-07-08T23:59:59Z", True),
        ("2024-07-09", False),
        ("2025-01-01", False),
        (None, False),
        ("yesterday", False),
    ],
)
@pytest.mark.parametrize("said", [True, "True", False, "False"])
def test_lycoris_saved_the_alpha_of_an_rs_lora_as_it_was_given_for_three_months(when, raw, said):
    raw = raw and str(said) == "True"
    scale = 2 / math.sqrt(4) if raw else 2 / 4
    own = build(LORA, (8, 6), metadata=kohya(when=when, rs_lora=said))
    assert close(dense(own), torch.full((8, 6), 4 * scale, dtype=torch.float64))


def test_the_time_of_training_goes_before_a_date_written_later():
    metadata = {**kohya(when="2025-01-01", rs_lora=True), "ss_training_finished_at": "1717200000.25"}  # 2024-06-01
    assert close(dense(build(LORA, (8, 6), metadata=metadata)), torch.full((8, 6), 4.0, dtype=torch.float64))
    for nonsense in ("nan", "inf", "1e300", "-1e300"):
        build(LORA, (8, 6), metadata={**metadata, "ss_training_finished_at": nonsense})


def test_glora_always_saved_the_alpha_of_an_rs_lora_as_it_was_given():
    params = {"a1.weight": randn(6, 4), "a2.weight": randn(4, 6), "b1.weight": randn(8, 4), "b2.weight": randn(4, 6)}
    weight, alpha = randn(8, 6), {"alpha": torch.tensor(4.0)}
    plain = dense(build({**params, **alpha}, (8, 6)), weight)
    assert close(dense(build({**params, **alpha}, (8, 6), metadata=kohya(rs_lora=True)), weight), 2 * plain)


@pytest.mark.parametrize(
    ("saved", "config", "begun"),
    [(None, {"init_r": 6}, 6), (None, {}, 2), (7.0, {"init_r": 6}, 7)],
)
def test_adalora_is_divided_by_the_rank_it_began_with(saved, config, begun):
    params = {"lora_up.weight": randn(8, 2), "lora_down.weight": randn(2, 6), "lora_E": randn(2, 1)}
    want = params["lora_up.weight"] @ (params["lora_down.weight"] * params["lora_E"]) * 3 / (begun + 1e-5)
    if saved is not None:
        params["ranknum"] = torch.tensor([saved])
    assert close(dense(build(params, (8, 6), alpha=Alpha(3.0), config=config)), want)


# --- the layouts ------------------------------------------------------------------------------------------------------


def glora(out: int, inside: int, rank: int, *, old: bool) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Parameters, A and B."""
    a_up, a_down, b_up, b_down = randn(inside, rank), randn(rank, inside), randn(out, rank), randn(rank, inside)
    names = ("a2", "a1", "b2", "b1") if old else ("a1", "a2", "b1", "b2")
    params = {f"{name}.weight": one for name, one in zip(names, (a_up, a_down, b_up, b_down), strict=True)}
    return params, a_up @ a_down, b_up @ b_down


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("shape", [(8, 6), (6, 6), (8, 4), (4, 6)])
def test_shapes_tell_the_layouts_of_glora_apart(shape, old):
    params, a, b = glora(*shape, 4, old=old)
    weight = randn(*shape)
    for metadata in ({}, kohya(when="2023-12-01"), kohya(when="2025-12-01")):
        assert close(dense(build(params, shape, metadata=metadata), weight), weight @ a + b)


@pytest.mark.parametrize(
    ("when", "old"),
    [
        (None, False),
        ("2023-06-27", False),
        ("2023-06-28", True),
        ("2024-05-24T23:00:00", True),
        ("2024-05-25", False),
    ],
)
def test_where_they_do_not_the_time_does_and_else_it_is_todays(when, old):
    params, a, b = glora(4, 4, 4, old=old)
    weight = randn(4, 4)
    assert close(dense(build(params, (4, 4), metadata=kohya(when=when)), weight), weight @ a + b)


def test_what_fits_no_layout_of_glora_is_refused():
    params, *_ = glora(8, 6, 4, old=False)
    with pytest.raises(ValueError, match=r"want the factors of a change of \(6, 8\), got a1.weight \(6, 4\)"):
        build(params, (6, 8))


@pytest.mark.parametrize("shape", [(5, 8), (7, 8), (6, 8, 1, 2)])
@pytest.mark.parametrize("name", ["diff", "set_weight"])
def test_a_whole_weight_of_another_size_is_refused(name, shape):
    with pytest.raises(ValueError, match=rf"want {name} \(6, 8\), got {re.escape(str(shape))}"):
        build({name: randn(*shape)}, (6, 8))


def test_a_weight_of_several_times_as_many_rows_is_a_bank_of_heads():
    params = {"set_weight": randn(4 * 6, 8), "set_bias": randn(4 * 6)}
    assert len(build(params, (6, 8)).heads) == 4
    with pytest.raises(ValueError, match=r"want set_bias \(24,\), got \(6\)"):
        build(params | {"set_bias": randn(6)}, (6, 8))


def test_a_bias_is_set_with_its_weight_or_alone():
    weight, bias, value, other = randn(6, 8), randn(6), randn(6, 8), randn(6)
    both, alone = build({"set_weight": value, "set_bias": other}, (6, 8)), build({"set_bias": other}, (6, 8))
    assert close(dense(both, weight), value - weight)
    assert not dense(alone, weight).any()
    for one in (both, alone):
        assert close(one.change_of_bias(bias), other - bias)
        assert close(one.take(((2, 5),)).change_of_bias(bias[2:5]), (other - bias)[2:5])


def test_a_lora_of_a_widened_layer_fits_the_layer_that_has_that_width():
    params = {**LORA, "reshape_weight": torch.tensor([8, 6])}
    assert close(dense(build(params, (8, 6))), dense(build(LORA, (8, 6))))
    with pytest.raises(ValueError, match=re.escape("widened from (8, 3) to (8, 6): load the model")):
        build(params, (8, 3))


def test_pefts_glora_is_not_lycoris_glora():
    assert recipe_of({f"glora_{name}": (4, 4) for name in ("Ad", "Au", "Bd", "Bu", "Cd", "Cu", "D", "E")}) is None


def test_vera_without_its_shared_matrices_says_what_to_do():
    params = {"vera_lambda_b": randn(8), "vera_lambda_d": randn(3)}
    with pytest.raises(ValueError, match="save it again with save_projection=True"):
        build(params, (8, 6), config={"projection_prng_key": 0, "save_projection": False})


@pytest.mark.parametrize("name", ["lokr_w1", "lokr_w2_a lokr_w2_b", "lokr_w1 lokr_w2 lokr_t2", "hada_t1"])
def test_half_an_adapter_is_nobodys(name):
    loha = "hada_w1_a hada_w1_b hada_w2_a hada_w2_b " if "hada" in name else ""
    assert recipe_of(dict.fromkeys((loha + name).split(), (4, 4))) is None


def test_a_kronecker_product_may_divide_a_kernel_where_no_channel_ends():
    """As in files of April 2023: row-major, the kernel's places after the channels."""
    w1, w2 = randn(2, 6), randn(4, 3)
    own = build({"lokr_w1": w1, "lokr_w2": w2}, (8, 2, 3, 3))
    assert close(dense(own), torch.kron(w1, w2).reshape(8, 2, 3, 3))
    assert own.form().pair is not None or own.prefers_dense


# --- the ranks of T-LoRA ----------------------------------------------------------------------------------------------


def tlora(**origin: object) -> tuple[Adapter, dict[str, Tensor]]:
    params = {
        "q_layer.weight": randn(4, 6),
        "p_layer.weight": randn(8, 4),
        "lambda_layer": randn(1, 4),
        "base_q": randn(4, 6),
        "base_p": randn(8, 4),
        "base_lambda": randn(1, 4),
    }
    return build(params, (8, 6), **origin), params


def test_without_a_timestep_all_ranks_of_tlora_act_and_a_cut_is_of_both_halves():
    own, params = tlora()
    p, q, values = params["p_layer.weight"], params["q_layer.weight"], params["lambda_layer"]
    p0, q0, values0 = params["base_p"], params["base_q"], params["base_lambda"]
    for rank in (None, 1, 3):
        want = (p * values)[:, :rank] @ q[:rank] - (p0 * values0)[:, :rank] @ q0[:rank]
        assert close(dense(own, rank=rank), want)
        factors, pair = own.factors(rank), own.form(rank).pair
        assert pair is not None
        assert close(factors.up @ factors.down, want)
        assert (pair.rank, pair.per_rank) == (2 * (rank or 4), 2)
        assert factors.down.shape[0] == factors.up.shape[1] == pair.rank


def test_the_components_of_a_rank_of_tlora_lie_together():
    """So that the first ranks are the first components, which is what a schedule needs."""
    own, _ = tlora()
    whole, cut = own.factors(), own.factors(2)
    assert torch.equal(whole.down[:4], cut.down)
    assert torch.equal(whole.up[:, :4], cut.up)


@pytest.mark.parametrize(
    ("origin", "want"),
    [
        ({}, RankSchedule(4)),
        ({"config": {"algo": "tlora", "tlora_min_rank": 2, "tlora_alpha": 2.0}}, RankSchedule(4, 2, 2.0)),
        ({"metadata": kohya(algo="tlora", tlora_min_rank="9", tlora_alpha="nan")}, RankSchedule(4, 4)),
        ({"metadata": kohya(algo="tlora", tlora_min_rank="-3", tlora_alpha="-1")}, RankSchedule(4, 0)),
    ],
)
def test_the_schedule_of_tlora_is_the_files_or_the_papers(origin, want):
    pair = tlora(**origin)[0].form().pair
    assert pair is not None
    assert pair.schedule == want


def test_a_lora_has_a_schedule_only_if_the_file_says_so():
    for metadata, want in (({}, None), (kohya(algo="lora", use_timestep_mask="True"), RankSchedule(4))):
        form = build(LORA, (8, 6), metadata=metadata).form()
        assert form is not None
        assert form.pair is not None
        assert form.pair.schedule == want


@pytest.mark.parametrize(
    ("power", "timestep", "want"),
    # from the table in SimpleTuner's documentation, of 64 ranks
    [(1, 0, 64), (1, 250, 48), (1, 500, 32), (1, 750, 16), (1, 999, 1), (2, 500, 16), (2, 999, 1), (0.5, 999, 2)],
)
def test_fewer_ranks_act_in_noise(power, timestep, want):
    assert RankSchedule(64, 1, power).first(timestep) == want


def test_a_schedule_stays_within_its_ranks_outside_of_its_timesteps():
    schedule = RankSchedule(8, 2)
    assert [schedule.first(timestep) for timestep in (-5, 0, 1000, 2000)] == [8, 8, 2, 2]


# --- half precision ---------------------------------------------------------------------------------------------------


def beside(adapter: Adapter, layer: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the output of an effect or a pair in a dtype."""
    form = adapter.form()
    assert form is not None
    spatial = x.ndim - 2 if isinstance(layer, nn.Conv2d) else 0
    op = Operation(layer, spatial, layer)
    one = torch.ones(1, dtype=dtype)
    if form.on_output:
        return adapter.output_effect(CPU, dtype).delta(x.to(dtype), x, one, op)
    factors = adapter.factors()
    return (x.to(dtype) @ factors.down.to(dtype).t() @ factors.up.to(dtype).t()) * form.pair.scale


@pytest.mark.parametrize("sizes", [(1e-4, 1e3), (1e3, 1e-4)])
def test_lokr_leaves_the_range_of_fp16_only_if_its_result_does(sizes):
    params = {"lokr_w1": randn(8, 8) * sizes[0], "lokr_w2_a": randn(6, 2), "lokr_w2_b": randn(2, 6) * sizes[1]}
    own, x = build(params, (48, 48)), 100 * randn(5, 48)
    assert own.form().on_output
    got = beside(own, nn.Linear(48, 48), x, torch.float16)
    assert close(got.double(), x @ dense(own).t(), 4e-3)


def test_loha_leaves_the_range_of_fp16_only_if_its_result_does():
    params = {
        "hada_w1_a": randn(48, 2) * 1e-4,
        "hada_w1_b": randn(2, 48) * 1e3,
        "hada_w2_a": randn(48, 2) * 1e-4,
        "hada_w2_b": randn(2, 48) * 1e3,
    }
    own, x = build(params, (48, 48)), randn(5, 48)
    assert own.form().pair is not None
    got = beside(own, nn.Linear(48, 48), x, torch.float16)
    assert close(got.double(), x @ dense(own).t(), 4e-3)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_small_difference_of_large_products_survives_bf16(sign):
    """T-LoRA: what was trained is a thousandth of what it began as; rounding both would leave noise."""
    weight = randn(48, 32) * 0.2
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    params = {
        "q_layer.weight": (sign * v[:4]) + randn(4, 32) * 1e-4,
        "p_layer.weight": (sign * u[:, :4]) + randn(48, 4) * 1e-4,
        "lambda_layer": s[:4] * 1.001,
    }
    own = build(params, (48, 32)).on(lambda: weight)
    x = randn(5, 32)
    got = beside(own, nn.Linear(32, 48), x, torch.bfloat16)
    assert close(got.double(), x @ dense(own).t(), 2e-2)


@pytest.mark.parametrize("out", [2, 3, 6])
def test_a_tlora_of_a_rank_that_its_weight_has_not(out):
    """Nothing of it began as the triplets beyond the weight's own, so those it has are all that is taken away."""
    rank, inside = 5, 4
    params = {"q_layer.weight": randn(rank, inside), "p_layer.weight": randn(out, rank), "lambda_layer": randn(rank)}
    weight = randn(out, inside)
    own = build(params, (out, inside)).on(lambda: weight)
    trained = (params["p_layer.weight"] * params["lambda_layer"]) @ params["q_layer.weight"]
    assert close(dense(own), trained - weight, 1e-6)  # what it began as is kept in fp32


@pytest.mark.parametrize("kind", ["loha", "lokr"])
def test_products_of_half_precision_factors_are_exact(kind):
    half = torch.bfloat16
    if kind == "loha":
        names = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2")
        shapes = ((2, 12), (2, 8), (2, 12), (2, 8), (2, 2, 3, 3), (2, 2, 3, 3))
    else:
        names, shapes = ("lokr_w1", "lokr_w2_a", "lokr_w2_b", "lokr_t2"), ((4, 4), (2, 3), (2, 2), (2, 2, 3, 3))
    params = {name: randn(*shape).to(half) for name, shape in zip(names, shapes, strict=True)}
    want = dense(build({name: value.double() for name, value in params.items()}, (12, 8, 3, 3)))
    got = build(params, (12, 8, 3, 3)).delta_weight(At(CPU, torch.float32))
    assert close(got.double(), want, 1e-6)


# --- the cost of LoKr -------------------------------------------------------------------------------------------------


def test_matrices_act_in_the_order_of_least_cost():
    small, down, up = (8, 8), (16, 160), (160, 16)
    sides, cost = _cheapest([small], [down, up], 8, 160)
    assert sides == ("right", "left", "right")
    assert cost == 8 * 16 * 160 + 8 * 8 * 16 + 8 * 160 * 16
    assert _cheapest([(8, 2)], [(160, 160)], 2, 160)[0] == ("right", "left")  # w2 on two groups, not on eight
    assert _cheapest([(2, 8)], [(160, 160)], 8, 160)[0] == ("left", "right")


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_lokr_is_its_dense_delta_in_every_form_and_order(data):
    size = st.integers(1, 6)
    a, b, c, d, r1, r2 = (data.draw(size) for _ in range(6))
    kernel = data.draw(st.sampled_from([(), (1, 1), (3, 3), (1, 3)]))
    inside = d * math.prod(kernel)
    first = data.draw(st.sampled_from([{"lokr_w1": (a, b)}, {"lokr_w1_a": (a, r1), "lokr_w1_b": (r1, b)}]))
    seconds = [{"lokr_w2": (c, d, *kernel)}, {"lokr_w2_a": (c, r2), "lokr_w2_b": (r2, inside)}]
    if kernel:
        seconds.append({"lokr_w2_a": (r2, c), "lokr_w2_b": (r1, d), "lokr_t2": (r2, r1, *kernel)})
    shape = (a * c, b * d, *kernel)
    own = build({name: randn(*size) for name, size in (first | data.draw(st.sampled_from(seconds))).items()}, shape)
    assert isinstance(own, LoKr)
    layer = nn.Conv2d(b * d, a * c, kernel, stride=2, padding=1) if kernel else nn.Linear(b * d, a * c)
    x = randn(2, b * d, 5, 6) if kernel else randn(2, 3, b * d)
    op = Operation(layer, len(kernel), layer)
    got = own.output_effect(CPU, torch.float64).delta(x, x, torch.ones(1, dtype=torch.float64), op)
    assert close(got, op.apply(x, dense(own)), 1e-9)
    factors = own.factors()
    assert close((factors.up @ factors.down.flatten(1)).reshape(shape), dense(own), 1e-9)
    rows = [own.delta_weight(At(CPU, torch.float64, rows=(i, i + 1))) for i in range(a * c)]
    assert close(torch.cat(rows), dense(own))


# --- untrusted shapes -------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
MINE = {"adalora", "glora", "loha", "lokr", "lora", "lora_embedding", "tlora", "vera"}
GROUPS = sorted(
    {
        tuple(sorted(kind.params.required | set(extra)))
        for kind in known_kinds()
        if kind.name in MINE
        for count in range(5)
        for extra in itertools.islice(itertools.combinations(sorted(kind.params.optional - {"alpha"}), count), 12)
    }
)


@given(st.data())
@settings(max_examples=examples(400), deadline=None)
def test_tensors_of_any_shape_are_built_or_refused(data):
    names = data.draw(st.sampled_from(GROUPS))
    params = {name: torch.ones(data.draw(SHAPES)) for name in names}
    shapes = {name: tuple(tensor.shape) for name, tensor in params.items()}
    recipe = recipe_of(shapes)
    if recipe is None:
        return
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple))
    kind = "conv" if len(shape) > 2 else data.draw(st.sampled_from(["linear", "embedding"]))
    shared = {"vera_A": torch.ones(data.draw(SHAPES)), "vera_B": torch.ones(data.draw(SHAPES))}
    for site in (Site(shape, kind), recipe.own_site(shapes)):
        if site is None:
            continue
        try:
            adapter = recipe.build(params, site, Origin(shared=shared))
        except ValueError:
            continue
        delta = adapter.delta_weight(At(CPU, torch.float32, weight=torch.ones(site.shape)))
        assert delta.numel() == math.prod(site.shape)
