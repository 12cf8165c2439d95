"""Nothing is reported as applied that has no effect: layers that are never called, strengths of 0, broken numbers."""

from __future__ import annotations

import contextlib
import json
import logging
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from lib_lora import (
    ActivationError,
    BlockWeights,
    ComponentError,
    Curve,
    Element,
    Engine,
    Entry,
    Moment,
    MomentError,
    Reading,
    Region,
    Stack,
    StackError,
    Strength,
    Window,
    load_network,
)
from tests.fakes.files import pair, save

LAYERS = 4


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    """Look at outputs only where no hook can cause a recompilation."""
    torch.compiler.reset()


class Model(nn.Module):
    """Layers in a list, of which a call may leave some out, as CLIP skip does."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.count = LAYERS

    def forward(self, x: Tensor, timestep: float = 500.0) -> Tensor:
        for layer in self.layers[: self.count]:
            x = layer(x)
        return x


def file(folder, component="unet", count=LAYERS, width=8, **metadata):
    prefix = {"unet": "lora_unet", "text_encoder": "lora_te"}[component]
    tensors = {}
    for number in range(count):
        tensors |= pair(f"{prefix}_layers_{number}", (width, width), 2, seed=number)
    return save(folder / f"{component}.safetensors", tensors, metadata)


def activated(folder, model, component="unet", **entry):
    engine = Engine({component: model})
    engine.activate(Stack([Entry(file(folder, component), **entry)]))
    return engine


# layers that are never called -----------------------------------------------------------------------------------------


def test_nothing_is_said_before_the_model_is_called_and_where_all_layers_are(tmp_path):
    model = Model().requires_grad_(False)
    engine = activated(tmp_path, model)
    assert engine.report.uncalled == ()
    model(torch.randn(2, 8))
    assert engine.report.uncalled == ()
    assert "never called" not in engine.report.summary()


def test_a_layer_whose_forward_is_replaced_is_told(tmp_path, caplog):
    model = Model().requires_grad_(False)
    engine = activated(tmp_path, model)
    layer = model.layers[1]
    layer.forward = lambda x: nn.functional.linear(x, layer.weight)
    with caplog.at_level(logging.WARNING):
        model(torch.randn(2, 8))
        model(torch.randn(2, 8))
    (one,) = engine.report.uncalled
    assert (one.component, one.path, one.expected) == ("unet", "layers.1", False)
    want = "1 of 4 layers was never called: unet.layers.1 (its forward was replaced by other code"
    assert [want in record.message for record in caplog.records] == [True], "once"
    assert want in engine.report.summary()


def test_layers_of_a_model_that_computes_otherwise_are_told(tmp_path):
    model = Model().requires_grad_(False)
    engine = activated(tmp_path, model)
    model.count = 0
    model(torch.randn(2, 8))
    assert engine.silent == {"unet"}
    engine.activate(Stack([Entry(file(tmp_path), 0.5)]))
    assert engine.silent == frozenset(), "nothing was computed since"
    model.count = 1
    model(torch.randn(2, 8))
    assert engine.silent == frozenset()


def test_what_clip_skip_leaves_out_is_told_and_no_reason_to_warn(tmp_path, caplog):
    model = Model().requires_grad_(False)
    engine = activated(tmp_path, model, "text_encoder")
    model.count = LAYERS - 1
    with caplog.at_level(logging.WARNING):
        model(torch.randn(2, 8))
        model(torch.randn(2, 8))
    (one,) = engine.report.uncalled
    assert (one.path, one.expected) == ("layers.3", True)
    assert "CLIP skip" in one.reason
    assert not caplog.records


def test_torchs_fast_path_is_told(tmp_path):
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    tensors = pair("lora_unet_linear1", (16, 8), 2) | pair("lora_unet_linear2", (8, 16), 2)
    outer = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), model)
    engine = Engine({"unet": outer})
    tensors = {key.replace("unet_", "unet_1_"): value for key, value in tensors.items()}
    tensors |= pair("lora_unet_0", (8, 8), 2)
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    with torch.no_grad():
        outer(torch.randn(2, 3, 8))
    assert {one.reason for one in engine.report.uncalled} == {
        "torch's fast path of TransformerEncoderLayer computes it in one kernel"
    }


def test_a_call_that_fails_says_nothing_of_the_layers_behind_it(tmp_path, caplog):
    model = Model().requires_grad_(False)
    activated(tmp_path, model)

    def fail(*_: object) -> None:
        raise RuntimeError("interrupted")

    hook = model.layers[1].register_forward_pre_hook(fail)
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError):
        model(torch.randn(2, 8))
    hook.remove()
    assert not caplog.records


def test_a_call_that_ends_after_one_that_failed_has_called_all_layers(tmp_path, caplog):
    model = Model().requires_grad_(False)
    engine = activated(tmp_path, model)

    def fail(*_: object) -> None:
        raise RuntimeError("interrupted")

    hook = model.layers[1].register_forward_pre_hook(fail)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 8))
        hook.remove()
        model(torch.randn(2, 8))
    assert (engine.report.uncalled, caplog.records) == ((), [])


def test_nothing_is_said_while_the_first_call_goes_on(tmp_path, caplog):
    model = Model().requires_grad_(False)
    engine = activated(tmp_path, model)
    model.layers.insert(1, model.layers[0])  # called twice in each call
    model.count = LAYERS + 1
    seen = []
    model.layers[3].register_forward_pre_hook(lambda *_: seen.append(engine.report.uncalled))
    with caplog.at_level(logging.WARNING):
        model(torch.randn(2, 8))
    assert (seen, engine.report.uncalled, caplog.records) == ([()], (), [])


@torch.no_grad()
def test_a_text_encoder_that_calls_no_layer_is_told(tmp_path, caplog):
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(block, 1).eval().requires_grad_(False)
    tensors = pair("lora_te_layers_0_linear1", (16, 8), 2) | pair("lora_te_layers_0_linear2", (8, 16), 2)
    engine = Engine({"text_encoder": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    with caplog.at_level(logging.WARNING):
        model(torch.randn(2, 3, 8))
    assert [one.path for one in engine.report.uncalled] == ["layers.0.linear1", "layers.0.linear2"]
    assert "2 of 2 layers were never called" in caplog.text


def test_a_merged_layer_need_not_be_called(tmp_path):
    model = Model().requires_grad_(False)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file(tmp_path))], mode="merged"))
    model.count = 1
    model(torch.randn(2, 8))
    assert engine.report.uncalled == ()


# strengths that are 0 -------------------------------------------------------------------------------------------------

IDLE = {
    "another component": ({"text_encoder": 1.0}, "its strength is 0 for all layers that it changes, which are in unet"),
    "never begins": (Strength(during=Window(start=10, stop=5)), "it stops at step 5 and starts at step 10 only"),
    "no noise": (Strength(during=Window(high=1.0, low=5.0)), "it stops below sigma 5 and starts at sigma 1 only"),
    "an empty region": (Strength(region=Region(2, 2, bytes(4))), "its region has no place in the picture"),
}


@pytest.mark.parametrize("strength", IDLE)
def test_an_entry_that_has_no_effect_says_why(tmp_path, strength):
    multiplier, why = IDLE[strength]
    model, encoder = Model().requires_grad_(False), Model().requires_grad_(False)
    engine = Engine({"unet": model, "text_encoder": encoder})
    report = engine.activate(Stack([Entry(file(tmp_path), multiplier)]))
    assert report.idle == {0: why}
    assert f"it has no effect: {why}" in report.summary()


HALF_IDLE = {
    "never begins": (Strength(during=Window(start=10, stop=5)), "it stops at step 5 and starts at step 10 only"),
    "begins behind the last step": (
        Strength(during=Window(start=50)),
        "its strength was 0 at all 3 calls of the model",
    ),
}


TEXTS_ALONE = BlockWeights(elements=(Element(("BASE",), (), 0.0, not_blocks=True),))


def both_halves(tmp_path, multiplier):
    """Run a LoRA for a denoiser and a text encoder for three steps; return what is told of it before and after."""
    model, encoder = Model().requires_grad_(False), Model().requires_grad_(False)
    parts = {f"lora_{part}_layers_0": (8, 8) for part in ("unet", "te")}
    tensors = {key: value for layer, shape in parts.items() for key, value in pair(layer, shape, 2).items()}
    engine = Engine({"unet": model, "text_encoder": encoder})
    before = engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), multiplier)]))
    assert before.entries[0].components == {"unet", "text_encoder"}
    encoder(torch.randn(2, 8))
    steps = iter(range(3))
    engine.set_clock(lambda _: Moment(step=next(steps), steps=3))
    for _ in range(3):
        model(torch.randn(2, 8))
    return before, engine.report


def test_a_region_without_a_place_leaves_the_text_encoder_alone(tmp_path):
    components = {"unet": Model().requires_grad_(False), "text_encoder": Model().requires_grad_(False)}
    engine = Engine(components)
    parts = {f"lora_{part}_layers_0": (8, 8) for part in ("unet", "te")}
    tensors = {key: value for layer, shape in parts.items() for key, value in pair(layer, shape, 2).items()}
    nowhere = Strength(region=Region(2, 2, bytes(4)))
    report = engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), nowhere)]))
    assert (report.idle, report.partly_idle) == ({}, {0: "on the unet: its region has no place in the picture"})


@pytest.mark.parametrize("strength", HALF_IDLE)
def test_a_half_that_has_no_effect_says_why_though_the_other_has(tmp_path, strength):
    multiplier, why = HALF_IDLE[strength]
    before, after = both_halves(tmp_path, multiplier)
    assert before.partly_idle == ({} if "calls" in why else {0: f"on the unet: {why}"})
    assert (after.idle, after.partly_idle) == ({}, {0: f"on the unet: {why}"})
    assert f"it has no effect on the unet: {why}" in after.summary()


@pytest.mark.parametrize(
    "multiplier",
    [
        Strength(during=Window(start=1)),
        Strength({"unet": 0.0, "text_encoder": 1.0}, during=Window(start=50)),
        Strength(
            during=Window(start=50), blocks=BlockWeights(elements=(Element(("BASE",), (), 0.0, not_blocks=True),))
        ),
        Strength({"unet": Curve(((0.0, 0.0),)), "text_encoder": 1.0}),
        {"unet": 0.0, "text_encoder": 1.0},
    ],
)
def test_a_half_that_acts_and_one_that_is_0_on_purpose_are_not_told(tmp_path, multiplier):
    _, after = both_halves(tmp_path, multiplier)
    assert (after.idle, after.partly_idle) == ({}, {})


def test_a_window_outside_the_steps_is_told_after_them(tmp_path):
    model = Model().requires_grad_(False)
    engine = activated(tmp_path, model, multiplier=Strength(during=Window(start=50)))
    for step in range(3):
        engine.set_moment(Moment(step=step, steps=3))
        model(torch.randn(2, 8))
    assert engine.report.idle[0].startswith("its strength was 0 at all ")
    engine.set_moment(Moment(step=60, steps=100))
    assert engine.report.idle == {}


@pytest.mark.parametrize("multiplier", [0.0, 1.0, Strength(Curve(((0.0, 0.0), (1.0, 1.0))))])
def test_strengths_that_act_and_those_that_are_0_on_purpose_are_not_told(tmp_path, multiplier):
    engine = activated(tmp_path, Model().requires_grad_(False), multiplier=multiplier) if multiplier != 0 else None
    assert engine is None or engine.report.idle == {}


@pytest.mark.parametrize("kind", ["zero", "bias", "dora", "half trained"])
def test_a_lora_whose_every_up_is_zero_is_told(tmp_path, kind):
    tensors = pair("lora_unet_layers_0", (8, 8), 2) | pair("lora_unet_layers_1", (8, 8), 2)
    for i in (0, 1) if kind != "half trained" else (1,):
        tensors[f"lora_unet_layers_{i}.lora_up.weight"] = torch.zeros(8, 2)
    if kind == "bias":
        tensors["lora_unet_layers_0.lora_up.bias"] = torch.ones(8)
    elif kind == "dora":
        tensors["lora_unet_layers_0.dora_scale"] = torch.ones(8, 1)
    model = Model().requires_grad_(False)
    report = Engine({"unet": model}).activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.5)]))
    why = "its `up` weights are all zero, as before the first step of training"
    assert report.idle == ({0: why} if kind == "zero" else {})
    assert (f"it has no effect: {why}" in report.summary()) is (kind == "zero")


# numbers that are not finite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e39, -1e300])
@pytest.mark.parametrize("where", ["alpha", "weights", "configuration"])
def test_a_layer_with_numbers_that_are_not_finite_is_left_out_and_told(tmp_path, bad, where):
    tensors = pair("base_model.model.layers.0", (8, 8), 2) | pair("base_model.model.layers.1", (8, 8), 2)
    tensors = {key.replace("lora_down", "lora_A").replace("lora_up", "lora_B"): value for key, value in tensors.items()}
    config = {"r": 2, "lora_alpha": 2.0}
    if where == "weights":
        if abs(bad) < float("inf"):
            tensors = {key: value.double() for key, value in tensors.items()}
        tensors["base_model.model.layers.0.lora_A.weight"][1, 3] = bad
    elif where == "alpha":
        tensors["base_model.model.layers.0.alpha"] = torch.tensor(bad, dtype=torch.float64)
    else:
        config["alpha_pattern"] = {"layers.0": bad}
    path = save(tmp_path / "a.safetensors", tensors, {"lora_adapter_metadata": json.dumps(config)})
    model = Model().requires_grad_(False)
    x = torch.randn(2, 8)
    report = load_network(path, {"unet": model}).report
    assert (report.hit, report.layers, {one.cause for one in report.unused}) == (1, 2, {"not_finite"})
    assert "NaN or infinite" in report.summary()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    assert model(x).isfinite().all()


@pytest.mark.parametrize("bad", ["vera_A", "vera_B"])
def test_numbers_that_layers_share_count_for_each_that_reads_them(tmp_path, bad):
    tensors = {"base_model.vera_A": torch.ones(2, 8), "base_model.vera_B": torch.ones(8, 2)}
    tensors[f"base_model.{bad}"][1, 1] = torch.nan
    for i, name in enumerate(("vera_lambda_b", "vera_lambda_d")):
        tensors[f"base_model.model.layers.0.{name}"] = torch.ones((8, 2)[i])
    name = "base_model.model.layers.1.lora_{}.weight"
    tensors |= {name.format("A"): torch.ones(2, 8), name.format("B"): torch.ones(8, 2)}
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"unet": Model()}).report
    assert (report.hit, report.layers) == (1, 2)
    assert "not_finite" in {one.cause for one in report.unused}
    assert f"base_model.{bad} has numbers that are NaN or infinite" in str(report.unused)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e39])
def test_a_single_number_counts_as_well(tmp_path, bad):
    """As the second factor of a LoKr of one block, or LyCORIS' `scalar`."""
    one = torch.full((1, 1), bad, dtype=torch.float64)
    tensors = {"lora_unet_layers_0.lokr_w1": one, "lora_unet_layers_0.lokr_w2": torch.ones(8, 8)}
    tensors |= pair("lora_unet_layers_1", (8, 8), 2)
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"unet": Model()}).report
    assert (report.hit, {one.cause for one in report.unused}) == (1, {"not_finite"})


