"""LoRA for a part of the picture: each place is what it would be if its LoRA were everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from lib_lora import (
    Curve,
    Engine,
    Entry,
    Halves,
    Moment,
    PerImage,
    Region,
    RegionError,
    Row,
    RowsError,
    Stack,
    Strength,
    plan,
)
from lib_lora.execution.dense import DenseExecutor
from lib_lora.naming.architectures._arguments import is_of_text
from lib_lora.strengths.regions import LatentGrid, TokenGrid
from tests.fakes.contract import CASES, by_recipe, worst, write
from tests.fakes.files import pair, save
from tests.fakes.layers import make, weight_of
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs

LEFT = Region.rectangle(0, 0, 0.5, 1)
RIGHT = LEFT.inverted()
TOP = Region.rectangle(0, 0, 1, 0.5)
HEIGHT, WIDTH = 6, 10
MULTIPLIERS = (0.8, -0.6)


class Denoiser(nn.Module):
    """A layer called as part of a UNet: on a map, or on its places as tokens."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, sample: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Conv2d | nn.GroupNorm):
            on_map: Tensor = self.layer(sample)
            return on_map
        y: Tensor = self.layer(sample.flatten(2).transpose(1, 2))
        return y.transpose(1, 2).unflatten(2, sample.shape[2:])


def plain_linear() -> nn.Linear:
    return nn.Linear(8, 12).double().requires_grad_(False)


def one_linear() -> Denoiser:
    return Denoiser(plain_linear())


NAMES = (
    "linear",
    "conv 1x1",
    "conv 3x3, stride",
    "conv 3x5, same, dilation, no bias",
    "conv grouped",
    "layer norm",
    "group norm",
    "rms norm",
)
REACH = {"conv 3x3, stride": 2, "conv 3x5, same, dilation, no bias": 4, "conv grouped": 1}
"""How far apart places may be that one output is made of."""
PLACED = [case for case in CASES if case.values[1] in NAMES]


def strength(multiplier: float, region: Region) -> Strength:
    return Strength(multiplier, region=region)


def inside(region: Region, like: Tensor, reach: int = 0) -> Tensor:
    """Which places of an output are wholly in a region, and so are those that they are made of."""
    weights = region.weights(like.shape[2], like.shape[3])
    worst_near = -F.max_pool2d(-weights[None, None], 2 * reach + 1, 1, reach)[0, 0]
    return worst_near > 0.999


@torch.no_grad()
def check(base: nn.Module, paths: Sequence[Path], x: Tensor, bound: float, reach: int) -> None:
    model = Denoiser(base)
    plain = model(x)
    engine = Engine({"unet": model})
    alone = []
    for path, multiplier in zip(paths, MULTIPLIERS, strict=True):
        engine.activate(Stack([Entry(path, multiplier)]))
        alone.append(model(x))
        assert worst(alone[-1], plain) > 1e-2, "the adapters must show"
    engine.activate(
        Stack([Entry(path, strength(m, r)) for path, m, r in zip(paths, MULTIPLIERS, (LEFT, RIGHT), strict=True)])
    )
    got = model(x)
    for region, want in zip((LEFT, RIGHT), alone, strict=True):
        places = inside(region, got, reach)
        assert places.any()
        assert worst(got[:, :, places], want[:, :, places]) < bound
    engine.deactivate()
    assert torch.equal(model(x), plain)


@pytest.fixture(params=["chosen", "transient"])
def way(request, monkeypatch):
    if request.param == "transient":
        monkeypatch.setattr(
            plan, "live_executor", lambda layer, bindings, strengths, **_: DenseExecutor(bindings, strengths)
        )
    return request.param


@pytest.mark.parametrize(("sample", "layer"), by_recipe(PLACED))
def test_each_side_has_its_own_lora(tmp_path, sample, layer, way):
    base, _ = make(layer)
    shape = tuple(weight_of(base, layer).shape)
    paths = [write(tmp_path, sample, layer, shape, seed)[0] for seed in (0, 1)]
    x = torch.randn(2, 24, 2 * HEIGHT, 2 * WIDTH, dtype=torch.float64)
    check(base.layer, paths, x, 1e-6, REACH.get(layer, 0))


