"""The rows of one batch have LoRA of their own: each is what it would be alone."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lib_lora import Engine, Entry, Halves, PerImage, RowsError, Stack, StackError, plan
from lib_lora.execution.dense import DenseExecutor
from lib_lora.execution.hooks import slot_of
from lib_lora.strengths.model_call import CallSettings, ModelCall, Row
from tests.covering import some_of
from tests.fakes.contract import CASES, FILE, by_recipe, worst, write
from tests.fakes.files import pair, save
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import LAYERS, Model, make, weight_of
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs
from tests.lib_lora.test_calls import METADATA

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest error over the largest value, to the same image by itself."""

FIRST = (1.0, 0.0, -0.7, 0.0)
SECOND = (0.0, 0.0, 1.5, 0.6)
"""Of two files, for each of four images; the second image has neither."""


class Batched(nn.Module):
    """A layer called as part of a denoiser: rows first, whatever the layer's own order."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, sample: Tensor) -> Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            x = sample.transpose(0, 1)
            attended: Tensor = self.layer(x, x, x, need_weights=False)[0]
            return attended.transpose(0, 1)
        result: Tensor = self.layer(sample)
        return result


def of_rows(rows: int, **options: object) -> ModelCall:
    return ModelCall((torch.zeros(rows, 4),), {"transformer_options": options} if options else {})


def four_rows(name: str, dtype: torch.dtype) -> Tensor:
    """Return an input of four rows for a layer of `fakes.layers`."""
    kind, _, size = LAYERS[name]
    unbatched = "unbatched" in name or len(size) == 1
    if kind == "embedding":
        return torch.randint(0, 50, (4, *size[1:]))
    if kind == "attention":
        return torch.randn(4, size[0], size[2], dtype=dtype)
    return torch.randn(4, *(size if unbatched else size[1:]), dtype=dtype)


def same(got: Tensor, want: Tensor, bound: float) -> None:
    assert got.shape == want.shape
    assert worst(got, want) < bound


def alone(engine: Engine, model: nn.Module, x: Tensor, entries: Sequence[Entry], image: int, **how: bool) -> Tensor:
    """Return the output of one image by itself, with its own strengths as plain ones."""
    engine.activate(Stack([Entry(entry.path, entry.strength("unet", image)) for entry in entries], **how))
    return model(x)


@torch.no_grad()
def check_rows(
    base: Model, layer: str, dtype: torch.dtype, paths: Sequence[Path], bound: float, *, in_order: bool = False
) -> None:
    model, x = Batched(base.layer), four_rows(layer, dtype)
    plain = model(x)
    engine = Engine({"unet": model})
    entries = [Entry(path, PerImage(own)) for path, own in zip(paths, (FIRST, SECOND), strict=True)]
    engine.activate(Stack(entries, in_order=in_order))
    got = model(x)
    same(got[1], plain[1], bound)
    for image in range(4):
        same(
            got[image : image + 1],
            alone(engine, model, x[image : image + 1], entries, image, in_order=in_order),
            bound,
        )
        if image != 1:
            assert worst(got[image], plain[image]) > 1e-3, "the adapters must show"
    engine.deactivate()
    assert torch.equal(model(x), plain)


class Windows(nn.Module):
    """A layer that is called with several rows for each row of the model."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, sample: Tensor) -> Tensor:
        rows, _, width = sample.shape
        windows: Tensor = self.layer(sample.reshape(2 * rows, -1, width))
        return windows.reshape(rows, -1, windows.shape[-1])


def of_eight(folder: Path) -> list[Entry]:
    """Return eight LoRA for eight images: image 7 has none, image 6 two; ranks differ."""
    files = [save(folder / f"{i}.safetensors", pair("lora_unet_layer", (40, 48), 3 + i % 3, seed=i)) for i in range(8)]
    own = [[float(image == i) * (0.5 + i / 8) for image in range(8)] for i in range(8)]
    own[7], own[6][6] = [float(image == 6) for image in range(8)], -0.5
    return [Entry(path, PerImage(strengths)) for path, strengths in zip(files, own, strict=True)]


@torch.no_grad()
@pytest.mark.parametrize("wrap", [Batched, Windows])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_row_is_charged_for_its_own_lora_alone(tmp_path, wrap, dtype):
    layer = nn.Linear(48, 40).to(dtype)
    model, x = wrap(layer), torch.randn(16, 12, 48, dtype=dtype)
    entries, bound = of_eight(tmp_path), {torch.bfloat16: 3e-2}.get(dtype, BOUNDS.get(dtype, 0.0))
    engine, want = Engine({"unet": model}), []
    for row in range(16):
        want.append(alone(engine, model, x[row : row + 1], entries, row % 8))
    with FlopCounterMode(display=False) as plain:
        engine.activate(Stack([Entry(entries[2].path, 0.8)]))
        model(x)
    engine.activate(Stack(entries))
    for _ in range(2):
        with FlopCounterMode(display=False) as mixed:
            got = model(x)
        same(got, torch.cat(want), bound)
    assert mixed.get_total_flops() < 1.3 * plain.get_total_flops()
    swapped = [replace(one, multiplier=PerImage(one.multiplier.multipliers[::-1])) for one in entries]
    engine.activate(Stack(swapped))
    same(model(x.flip(0)).flip(0), torch.cat(want), bound)


