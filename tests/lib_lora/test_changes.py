"""What other code changes while a stack is in force: the next call and the report follow it."""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lib_lora import Engine, Entry, Stack, load_network
from lib_lora.adapters.dora import DoRA
from lib_lora.execution import hooks
from lib_lora.naming.index import LayerIndex
from tests.fakes.accelerator import device, simulated
from tests.fakes.changes import KINDS, Encoder, Pipeline, right_picture, seeded, write_files
from tests.fakes.files import pair, save
from tests.fakes.kinds import SAMPLES
from tests.fakes.models import tiny_text_encoder

EXACT = 1e-5


def off(picture: Tensor, right: Tensor) -> float:
    return ((picture.double() - right.double()).abs().max() / right.double().abs().max()).item()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return write_files(tmp_path)


class Started:
    """A pipeline with both files in force, and a shadow without an engine."""

    def __init__(self, files: list[Path], **options: str) -> None:
        self.pipeline, self.shadow = Pipeline(7), Pipeline(7)
        self.files = dict(zip(files, (0.7, 0.4), strict=True))
        self.engine = Engine.for_pipeline(self.pipeline)
        self.engine.activate(Stack([Entry(*pair) for pair in self.files.items()], **options))
        self.pipeline.picture()

    def error(self) -> float:
        return off(self.pipeline.picture(), right_picture(self.shadow, self.files)[0])


@pytest.fixture
def live(files: list[Path]) -> Started:
    return Started(files)


def test_layers_that_were_replaced_have_their_lora_at_once_and_it_is_logged(live, caplog):
    with caplog.at_level(logging.INFO, "lib_lora"):
        for one in (live.pipeline, live.shadow):
            one.unet.attn, one.unet.mix = seeded(type(one.unet.attn)(), 3), seeded(nn.Linear(8, 8), 4)
        assert live.error() < EXACT
    assert "put on it again" in caplog.text
    assert live.engine.report.silence == ""


def test_what_has_lost_its_lora_is_in_the_log_and_in_the_report(live, caplog):
    live.pipeline.unet.mix = nn.Identity()
    live.pipeline.picture()
    assert "no module of that name in unet" in caplog.text
    first = live.engine.report.entries[0]
    assert (first.hit, first.layers) == (len(KINDS) - 1, len(KINDS))
    assert {one.cause for one in first.unused} == {"no_module"}


def test_the_report_says_what_was_replaced_since_the_last_call(live):
    """Such as in a component of which a host calls the parts, so that no call of ours is reached."""
    live.pipeline.unet.mix = nn.Linear(8, 8)
    report = live.engine.report
    assert [(one.component, one.path) for one in report.uncalled] == [("unet", "mix")]
    assert "another layer in its place" in report.silence


def test_a_component_that_was_exchanged_is_served_from_the_next_call_on(live):
    former = live.pipeline.unet
    for one in (live.pipeline, live.shadow):
        one.unet = seeded(type(former)(), 30)
    assert live.error() < EXACT
    assert not any(hooks.slot_of(layer) for layer in former.modules())
    assert live.engine.components["unet"] is live.pipeline.unet


def test_a_text_encoder_that_was_exchanged_is_said_as_it_was_called_before_anything_was_noticed(live):
    for one in (live.pipeline, live.shadow):
        one.text_encoder = seeded(Encoder(), 30)
    assert live.error() > 0.01
    assert "text_encoder of the pipeline was exchanged" in live.engine.report.silence
    assert live.error() < EXACT  # the next picture is right
    assert live.engine.report.silence == ""