@torch.no_grad()
@pytest.mark.parametrize(("sample", "layer"), by_recipe([case for case in PLACED if case.values[1] == "conv 1x1"]))
def test_a_map_may_be_of_one_place(tmp_path, sample, layer):
    """As that of the innermost layers is for a picture of 64 pixels."""
    base, _ = make(layer)
    path, _ = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    x = torch.randn(2, 24, 1, 1, dtype=torch.float64)
    model = Denoiser(base.layer)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.8)]))
    want = model(x)
    engine.activate(Stack([Entry(path, strength(0.8, Region.rectangle(0, 0, 1, 1)))]))
    assert worst(model(x), want) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layer", ["linear", "conv 3x3, stride", "group norm"])
def test_in_every_dtype(tmp_path, layer, dtype):
    cases = [case.values[0] for case in PLACED if case.values[1] == layer][:1]
    base, _ = make(layer, dtype)
    paths = [write(tmp_path, cases[0], layer, tuple(weight_of(base, layer).shape), seed)[0] for seed in (0, 1)]
    x = torch.randn(2, 24, 2 * HEIGHT, 2 * WIDTH, dtype=dtype)
    check(base.layer, paths, x, {torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype], 2)


def lora(folder: Path, seed: int, *, size: float = 0.4, **layers: tuple[int, ...]) -> Path:
    tensors: dict[str, Tensor] = {}
    for i, (name, shape) in enumerate(layers.items()):
        tensors |= pair(f"lora_unet_{name}", shape, 4, seed=seed + i, alpha=4, size=size)
    return save(folder / f"{seed}.safetensors", tensors)


@torch.no_grad()
@pytest.mark.parametrize("feather", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_a_weight_between_is_a_share_of_the_change(tmp_path, kind, feather, way):
    """y = W x + sum of w(place) m dW x, against the fp64 sum of its parts; the third file is everywhere."""
    base = nn.Linear(8, 12) if kind == "linear" else nn.Conv2d(8, 12, 3, padding=1)
    base.double().requires_grad_(False)
    model = Denoiser(base)
    paths = [lora(tmp_path, 10 * seed, layer=tuple(base.weight.shape)) for seed in range(3)]
    regions = [Region.rectangle(0.1, 0.2, 0.75, 0.9).feathered(feather), RIGHT.feathered(feather), None]
    x = torch.randn(3, 8, HEIGHT, WIDTH, dtype=torch.float64)
    plain = want = model(x)
    engine = Engine({"unet": model})
    for path, multiplier, region in zip(paths, (0.8, -0.6, 1.1), regions, strict=True):
        engine.activate(Stack([Entry(path, multiplier)]))
        share = 1.0 if region is None else region.weights(HEIGHT, WIDTH)
        want = want + (model(x) - plain) * share
    engine.activate(
        Stack(
            Entry(path, Strength(multiplier, region=region))
            for path, multiplier, region in zip(paths, (0.8, -0.6, 1.1), regions, strict=True)
        )
    )
    assert worst(model(x), want) < 1e-12


@torch.no_grad()
def test_images_halves_and_regions_go_together(tmp_path, way):
    """Two images, the positive half alone, and another region for each image."""
    model = one_linear()
    path, other = (lora(tmp_path, seed, layer=(12, 8)) for seed in (0, 10))
    own = [Halves(strength(0.8, LEFT), 0.0), Halves(strength(-0.6, RIGHT), 0.0)]
    x = torch.randn(4, 8, HEIGHT, WIDTH, dtype=torch.float64)
    rows = [Row(0), Row(1), Row(0, True), Row(1, True)]
    engine = Engine({"unet": model})
    plain = model(x)
    want = plain.clone()
    for i, (multiplier, region) in enumerate(((0.8, LEFT), (-0.6, RIGHT))):
        engine.activate(Stack([Entry(path, multiplier)]))
        want[i] += ((model(x) - plain) * region.weights(HEIGHT, WIDTH))[i]
    engine.activate(Stack([Entry(other, 0.5)]))
    want += model(x) - plain
    engine.set_rows(lambda _: rows)
    engine.activate(Stack([Entry(path, PerImage(own)), Entry(other, 0.5)]))
    got = model(x)
    assert worst(got, want) < 1e-12
    fresh = Engine({"unet": model})
    engine.close()
    fresh.set_rows(lambda _: rows)
    fresh.activate(Stack([Entry(path, PerImage(own)), Entry(other, 0.5)]))
    assert torch.equal(model(x), got)


@torch.no_grad()
def test_a_region_may_come_and_go_without_touching_a_layer(tmp_path):
    model = one_linear()
    path = lora(tmp_path, 0, layer=(12, 8))
    x = torch.randn(2, 8, HEIGHT, WIDTH, dtype=torch.float64)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.8)]))
    everywhere, slot = model(x), model.layer._remora_slot.executor
    engine.set_multiplier(0, strength(0.8, LEFT))
    left = model(x)
    engine.set_multiplier(0, strength(0.8, RIGHT))
    right = model(x)
    engine.set_multiplier(0, 0.8)
    assert torch.equal(model(x), everywhere)
    assert model.layer._remora_slot.executor is slot
    assert worst(left[..., :5], everywhere[..., :5]) < 1e-12
    assert worst(right[..., 5:], everywhere[..., 5:]) < 1e-12
    engine.deactivate()
    assert torch.equal(left[..., 5:], model(x)[..., 5:]), "beside the region no bit changes"