ONE_OF_EACH = by_recipe(
    [case for case in CASES if case.values[1] in ("linear", "conv 3x3, stride", "group norm", "attention q")]
)


@pytest.mark.parametrize(("sample", "layer", "dtype"), by_recipe(CASES, [torch.float64, torch.float32]))
def test_a_row_is_its_image_alone(tmp_path, sample, layer, dtype):
    base, _ = make(layer, dtype)
    shape = tuple(weight_of(base, layer).shape)
    paths = [write(tmp_path, sample, layer, shape, seed)[0] for seed in (0, 1)]
    # alone a row of many tokens takes an effective weight, whose rotations are solved in fp32
    dense = layer == "linear, many tokens"
    check_rows(base, layer, dtype, paths, max(BOUNDS[dtype], FILE if dense else 0.0))


@pytest.mark.parametrize(
    ("sample", "layer", "in_order"),
    [
        pytest.param(*case.values, in_order, id=f"{case.id}-{'in order' if in_order else 'summed'}")
        for case in ONE_OF_EACH
        for in_order in ((False,) if case.values[0].additive else (False, True))
    ],
)
def test_effective_weights_are_a_pass_for_each_image(tmp_path, sample, layer, in_order, monkeypatch):
    monkeypatch.setattr(
        plan,
        "live_executor",
        lambda _, bindings, strengths, in_order, **__: DenseExecutor(bindings, strengths, in_order=in_order),
    )
    base, _ = make(layer)
    shape = tuple(weight_of(base, layer).shape)
    paths = [write(tmp_path, sample, layer, shape, seed)[0] for seed in (0, 1)]
    check_rows(base, layer, torch.float64, paths, BOUNDS[torch.float64], in_order=in_order)


@pytest.mark.parametrize("layer", ["linear", "conv 3x3, stride"])
def test_kinds_of_every_part_share_a_layer(tmp_path, layer):
    """A pair, changes of the input and the output and of the bias, each with strengths of their own."""
    base, _ = make(layer)
    shape = tuple(weight_of(base, layer).shape)
    names = {one.recipe: one for one in reversed(SAMPLES) if LAYERS[layer][0] in one.layers}
    kinds = [names[name] for name in ("lora", "glora", "diag_oft", "boft", "lora+bias", "lora+dora") if name in names]
    assert len(kinds) >= 5
    model, x = Batched(base.layer), four_rows(layer, torch.float64)
    entries = []
    for i, kind in enumerate(kinds):
        own = [0.3, 0.0, -0.5, 0.9][i % 4 :] + [0.3, 0.0, -0.5, 0.9][: i % 4]
        entries.append(Entry(write(tmp_path, kind, layer, shape, i)[0], PerImage(tuple(own))))
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    got = model(x)
    for image in range(4):
        same(got[image : image + 1], alone(engine, model, x[image : image + 1], entries, image), 1e-12)


