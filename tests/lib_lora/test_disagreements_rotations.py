"""Where programs disagree on a multiplicative kind, this is what we do; each with what the others make of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from lib_lora.adapters import Operation, recipe_of
from lib_lora.adapters._rotation import Turn, mix, mix_butterfly
from lib_lora.adapters.base import Adapter, At, Origin, Site

LINEAR = Site((24, 12))
CONV = Site((24, 4, 3, 3), "conv")
EARLY_IA3 = {"ss_training_started_at": "1716500000"}  # 2024-05-23
ONETRAINER = {"ot_revision": "23df383"}


def adapter(
    params: Mapping[str, Tensor],
    site: Site = LINEAR,
    spelling: str = "lycoris",
    config: Mapping[str, object] | None = None,
    metadata: Mapping[str, str] | None = None,
    module: str = "",
) -> Adapter:
    recipe = recipe_of({name: tuple(value.shape) for name, value in params.items()})
    assert recipe is not None
    return recipe.build(
        params, site, Origin(spelling=spelling, config=config or {}, metadata=metadata or {}, module=module)
    )


def weight(site: Site = LINEAR) -> Tensor:
    return torch.randn(site.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def delta(made: Adapter, base: Tensor, multiplier: float = 1.0) -> Tensor:
    return made.delta_weight(At(base.device, base.dtype, multiplier, weight=base))


def blocks(*shape: int, size: float = 0.3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * size


def cayley(skew: Tensor) -> Tensor:
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype)
    return (eye + skew) @ torch.linalg.inv(eye - skew)


def rotations(parameters: Tensor) -> Tensor:
    return cayley(parameters - parameters.transpose(-1, -2))


def close(got: Tensor, want: Tensor) -> bool:
    return bool((got - want).abs().max() <= 1e-12 * want.abs().max())


class TestMultiplier:
    def test_of_a_rotation_it_lerps_the_rotation(self):
        """3. ComfyUI's effect goes with its square: a quarter at 0.5."""
        made, base = adapter({"oft_blocks": blocks(4, 6, 6)}), weight()
        assert close(delta(made, base, 0.5), 0.5 * delta(made, base))

    def test_of_a_butterfly_it_lerps_each_factor(self):
        """4. LyCORIS. A1111 and SD.Next lerp the whole, which agrees at 1 only; ComfyUI does both."""
        parameters, base = blocks(2, 4, 6, 6), weight()
        made = adapter({"oft_blocks": parameters})
        # in the file the halves of a block alternate; those of the second factor come from two blocks
        first = [start + half * 3 + k for start in range(0, 24, 6) for k in range(3) for half in (0, 1)]
        second = [start + half * 6 + k for start in (0, 12) for k in range(6) for half in (0, 1)]
        halfway = base
        for order, factor in zip((first, second), rotations(parameters), strict=True):
            moved = (0.5 * torch.block_diag(*factor) + 0.5 * torch.eye(24, dtype=base.dtype)) @ halfway[order]
            halfway = torch.empty_like(moved)
            halfway[order] = moved
        assert close(base + delta(made, base, 0.5), halfway)
        assert not close(delta(made, base, 0.5), 0.5 * delta(made, base))

    @pytest.mark.parametrize("parameters", [blocks(4, 6, 6), blocks(2, 4, 6, 6)], ids=["diag-oft", "boft"])
    def test_of_a_rescale_it_lerps_that_to_one(self, parameters):
        """5. LyCORIS leaves it as it is, so that 0 would not be the base."""
        scale, base = 1 + blocks(24, 1), weight()
        plain, scaled = adapter({"oft_blocks": parameters}), adapter({"oft_blocks": parameters, "rescale": scale})
        assert not delta(scaled, base, 0.0).any()
        want = (1 + 0.5 * (scale - 1)) * (base + delta(plain, base, 0.5))
        assert close(base + delta(scaled, base, 0.5), want)

    @pytest.mark.parametrize(
        "params",
        [
            {"oft_R.weight": blocks(2, 15)},
            {"boft_R": blocks(1, 2, 6, 6), "boft_s": 1 + blocks(24, 1)},
            {"hra_u": blocks(12, 4)},
            {"ia3_l": 1 + blocks(24, 1)},
        ],
        ids=["oft", "boft", "hra", "ia3"],
    )
    def test_of_what_peft_never_scales_it_scales_the_complete_effect(self, params):
        made, base = adapter(params, spelling="peft"), weight()
        assert close(delta(made, base, 0.5), 0.5 * delta(made, base))