def test_what_was_first_called_in_inference_mode_can_be_trained_through_later(tmp_path):
    model = one_linear()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(lora(tmp_path, 0, layer=(12, 8)), strength(0.8, LEFT))]))
    x = torch.randn(2, 8, HEIGHT, WIDTH, dtype=torch.float64)
    with torch.inference_mode():
        want = model(x).clone()
    x.requires_grad_()
    got = model(x)
    assert torch.equal(got, want)
    got.sum().backward()
    weights = model.layer.weight.sum(0)
    assert worst(x.grad[..., 5:], weights.view(1, 8, 1, 1).expand(2, -1, HEIGHT, 5)) < 1e-12
    assert worst(x.grad[..., :5], x.grad[..., 5:]) > 1e-2


@torch.no_grad()
def test_a_larger_second_pass_has_the_same_part_of_its_picture(tmp_path):
    model = Denoiser(nn.Conv2d(8, 8, 1).double().requires_grad_(False))
    path = lora(tmp_path, 0, layer=(8, 8, 1, 1))
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, strength(1.0, LEFT))]))
    for height, width in ((6, 10), (12, 20), (9, 16), (6, 10)):
        x = torch.randn(1, 8, height, width, dtype=torch.float64)
        got, half = model(x), width // 2
        bare = model.layer._conv_forward(x, model.layer.weight, model.layer.bias)
        assert torch.equal(got[..., half:], bare[..., half:])
        assert (got[..., :half] - bare[..., :half]).abs().flatten(1).max() > 1e-2


@torch.no_grad()
def test_a_schedule_and_a_region_go_together(tmp_path):
    model = one_linear()
    path = lora(tmp_path, 0, layer=(12, 8))
    x = torch.randn(2, 8, HEIGHT, WIDTH, dtype=torch.float64)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, Strength(Curve(((0, 0), (4, 1))), region=LEFT))]))
    engine.set_moment(Moment(2, 10))
    got = model(x)
    engine.activate(Stack([Entry(path, strength(0.5, LEFT))]))
    assert torch.equal(got, model(x))


@torch.no_grad()
@pytest.mark.parametrize("feather", [0.0, 0.3])
@pytest.mark.parametrize("regions", [(LEFT, LEFT), (LEFT, RIGHT), (LEFT, None), (TOP, RIGHT)])
def test_many_places_have_the_strengths_of_their_regions(tmp_path, regions, feather):
    model = Denoiser(nn.Linear(48, 40).double().requires_grad_(False))
    paths = [save(tmp_path / f"{i}.safetensors", pair("lora_unet_layer", (40, 48), 64, seed=i)) for i in range(2)]
    x = torch.randn(2, 48, 40, 30, dtype=torch.float64)
    engine, plain = Engine({"unet": model}), model(x)
    want, entries = plain.clone(), []
    for path, region, multiplier in zip(paths, regions, MULTIPLIERS, strict=True):
        engine.activate(Stack([Entry(path, multiplier)]))
        soft = None if region is None else region.feathered(feather)
        want += (model(x) - plain) * (1 if soft is None else soft.weights(40, 30))
        entries.append(Entry(path, multiplier if soft is None else strength(multiplier, soft)))
    engine.activate(Stack(entries))
    assert worst(model(x), want) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("regions", [(LEFT, LEFT), (LEFT, RIGHT), (LEFT, TOP)])