def test_a_rank_of_a_configuration_that_no_float_has_is_none(tmp_path):
    huge = 10**400
    name = "base_model.model.layers.{}.lora_{}"
    tensors = {name.format(0, "A"): torch.ones(2, 8), name.format(0, "B"): torch.ones(8, 2)}
    tensors |= {name.format(0, "E"): torch.ones(2, 1)}
    tensors |= {f"base_model.model.layers.1.lokr_w{i}": torch.ones(side, side) for i, side in ((1, 2), (2, 4))}
    config = {"lora_adapter_metadata": json.dumps({"r": huge, "init_r": huge, "lora_alpha": 2, "alpha": 2})}
    assert load_network(save(tmp_path / "a.safetensors", tensors, config), {"unet": Model()}).report.hit == 2


def test_a_file_without_a_finite_number_is_refused(tmp_path):
    tensors = pair("lora_unet_layers_0", (8, 8), 2, alpha=float("nan"))
    model = Model().requires_grad_(False)
    with pytest.raises(ActivationError, match="has numbers that are NaN or infinite in every layer that fits the"):
        Engine({"unet": model}).activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))


# files that fit in part -----------------------------------------------------------------------------------------------


def test_a_file_of_which_most_does_not_fit_is_refused_unless_it_is_wanted(tmp_path):
    tensors = pair("lora_unet_layers_0", (8, 8), 2)
    for number in range(10, 13):
        tensors |= pair(f"lora_unet_layers_{number}", (8, 8), 2)
    path = save(tmp_path / "a.safetensors", tensors)
    model = Model().requires_grad_(False)
    engine = Engine({"unet": model})
    with pytest.raises(ActivationError, match="fits 1 of the 4 layers it has for this model"):
        engine.activate(Stack([Entry(path)]))
    report = engine.activate(Stack([Entry(path)], reading=Reading(fragments=True)))
    assert report.entries[0].warning == "3 of 4 layers are left out, such as lora_unet_layers_10.lora_down.weight"