class TestConstraint:
    def test_zero_is_none_in_lycoris_and_identity_in_kohya(self):
        """6. SD.Next clamps always, which kills every default Diag-OFT; A1111 never does at 0."""
        params, base = {"oft_blocks": blocks(4, 6, 6), "alpha": torch.tensor(0.0)}, weight()
        free = adapter({"oft_blocks": params["oft_blocks"]})
        assert close(delta(adapter(params), base), delta(free, base))
        assert not delta(adapter(params, spelling="kohya_oft"), base).any()

    @pytest.mark.parametrize("spelling", ["lycoris", "kohya_oft"])
    def test_it_is_alpha_times_the_outputs_over_all_blocks(self, spelling):
        """6. ComfyUI takes alpha itself."""
        parameters, base, alpha = blocks(4, 6, 6), weight(), 0.03125
        skew = parameters - parameters.transpose(1, 2)
        turned = cayley(skew * alpha * 24 / torch.linalg.vector_norm(skew))
        want = torch.block_diag(*turned).T @ base
        made = adapter({"oft_blocks": parameters, "alpha": torch.tensor(alpha)}, spelling=spelling)
        assert close(base + delta(made, base), want)

    def test_each_slice_of_a_fused_layer_has_its_own(self):
        """kohya's Flux OFT, which nobody else reads: alpha times the width of the slice."""
        first, second, alpha, base = blocks(2, 4, 4), blocks(2, 8, 8), 0.0625, weight()
        made = adapter(
            {"oft_blocks.0": first, "oft_blocks.1": second, "alpha": torch.tensor(alpha)}, spelling="kohya_oft"
        )
        want = []
        for one, rows in ((first, base[:8]), (second, base[8:])):
            alone = adapter({"oft_blocks": one, "alpha": torch.tensor(alpha)}, Site((len(rows), 12)), "kohya_oft")
            want.append(delta(alone, rows))
        assert close(delta(made, base), torch.cat(want))


class TestOrientation:
    """7. Each family has its own."""

    def test_diag_oft_multiplies_by_the_transpose(self):
        parameters, base = blocks(4, 6, 6), weight()
        want = torch.block_diag(*rotations(parameters)).T @ base
        assert close(base + delta(adapter({"oft_blocks": parameters}), base), want)

    def test_boft_does_not(self):
        parameters, base = blocks(1, 8, 3, 3), weight()
        want = torch.block_diag(*rotations(parameters[0])) @ base
        assert close(base + delta(adapter({"oft_blocks": parameters}), base), want)

    @pytest.mark.parametrize("exact", [True, False])
    def test_pefts_two_ways_are_each_others_transpose(self, exact):
        triangles, base = blocks(1, 15, size=0.01), weight()
        config = {"use_cayley_neumann": not exact}
        made = adapter({"oft_R.weight": triangles}, spelling="peft", config=config)
        skew = torch.zeros(6, 6, dtype=base.dtype)
        skew[tuple(torch.triu_indices(6, 6, 1))] = triangles[0]
        turn = cayley(skew - skew.T)  # x' = x R or, exactly, x R^T
        whole = torch.block_diag(turn, turn)
        want = base @ (whole if exact else whole.T)
        error = (base + delta(made, base) - want).abs().max() / base.abs().max()
        assert error < (1e-12 if exact else 1e-4), "the series stops early"

    def test_onetrainers_convolutions_are_turned_the_other_way(self):
        """Its forward of a convolution takes R where that of a linear layer takes R^T."""
        triangles, base = blocks(6, 15), weight(CONV)
        peft = adapter({"oft_R.weight": triangles}, CONV, "peft")
        onetrainer = adapter({"oft_R.weight": triangles}, CONV, "peft", metadata=ONETRAINER)
        mirrored = adapter({"oft_R.weight": -triangles}, CONV, "peft")
        assert not close(delta(onetrainer, base), delta(peft, base))
        assert close(delta(onetrainer, base), delta(mirrored, base)), "the series of -Q is the transpose"
        flat = Site((24, 36))
        assert close(
            delta(adapter({"oft_R.weight": triangles}, flat, "kohya", metadata=ONETRAINER), base.flatten(1)),
            delta(peft, base).flatten(1),
        )