def test_few_places_have_the_strengths_of_their_regions(tmp_path, regions):
    model = Denoiser(nn.Linear(256, 240).double().requires_grad_(False))
    paths = [save(tmp_path / f"{i}.safetensors", pair("lora_unet_layer", (240, 256), 64, seed=i)) for i in range(2)]
    x = torch.randn(2, 256, 12, 12, dtype=torch.float64)
    engine, plain = Engine({"unet": model}), model(x)
    engine.activate(Stack([Entry(path, strength(0.8, one)) for path, one in zip(paths, regions, strict=True)]))
    got, want = model(x), plain.clone()
    for path, one in zip(paths, regions, strict=True):
        engine.activate(Stack([Entry(path, 0.8)]))
        want += (model(x) - plain) * one.weights(12, 12)
    assert worst(got, want) < 1e-12


@torch.no_grad()
def test_what_is_for_a_part_is_not_merged(tmp_path):
    model = one_linear()
    path = lora(tmp_path, 0, layer=(12, 8))
    x = torch.randn(2, 8, HEIGHT, WIDTH, dtype=torch.float64)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, strength(0.8, LEFT))]))
    want = model(x)
    report = engine.activate(Stack([Entry(path, strength(0.8, LEFT))], mode="merged"))
    assert torch.equal(model(x), want)
    assert report.live == {"a LoRA is for a part of the picture": 1}
    engine.activate(Stack([Entry(path, 0.8)], mode="merged"))
    engine.set_multiplier(0, strength(0.8, LEFT))
    assert torch.equal(model(x), want), "a region that comes to a merged stack takes it out of the weights"


class WithText(nn.Module):
    """A query of the picture and keys of the prompt, with as many tokens as the picture has; a vector, too."""

    def __init__(self) -> None:
        super().__init__()
        self.attn2 = nn.ModuleDict({"to_q": nn.Linear(8, 8), "to_k": nn.Linear(8, 8)})
        self.time_embed = nn.Linear(8, 8)
        self.proj = nn.Linear(8, 8)
        self.double().requires_grad_(False)

    def forward(self, sample: Tensor, timestep: int, context: Tensor) -> tuple[Tensor, ...]:
        tokens = sample.flatten(2).transpose(1, 2)
        vector = context.mean(1)
        return self.attn2["to_q"](tokens), self.attn2["to_k"](context), self.time_embed(vector), self.proj(vector)


@torch.no_grad()
def test_what_is_of_no_place_has_the_share_of_the_picture(tmp_path):
    model = WithText()
    path = lora(tmp_path, 0, attn2_to_q=(8, 8), attn2_to_k=(8, 8), time_embed=(8, 8), proj=(8, 8))
    x = torch.randn(2, 8, HEIGHT, WIDTH, dtype=torch.float64)
    context = torch.randn(2, HEIGHT * WIDTH, 8, dtype=torch.float64)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.8 * RIGHT.share)]))
    share = model(x, 0, context)
    engine.activate(Stack([Entry(path, 0.8)]))
    whole = model(x, 0, context)
    engine.activate(Stack([Entry(path, strength(0.8, RIGHT))]))
    got = model(x, 0, context)
    weights = RIGHT.weights(HEIGHT, WIDTH).flatten()[None, :, None]
    engine.deactivate()
    plain = model(x, 0, context)
    assert worst(got[0], plain[0] + (whole[0] - plain[0]) * weights) < 1e-12
    for one, want in zip(got[1:], share[1:], strict=True):
        assert worst(one, want) < 1e-12