class Denoiser(nn.Module):
    """Layers of three kinds, called as hosts call theirs; `frames` are folded into the rows of the layers."""

    def __init__(self, frames: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.frames = frames
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
        self.norm = nn.GroupNorm(2, 8)
        self.linear = nn.Linear(8, 8)
        self.double().requires_grad_(False)

    def forward(self, sample: Tensor | list[Tensor], timestep: Tensor | int | None = None) -> Tensor:
        x = torch.stack(sample) if isinstance(sample, list) else sample  # (rows, 8, frames * 4, 4)
        rows = x.shape[0]
        x = x.unflatten(2, (self.frames, 4)).movedim(2, 1).flatten(0, 1)
        h = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return self.linear(h).unflatten(0, (rows, self.frames)).flatten(1)


def file_for(folder: Path, seed: int, groups: int = 1, metadata: dict[str, str] | None = None) -> Path:
    tensors = pair("lora_unet_conv", (8, 8 // groups, 3, 3), 4, seed=seed, alpha=4, size=0.4)
    tensors |= pair("lora_unet_linear", (8, 8), 4, seed=seed + 10, alpha=4, size=0.4)
    generator = torch.Generator().manual_seed(seed)
    if metadata is None:
        tensors |= {f"lora_unet_norm.{name}": torch.randn(8, generator=generator) for name in ("w_norm", "b_norm")}
    return save(folder / f"{seed}.safetensors", tensors, metadata)


@pytest.fixture
def entries(tmp_path) -> list[Entry]:
    """Three images: the first file, both, none."""
    multipliers = ((0.8, 0.5, 0.0), (0.0, -0.6, 0.0))
    return [Entry(file_for(tmp_path, seed), PerImage(own)) for seed, own in enumerate(multipliers)]


def singles(model: Denoiser, x: Tensor, entries: Sequence[Entry], images: Sequence[int], **how: bool) -> Tensor:
    """Each row by itself, with the strengths of its image."""
    engine = Engine({"unet": model})
    rows = [alone(engine, model, x[i : i + 1], entries, image, **how) for i, image in enumerate(images)]
    engine.close()
    return torch.cat(rows)


def input_for(rows: int, frames: int = 1) -> Tensor:
    return torch.randn(rows, 8, 4 * frames, 4, dtype=torch.float64)


@pytest.mark.parametrize("rows", [3, 6, 9])
def test_whole_batches_follow_each_other(entries, rows):
    """As hosts put the negative prompt's half before the positive's."""
    model, x = Denoiser(), input_for(rows)
    want = singles(model, x, entries, [row % 3 for row in range(rows)])
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    same(model(x), want, 1e-12)


def test_a_list_of_images_has_a_row_each(entries):
    model, x = Denoiser(), input_for(3)
    want = singles(model, x, entries, range(3))
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    same(model(list(x)), want, 1e-12)
    same(model(sample=x), want, 1e-12)


@pytest.mark.parametrize("images", [*permutations(range(3)), (2, 2, 0), (1, 1, 1), (0, 1), (2,), (0, 0, 1, 1, 2, 2)])
def test_a_host_tells_the_rows(entries, images):
    model, x = Denoiser(), input_for(len(images))
    want = singles(model, x, entries, images)
    asked: list[int] = []
    engine = Engine({"unet": model})
    engine.set_rows(lambda rows: asked.append(rows) or images)
    engine.activate(Stack(entries))
    same(model(x), want, 1e-12)
    assert asked == [len(images)]
    engine.set_rows(None)
    if len(images) == 3:
        same(model(x), singles_of(engine, model, x, entries), 1e-12)


def singles_of(engine: Engine, model: Denoiser, x: Tensor, entries: Sequence[Entry]) -> Tensor:
    engine.deactivate()
    want = singles(model, x, entries, range(3))
    engine.activate(Stack(entries))
    return want


@pytest.mark.parametrize("groups", [1, 2])
def test_frames_lie_behind_their_row(tmp_path, groups):
    model, x = Denoiser(frames=5, groups=groups), input_for(4, 5)
    entries = [Entry(file_for(tmp_path, seed, groups), PerImage(own)) for seed, own in enumerate([(1, 0), (0.5, 2)])]
    want = singles(model, x, entries, (0, 1, 0, 1))
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    same(model(x), want, 1e-12)


def test_uniform_after_mixed_has_the_bits_of_a_fresh_run(entries):
    model, x = Denoiser(), input_for(3)
    plain = model(x)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(entry.path, 0.7) for entry in entries]))
    fresh = model(x)
    engine.activate(Stack(entries))
    mixed = model(x)
    engine.activate(Stack([Entry(entry.path, 0.7) for entry in entries]))
    assert torch.equal(model(x), fresh)
    assert not model._forward_pre_hooks_with_kwargs
    engine.activate(Stack(entries))
    assert torch.equal(model(x), mixed)
    engine.set_rows(lambda rows: [1] * rows)
    one = model(x)
    engine.set_rows(None)
    assert torch.equal(model(x), mixed)
    engine.activate(Stack([Entry(entry.path, entry.strength("unet", 1)) for entry in entries]))
    assert torch.equal(model(x), one), "rows of one image are a plain batch"
    engine.deactivate()
    assert torch.equal(model(x), plain)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_strengths_on_cuda_are_written_at_once_as_a_captured_graph_does_not_ask(entries, monkeypatch, kind):
    monkeypatch.setattr("lib_lora.strengths.table.may_compile", bool)
    model = Denoiser()
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    model(input_for(3))
    table = engine._plan.strengths
    table._matrices = {(torch.device(kind), dtype): one for (_, dtype), one in table._matrices.items()}
    before = [one.clone() for one in table._matrices.values()]
    engine.set_multiplier(0, 1.1)
    pairs = zip(table._matrices.values(), before, strict=True)
    assert [torch.equal(now, one) for now, one in pairs] == [kind == "cpu"] * len(before)
    assert table.stale == (kind == "cpu")


def test_a_strength_in_a_mixed_batch_is_numbers_only(entries):
    model, x = Denoiser(), input_for(3)
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    first = model(x)
    layers = (model.conv, model.norm, model.linear)
    ways = [slot_of(layer).executor for layer in layers]
    placed = [way._placed for way in ways]
    matrices = [rows.data_ptr() for rows in engine._plan.strengths._matrices.values()]
    engine.set_multiplier(1, PerImage((0.0, -0.6, 0.4)))
    second = model(x)
    assert matrices == [rows.data_ptr() for rows in engine._plan.strengths._matrices.values()]
    assert torch.equal(second[:2], first[:2])
    assert not torch.equal(second[2], first[2])
    assert [slot_of(layer).executor for layer in layers] == ways
    assert all(way._placed is before for way, before in zip(ways, placed, strict=True))
    engine.set_multiplier(0, 1.1)
    engine.set_multiplier(1, 0.3)
    assert engine.stack.images == 1
    plain = model(x)
    engine.set_multiplier(1, PerImage((0.3, 0.3, 0.0, 0.1)))
    four = input_for(4)
    changed = [engine.stack.entries[0], engine.stack.entries[1]]
    got = model(four)
    engine.close()
    same(got, singles(model, four, changed, range(4)), 1e-12)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(entries[0].path, 1.1), Entry(entries[1].path, 0.3)]))
    assert torch.equal(model(x), plain)