class TestBias:
    """8. A merged weight leaves it alone; paths beside the layer, at others, turn and scale it."""

    @staticmethod
    def output(made: Adapter, layer: nn.Linear, x: Tensor, multiplier: float) -> Tensor:
        op = Operation(layer, 0)
        y = layer(x)
        effect = made.output_effect(x.device, x.dtype)
        return y + effect.delta_of_product(x, op.without_bias(y), torch.tensor([multiplier], dtype=x.dtype), op)

    @pytest.mark.parametrize(
        ("params", "spelling", "metadata", "scaled"),
        [
            ({"oft_blocks": blocks(4, 6, 6), "rescale": 1 + blocks(24, 1)}, "lycoris", {}, False),
            ({"oft_blocks": blocks(1, 4, 6, 6), "rescale": 1 + blocks(24, 1)}, "lycoris", {}, False),
            ({"boft_R": blocks(1, 2, 6, 6), "boft_s": 1 + blocks(24, 1)}, "peft", {}, False),
            ({"weight": blocks(24), "on_input": torch.tensor(0)}, "lycoris", {}, False),
            ({"weight": blocks(24), "on_input": torch.tensor(0)}, "lycoris", EARLY_IA3, True),
            ({"ia3_l": 1 + blocks(24, 1)}, "peft", {}, True),
        ],
        ids=["diag-oft", "boft", "boft of peft", "ia3", "ia3, early", "ia3 of peft"],
    )
    def test_it_is_scaled_only_where_the_whole_output_was(self, params, spelling, metadata, scaled):
        made, base = adapter(params, spelling=spelling, metadata=metadata), weight()
        layer = nn.Linear(12, 24).double().requires_grad_(False)
        layer.weight.copy_(base)
        layer.bias.copy_(blocks(24, size=1.0))
        x = blocks(5, 12, size=1.0)
        vector = params.get("weight", params.get("ia3_l", torch.zeros(())) - 1)
        bias = layer.bias * (1 + 0.5 * vector.reshape(-1)) if scaled else layer.bias
        want = nn.functional.linear(x, base + delta(made, base, 0.5), bias)
        assert close(self.output(made, layer, x, 0.5), want)
        change = made.change_of_bias(layer.bias)
        assert (change is not None) == scaled
        if change is not None:
            assert close(layer.bias + 0.5 * change, bias)


class TestDates:
    """What only a date tells."""

    @pytest.mark.parametrize(
        ("metadata", "scaled"),
        [
            ({}, False),
            ({"ss_training_started_at": "1716500000"}, True),
            ({"modelspec.date": "2024-05-24T23:00:00"}, True),
            ({"modelspec.date": "2024-05-25T01:00:00"}, False),
            ({"ss_training_started_at": "nonsense"}, False),
        ],
    )
    def test_ia3_scaled_the_bias_before_2024_05_25(self, metadata, scaled):
        """15."""
        made = adapter({"weight": blocks(24), "on_input": torch.tensor(0)}, metadata=metadata)
        assert (made.bias_excess is not None) == scaled
        inside = adapter({"weight": blocks(12), "on_input": torch.tensor(1)}, metadata=metadata)
        assert inside.bias_excess is None

    def test_ia3_of_a_convolution_is_by_channels(self):
        """15. A1111 and SD.Next let (1, channels, 1, 1) broadcast along the inputs whatever it is for."""
        vector, base = blocks(1, 24, 1, 1), weight(CONV)
        made = adapter({"weight": vector, "on_input": torch.tensor(0)}, CONV)
        assert close(delta(made, base), base * vector.reshape(24, 1, 1, 1))

    @pytest.mark.parametrize(
        ("metadata", "early"),
        [
            ({}, False),
            ({"modelspec.date": "2023-11-10"}, True),
            ({"modelspec.date": "2023-11-11"}, False),
            ({"modelspec.date": "yesterday"}, False),
        ],
    )
    def test_oft_diag_was_less_the_identity_before_2023_11_11(self, metadata, early):
        stored, base = blocks(4, 6, 6), weight()
        whole = torch.block_diag(*stored).T
        want = whole @ base if early else whole @ base - base
        assert close(delta(adapter({"oft_diag": stored}, metadata=metadata), base), want)