@torch.no_grad()
def test_layers_of_the_prompt_take_a_region_through_the_parts_of_the_prompt(tmp_path, way):
    """Two parts joined by AND with a LoRA each, and the negative prompt: rows 0, 1 and 2."""
    model = WithText()
    paths = [lora(tmp_path, seed, attn2_to_q=(8, 8), attn2_to_k=(8, 8)) for seed in (0, 10)]
    x = torch.randn(3, 8, HEIGHT, WIDTH, dtype=torch.float64)
    context = torch.randn(3, HEIGHT * WIDTH, 8, dtype=torch.float64)
    engine = Engine({"unet": model})
    plain, alone = model(x, 0, context), []
    for path in paths:
        engine.activate(Stack([Entry(path, 0.8)]))
        alone.append(model(x, 0, context))
    entries = [Entry(path, Strength(0.8, region=LEFT, part=part)) for part, path in enumerate(paths)]
    engine.set_rows(lambda _: [Row(0, part=0), Row(0, part=1), Row(0, negative=True)])
    engine.activate(Stack(entries))
    query, key, *_ = model(x, 0, context)
    weights = LEFT.weights(HEIGHT, WIDTH).flatten()[:, None]
    assert worst(query, plain[0] + sum((one[0] - plain[0]) * weights for one in alone)) < 1e-12
    for part in (0, 1):
        assert worst(key[part], alone[part][1][part]) < 1e-12, "on its own rows a LoRA is there, and no other is"
    assert worst(key[2], plain[1][2] + sum((one[1][2] - plain[1][2]) * LEFT.share for one in alone)) < 1e-12
    engine.set_rows(None)  # a host that tells no parts
    shared = model(x, 0, context)[1]
    assert worst(shared, plain[1] + sum((one[1] - plain[1]) * LEFT.share for one in alone)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a region"])
def test_a_part_without_a_region_is_its_rows_alone_in_all_layers(tmp_path, way, beside):
    model = WithText()
    shapes = {"attn2_to_q": (8, 8), "attn2_to_k": (8, 8), "time_embed": (8, 8), "proj": (8, 8)}
    path, other = lora(tmp_path, 0, **shapes), lora(tmp_path, 10, attn2_to_q=(8, 8))
    x = torch.randn(3, 8, HEIGHT, WIDTH, dtype=torch.float64)
    context = torch.randn(3, HEIGHT * WIDTH, 8, dtype=torch.float64)
    engine = Engine({"unet": model})
    regional = [Entry(other, strength(0.5, LEFT))] if beside else []
    engine.activate(Stack(regional))
    plain = model(x, 0, context)
    engine.activate(Stack([Entry(path, 0.8), *regional]))
    whole = model(x, 0, context)
    engine.set_rows(lambda _: [Row(0, part=0), Row(0, part=1), Row(0, negative=True)])
    for mode in ("live", "merged"):
        engine.activate(Stack([Entry(path, Strength(0.8, part=1)), *regional], mode=mode))
        for got, without, with_lora in zip(model(x, 0, context), plain, whole, strict=True):
            assert worst(got[1], with_lora[1]) < 1e-12
            assert worst(got[[0, 2]], without[[0, 2]]) < 1e-12


@torch.no_grad()
def test_a_whole_unet_has_places_at_every_resolution(tmp_path):
    """Every layer of a UNet that acts on the picture has its places, and no other has."""
    unet = tiny_unet(0)
    path = kohya_lora(tmp_path / "all.safetensors", {"unet": unet}, conv=True)
    seen: dict[str, bool] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            way = module._remora_slot.executor if module._remora_slot is not None else None
            if way is not None:
                seen[name] = way._layout(output, way._strengths.now).grid is not None

        return hook

    for name, module in unet.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(note(name))
    engine = Engine({"unet": unet})
    engine.activate(Stack([Entry(path, strength(0.8, LEFT))]))
    unet(**unet_inputs(0))
    nowhere = {name for name, placed in seen.items() if not placed}
    assert seen
    assert all("attn2.to_k" in name or "attn2.to_v" in name or "time" in name for name in nowhere), nowhere
    assert any("attn1.to_q" in name for name in seen.keys() - nowhere)
    assert any("conv1" in name for name in seen.keys() - nowhere)


class Packed(nn.Module):
    """A transformer with patches of the latents as tokens, and those of the prompt before or behind them."""

    def __init__(self, image_first: bool = False) -> None:
        super().__init__()
        self.image_first = image_first
        self.single_transformer_blocks = nn.ModuleList([nn.Linear(8, 8)])
        self.double().requires_grad_(False)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, **places: object) -> Tensor:
        both = [encoder_hidden_states, hidden_states]
        y: Tensor = self.single_transformer_blocks[0](torch.cat(both[::-1] if self.image_first else both, 1))
        return y


