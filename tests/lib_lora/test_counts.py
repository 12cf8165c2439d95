"""How many kernels, views and frames of ours a layer's call has beside the layer's own: counts hold on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lib_lora
from lib_lora import Curve, Engine, Entry, Moment, PerImage, Region, Row, Stack, Strength
from lib_lora.execution.hooks import slot_of
from tests.fakes.files import pair, save
from tests.fakes.kinds import SAMPLES

OURS = str(Path(lib_lora.__file__).parent)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(16, 12), (2, 5, 16)),
    "linear of vectors": (lambda: nn.Linear(16, 12), (5, 16)),
    "conv": (lambda: nn.Conv2d(16, 12, 3, padding=1), (1, 16, 6, 6)),
    "conv of two images": (lambda: nn.Conv2d(16, 12, 3, padding=1), (2, 16, 6, 6)),
}
KINDS_OF_STRENGTH: dict[str, tuple[Any, Any]] = {
    "number": (0.7, 0.3),
    "schedule": (Strength(Curve(((0.0, 0.0), (1.0, 0.8)))), Strength(Curve(((0.0, 0.1), (1.0, 0.8))))),
    "images": (PerImage((0.7, 0.2)), PerImage((0.7, 0.4))),
    "region": tuple(Strength(one, region=Region.rectangle(0, 0, 0.5, 1)) for one in (0.7, 0.3)),  # type: ignore[dict-item]
}


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []
        self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            self.views += 1
        else:
            self.kernels.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, sample: Tensor) -> Tensor:
        y: Tensor = self.layer(sample)
        return y


def operations(layer: nn.Module, x: Tensor) -> Operations:
    with torch.no_grad(), Operations() as found:
        layer(x)
    return found


def frames(call: Callable[[], object]) -> int:
    found: list[str] = []

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found)


def files(folder: Path, model: Net, count: int) -> list[Path]:
    weight: Any = model.layer.weight
    return [
        save(folder / f"{i}.safetensors", pair("lora_unet_layer", tuple(weight.shape), 4, seed=i)) for i in range(count)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("strengths", "kernels"), [((0.7,), 2), ((0.7, -0.2, 1.3, 0.4), 3)], ids=["one", "four"])
def test_a_plain_lora_costs_two_kernels_and_several_three(
    tmp_path: Path, name: str, strengths: tuple[float, ...], kernels: int, dtype: torch.dtype
) -> None:
    build, shape = LAYERS[name]
    model, x = Net(build()).to(dtype).requires_grad_(False), torch.randn(shape, dtype=dtype)
    bare = operations(model.layer, x)
    engine = Engine({"unet": model})
    paths = files(tmp_path, model, len(strengths))
    engine.activate(Stack([Entry(path, one) for path, one in zip(paths, strengths, strict=True)]))
    with torch.no_grad():
        model(x)
    found = operations(model.layer, x)
    assert len(found.kernels) - len(bare.kernels) == kernels
    assert found.views - bare.views <= 4
    assert found.kernels[-1] in ("aten::addmm_", "aten::baddbmm_"), "added in place"


FRAMES = {
    "dora by rows": (20, 20),
    "dora by columns": (17, 17),
    "lokr full, full": (16, 16),
    "glora": (19, 19),
    "ia3 on the output": (17, 17),
    "diag-oft": (20, 20),
    "lora with bias": (15, 15),
    "full": (24, 24),
    "loha, many ranks": (31, 31),
}
"""Sample of a kind -> the most frames of ours in a call of 8 tokens and of 512."""


@pytest.mark.parametrize("name", FRAMES)
def test_calls_of_other_kinds_have_few_frames_of_ours(tmp_path: Path, name: str) -> None:
    sample = next(one for one in SAMPLES if one.name == name)
    model = Net(nn.Linear(64, 64)).requires_grad_(False)
    path, _ = sample.write(tmp_path, (64, 64))
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.8)]))
    for tokens, most in zip((8, 512), FRAMES[name], strict=True):
        x = torch.randn(1, tokens, 64)
        with torch.no_grad():
            model(x)
            assert frames(lambda x=x: model.layer(x)) <= most, tokens  # type: ignore[misc]


@pytest.mark.parametrize(("tokens", "most"), [(8, 5), (512, 6)])
def test_a_plain_call_has_few_frames_of_ours(tmp_path: Path, tokens: int, most: int) -> None:
    model, x = Net(nn.Linear(64, 64)).requires_grad_(False), torch.randn(1, tokens, 64)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(files(tmp_path, model, 1)[0])]))
    with torch.no_grad():
        model(x)
        assert frames(lambda: model.layer(x)) <= most


def test_a_change_of_strength_is_the_next_calls_factor(tmp_path: Path) -> None:
    model, x = Net(nn.Linear(16, 12)).double().requires_grad_(False), torch.randn(3, 16, dtype=torch.float64)
    engine, path = Engine({"unet": model}), files(tmp_path, model, 1)[0]
    with torch.no_grad():
        base = model(x)
        engine.activate(Stack([Entry(path)]))
        full = model(x) - base
        for strength in (0.5, -2.0, 1e-3, 0.0):
            engine.set_multiplier(0, strength)
            torch.testing.assert_close(model(x) - base, full * strength, rtol=1e-9, atol=1e-12)
        assert torch.equal(model(x), base), "a strength of 0 changes no bit"


def test_an_output_that_others_may_hold_is_not_written_to(tmp_path: Path) -> None:
    class Caching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.last = super().forward(x)
            return self.last

    model, x = Net(Caching(16, 12)).requires_grad_(False), torch.randn(3, 16)
    engine, path = Engine({"unet": model}), files(tmp_path, model, 1)[0]
    with torch.no_grad():
        base = model(x).clone()
        engine.activate(Stack([Entry(path)]))
        for _ in range(2):
            y = model(x)
            layer: Any = model.layer
            assert torch.equal(layer.last, base)
            assert not torch.equal(y, base)


def test_an_output_that_only_the_call_holds_is_added_to_in_place_whoever_made_it(tmp_path: Path) -> None:
    """Web UIs have layers with a forward of their own."""

    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight * 1, self.bias)

    model, x = Net(Own(16, 12)).requires_grad_(False), torch.randn(1, 3, 16)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(files(tmp_path, model, 1)[0])]))
    for _ in range(2):  # the first call goes another way
        assert operations(model.layer, x).kernels[-1] == "aten::addmm_"


@pytest.mark.parametrize("count", [1, 3])
def test_a_convolution_that_keeps_what_it_returns_is_not_written_to(tmp_path: Path, count: int) -> None:
    layer = nn.Conv2d(16, 12, 3, padding=1)
    plainly, kept = layer._conv_forward, list[tuple[Tensor, Tensor]]()

    def keeping(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = plainly(x, weight, bias)
        kept.append((y, y.clone()))
        return y

    model, x = Net(layer).requires_grad_(False), torch.randn(1, 16, 6, 6)
    with torch.no_grad():
        base = model(x)
        layer._conv_forward = keeping  # type: ignore[method-assign]
        engine = Engine({"unet": model})
        engine.activate(Stack([Entry(path, 0.5 + i) for i, path in enumerate(files(tmp_path, model, count))]))
        for _ in range(2):
            kept.clear()
            assert not torch.equal(model(x), base)
            assert len(kept) == 2
            assert all(torch.equal(y, before) for y, before in kept)


@pytest.mark.parametrize("name", LAYERS)
def test_a_call_has_the_same_bits_whichever_way_it_comes(tmp_path: Path, name: str) -> None:
    """The first call, calls of layers that stream, and calls by keyword go another way than the plain ones."""
    build, shape = LAYERS[name]
    model, x = Net(build()).requires_grad_(False), torch.randn(shape)
    engine = Engine({"unet": model})
    for paths in (files(tmp_path, model, 1), files(tmp_path, model, 3)):
        engine.activate(Stack([Entry(path, 0.3 + i) for i, path in enumerate(paths)]))
        with torch.no_grad():
            first, plain = model(x), model(x)
            by_name = model.layer(input=x)
            slot: Any = slot_of(model.layer)
            slot.executor._stays = False
            streaming = model(x)
            slot.executor.evict()
            again = model(x)
        assert all(torch.equal(one, plain) for one in (first, by_name, streaming, again))


def test_channels_last_adds_in_place_too(tmp_path: Path) -> None:
    model = Net(nn.Conv2d(16, 12, 3, padding=1)).requires_grad_(False).to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last)
    bare, engine = operations(model.layer, x), Engine({"unet": model})
    path = files(tmp_path, model, 1)[0]
    with torch.no_grad():
        base = model(x)
        engine.activate(Stack([Entry(path)]))
        got = model(x)
        contiguous = Net(nn.Conv2d(16, 12, 3, padding=1)).requires_grad_(False)
        contiguous.load_state_dict(model.state_dict())
        with Engine({"unet": contiguous}) as other:
            other.activate(Stack([Entry(path)]))
            torch.testing.assert_close(got, contiguous(x.contiguous()), rtol=1e-4, atol=1e-5)
        assert not torch.equal(got, base)
    found = operations(model.layer, x)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert len(found.kernels) - len(bare.kernels) == 2


def test_images_with_strengths_of_their_own_are_not_plain(tmp_path: Path) -> None:
    model, x = Net(nn.Linear(16, 12)).double().requires_grad_(False), torch.randn(2, 3, 16, dtype=torch.float64)
    engine, path = Engine({"unet": model}), files(tmp_path, model, 1)[0]
    with torch.no_grad():
        base = model(x)
        engine.activate(Stack([Entry(path)]))
        full = model(x) - base
        engine.activate(Stack([Entry(path, PerImage((0.5, -1.0)))]))
        engine.set_rows(lambda rows: [Row(image) for image in range(rows)])
        want = base + full * torch.tensor([0.5, -1.0], dtype=torch.float64).view(2, 1, 1)
        torch.testing.assert_close(model(x), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["number", "schedule", "images", "region"])
def test_a_change_of_strength_costs_the_same_for_any_number_of_layers(tmp_path: Path, kind: str) -> None:
    """Each layer is a block of its own, so that each has a strength group."""
    counts = []
    for layers in (3, 40):
        model = nn.Module()
        model.blocks = nn.ModuleList([nn.Linear(16, 12) for _ in range(layers)])
        shapes = {f"lora_unet_blocks_{i}": (12, 16) for i in range(layers)}
        tensors = {key: value for name, shape in shapes.items() for key, value in pair(name, shape, 4).items()}
        engine = Engine({"unet": model})
        strengths = KINDS_OF_STRENGTH[kind]
        engine.activate(Stack([Entry(save(tmp_path / f"{layers}.safetensors", tensors), strengths[0])]))
        assert len(engine._plan.strengths.now.values[0]) == layers  # type: ignore[union-attr]
        changes: list[Callable[[], object]] = []
        for step in range(2, 6):
            changes += (
                partial(engine.set_moment, Moment(step, 20)),
                partial(engine.set_multiplier, 0, strengths[step % 2]),
            )
        found = [frames(change) for change in changes]
        counts.append((min(found[2::2]), min(found[3::2])))  # caches are filled, and garbage may be collected meanwhile
    assert counts[0] == counts[1]