class TestPrecision:
    def test_half_precision_keeps_a_change_that_is_small_beside_the_identity(self):
        """R itself in bfloat16 would be the identity, and the adapter without effect."""
        made, layer = adapter({"oft_blocks": blocks(4, 6, 6, size=1e-4)}), nn.Linear(12, 24, bias=False)
        y = blocks(5, 24, size=1.0)
        one = torch.ones(1, dtype=torch.float64)
        want = made.output_effect(y.device, y.dtype).delta(y, y, one, Operation(layer, 0))
        effect = made.output_effect(y.device, torch.bfloat16)
        half = y.bfloat16()
        got = effect.delta(half, half, one.bfloat16(), Operation(layer, 0))
        assert (got.double() - want).abs().max() < 2e-2 * want.abs().max()

    def test_reflections_that_nearly_cancel_do_so_before_they_are_rounded(self):
        """As HRA begins: pairs of the same vector."""
        pair = blocks(12, 1, size=1.0).repeat(1, 2)
        pair[:, 1] += blocks(12, size=1e-4)
        made, layer = adapter({"hra_u": pair}, spelling="peft"), nn.Linear(12, 24)
        x, one = blocks(5, 12, size=1.0), torch.ones(1, dtype=torch.float64)
        want = made.input_effect(x.device, x.dtype).delta(x, one, Operation(layer, 0))
        assert want.abs().max() < 1e-2
        effect = made.input_effect(x.device, torch.bfloat16)
        got = effect.delta(x.bfloat16(), one.bfloat16(), Operation(layer, 0))
        assert (got.double() - want).abs().max() < 2e-2 * want.abs().max()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_what_a_file_has_in_half_precision_is_solved_in_full(self, dtype):
        stored, base = blocks(4, 6, 6).to(dtype), weight()
        want = torch.block_diag(*rotations(stored.double())).T @ base - base
        assert close(delta(adapter({"oft_blocks": stored}), base), want)


class TestMix:
    @pytest.mark.parametrize("count", [4, 1], ids=["each its own", "one for all"])
    @pytest.mark.parametrize("size", [(24,), (5, 24), (2, 3, 24)])
    def test_of_the_last_dimension(self, size, count):
        x, parts = blocks(*size, size=1.0), blocks(count, 6, 6)
        assert close(mix(x, parts, -1), x @ torch.block_diag(*parts.expand(4, 6, 6)).T)

    @pytest.mark.parametrize("count", [4, 1], ids=["each its own", "one for all"])
    @pytest.mark.parametrize("size", [(24, 5), (2, 24, 5), (24, 5, 7), (2, 24, 5, 7), (2, 24, 3, 5, 4), (24, 3, 5, 4)])
    def test_of_channels_before_places(self, size, count):
        x, parts = blocks(*size, size=1.0), blocks(count, 6, 6)
        dim = size.index(24) - len(size)
        want = (x.movedim(dim, -1) @ torch.block_diag(*parts.expand(4, 6, 6)).T).movedim(-1, dim)
        assert close(mix(x, parts, dim), want)

    def test_channels_last_stays_so(self):
        x, parts = blocks(2, 24, 5, 7, size=1.0), blocks(4, 6, 6)
        got = mix(x.to(memory_format=torch.channels_last), parts, -3)
        assert got.is_contiguous(memory_format=torch.channels_last)
        assert close(got, mix(x, parts, -3))

    @pytest.mark.parametrize("shape", [(8, 3, 3), (6, 4, 4), (5, 4, 4), (1, 3, 3), (2, 32, 32)])
    def test_blocks_joined_are_the_same_matrix(self, shape):
        parts = blocks(*shape)
        joined = Turn(parts, None).effect(parts.device, parts.dtype).source
        assert torch.equal(torch.block_diag(*joined), torch.block_diag(*parts))
        assert joined.shape[-1] >= 16 or shape[0] in (1, 5)
        assert joined.data_ptr() != parts.data_ptr()

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
    @pytest.mark.parametrize("dim", [-1, -2, -3])
    def test_a_butterfly_is_the_same_for_many_places_as_for_each(self, dim, count, descending):
        """For many it takes its factors two at a time."""
        x, factors = blocks(128, 64, size=1.0), blocks(count, 16, 4, 4)
        want = torch.cat([mix_butterfly(row, factors, -1, 0.7, descending=descending) for row in x.split(1)])
        many = {-1: x, -2: x.t().contiguous(), -3: x.t().reshape(1, 64, 8, 16)}[dim]
        got = mix_butterfly(many, factors, dim, 0.7, descending=descending)
        assert close(got.movedim(dim, -1).reshape(x.shape), want)