class HunyuanVideoTransformer3DModel(Packed):
    """By its name, one that has the picture first."""


def flux_ids(height: int, width: int, references: int = 0) -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    own = torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1)
    other = torch.ones(references, 3, dtype=own.dtype)
    return torch.cat([own, other]).double()


PACKED = {
    "by ids": (lambda: {"img_ids": flux_ids(HEIGHT, WIDTH)}, 0, 1),
    "by ids, with a reference": (lambda: {"img_ids": flux_ids(HEIGHT, WIDTH, 12)}, 12, 1),
    "by shapes": (lambda: {"img_shapes": [[(1, HEIGHT, WIDTH), (1, 3, 4)]] * 2}, 12, 1),
    "by numbers": (lambda: {"num_frames": 3, "height": HEIGHT, "width": WIDTH}, 0, 3),
}


@torch.no_grad()
@pytest.mark.parametrize("places", PACKED)
@pytest.mark.parametrize("image_first", [False, True])
def test_tokens_of_a_transformer(tmp_path, places, image_first):
    told, references, frames = PACKED[places]
    model = HunyuanVideoTransformer3DModel(True) if image_first else Packed()
    path = lora(tmp_path, 0, single_transformer_blocks_0=(8, 8))
    own = HEIGHT * WIDTH * frames
    x = torch.randn(2, own + references, 8, dtype=torch.float64)
    text = torch.randn(2, 5, 8, dtype=torch.float64)
    engine = Engine({"transformer": model})
    plain = model(x, text, **told())
    engine.activate(Stack([Entry(path, 0.8)]))
    whole = model(x, text, **told())
    engine.activate(Stack([Entry(path, strength(0.8, LEFT))]))
    got = model(x, text, **told())
    weights = LEFT.weights(HEIGHT, WIDTH).flatten().repeat(frames)
    others = torch.full((5,), LEFT.share, dtype=torch.float64)
    behind = torch.full((references,), LEFT.share, dtype=torch.float64)
    parts = [weights, behind, others] if image_first else [others, weights, behind]
    assert worst(got, plain + (whole - plain) * torch.cat(parts)[None, :, None]) < 1e-12


@torch.no_grad()
def test_a_transformer_on_latents_has_patches(tmp_path):
    """As diffusers calls SD3, Lumina, Wan: latents go in, the model cuts them into patches."""

    class Patched(nn.Module):
        patch_size = (1, 2, 2)

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(32, 8)])
            self.double().requires_grad_(False)

        def forward(self, hidden_states: Tensor) -> Tensor:
            y: Tensor = self.blocks[0](F.pixel_unshuffle(hidden_states, 2).flatten(2).transpose(1, 2))
            return y

    model = Patched()
    path = lora(tmp_path, 0, blocks_0=(8, 32))
    x = torch.randn(2, 8, HEIGHT, WIDTH * 2, dtype=torch.float64)
    engine = Engine({"transformer": model})
    plain = model(x)
    engine.activate(Stack([Entry(path, 0.8)]))
    whole = model(x)
    engine.activate(Stack([Entry(path, strength(0.8, LEFT))]))
    weights = LEFT.weights(HEIGHT // 2, WIDTH).flatten()[None, :, None]
    assert worst(model(x), plain + (whole - plain) * weights) < 1e-12


@torch.no_grad()
def test_a_call_that_does_not_tell_its_places_is_an_error(tmp_path):
    model = Packed()
    path = lora(tmp_path, 0, single_transformer_blocks_0=(8, 8))
    engine = Engine({"transformer": model})
    engine.activate(Stack([Entry(path, strength(0.8, LEFT))]))
    x, text = torch.randn(2, 60, 8).double(), torch.randn(2, 5, 8).double()
    with pytest.raises(RegionError, match="call of this Packed does not show where its tokens lie in the picture"):
        model(x, text)
    engine.activate(Stack([Entry(path, 0.8)]))
    model(x, text)


@torch.no_grad()
def test_rows_that_fit_nothing_are_an_error_with_regions_too(tmp_path):
    model = one_linear()
    path = lora(tmp_path, 0, layer=(12, 8))
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, PerImage((strength(0.8, LEFT), 0.0)))]))
    with pytest.raises(RowsError, match="no whole batches"):
        model(torch.randn(3, 8, HEIGHT, WIDTH).double())