def test_ranks_by_timestep_hold_for_every_row(tmp_path):
    model, x = Denoiser(), input_for(3)
    multipliers = ((0.8, 0.5, 0.0), (0.0, -0.6, 0.3))
    scheduled = [
        Entry(file_for(tmp_path, seed, metadata=METADATA), PerImage(own)) for seed, own in enumerate(multipliers)
    ]
    engine, outputs = Engine({"unet": model}), []
    for timestep in (999, 500, 500, 0):
        engine.activate(Stack(scheduled))
        got = model(x, timestep)
        outputs.append(got)
        for image in range(3):
            own = [Entry(entry.path, entry.strength("unet", image)) for entry in scheduled]
            engine.activate(Stack(own))
            same(got[image : image + 1], model(x[image : image + 1], timestep), 1e-12)
    assert torch.equal(outputs[1], outputs[2])
    assert worst(outputs[0], outputs[1]) > 1e-3
    engine.activate(Stack(scheduled))
    for timestep, want in zip((999, 500, 0), (outputs[0], outputs[1], outputs[3]), strict=True):
        assert torch.equal(model(x, torch.tensor(timestep)), want), "from step to step within one activation"


@torch.inference_mode()
def test_calls_in_inference_mode_leave_strengths_that_can_be_written(entries):
    model, x = Denoiser(), input_for(3)
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    got = model(x)
    with torch.inference_mode(False):
        engine.set_multiplier(0, PerImage((0.1, 0.2, 0.3)))
        engine.set_multiplier(0, entries[0].multiplier)
        model(input_for(3))
        engine.set_rows(lambda _: (2, 1, 0))
        model(input_for(3))
    engine.set_rows(None)
    assert torch.equal(model(x), got)


@torch.no_grad()
@some_of(
    ("rows", "strengths", "dtype"),
    [(0, 1, 2), (0, 0, 1, 1, 2, 2), (0, 1, 2, 0, 1, 2), (1, 2, 1, 0, 0, 2)],
    [
        pytest.param([(0.5, 1.0, 0.0)], id="in proportion"),
        pytest.param([(1.0, -0.6, 0.9), (0.5, -0.3, 0.45)], id="two in proportion"),
        pytest.param([(1.0, 0.0, 0.5), (0.0, 1.0, 0.7)], id="apart"),
        pytest.param([(1.0, 0.4, 0.5), (0.5, 0.3, 0.25)], id="partly"),
    ],
    [torch.float64, torch.float32, torch.bfloat16],
)
def test_rows_of_many_tokens_have_strengths_of_their_own(tmp_path, rows, dtype, strengths):
    base = nn.Linear(24, 40).to(dtype).requires_grad_(False)
    model = Batched(base)
    files = []
    for i in range(len(strengths)):
        tensors = pair("lora_unet_layer", (40, 24), 4, seed=i) | {"lora_unet_layer.diff_b": torch.randn(40)}
        files.append(save(tmp_path / f"{i}.safetensors", tensors))
    engine = Engine({"unet": model})
    engine.set_rows(lambda count: rows[:count])
    x = torch.randn(len(rows), 170, 24).to(dtype)
    alone = []
    for image in range(3):
        engine.activate(Stack([Entry(file, own[image]) for file, own in zip(files, strengths, strict=True)]))
        alone.append(model(x))
    engine.activate(Stack([Entry(file, PerImage(own)) for file, own in zip(files, strengths, strict=True)]))
    got = model(x)
    for i, image in enumerate(rows):
        assert worst(got[i], alone[image][i]) < {**BOUNDS, torch.bfloat16: 2**-7}[dtype]
    assert worst(model(x[:, :3]), got[:, :3]) < {**BOUNDS, torch.bfloat16: 2**-7}[dtype]
    engine.set_rows(lambda count: (0, 1, 2))
    with pytest.raises(RowsError):
        model(torch.randn(4, 170, 24).to(dtype))