def test_layers_for_a_component_that_is_not_there_do_not_count(tmp_path):
    tensors = pair("lora_unet_layers_0", (8, 8), 2)
    for number in range(3):
        tensors |= pair(f"lora_te_layers_{number}", (8, 8), 2)
    model = Model().requires_grad_(False)
    report = Engine({"unet": model}).activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    assert (report.entries[0].hit, report.entries[0].absent, report.entries[0].warning) == (1, 3, "")


@pytest.mark.parametrize("known", [False, True])
def test_a_file_of_peft_without_its_configuration_says_that_its_scale_is_unknown(tmp_path, known):
    tensors = {"base_model.model.layers.0.lora_A.weight": torch.ones(2, 8)}
    tensors["base_model.model.layers.0.lora_B.weight"] = torch.ones(8, 2)
    path = save(tmp_path / "adapter_model.safetensors", tensors)
    if known:
        (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    report = load_network(path, {"unet": Model()}).report
    assert any("scale is unknown and taken as 1" in note for note in report.notes) is not known
    assert ("scale is unknown" in report.summary()) is not known


# a library's first minute ---------------------------------------------------------------------------------------------


class Pipe:
    """As diffusers' pipelines."""

    def __init__(self) -> None:
        self.transformer = Model()
        self.components = {"tokenizer": object(), "transformer": self.transformer, "image_encoder": None}


FIRST = {
    "a pipeline": (Pipe, "takes the model's torch modules by name, not a Pipe; write Engine({'unet': pipe.unet})"),
    "a model": (Model, "not a Model; write Engine({'unet': pipe.unet}) or Engine.for_pipeline(pipe)"),
    "a missing part": (lambda: {"unet": None}, "takes the model's torch modules by name, not 'unet': NoneType; write"),
    "another object": (lambda: {"tokenizer": 3}, "by name, not 'tokenizer': int; write"),
}


@pytest.mark.parametrize("what", FIRST)
def test_an_engine_of_something_else_says_what_to_write(what):
    make, sentence = FIRST[what]
    with pytest.raises(ComponentError) as caught:
        Engine(make())
    assert sentence in str(caught.value)
    engine = Engine({})
    with pytest.raises(ComponentError):
        engine.components = make()


def test_an_engine_takes_a_pipeline_as_it_is_and_its_scheduler_tells_the_step(tmp_path):
    pipe = Pipe()
    pipe.scheduler = SimpleNamespace(timesteps=torch.tensor([9.0, 5.0, 1.0]), step_index=0)
    engine = Engine.for_pipeline(pipe, cache_size=3)
    assert engine.components == {"transformer": pipe.transformer}
    x = torch.ones(1, 8)
    plain = pipe.transformer(x)
    engine.activate(Stack([Entry(file(tmp_path), Strength(1.0, during=Window(start=2)))]))
    assert torch.equal(pipe.transformer(x), plain)
    pipe.scheduler.step_index = 2
    assert not torch.equal(pipe.transformer(x), plain)
    gone, model = weakref.ref(pipe), pipe.transformer
    del pipe
    assert gone() is None, "an engine does not keep its pipeline"
    with pytest.raises(MomentError):
        model(x)
    with pytest.raises(ComponentError, match=r"not a str; of a single model write Engine\({'unet': model}\)"):
        Engine.for_pipeline("runwayml/stable-diffusion-v1-5")
    with pytest.raises(ComponentError, match=r"write load_network\(path, {'unet': pipe.unet}\)"):
        load_network(file(tmp_path), Pipe())


def test_what_is_no_stack_is_refused_with_what_to_write(tmp_path):
    engine = Engine({"unet": Model()})
    with pytest.raises(StackError, match=r"write engine.activate\(Stack\(\[Entry\(path, 0.8\)\]\)\)"):
        engine.activate([Entry(file(tmp_path))])


def test_a_model_that_nobody_keeps_is_said_to_be_gone(tmp_path):
    engine = Engine({"unet": Model()})
    with pytest.raises(ComponentError, match="an engine does not keep its model"):
        engine.activate(Stack([Entry(file(tmp_path))]))


def test_an_engine_and_a_stack_can_be_in_force_for_a_block(tmp_path):
    model, x = Model().requires_grad_(False), torch.randn(2, 8)
    plain, path = model(x), file(tmp_path)
    with Engine({"unet": model}) as engine:
        with engine.active(Stack([Entry(path, 0.5)])) as report:
            assert report.entries[0].hit == LAYERS
            half = model(x)
            with contextlib.suppress(RuntimeError), engine.active(Stack([Entry(path)])):
                assert not torch.equal(model(x), half)
                raise RuntimeError("of the block")
            assert torch.equal(model(x), half), "what was before is in force again"
        assert torch.equal(model(x), plain)
        engine.activate(Stack([Entry(path)]))
    assert torch.equal(model(x), plain)


# numbers that are not finite ------------------------------------------------------------------------------------------


def test_the_strongest_lora_is_named_where_the_output_is_not_finite(tmp_path):
    model = Model().half().requires_grad_(False)
    other = save(tmp_path / "other.safetensors", pair("lora_unet_layers_0", (8, 8), 2, seed=9))
    of_steps = Strength(Curve(((1, 1.0), (2, 1e6))))
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(file(tmp_path), of_steps), Entry(other, 0.5)]))
        finite = []
        for step in range(6):
            engine.set_moment(Moment(step=step, steps=6))
            finite.append(bool(model(torch.ones(2, 8).half()).isfinite().all()))
        first = finite.index(False)
        assert first > 0
        report = engine.report
        assert report.too_strong == {
            0: f"the output of unet is not finite from call {first + 1} on, and this LoRA changes it most,"
            " at a strength of 1e+06"
        }
        assert report.too_strong[0] in report.summary().splitlines()[0]
        engine.activate(Stack([Entry(file(tmp_path)), Entry(other, 0.5)]))
        model(torch.ones(2, 8).half())
        assert not engine.report.too_strong
    assert not model._forward_hooks