@pytest.mark.parametrize("how", ["layer", "class"])
def test_a_forward_that_was_replaced_after_the_first_call_is_reached_again(live, how, monkeypatch):
    """By a function that calls what torch's class has, as other extensions do."""
    layer, plain = live.pipeline.unet.mix, nn.functional.linear

    def own(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return plain(x, self.weight, self.bias)

    if how == "layer":
        layer.forward = own.__get__(layer)
    else:
        monkeypatch.setattr(nn.Linear, "forward", own)
    assert live.error() < EXACT


class Autoencoder(nn.Module):
    """A VAE, of which pipelines call `decode`."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(8, 8)

    def decode(self, x: Tensor) -> Tensor:
        result: Tensor = self.decoder(x)
        return result


def test_a_denoiser_that_was_exchanged_is_said_at_the_end_of_its_first_picture(live, caplog):
    """Where no text encoder is called before it, as with a prompt that was encoded before."""
    components, vae = Pipeline.components.fget, Autoencoder()
    pipeline = type("WithVae", (Pipeline,), {"components": property(lambda self: {**components(self), "vae": vae})})(7)
    pipeline.vae = vae
    engine = Engine.for_pipeline(pipeline)
    engine.activate(live.engine.stack)
    pipeline.unet = seeded(type(pipeline.unet)(), 30)
    vae.decode(torch.ones(1, 8))
    assert "the unet of the pipeline was exchanged" in caplog.text
    assert "the unet of the pipeline was exchanged" in engine.report.silence


@pytest.mark.long
def test_layers_that_quanto_replaces_keep_their_lora(live):
    quanto = pytest.importorskip("optimum.quanto")
    for one in (live.pipeline, live.shadow):
        quanto.quantize(one.unet, weights=quanto.qint8, exclude="norm")
        quanto.freeze(one.unet)
    for layer in [layer for layer in live.shadow.unet.modules() if isinstance(layer, nn.Linear)]:
        layer.weight = nn.Parameter(layer.weight.dequantize(), requires_grad=False)
    assert live.error() < 1e-3
    assert live.engine.report.entries[0].hit == len(KINDS)


def test_a_strength_finds_another_component(live):
    for one in (live.pipeline, live.shadow):
        one.text_encoder = seeded(Encoder(), 30)
    path = next(iter(live.files))
    live.engine.set_multiplier(0, 0.2)
    live.files[path] = 0.2
    assert live.error() < EXACT


def test_a_model_that_nothing_fits_any_more_says_so_at_its_call(live, caplog):
    live.pipeline.unet = nn.Identity()
    live.pipeline.text_encoder(torch.zeros(1, 2, dtype=torch.long))
    assert "cannot be put on it: entry 1 (mixed)" in caplog.text
    assert "cannot be put on it: entry 1 (mixed)" in live.engine.report.silence


@pytest.mark.parametrize("how", ["data", "module"])
def test_an_embedding_that_got_more_tokens_keeps_the_lora_of_the_others(live, how):
    more = torch.randn(2, 8)
    for one in (live.pipeline, live.shadow):
        tokens = one.text_encoder.tokens
        new = torch.cat([tokens.weight, more])
        if how == "data":
            tokens.weight.data, tokens.num_embeddings = new, 12
        else:
            one.text_encoder.tokens = nn.Embedding.from_pretrained(new)
    assert live.error() < EXACT
    ids = torch.tensor([[11]])
    assert torch.equal(live.pipeline.text_encoder.tokens(ids), more[1].reshape(1, 1, 8))


@pytest.mark.parametrize(("more", "unused"), [(3, set()), (-5, {"shape"})])
def test_an_embedding_that_transformers_resizes_is_followed(tmp_path, more, unused):
    """With fewer tokens the LoRA of the tokens is off, and those of other layers stay."""
    encoder, ids = tiny_text_encoder(0), torch.arange(90, 95)[None]
    tokens = encoder.get_input_embeddings()
    found = {name: one for name, one in encoder.named_modules() if one is tokens or name.endswith("layers.0.mlp.fc1")}
    names = {f"lora_te_{name.replace('.', '_')}": layer for name, layer in found.items()}
    tensors = {}
    for name, layer in names.items():
        tensors |= pair(name, tuple(layer.weight.shape), 2, size=0.5)
    stack, engine = Stack([Entry(save(tmp_path / "a.safetensors", tensors))]), Engine({"text_encoder": encoder})
    engine.activate(stack)
    encoder(ids)
    encoder.resize_token_embeddings(len(tokens.weight) + more, mean_resizing=False)
    at_once = encoder(ids)[0]
    engine.activate(stack)
    assert torch.equal(encoder(ids)[0], at_once)
    assert {one.cause for one in engine.report.entries[0].unused} == unused
    engine.deactivate()
    for name, layer in names.items():
        if layer is not tokens or not unused:
            delta = tensors[f"{name}.lora_up.weight"] @ tensors[f"{name}.lora_down.weight"]
            layer.weight[: len(delta)] += delta
    assert off(at_once, encoder(ids)[0]) < EXACT


def test_a_lazy_layer_and_one_that_was_resized_fit_their_new_size(tmp_path):
    model = nn.ModuleDict({"lazy": nn.LazyLinear(6), "grown": nn.Linear(4, 4)})
    tensors = pair("lora_unet_lazy", (6, 5), 2) | pair("lora_unet_grown", (6, 5), 2)
    engine, path = Engine({"unet": model}), save(tmp_path / "a.safetensors", tensors)
    assert load_network(path, {"unet": model}).report.hit == 0
    engine.activate(Stack([Entry(save(tmp_path / "b.safetensors", pair("lora_unet_grown", (4, 4), 2)))]))
    engine.deactivate()
    model["lazy"](torch.zeros(1, 5))
    model["grown"].weight, model["grown"].bias = nn.Parameter(torch.zeros(6, 5)), nn.Parameter(torch.zeros(6))
    assert engine.activate(Stack([Entry(path)])).entries[0].hit == 2
    assert model["grown"](torch.ones(1, 5)).abs().max() > 0


@pytest.mark.parametrize("mode", ["live", "merged"])
@pytest.mark.parametrize("assign", [False, True])
def test_what_was_computed_from_weights_follows_a_state_dict(files, mode, assign):
    started = Started(files, mode=mode)
    for one in (started.pipeline, started.shadow):
        for name, module in one.components.items():
            state = seeded(type(module)(), 60 + len(name)).state_dict()
            module.load_state_dict(state, assign=assign)
            module.requires_grad_(False)
    if assign:
        started.engine.set_multiplier(1, 0.9)
        started.files[files[1]] = 0.9
    assert started.error() < EXACT
    started.engine.deactivate()
    assert off(started.pipeline.picture(), right_picture(started.shadow, {})[0]) < EXACT


def with_dora(model: nn.Module, folder: Path) -> tuple[Stack, Callable[[nn.Linear], Tensor]]:
    """Return a DoRA on the only layer of a model, and what computes the right weight of a layer with it."""
    sample = next(sample for sample in SAMPLES if sample.name == "dora by rows")
    path, tensors = sample.write(folder, tuple(model[0].weight.shape), layer="0")
    return Stack([Entry(path)]), lambda layer: sample.weight(tensors, layer.weight, 1.0)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_what_was_computed_from_weights_that_hooks_compute_follows_a_state_dict(tmp_path):
    """As torch's former normalizations do it at each call, so that the weight beside them is of the call before."""
    for norm in (torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm):
        model, shadow = (nn.Sequential(norm(seeded(nn.Linear(8, 8), 1))).requires_grad_(False).eval() for _ in range(2))
        (folder := tmp_path / norm.__name__).mkdir()
        stack, right = with_dora(model, folder)
        engine, x = Engine({"unet": model}), torch.ones(1, 8)
        engine.activate(stack)
        for factor in (1.0, 2.0):
            state = {name: factor * value for name, value in model.state_dict().items()}
            for one in (model, shadow):
                one.load_state_dict(state)
            got = model(x)
            shadow(x)  # which computes its weight
            assert off(got, nn.functional.linear(x.double(), right(shadow[0]), shadow[0].bias.double())) < EXACT


def test_norms_follow_numbers_that_are_written_past_the_version_and_outlive_moves_and_other_stacks(
    tmp_path, monkeypatch
):
    """ComfyUI's hooks write so. The first column stays, of which alone numbers were compared once."""
    model, norms, sigma = nn.Sequential(nn.Linear(128, 128)).requires_grad_(False), [], DoRA._sigma
    monkeypatch.setattr(DoRA, "_sigma", lambda self, *rest: norms.append(self) or sigma(self, *rest))
    stack, right = with_dora(model, tmp_path)
    x = torch.ones(1, 128)
    with simulated():
        for limit in (None, 0):  # with 0, what was computed is copied for each call
            with Engine({"unet": model.to(device())}, device_budget=limit) as engine:
                for factor, reads in ((1.0, 1), (1.0, 0), (1.5, 1), (1.0, 0)):
                    norms.clear()
                    model.to("cpu")[0].weight.data[:, 1:] *= factor
                    wanted = nn.functional.linear(x.double(), right(model[0]), model[0].bias.double())
                    model.to(device())
                    with engine.active(stack):
                        for _ in range(2):
                            assert off(model(x.to(device())).cpu(), wanted) < EXACT
                            model.to("cpu").to(device())
                    assert len(norms) == reads


def test_a_merged_weight_that_was_written_to_is_said_at_the_call(files, caplog):
    started = Started(files, mode="merged")
    with torch.no_grad():
        started.pipeline.unet.mix.weight.mul_(1.5)
    started.pipeline.picture()
    assert "written to by other code" in caplog.text
    assert "written to by other code" in started.engine.report.silence


def test_layers_that_were_made_from_merged_weights_are_said_to_have_their_lora_twice(files):
    started = Started(files, mode="merged")
    started.pipeline.unet.mix = copy.deepcopy(started.pipeline.unet.mix)
    started.pipeline.picture()
    assert "1 layers are new since LoRA were merged" in started.engine.report.silence
    started.engine.activate(started.engine.stack)
    assert "has them twice" in started.engine.report.silence
    started.engine.deactivate()
    assert "has them twice" in started.engine.report.silence
    started.pipeline.unet.mix = nn.Linear(8, 8)
    assert started.engine.report.silence == ""


def test_another_class_gets_another_executor(files):
    """Even where both classes have a forward of their own, and the former one was patched."""
    started = Started(files)

    class Packed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.to(x.dtype).mT + self.bias

    for one in (started.pipeline, started.shadow):
        one.unet.mix.__class__ = Packed
    weight = started.pipeline.unet.mix.weight
    before = hooks.executor_of(started.pipeline.unet.mix)
    weight.data = weight.data.to(torch.float8_e5m2)  # as a host quantizes
    started.shadow.unet.mix.weight.data = weight.data.float()
    assert started.error() < EXACT
    assert hooks.executor_of(started.pipeline.unet.mix) is not before
    assert hooks.patch_of(Packed) is not None


@pytest.mark.parametrize("mode", ["live", "merged"])
@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, torch.nn.utils.spectral_norm])
@pytest.mark.parametrize(
    ("kind", "shape"), [("lora", (8, 8)), ("dora by rows", (8, 8)), ("full", (8, 8)), ("dora by rows", (8, 8, 3, 3))]
)
def test_no_buffer_of_a_parametrization_changes_by_putting_a_stack_on_and_taking_it_off(
    kind, shape, norm, mode, tmp_path
):
    sample = next(sample for sample in SAMPLES if sample.name == kind)
    layer = nn.Conv2d(8, 8, 3) if shape[2:] else nn.Linear(8, 8)
    model = nn.ModuleDict({"layer": norm(layer)}).train()
    path, _ = sample.write(tmp_path, shape)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    versions = {name: one._version for name, one in model.named_buffers()}
    engine = Engine({"unet": model})
    assert engine.activate(Stack([Entry(path)], mode=mode)).entries[0].hit == 1
    engine.set_multiplier(0, 0.5)
    engine.report  # noqa: B018
    engine.deactivate()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert versions == {name: one._version for name, one in model.named_buffers()}