class TestTextEncoders:
    """Hosts encode image by image, and say which it is."""

    @pytest.fixture
    def encoder(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)

    @pytest.fixture
    def stack(self, tmp_path) -> Stack:
        tensors = pair("lora_unet_linear", (8, 8), 4) | pair("lora_te_0", (8, 8), 4, seed=1, size=0.5)
        file = save(tmp_path / "both.safetensors", tensors)
        return Stack([Entry(file, PerImage((1.0, {"unet": 0.5}, {"text_encoder": -0.5})))])

    def test_one_image_at_a_time(self, encoder, stack):
        model, x, tokens = Denoiser(), input_for(3), torch.randn(3, 8)
        engine = Engine({"unet": model, "text_encoder": encoder})
        plain, want = encoder(tokens), []
        for image in range(3):
            engine.activate(Stack([Entry(stack.entries[0].path, stack.entries[0].multiplier.multipliers[image])]))
            want.append(encoder(tokens))
        assert torch.equal(want[1] + 0.0, plain + 0.0)
        engine.activate(stack)
        each = torch.cat([want[image][image : image + 1] for image in range(3)])
        same(encoder(tokens), each, 1e-6)  # a row for each image until one is chosen
        for image in (2, 1, 0, 2):
            engine.use_image(image)
            assert torch.equal(encoder(tokens), want[image])
            model(x)  # whose rows are of all images
            assert torch.equal(encoder(tokens), want[image])
        with pytest.raises(RowsError):
            model(input_for(4))
        assert torch.equal(encoder(tokens), want[2])
        engine.activate(stack)
        same(encoder(tokens), each, 1e-6)  # an activation begins anew
        engine.use_image(1)
        engine.use_image(None)
        same(encoder(tokens), each, 1e-6)

    def test_a_failed_call_of_the_model_leaves_the_chosen_image(self, encoder, stack):
        model, tokens = Denoiser(), torch.randn(3, 8)
        engine = Engine({"unet": model, "text_encoder": encoder})
        engine.activate(stack)
        engine.use_image(2)
        want = encoder(tokens)
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 5, 4, 4, dtype=torch.float64))
        assert torch.equal(encoder(tokens), want)

    def test_an_image_must_be_there(self, encoder, stack):
        model = Denoiser()
        engine = Engine({"unet": model, "text_encoder": encoder})
        engine.use_image(7)  # with nothing in force, and below, where images do not differ, all are the same
        engine.activate(stack)
        with pytest.raises(RowsError, match="no image 3; the stack has 3"):
            engine.use_image(3)
        with pytest.raises(RowsError):
            engine.use_image(-1)
        tokens = torch.randn(3, 8)
        engine.use_image(0)
        want = encoder(tokens)
        engine.use_image(2)
        assert not torch.equal(encoder(tokens), want)
        engine.set_multiplier(0, 1.0)
        assert torch.equal(encoder(tokens), want), "the one that all have now"
        engine.use_image(3)
        assert torch.equal(encoder(tokens), want)


class TestRefusals:
    """What does not fit is said before anything is computed, and nothing stays behind."""

    def test_rows_that_are_no_whole_batches(self, entries):
        model = Denoiser()
        engine = Engine({"unet": model})
        engine.activate(Stack(entries))
        with pytest.raises(RowsError, match="4 rows holds no whole batches of the stack's 3 images"):
            model(input_for(4))
        assert model(input_for(3)).isfinite().all()

    def test_another_number_of_rows_than_was_told(self, entries):
        model = Denoiser()
        engine = Engine({"unet": model})
        engine.set_rows(lambda _: (0, 1))
        engine.activate(Stack(entries))
        with pytest.raises(RowsError, match="has 3 rows, and 2 were told"):
            model(input_for(3))

    @pytest.mark.parametrize("strange", [3, -1])
    def test_an_image_that_is_not_there(self, entries, strange):
        model = Denoiser()
        engine = Engine({"unet": model})
        engine.set_rows(lambda rows: [strange] * rows)
        engine.activate(Stack(entries))
        with pytest.raises(RowsError, match=f"of image {strange}; the stack has 3"):
            model(input_for(3))

    def test_a_call_without_rows(self, entries):
        model = Denoiser()
        model.forward = lambda **_: None  # type: ignore[method-assign]
        engine = Engine({"unet": model})
        engine.activate(Stack(entries))
        with pytest.raises(RowsError, match="rows of a model call are unknown"):
            model(other=input_for(3))

    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize(("shape", "text"), [((8, 4, 4), r"\(8, 4, 4\)"), ((4, 8, 4, 4), r"\(4, 8, 4, 4\)")])
    def test_a_layer_with_an_input_of_other_rows(self, tmp_path, groups, shape, text):
        entries = [Entry(file_for(tmp_path, 0, groups), PerImage((1.0, 0.5, 0.0)))]
        model = Denoiser(groups=groups)
        engine = Engine({"unet": model})
        engine.activate(Stack(entries))
        outer = model.forward
        model.forward = lambda _: model.conv(torch.randn(shape, dtype=torch.float64))  # type: ignore[method-assign]
        with pytest.raises(RowsError, match=rf"input {text} of a Conv2d cannot be divided among 3 rows"):
            model(input_for(3))
        model.forward = outer  # type: ignore[method-assign]

    def test_a_linear_layer_without_a_batch(self, entries):
        model = Denoiser()
        engine = Engine({"unet": model})
        engine.activate(Stack(entries))
        model.forward = lambda _: model.linear(torch.randn(8).double())  # type: ignore[method-assign]
        with pytest.raises(RowsError, match=r"\(8,\) of a Linear"):
            model(input_for(3))


