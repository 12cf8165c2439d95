"""LoRA that keep to their regions: several predictions in one call of a denoiser, joined place by place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
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
    Stack,
    StackError,
    Strength,
    Window,
)
from tests.fakes.contract import worst
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs

LEFT = Region.rectangle(0, 0, 0.5, 1)
TOP = Region.rectangle(0, 0, 1, 0.6).feathered(0.3)


@dataclass
class Case:
    """A UNet in fp64, three LoRA for it, and the arguments of a call."""

    unet: nn.Module
    paths: Sequence[Path]
    arguments: dict[str, Any]
    calls: int = 0

    def __call__(self) -> Tensor:
        (sample,) = self.unet(**self.arguments)
        return sample

    def alone(self, *entries: Entry, **settings: Any) -> Tensor:
        """Return what an engine of its own makes of a stack."""
        with Engine({"unet": self.unet}) as engine:
            for name, value in settings.items():
                getattr(engine, name)(value)
            engine.activate(Stack(entries))
            return self()


@pytest.fixture
def case(tmp_path):
    unet = tiny_unet(0).double().requires_grad_(False)
    paths = [kohya_lora(tmp_path / f"{i}.safetensors", {"unet": unet}, seed=i, conv=True) for i in range(3)]
    arguments = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in unet_inputs(0, batch=4).items()
    }
    made = Case(unet, paths, arguments)
    forward = unet.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.calls += 1
        return forward(*args, **kwargs)

    unet.forward = counted
    return made


def weights(region: Region, outside: float, like: Tensor) -> Tensor:
    inside = region.weights(*like.shape[-2:])
    return inside + outside * (1 - inside)


@torch.no_grad()
@pytest.mark.parametrize("outside", [0.0, 0.3])
def test_predictions_are_joined_by_the_regions(case, outside):
    """Two regions that overlap, one with a soft edge, beside a LoRA that is everywhere."""
    always = Entry(case.paths[2], 0.7)
    own = [Strength(1.0, region=LEFT, outside=outside), Strength(-0.8, region=TOP, outside=0.5)]
    base = case.alone(always)
    want = base.clone()
    for path, one in zip(case.paths, own, strict=False):
        whole = case.alone(Entry(path, replace(one, outside=1.0)), always)
        assert worst(whole, base) > 1e-2
        want += weights(one.region, one.outside, base) * (whole - base)
    case.calls = 0
    got = case.alone(Entry(case.paths[0], own[0]), Entry(case.paths[1], own[1]), always)
    assert worst(got, want) < 1e-12
    assert case.calls == 3


@torch.no_grad()
def test_of_one_region_there_is_one_prediction_and_of_1_none(case):
    both = [Entry(path, Strength(0.5, region=LEFT, outside=0)) for path in case.paths[:2]]
    base = case()
    got = case.alone(*both)
    assert torch.equal(got[..., 4:], base[..., 4:])
    together = case.alone(*[Entry(path, Strength(0.5, region=LEFT)) for path in case.paths[:2]])
    assert worst(got[..., :4], together[..., :4]) < 1e-12
    case.calls = 0
    assert torch.equal(
        case.alone(*[replace(one, multiplier=Strength(0.5, region=LEFT, outside=1)) for one in both]), together
    )
    assert case.calls == 1


@torch.no_grad()
def test_images_and_halves_have_regions_of_their_own(case):
    """Image 0 keeps to the left in its positive half, image 1 has the LoRA everywhere."""
    rows = [Row(0), Row(1), Row(0, True), Row(1, True)]
    apart = Strength(1.0, region=LEFT, outside=0)
    own = Entry(case.paths[0], PerImage([Halves(apart, 0.0), 0.9]))
    base, left = case(), case.alone(Entry(case.paths[0], replace(apart, outside=1.0)))
    everywhere = case.alone(Entry(case.paths[0], 0.9))
    got = case.alone(own, set_rows=lambda _: rows)
    want = base.clone()
    want[0, ..., :4] = left[0, ..., :4]
    want[[1, 3]] = everywhere[[1, 3]]
    assert worst(got, want) < 1e-12


@torch.no_grad()
def test_nothing_is_predicted_again_while_the_strength_is_0(case):
    one = Strength(Curve(((0, 0.0), (4, 0.0), (5, 1.0))), region=LEFT, outside=0)
    other = Strength(1.0, during=Window(stop=2), region=TOP, outside=0)
    with Engine({"unet": case.unet}) as engine:
        engine.activate(Stack([Entry(case.paths[0], one), Entry(case.paths[1], other)]))
        counts = []
        for step in (0, 3, 5):
            engine.set_moment(Moment(step, 10))
            case.calls = 0
            case()
            counts.append(case.calls)
    assert counts == [2, 1, 2]


@torch.no_grad()
def test_another_strength_another_region_and_none_are_those_of_a_fresh_engine(case):
    stacks = [
        Strength(1.0, region=LEFT, outside=0),
        Strength(0.5, region=LEFT, outside=0.2),
        0.5,
        Strength(0.5, region=TOP),
        Strength(0.5, region=TOP, outside=0),
    ]
    with Engine({"unet": case.unet}) as engine:
        engine.activate(Stack([Entry(case.paths[0])]))
        got = []
        for multiplier in stacks:
            engine.set_multiplier(0, multiplier)
            got.append(case())
    for multiplier, one in zip(stacks, got, strict=True):
        assert torch.equal(one, case.alone(Entry(case.paths[0], multiplier)))


@torch.no_grad()
@pytest.mark.parametrize("number", [1, 2])
def test_a_prediction_that_fails_leaves_the_engine_as_it_was(case, number):
    forward, calls = case.unet.forward, iter(range(1, 9))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            raise ValueError("no more")
        return forward(*args, **kwargs)

    entry = Entry(case.paths[0], Strength(1.0, region=LEFT, outside=0))
    want = case.alone(entry)
    with Engine({"unet": case.unet}) as engine:
        engine.activate(Stack([entry]))
        case.unet.forward = failing
        with pytest.raises(ValueError, match="no more"):
            case()
        case.unet.forward = forward
        assert torch.equal(case(), want)
    assert not case.unet._forward_hooks


class Mapped(nn.Module):
    """A denoiser of one layer with an output of some type, which takes a tensor out of a list, as ControlNets do."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Conv2d(4, 4, 1).double().requires_grad_(False), wrap

    def forward(self, sample: Tensor, control: list[Tensor]) -> Any:
        return self.wrap(self.layer(sample) + control.pop())