class TestMisfits:
    @pytest.mark.parametrize(
        ("params", "text"),
        [
            ({"oft_blocks": blocks(4, 5, 5)}, r"want oft_blocks \(k, n, n\) with k \* n = 24, got \(4, 5, 5\)"),
            ({"oft_blocks": blocks(4, 6, 5)}, r"got \(4, 6, 5\)"),
            ({"oft_blocks": blocks(4, 6, 6), "rescale": blocks(12)}, r"want rescale \(24, 1\), got \(12\)"),
            ({"oft_blocks": blocks(4, 6, 6), "alpha": blocks(2)}, r"want one number as alpha, got \(2\)"),
            ({"oft_blocks.0": blocks(2, 6, 6)}, r"24 outputs together, got \[12\]"),
            ({"oft_blocks": blocks(4, 4, 6, 6)}, r"k a multiple of 2\^\(m - 1\); got \(4, 4, 6, 6\)"),
            ({"oft_blocks": blocks(2, 8, 3, 3)}, "where m > 1 b even"),
            ({"oft_blocks": blocks(0, 4, 6, 6)}, "of rank 0, which changes nothing"),
            ({"oft_diag": blocks(4, 5, 5)}, "want oft_diag"),
            ({"oft_diag": blocks(4, 6, 6), "rescale": blocks(6, 4)}, r"want rescale \(4, 6, 1\), got \(6, 4\)"),
            ({"oft_R.weight": blocks(2, 14)}, r"want oft_R .* with k \* b = 12, got \(2, 14\)"),
            ({"oft_R.weight": blocks(3, 15)}, r"got \(3, 15\)"),
            ({"oft_R.weight": blocks(12, 0)}, "of rank 0, which changes nothing"),
            ({"boft_R": blocks(1, 3, 5, 5), "boft_s": blocks(24, 1)}, r"k \* b = 12"),
            ({"boft_R": blocks(1, 2, 6, 6), "boft_s": blocks(12, 1)}, r"want boft_s \(24, 1\), got \(12, 1\)"),
            ({"hra_u": blocks(24, 4)}, r"want hra_u \(12, r\), got \(24, 4\)"),
            ({"weight": blocks(12), "on_input": torch.tensor(0)}, r"want weight of 24, got \(12\)"),
            ({"weight": blocks(24), "on_input": torch.tensor(1)}, r"want weight of 12, got \(24\)"),
            ({"ia3_l": blocks(12, 1)}, r"want ia3_l of 24, got \(12, 1\)"),
        ],
    )
    def test_says_what_was_wanted(self, params, text):
        with pytest.raises(ValueError, match=text):
            adapter(params)

    def test_one_name_is_two_kinds_by_its_dimensions(self):
        assert recipe_of({"oft_blocks": (4, 6, 6)}).name == "diag_oft"
        assert recipe_of({"oft_blocks": (2, 4, 6, 6)}).name == "boft"
        assert recipe_of({"oft_blocks": (6, 6)}) is None
        assert recipe_of({"oft_blocks.0": (4, 6, 6), "oft_blocks.2": (4, 6, 6)}) is None

    def test_a_square_convolution_of_peft_is_scaled_on_its_output_unless_it_is_feed_forward(self):
        """Its `ia3_l` has one shape for both."""
        site, params = Site((24, 24, 3, 3), "conv"), {"ia3_l": 1 + blocks(1, 24, 1, 1)}
        forms = [
            adapter(params, site, "peft", {"target_modules": ["a"], "feedforward_modules": inputs}, module="b.a").form()
            for inputs in ([], ["a"])
        ]
        assert [form.on_input for form in forms] == [False, True]