class TestValues:
    """Multipliers per image as values."""

    def test_equal_ones_are_one(self, tmp_path):
        assert Entry("a", PerImage((0.5, 0.5))).multiplier == 0.5
        assert Entry("a", np.float32(0.5)).multiplier == 0.5  # type: ignore[arg-type]
        assert Entry("a", {"unet": np.int64(2)}).multiplier == {"unet": 2.0}  # type: ignore[dict-item]
        assert Entry("a", PerImage(({"unet": 1.0}, {"unet": 1}))).multiplier == {"unet": 1.0}
        assert Stack([Entry("a", PerImage((1, 1, 1)))]).images == 1
        assert Stack().images == 1
        assert Stack([Entry("a"), Entry("b", PerImage([0, 1]))]).images == 2  # type: ignore[arg-type]
        assert len({Entry("a", PerImage((0, 1))), Entry("a", PerImage((0, 1.0)))}) == 1

    def test_strength_of_an_image(self):
        entry = Entry("a", PerImage((0.5, {"text_encoder": 2.0})))
        assert [entry.strength(name, i) for i in range(2) for name in ("unet", "text_encoder_2")] == [0.5, 0.5, 0, 2]
        assert Entry("a", 0.7).strength("unet", 5) == 0.7

    def test_what_cannot_be(self, tmp_path):
        with pytest.raises(StackError, match="no image at all"):
            PerImage(())
        for wrong in (np.float32("nan"), np.float32("-inf"), 10**400, True, "1"):
            with pytest.raises(StackError, match="a: multiplier must be a finite number"):
                Entry("a", wrong)
        with pytest.raises(StackError, match="image 1: multiplier must be a finite number"):
            Entry("a", PerImage((1.0, float("nan"))))
        with pytest.raises(StackError, match="b: multipliers for 3 images, and an entry before has 2") as failed:
            Stack([Entry("x"), Entry("a", PerImage((0, 1))), Entry("b", PerImage((0, 1, 2)))])
        assert failed.value.index == 2

    def test_a_component_that_is_not_there(self, entries):
        engine = Engine({"unet": Denoiser()})
        with pytest.raises(StackError, match="no component 'vae'"):
            engine.activate(Stack([Entry(entries[0].path, PerImage((1.0, {"vae": 1.0})))]))

    def test_set_multiplier_of_another_number_leaves_what_was(self, entries):
        model, x = Denoiser(), input_for(3)
        engine = Engine({"unet": model})
        engine.activate(Stack(entries))
        want = model(x)
        with pytest.raises(StackError, match="multipliers for 2 images"):
            engine.set_multiplier(1, PerImage((0.0, 1.0)))
        assert torch.equal(model(x), want)


def test_rows_of_equal_strengths_share_an_effective_weight(entries, monkeypatch):
    model, x = Denoiser(groups=2), input_for(8)
    file = save(entries[0].path.with_name("grouped.safetensors"), pair("lora_unet_conv", (8, 4, 3, 3), 4))
    built: list[int] = []
    effective = DenseExecutor._effective
    monkeypatch.setattr(
        DenseExecutor, "_effective", lambda self, *args, **how: built.append(1) or effective(self, *args, **how)
    )
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file, PerImage((0.5, 0.0, 0.5, -1.0)))]))
    model(x)
    assert len(built) == 2, "none for the images that have no LoRA"


def test_a_layer_on_which_images_agree_is_not_divided(tmp_path):
    """Here a convolution of one row, which all share, while the linear layer's strengths differ."""
    model, x = Denoiser(groups=2), torch.randn(1, 8, 4, 4, dtype=torch.float64)
    files = [
        save(tmp_path / "a.safetensors", pair("lora_unet_conv", (8, 4, 3, 3), 4)),
        save(tmp_path / "b.safetensors", pair("lora_unet_linear", (8, 8), 4)),
    ]
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(files[0], 0.5)]))
    want = model.conv(x)
    engine.activate(Stack([Entry(files[0], 0.5), Entry(files[1], PerImage((1.0, 0.5)))]))
    model.forward = lambda sample: model.conv(x)  # type: ignore[method-assign]
    assert torch.equal(model(input_for(2)), want)


def test_images_that_differ_are_not_merged(entries):
    model, x = Denoiser(), input_for(3)
    weight = model.conv.weight.clone()
    want = singles(model, x, entries, range(3))
    engine = Engine({"unet": model})
    report = engine.activate(Stack(entries, mode="merged"))
    assert report.merged == 0
    assert dict(report.live) == {"the images of the batch have LoRA of their own": 3}
    same(model(x), want, 1e-12)
    assert torch.equal(model.conv.weight, weight)