@pytest.mark.parametrize("how", ["replaced", "overwritten", "link", "link to the folder", "configuration", "sidecar"])
def test_a_file_with_the_size_and_time_of_the_former_one_is_another_file(how, tmp_path):
    folder = tmp_path / "f"
    folder.mkdir()
    layer = {"base_model.model.layer.lora_A.weight": torch.ones(2, 4), "base_model.model.layer.lora_B.weight": None}
    config, other = folder / "adapter_config.json", tmp_path / "other.safetensors"

    def write(path: Path, value: float) -> Path:
        save(path, {**layer, "base_model.model.layer.lora_B.weight": torch.full((4, 2), value)})
        os.utime(path, ns=(10**18, 10**18))
        return path

    def timed(path: Path, value: object) -> None:
        path.write_text(json.dumps(value))
        os.utime(path, ns=(10**18, 10**18))

    timed(config, {"peft_type": "LORA", "r": 2, "lora_alpha": 2})
    path = write(folder / "adapter_model.safetensors", 1.0)
    link, sidecar = tmp_path / "link", path.with_suffix(".json")
    if how == "link":
        path = tmp_path / "adapter_model.safetensors"
        shutil.copy(config, tmp_path / config.name)
        path.symlink_to(folder / "adapter_model.safetensors")
    elif how == "link to the folder":
        link.symlink_to(folder)
        path = link / path.name
    elif how == "sidecar":
        timed(sidecar, {"remora": {"alpha": 2}})
    model = nn.ModuleDict({"layer": nn.Linear(4, 4, bias=False)}).requires_grad_(False)
    engine, x = Engine({"unet": model}), torch.ones(1, 4)
    engine.activate(Stack([Entry(path)]))
    base, first = x @ model["layer"].weight.mT, model["layer"](x)
    if how == "replaced":
        write(other, 3.0).replace(path)
    elif how == "link":
        write(other, 3.0)
        path.unlink()
        path.symlink_to(other)
    elif how == "overwritten":
        path.write_bytes(write(other, 3.0).read_bytes())
        os.utime(path, ns=(10**18, 10**18))
    elif how == "link to the folder":
        shutil.copytree(folder, tmp_path / "g")
        write(tmp_path / "g" / path.name, 3.0)
        link.unlink()
        link.symlink_to(tmp_path / "g")
    elif how == "sidecar":
        timed(sidecar, {"remora": {"alpha": 6}})
    else:
        timed(config, {"peft_type": "LORA", "r": 2, "lora_alpha": 6})
    engine.activate(Stack([Entry(path)]))
    assert torch.allclose(model["layer"](x) - base, 3 * (first - base), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("beside", ["", "link", "sidecar"])
@pytest.mark.parametrize("options", [{}, {"mode": "merged"}, {"device_budget": 0}, {"storage": "bfloat16"}], ids=str)
def test_a_relative_path_means_the_file_that_it_meant(tmp_path, monkeypatch, options, beside):
    """Also where numbers are read from it at the first call, which places them on a device."""
    engine_options, mode = {key: one for key, one in options.items() if key != "mode"}, options.get("mode", "live")
    path, name, scale = (
        save(tmp_path / "a.safetensors", pair("lora_unet_layer", (4, 4), 2, size=0.5)),
        "a.safetensors",
        1.0,
    )
    monkeypatch.chdir(tmp_path)
    if beside == "link":
        name = "link.safetensors"
        Path(name).symlink_to("a.safetensors")
    elif beside == "sidecar":
        path.with_suffix(".json").write_text(json.dumps({"remora": {"alpha": 8}}))
        scale = 8 / 2
    tensors = load_file(path)
    delta = scale * tensors["lora_unet_layer.lora_up.weight"] @ tensors["lora_unet_layer.lora_down.weight"]
    model, x = nn.ModuleDict({"layer": nn.Linear(4, 4)}).requires_grad_(False), torch.ones(1, 4)
    want = model["layer"](x) + x @ delta.mT
    with simulated() if engine_options else nullcontext():
        if engine_options:
            model, x = model.to(device()), x.to(device())
        stack, network = Stack([Entry(name)], mode=mode), load_network(name, {"unet": model})
        engine = Engine({"unet": model}, **engine_options)
        engine.activate(stack)
        (tmp_path / "b").mkdir()
        monkeypatch.chdir(tmp_path / "b")
        for _ in range(2):
            assert off(model["layer"](x).cpu(), want) < (1e-2 if "storage" in options else EXACT)
            engine.deactivate()
            engine.activate(stack)
        engine.deactivate()
    assert torch.allclose(network.delta_weight("unet", "layer").cpu(), delta, rtol=1e-5, atol=1e-8)
    assert stack.entries[0].path == tmp_path / name


def test_modules_that_leave_and_others_at_their_place_are_noticed_by_the_quick_comparison():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Sequential(nn.Linear(2, 2), nn.Identity())})
    changes = [
        lambda: model.__setitem__("a", nn.Linear(2, 2)),
        lambda: model["b"].append(nn.ReLU()),
        lambda: model["b"].__setitem__(1, None),
        lambda: setattr(model["a"], "__class__", type("Other", (nn.Linear,), {})),
        lambda: model._modules.update(c=model._modules.pop("b")),
        lambda: parametrizations.weight_norm(model["a"]),
    ]
    for number, change in enumerate(changes):
        index = LayerIndex("unet", model)
        assert index.holds(model, quick=True), number
        change()
        assert not index.holds(model, quick=True), number
    weight = model["c"][0].weight
    index = LayerIndex("unet", model)
    weight.data = torch.empty(0)  # as an offloader leaves it between two calls
    assert index.holds(model)


class Few(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers[1](self.layers[0](x)), self.layers[2](last)


def test_a_weight_of_another_shape_loses_its_lora_at_the_next_call_and_the_report_says_so(tmp_path):
    model, x = Few(), torch.ones(1, 4)
    engine, tensors = Engine({"unet": model}), {}
    for number in range(3):
        tensors |= pair(f"lora_unet_layers_{number}", (4, 4), 2)
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    before, _ = model(x, x)
    model.layers[2].weight = nn.Parameter(torch.zeros(4, 6))
    now, last = model(x, torch.ones(1, 6))
    assert torch.equal(now, before)
    assert not last.any()
    assert engine.report.entries[0].hit == 2
