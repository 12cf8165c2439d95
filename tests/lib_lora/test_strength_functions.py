"""Strengths that are functions: of the block and of the moment; each call is what a fixed strength would make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lib_lora import (
    BlockWeights,
    Curve,
    Element,
    Engine,
    Entry,
    Moment,
    MomentError,
    PerImage,
    Stack,
    StackError,
    Strength,
    Window,
    plan,
)
from lib_lora.execution.dense import DenseExecutor
from lib_lora.execution.hooks import slot_of
from lib_lora.strengths.model_call import ModelCall
from tests.fakes.contract import by_recipe, reference, worst
from tests.fakes.files import pair, save
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample
from tests.fakes.layers import LAYERS, Model, make, weight_of
from tests.fakes.models import kohya_lora, tiny_text_encoder, tiny_unet, unet_inputs
from tests.lib_lora.test_calls import METADATA

IDS = ["BASE", *(f"IN{i:02}" for i in range(12)), "M00", *(f"OUT{i:02}" for i in range(12))]
ON = ("linear", "conv 3x3, stride", "conv grouped", "embedding", "layer norm", "attention q", "attention out")
CASES = [
    pytest.param(sample, layer, id=f"{sample.name}-{layer}")
    for sample in SAMPLES
    for layer in ON
    if {LAYERS[layer][0], layer} & sample.layers
]
BOUND = 2e-5
"""Of fp32: the largest error over the largest value."""


def weights(default: float = 1.0, **by_block: float) -> BlockWeights:
    return BlockWeights(tuple(by_block.get(one, default) for one in IDS))


class Blocks(nn.Module):
    """Three blocks of a UNet, each with one layer."""

    def __init__(self, make_layer: Callable[[], Model]) -> None:
        super().__init__()
        self.input_blocks = nn.ModuleList([nn.Identity() for _ in range(4)])
        self.input_blocks.append(make_layer())
        self.middle_block = make_layer()
        self.output_blocks = nn.ModuleList([nn.Identity(), make_layer()])

    @property
    def models(self) -> dict[str, Model]:
        return {
            "input_blocks.4": self.input_blocks[4],
            "middle_block": self.middle_block,
            "output_blocks.1": self.output_blocks[1],
        }

    def forward(self, x: Tensor) -> list[Tensor]:
        return [one(x) for one in self.models.values()]


PLACES = {"input_blocks.4": "IN04", "middle_block": "M00", "output_blocks.1": "OUT01"}
GIVEN = {"IN04": 0.5, "M00": -0.7, "OUT01": 0.0}


@pytest.mark.parametrize(("sample", "layer", "way"), by_recipe(CASES, ["chosen", "transient", "merged"]))
def test_a_blocks_weight_multiplies_its_layers_whatever_the_kind(
    tmp_path, monkeypatch, sample: Sample, layer: str, way
):
    if way == "transient":
        monkeypatch.setattr(
            plan, "live_executor", lambda layer, bindings, strengths, **_: DenseExecutor(bindings, strengths)
        )
    made = iter([make(layer, torch.float32) for _ in range(3)])
    inputs: list[Tensor] = []

    def one() -> Model:
        model, x = next(made)
        inputs.append(x)
        return model

    model = Blocks(one)
    tensors: dict[str, Tensor] = {}
    want = []
    shared = sample.name.startswith(("vera", "randlora", "vblora"))  # layers of one file have the same projections
    seeds = [0] * 3 if shared else range(3)
    for number, (place, alone) in zip(seeds, model.models.items(), strict=True):
        shape = tuple(weight_of(alone, layer).shape)
        folder = tmp_path / place
        folder.mkdir()
        path, own = sample.write(folder, shape, number, name_of(place, layer))
        tensors |= load_file(path)
        multiplier = 1.3 * GIVEN[PLACES[place]]
        x = inputs[0] if inputs[0].dtype == torch.int64 else inputs[0].double()
        want.append(reference(alone, layer, sample, own, multiplier)(x).detach())
    path = save(tmp_path / "adapter_model.safetensors", tensors, sample.metadata)
    if sample.config is not None:
        config = next(tmp_path.rglob("adapter_config.json"))
        (tmp_path / "adapter_config.json").write_text(config.read_text())
    served = Engine({"unet": model})
    stack = Stack([Entry(path, Strength(1.3, blocks=weights(**GIVEN)))], mode="merged" if way == "merged" else "live")
    report = served.activate(stack).entries[0]
    assert not report.unused
    assert report.hit == 3
    with torch.no_grad():
        got = model(inputs[0])
        for mine, right in zip(got, want, strict=True):
            assert worst(mine, right) < BOUND
        served.set_multiplier(0, Strength(1.3, blocks=weights(0.0)))
        switched_off = model(inputs[0])
        served.deactivate()
        assert all(torch.equal(a + 0.0, b + 0.0) for a, b in zip(switched_off, model(inputs[0]), strict=True))


def name_of(place: str, layer: str) -> str:
    return f"{place}.{ {'attention q': 'layer.q_proj', 'attention out': 'layer.out_proj'}.get(layer, 'layer') }"


@pytest.fixture
def unet() -> nn.Module:
    return tiny_unet(0)


@pytest.fixture
def path(tmp_path, unet) -> Path:
    return kohya_lora(tmp_path / "a.safetensors", {"unet": unet, "text_encoder": tiny_text_encoder(0)}, conv=True)


def run(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**unet_inputs(1))[0]
    return found


def fixed(path: Path, strength: Strength | float, mode: str = "live") -> Tensor:
    """Return the output at a constant strength, of a separate model and engine."""
    model = tiny_unet(0)
    served = Engine({"unet": model})
    if strength != 0.0:
        served.activate(Stack([Entry(path, strength)], mode=mode))
    return run(model)


CURVES = {
    "fractions": Curve(((0, 0.0), (0.3, 1.0), (1, 0.25))),
    "steps": Curve(((2, 0.0), (5, 1.0))),
    "held": Curve(((0, 1.0), (4, 0.5), (6, -1.0)), shape="step"),
    "cosine": Curve(((0, 1.0), (1, 0.0)), shape="cosine"),
    "sigma": Curve(((14.6, 1.0), (0.0, 0.0)), unit="sigma"),
    "timestep": Curve(((1000, 1.0), (0, 0.2)), unit="timestep"),
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_at_each_step_a_schedule_is_its_value_there(path, unet, curve):
    served = Engine({"unet": unet})
    served.activate(Stack([Entry(path, Strength(curve))]))
    seen = set()
    for step in range(8):
        moment = Moment(step, 8, sigma=14.6 - 2 * step, timestep=990.0 - 120 * step)
        served.set_clock(lambda read, moment=moment: moment)
        value = curve.at(moment)
        seen.add(value)
        assert torch.equal(run(unet), fixed(path, value)), step
    assert len(seen) >= 3


def test_before_and_behind_its_window_a_lora_is_not_there(path, unet):
    served = Engine({"unet": unet})
    plain, strong = fixed(path, 0.0), fixed(path, 0.8)
    served.activate(Stack([Entry(path, Strength(0.8, during=Window(stop=2)))]))
    for step in range(8):
        served.set_clock(lambda read, step=step: Moment(step, 8))
        got = run(unet)
        assert torch.equal(got, strong if step < 2 else plain), step


def test_turns_are_those_of_a_curve_of_steps_and_windows_are_within_others(path, unet):
    served = Engine({"unet": unet})
    turns = Curve(tuple((float(step), float(step % 3 == 1)) for step in range(8)), shape="step")
    inner = Window(start=2, turn=(1, 3), within=Window(stop=0.8, within=Window(high=13.0)))
    found = []
    for step in range(8):
        moment = Moment(step, 8, sigma=14.0 - step)
        served.set_clock(lambda read, moment=moment: moment)
        served.activate(Stack([Entry(path, Strength(0.8, during=Window(turn=(1, 3))))]))
        assert torch.equal(run(unet), fixed(path, 0.8 * turns.at(moment))), step
        found.append(inner.holds(moment))
    assert found == [step == 4 for step in range(8)]
    assert inner.by_noise
    assert not Window(turn=(0, 2)).by_noise
    assert Window(turn=(0, 2), within=Window(start=5, stop=3)).why_empty
    with pytest.raises(StackError, match="turn"):
        Window(turn=(2, 2))


def test_sides_of_a_unet_are_sdnexts(path, unet):
    """By its `multiplier`: down, middle and up blocks by their names, and `in` for the rest."""
    served = Engine({"unet": unet})
    served.activate(Stack([Entry(path, Strength(1.0, sides={"in": 0.2, "out": 0.8}))]))
    of_part = {"down_blocks": 0.2, "mid_block": 1.0, "up_blocks": 0.8}
    seen = 0
    for name, module in unet.named_modules():
        if slot_of(module) is not None:
            seen += 1
            assert strengths_of(served, module) == [of_part.get(name.partition(".")[0], 0.2)], name
    assert seen > 20
    served.activate(Stack([Entry(path, Strength(1.0, sides={"in": 0.2, "mid": Curve(((0, 0), (1, 1)))}))]))
    served.set_clock(lambda read: Moment(7, 8))
    run(unet)
    assert strengths_of(served, unet.mid_block.resnets[0].conv1) == [1.0]


def test_rules_take_the_place_of_block_weights(path, unet):
    rule = Element((), ("attn",), 0.3)
    served = Engine({"unet": unet})
    served.activate(Stack([Entry(path, Strength(0.9, blocks=BlockWeights(weights(0.5).values, (rule,))))]))
    got = run(unet)
    numbers = {name: 0.9 * (0.3 if "attn" in name else 0.5) for name, _ in unet.named_modules()}
    for name, module in unet.named_modules():
        if slot_of(module) is not None and "time_embedding" not in name and name != "conv_out":
            (factor,) = strengths_of(served, module)
            assert factor == pytest.approx(numbers[name]), name
    assert not torch.equal(got, fixed(path, 0.9))
    # another weight of the same rule writes numbers only
    kept = served._plan
    served.activate(
        Stack([Entry(path, Strength(0.9, blocks=BlockWeights(weights(0.5).values, (replace(rule, weight=0.0),))))])
    )
    assert served._plan is kept
    served.activate(Stack([Entry(path, Strength(0.9, blocks=weights(0.5)))]))
    assert served._plan is not kept
    assert torch.equal(run(unet), fixed(path, Strength(0.9, blocks=weights(0.5))))
    served.set_multiplier(0, Strength(0.9, blocks=BlockWeights(weights(0.5).values, (rule,))))
    assert torch.equal(run(unet), got), "a rule that the activation did not have"


def strengths_of(served: Engine, module: nn.Module) -> list[float]:
    slot = slot_of(module)
    assert slot is not None
    assert served._plan is not None
    (values,) = served._plan.strengths.now.values
    return [values[binding.group] for binding in slot.executor._bindings]  # type: ignore[union-attr]


def test_changing_block_weights_or_a_schedule_touches_no_layer(path, unet):
    served = Engine({"unet": unet})
    served.activate(Stack([Entry(path, 1.0)]))
    kept = served._plan
    for strength in (
        Strength(1.0, blocks=weights(0.5)),
        Strength(Curve(((0, 0), (1, 1)))),
        Strength({"unet": 0.5, "text_encoder": 1.0}, during=Window(start=2)),
        0.7,
    ):
        served.activate(Stack([Entry(path, strength)]))
        assert served._plan is kept
    assert not unet._forward_pre_hooks_with_kwargs  # nothing listens where nothing depends on the moment
    assert torch.equal(run(unet), fixed(path, 0.7))


def test_text_encoders_have_the_strength_of_the_beginning(tmp_path):
    encoder, ids = tiny_text_encoder(0), torch.arange(6).unsqueeze(0)
    unet = tiny_unet(0)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": unet, "text_encoder": encoder})
    served = Engine({"unet": unet, "text_encoder": encoder})

    def encoded(strength: Strength | float) -> Tensor:
        served.activate(Stack([Entry(path, strength)]))
        with torch.no_grad():
            found: Tensor = encoder(ids)[0]
        return found

    want = encoded(0.4)
    assert torch.equal(encoded(Strength(Curve(((0, 0.4), (1, 1.0))), during=Window(start=5))), want)
    assert torch.equal(encoded(Strength(Curve(((14, 0.4), (0, 1.0)), unit="sigma"))), want)
    assert torch.equal(encoded(Strength(0.8, blocks=weights(BASE=0.5))), want)


def test_images_may_have_functions_of_their_own(path, unet):
    served = Engine({"unet": unet})
    curve, window = (
        Strength(Curve(((0, 0.0), (1, 1.0)))),
        Strength(0.5, during=Window(stop=3), blocks=weights(0.5, M00=2.0)),
    )
    served.activate(Stack([Entry(path, PerImage((curve, window)))]))
    for step in (0, 2, 5):
        moment = Moment(step, 8)
        served.set_clock(lambda read, moment=moment: moment)
        with torch.no_grad():
            got = unet(**unet_inputs(1))[0]
        for image, strength in enumerate((curve, window)):
            model = tiny_unet(0)
            alone = Engine({"unet": model})
            alone.set_clock(lambda read, moment=moment: moment)
            alone.activate(Stack([Entry(path, strength)]))
            with torch.no_grad():
                want = model(**unet_inputs(1))[0][image]
            assert worst(got[image], want) < BOUND, (step, image)


def test_only_what_stays_the_same_is_merged(path, tmp_path, unet):
    other = kohya_lora(tmp_path / "b.safetensors", {"unet": unet}, seed=3)
    served = Engine({"unet": unet})
    curve = Strength(Curve(((0, 0.2), (1, 1.0))))
    before = {name: value.clone() for name, value in unet.state_dict().items()}
    report = served.activate(Stack([Entry(path, curve), Entry(other, 1.0)], mode="merged"))
    assert report.live["the strength differs from step to step"] > 0
    served.set_clock(lambda read: Moment(7, 8))
    model = tiny_unet(0)
    live = Engine({"unet": model})
    live.activate(Stack([Entry(path, 1.0), Entry(other, 1.0)]))
    assert worst(run(unet), run(model)) < 1e-4
    served.activate(Stack([Entry(path, Strength(0.5, blocks=weights(0.5))), Entry(other, 1.0)], mode="merged"))
    assert served.activate(served.stack).merged > 0
    served.deactivate()
    assert all(torch.equal(value, before[name]) for name, value in unet.state_dict().items())


def test_a_clock_is_asked_once_per_call_and_the_timestep_read_only_where_it_matters(path, unet, monkeypatch):
    calls = []
    served = Engine({"unet": unet})
    served.set_clock(lambda read: calls.append(1) or Moment(1, 8))
    served.activate(Stack([Entry(path, 1.0)]))
    run(unet)
    assert calls == []  # nothing depends on it
    served.activate(Stack([Entry(path, Strength(1.0, during=Window(stop=3)))]))
    monkeypatch.setattr(ModelCall, "timestep", property(lambda self: pytest.fail("read off the device")))
    run(unet)
    assert calls == [1]


def test_without_a_clock_noise_is_told_by_the_call_and_steps_by_the_user(path, unet):
    served = Engine({"unet": unet})
    served.activate(Stack([Entry(path, Strength(Curve(((1000, 1.0), (0, 0.0)), unit="timestep")))]))
    assert torch.equal(run(unet), fixed(path, 0.5))  # unet_inputs are of timestep 500
    served.activate(Stack([Entry(path, Strength(1.0, during=Window(stop=3)))]))
    with pytest.raises(MomentError, match="a: a strength depends on the step, but the step"):
        run(unet)
    served.set_moment(Moment(5, 8))
    assert torch.equal(run(unet), fixed(path, 0.0))
    served.set_moment(Moment(0, 8))
    assert torch.equal(run(unet), fixed(path, 1.0))
    served.deactivate()
    assert torch.equal(run(unet), fixed(path, 0.0))


def test_ranks_by_timestep_and_a_schedule_go_together(tmp_path):
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.default_generator.manual_seed(0)
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor, timestep: Tensor) -> Tensor:
            found: Tensor = self.layer(x)
            return found

    tensors = pair("lora_unet_layer", (8, 8), 4, alpha=4)
    path = save(tmp_path / "t.safetensors", tensors, METADATA)
    model, x = Denoiser(), torch.randn(3, 8)
    served = Engine({"unet": model})
    served.set_clock(lambda read: Moment(3, 8))
    plain = model(x, torch.tensor(0))
    served.activate(Stack([Entry(path, Strength(Curve(((0, 0.0), (6, 1.0)))))]))
    half = model(x, torch.tensor(500))
    served.activate(Stack([Entry(path, 0.5)]))
    assert torch.equal(model(x, torch.tensor(500)), half)
    assert not torch.equal(model(x, torch.tensor(0)), half)
    assert not torch.equal(plain, half)


def test_a_list_that_does_not_fit_the_model_leaves_all_as_it_was(path, unet):
    served = Engine({"unet": unet})
    served.activate(Stack([Entry(path, 0.5)]))
    before = run(unet)
    for stack in (
        Stack([Entry(path, Strength(1.0, blocks=BlockWeights((1.0, 0.5))))]),
        Stack([Entry(path, 1.0, rank=2), Entry(path, Strength(1.0, blocks=BlockWeights((1.0, 0.5))))]),
    ):
        with pytest.raises(StackError, match="a: a list of 2 block weights; the loaded model takes") as caught:
            served.activate(stack)
        assert caught.value.index == len(stack) - 1
        assert torch.equal(run(unet), before)
    with pytest.raises(StackError, match="2 block weights"):
        served.set_multiplier(0, Strength(1.0, blocks=BlockWeights((1.0, 0.5))))
    assert torch.equal(run(unet), before)