def test_images_that_begin_or_cease_to_differ_are_merged_by_it(entries):
    model, x = Denoiser(), input_for(3)
    plain, weight = model(x), model.conv.weight.clone()
    engine = Engine({"unet": model})
    engine.activate(Stack(entries, mode="merged"))
    engine.set_multiplier(0, 0.5)
    engine.set_multiplier(1, 0.5)
    assert not torch.equal(model.conv.weight, weight), "merged as soon as they are the same"
    merged = model(x)
    engine.set_multiplier(1, PerImage((0.5, 0.0, 0.5)))
    assert torch.equal(model.conv.weight, weight)
    got = model(x)
    same(got[[0, 2]], merged[[0, 2]], 1e-6)
    assert worst(got[1], merged[1]) > 1e-3
    engine.deactivate()
    assert torch.equal(model(x), plain)


@pytest.mark.parametrize("storage", ["bfloat16", "float8"])
def test_storage_of_fewer_bytes(tmp_path, storage):
    model, x = Denoiser(groups=2), input_for(3)
    entries = [Entry(file_for(tmp_path, seed, 2), PerImage(own)) for seed, own in enumerate([(1, 0, 0), (0.5, 2, 0)])]
    engine = Engine({"unet": model}, storage=storage)
    engine.activate(Stack(entries))
    got = model(x)
    for image in range(3):
        same(got[image : image + 1], alone(engine, model, x[image : image + 1], entries, image), 1e-12)