def test_a_lora_of_large_numbers_at_a_low_strength_is_named_before_an_ordinary_one(tmp_path):
    model = Model().half().requires_grad_(False)
    huge = pair("lora_unet_layers_0", (8, 8), 2, seed=9)
    huge = {key: value * 3e3 if "lora_" in key.rpartition("layers_0.")[2] else value for key, value in huge.items()}
    with Engine({"unet": model}) as engine:
        stack = [Entry(file(tmp_path)), Entry(save(tmp_path / "huge.safetensors", huge), 0.5)]
        engine.activate(Stack(stack))
        assert not model(torch.ones(2, 8).half()).isfinite().all()
        assert list(engine.report.too_strong) == [1]


@pytest.mark.parametrize("wrap", [lambda x: (x, None), lambda x: [x], lambda x: {"sample": x, "more": 1}])
def test_the_first_tensor_of_an_output_is_looked_at(tmp_path, wrap):
    class Wrapped(Model):
        def forward(self, x: Tensor) -> object:
            return wrap(super().forward(x))

    model = Wrapped().requires_grad_(False)
    engine = activated(tmp_path, model)
    model(torch.full((2, 8), torch.nan))
    assert list(engine.report.too_strong) == [0]


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_is_compiled_is_not_looked_at_and_is_compiled_once(tmp_path, first):
    model = Model().requires_grad_(False)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    engine = Engine({"unet": model})
    if first:
        compiled(torch.ones(2, 8))
    for strength in (1.0, 0.5):
        engine.activate(Stack([Entry(file(tmp_path), strength)]))
        compiled(torch.full((2, 8), torch.nan))
        assert not engine.report.too_strong
        assert engine.silent == frozenset()
        engine.activate(Stack())
    compiled(torch.ones(2, 8))
    graphs = counter.frame_count
    engine.activate(Stack([Entry(file(tmp_path), 0.7)]))
    compiled(torch.ones(2, 8))
    engine.activate(Stack())
    compiled(torch.ones(2, 8))
    assert counter.frame_count == graphs <= 2, "with adapters and without"


@pytest.mark.parametrize("value", [1e39, -1e308, float("nan"), float("inf")])
def test_a_strength_that_float32_does_not_have_is_refused(tmp_path, value):
    for multiplier in (value, {"unet": value}):
        with pytest.raises(StackError, match="range of float32"):
            Stack([Entry(file(tmp_path), multiplier)])
    with pytest.raises(StackError, match="range of float32"):
        Strength(value)
    with pytest.raises(StackError, match="range of float32"):
        Curve(((0, 1), (1, value)))