@torch.no_grad()
def test_a_model_in_which_nothing_has_a_place_is_told(tmp_path, caplog):
    """Merged tokens, or a model that folds them otherwise: the strength is the share of the picture everywhere."""

    class Folded(Denoiser):
        def forward(self, sample: Tensor) -> Tensor:
            y: Tensor = self.layer(sample.flatten(2).transpose(1, 2)[:, :17])
            return y

    model = Folded(plain_linear())
    path = lora(tmp_path, 0, layer=(12, 8))
    x = torch.randn(2, 8, HEIGHT, WIDTH, dtype=torch.float64)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.8 * LEFT.share)]))
    want = model(x)
    engine.activate(Stack([Entry(path, strength(0.8, LEFT))]))
    with caplog.at_level(logging.WARNING, "lib_lora"):
        assert worst(model(x), want) < 1e-12
        model(x)
    assert [record.getMessage() for record in caplog.records] == [
        "no layer of this Folded has tokens that lie in the picture as expected; "
        "LoRA for a part of it act everywhere, by its share"
    ]


@pytest.mark.parametrize(
    ("picture", "count", "grid"),
    [
        (LatentGrid(2, 1, 64, 64), 4096, TokenGrid(64, 64)),
        (LatentGrid(2, 1, 64, 64), 1024, TokenGrid(32, 32)),
        (LatentGrid(2, 1, 63, 95), 32 * 48, TokenGrid(32, 48)),
        (LatentGrid(2, 1, 63, 95), 31 * 47, TokenGrid(31, 47)),
        (LatentGrid(2, 1, 64, 64), 77, None),
        (LatentGrid(2, 1, 64, 64), 154, None),
        (LatentGrid(2, 1, 64, 64, 2), 1024, TokenGrid(32, 32)),
        (LatentGrid(2, 1, 64, 64, 2), 1024 + 512, TokenGrid(32, 32, 1, 512, 0)),
        (LatentGrid(2, 1, 64, 64, 2, image_first=True), 1024 + 512, TokenGrid(32, 32, 1, 0, 512)),
        (LatentGrid(2, 1, 64, 64, 2), 512, None),
        (LatentGrid(2, 5, 60, 104, 2), 5 * 30 * 52, TokenGrid(30, 52, 5)),
        (LatentGrid(1, 1, 32, 32, 1, 600), 1024 + 600, TokenGrid(32, 32, 1, 0, 600)),
        (LatentGrid(1, 1, 32, 32, 1, 600), 1024 + 600 + 512, TokenGrid(32, 32, 1, 512, 600)),
    ],
)
def test_tokens_are_told_by_their_number(picture, count, grid):
    assert picture.token_grid(count) == grid


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k", True),
        ("input_blocks.1.1.transformer_blocks.0.attn2.to_v", True),
        ("input_blocks.1.1.transformer_blocks.0.attn2.to_q", False),
        ("input_blocks.1.1.transformer_blocks.0.attn2.to_out.0", False),
        ("down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_k", False),
        ("transformer_blocks.0.attn.add_k_proj", True),
        ("transformer_blocks.0.attn.to_k", False),
        ("transformer_blocks.0.ff_context.net.2", True),
        ("double_blocks.3.txt_attn.qkv", True),
        ("double_blocks.3.img_attn.qkv", False),
        ("single_blocks.3.linear1", False),
        ("blocks.1.cross_attn.k", True),
        ("blocks.1.cross_attn.q", False),
        ("context_refiner.0.attention.to_q", True),
        ("layers.0.attention.to_q", False),
        ("time_text_embed.timestep_embedder.linear_1", True),
        ("mid_block.resnets.0.time_emb_proj", True),
        ("proj_out", False),
    ],
)
def test_layers_of_the_prompt_are_told_by_their_names(path, text):
    assert is_of_text(path) is text


def test_latents_in_a_list_have_one_size():
    one = torch.zeros(16, 1, 8, 12)
    assert LatentGrid.from_input([one, one], {}, 2) == LatentGrid(2, 1, 8, 12, 2)
    assert LatentGrid.from_input([one, one[..., :8]], {}, 2) is None
    assert LatentGrid.from_input(None, {}, 2) is None