class Fused(nn.Module):
    """Attention as text encoders of SDXL have it, with masks."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.double().requires_grad_(False)

    def forward(self, x: Tensor, **masks: Tensor | bool) -> tuple[Tensor, Tensor | None]:
        own = x if self.attention.batch_first else x.transpose(0, 1)
        output, weights = self.attention(own, own, value=own, **masks)
        return output if self.attention.batch_first else output.transpose(0, 1), weights


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masks", ["none", "padding", "square", "of each head"])
def test_attention_with_masks_is_divided(tmp_path, batch_first, masks):
    model, x = Fused(batch_first=batch_first), torch.randn(4, 4, 8, dtype=torch.float64)
    file = save(tmp_path / "a.safetensors", pair("lora_unet_attention_q_proj", (8, 8), 4, size=0.8))
    padding = torch.zeros(4, 4, dtype=torch.bool)
    padding[1, 3] = padding[2, 0] = True
    given = {
        "none": lambda rows: {},
        "padding": lambda rows: {"key_padding_mask": padding[rows]},
        "square": lambda rows: {"attn_mask": torch.ones(4, 4, dtype=torch.bool).triu(1)},
        "of each head": lambda rows: {"attn_mask": scores[2 * rows.start : 2 * rows.stop]},
    }[masks]
    scores = torch.randn(8, 4, 4, dtype=torch.float64)
    own = (0.0, 1.0, -1.0, 0.0)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file, PerImage(own))]))
    output, weights = model(x, **given(slice(0, 4)))
    for image in range(4):
        row = slice(image, image + 1)
        engine.activate(Stack([Entry(file, own[image])]))
        want, attended = model(x[row], **given(row))
        same(output[row], want, 1e-12)
        assert weights is not None
        same(weights[row], attended, 1e-12)


@torch.no_grad()
def test_attention_without_a_batch_says_so(tmp_path):
    model, x = Fused(batch_first=True), torch.randn(4, 4, 8, dtype=torch.float64)
    file = save(tmp_path / "a.safetensors", pair("lora_unet_attention_q_proj", (8, 8), 4))
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file, PerImage((0.0, 1.0, -1.0, 0.0)))]))
    model.forward = lambda x: model.attention(x[0], x[0], x[0])  # type: ignore[method-assign]
    with pytest.raises(RowsError, match=r"\(4, 8\) of a MultiheadAttention cannot be divided"):
        model(x)


@torch.no_grad()
def test_a_unet_with_three_images_and_their_negatives(tmp_path):
    unet = tiny_unet(0).double()
    files = [
        kohya_lora(tmp_path / f"{seed}.safetensors", {"unet": unet}, seed=seed, conv=bool(seed)) for seed in range(2)
    ]
    entries = [Entry(files[0], PerImage((1.0, 0.0, -0.5))), Entry(files[1], PerImage((0.0, 0.0, 0.9)))]
    inputs = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in unet_inputs(0, batch=6).items()
    }
    engine = Engine({"unet": unet})
    plain = unet(**inputs)[0]
    engine.activate(Stack(entries))
    got = unet(**inputs)[0]
    assert worst(got[[1, 4]], plain[[1, 4]]) < 1e-10
    for image in range(3):
        half = {
            name: value[[image, image + 3]] if isinstance(value, Tensor) and value.ndim else value
            for name, value in inputs.items()
        }
        engine.activate(Stack([Entry(entry.path, entry.strength("unet", image)) for entry in entries]))
        want = unet(**half)[0]
        assert worst(got[[image, image + 3]], want) < 1e-10
        assert image == 1 or worst(want, plain[[image, image + 3]]) > 1e-2


def test_nothing_listens_once_the_engine_is_gone(entries):
    model = Denoiser()
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    del engine
    gc.collect()
    assert not model._forward_pre_hooks_with_kwargs
    assert not model._forward_hooks
    assert model(input_for(1)).isfinite().all()


@given(st.integers(1, 6), st.integers(1, 4))
def test_the_default_rule_covers_every_image_equally(images, batches):
    rows = CallSettings().rows_of(of_rows(images * batches), images)[0]
    assert rows == tuple(range(images)) * batches
    if images > 1:
        with pytest.raises(RowsError):
            CallSettings().rows_of(of_rows(images * batches + 1), images)


# --- positive and negative prompts ---

HALVES = Halves(0.8, -0.5)


def halves(rows: int) -> list[Row]:
    """As diffusers lays them out: the negative half first."""
    return [Row(row % (rows // 2), row < rows // 2) for row in range(rows)]


@pytest.mark.parametrize(("sample", "layer"), by_recipe(CASES))
def test_the_halves_of_a_call_have_strengths_of_their_own(tmp_path, sample, layer):
    """Row by row what each is at its strength alone, for every kind on every layer."""
    base, _ = make(layer, torch.float32)
    model, x = Batched(base.layer), four_rows(layer, torch.float32)
    path, _ = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    served = Engine({"unet": model})
    want = []
    with torch.no_grad():
        for strength in (-0.5, 0.8):
            served.activate(Stack([Entry(path, strength)]))
            want.append(model(x))
        served.set_rows(halves)
        served.activate(Stack([Entry(path, HALVES)]))
        got = model(x)
    assert worst(got[:2], want[0][:2]) < BOUNDS[torch.float32]
    assert worst(got[2:], want[1][2:]) < BOUNDS[torch.float32]


def test_images_and_halves_go_together(tmp_path):
    model = tiny_unet(0)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": model})
    served, inputs = Engine({"unet": model}), unet_inputs(1, batch=4)
    multipliers = PerImage((HALVES, 1.0))
    with torch.no_grad():
        want = []
        for strength in (-0.5, 1.0, 0.8, 1.0):  # the negative prompts of both, then the positive ones
            served.activate(Stack([Entry(path, strength)]))
            want.append(model(**inputs)[0][len(want)])
        served.set_rows(halves)
        served.activate(Stack([Entry(path, multipliers)]))
        got = model(**inputs)[0]
    for row in range(4):
        assert worst(got[row], want[row]) < BOUNDS[torch.float32], row


def test_a_strength_of_one_half_alone_leaves_the_other_to_the_bit(tmp_path):
    model = tiny_unet(0)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": model})
    served, inputs = Engine({"unet": model}), unet_inputs(1, batch=2)
    with torch.no_grad():
        plain = model(**inputs)[0]
        served.set_rows(halves)
        served.activate(Stack([Entry(path, Halves(1.0, 0.0))]))
        got = model(**inputs)[0]
        assert worst(got[0], plain[0]) < 1e-6
        assert worst(got[1], plain[1]) > 1e-2
        # one that is the same in both is none
        assert Entry(path, Halves(0.5, 0.5)) == Entry(path, 0.5)
        served.set_multiplier(0, Halves(0.0, 1.0))
        got = model(**inputs)[0]
        assert worst(got[1], plain[1]) < 1e-6
        served.set_multiplier(0, 0.0)
        assert not model._forward_pre_hooks_with_kwargs
        assert torch.equal(model(**inputs)[0], plain)


def test_halves_are_told_by_the_host_or_by_the_call_or_are_an_error():
    settings = CallSettings()

    def variants(call: ModelCall, images: int, halved: bool = False) -> tuple[int, ...]:
        return settings.rows_of(call, images, halved=halved)[0]

    with pytest.raises(RowsError, match="unknown which of the 4 rows"):
        settings.rows_of(of_rows(4), 1, halved=True)
    assert variants(of_rows(4, cond_or_uncond=[1, 0]), 2, halved=True) == (1, 3, 0, 2)
    assert variants(of_rows(4, cond_or_uncond=[0]), 2, halved=True) == (0, 2, 0, 2)
    settings.rows = lambda count: [0] * count
    with pytest.raises(RowsError, match="unknown which"):
        settings.rows_of(of_rows(2), 1, halved=True)
    assert variants(of_rows(2), 1) == (0, 0)
    settings.rows = halves
    assert variants(of_rows(4), 2, halved=True) == (1, 3, 0, 2)
    assert variants(of_rows(4), 2) == (0, 1, 0, 1)
    assert variants(of_rows(4), 1, halved=True) == (1, 1, 0, 0)  # of a stack that is the same for all images
    assert variants(of_rows(4, cond_or_uncond=[0, 1]), 2, halved=True) == (0, 2, 1, 3)  # the call knows best


def test_a_stack_of_halves_is_not_merged(tmp_path):
    model = tiny_unet(0)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": model})
    report = Engine({"unet": model}).activate(Stack([Entry(path, HALVES)], mode="merged"))
    assert report.merged == 0
    assert "positive and negative prompts" in report.merging