@torch.no_grad()
@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda y: y, lambda y: y),
        (lambda y: (y, "more"), lambda y: y[0]),
        (lambda y: {"sample": y, "more": 1}, lambda y: y["sample"]),
        (lambda y: (list(y),), lambda y: torch.stack(y[0])),
        (lambda y: y.unsqueeze(2).expand(-1, -1, 3, -1, -1), lambda y: y[:, :, 1]),
    ],
    ids=["tensor", "tuple", "mapping", "list of a tensor for each picture", "frames"],
)
def test_outputs_and_arguments_of_every_type(tmp_path, wrap, unwrap):
    model = Mapped(wrap)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": model}, conv=True)
    x, control = torch.randn(2, 4, 6, 6, dtype=torch.float64), torch.randn(2, 4, 6, 6, dtype=torch.float64)
    base = unwrap(model(x, [control]))
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(path, Strength(1.0, region=LEFT))]))
        whole = unwrap(model(x, [control]))
        engine.activate(Stack([Entry(path, Strength(1.0, region=LEFT, outside=0))]))
        got = unwrap(model(x, control=[control]))
    assert torch.equal(got[..., 3:], base[..., 3:])
    assert worst(got[..., :3], whole[..., :3]) < 1e-12
    assert worst(got, base) > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("wrap", [lambda y: y.flatten(1), lambda y: "text", lambda y: y[:1].expand(3, -1, -1, -1)])
def test_an_output_without_places_is_refused(tmp_path, wrap):
    model = Mapped(wrap)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": model}, conv=True)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    own = [Strength(1.0, region=LEFT, outside=0), Strength(1.0, region=TOP, outside=0)]
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(path, PerImage(own))]))
        with pytest.raises(RegionError, match="a LoRA with `outside` below 1"):
            model(x, [x])


@torch.no_grad()
def test_a_cuda_graph_is_refused_while_it_is_recorded(case, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RegionError, match="cannot be recorded in a CUDA graph; write outside=1"):
        case.alone(Entry(case.paths[0], Strength(1.0, region=LEFT, outside=0)))


@pytest.mark.long
def test_a_compiled_model_predicts_again(case):
    entry = Entry(case.paths[0], Strength(1.0, region=LEFT, outside=0))
    with torch.no_grad():
        want = case.alone(entry)
        case.unet.compile(backend="eager")
        assert worst(case.alone(entry), want) < 1e-12


@pytest.mark.parametrize("outside", [-0.1, 1.1, float("nan"), "0", None, True])
def test_what_is_no_share_is_refused(outside):
    with pytest.raises(StackError, match="outside must be a number from 0 to 1"):
        Strength(1.0, region=LEFT, outside=outside)


def test_outside_of_no_region_is_refused():
    with pytest.raises(StackError, match=r"outside=0.5 needs a region"):
        Strength(1.0, outside=0.5)
