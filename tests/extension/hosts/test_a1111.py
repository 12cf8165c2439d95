"""Remora in AUTOMATIC1111's web UI, on a stand-in that does what the real one was seen to do."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import extension
from extension.generation.options import DEFAULT_MULTIPLIER, ENABLED, FAIL, GRAMMAR, IN_ORDER, MERGE, ON_BAD_LORA
from extension.generation.session import Session
from extension.generation.state import state_of
from extension.hosts import current_host
from extension.hosts.a1111 import A1111
from lib_lora import LoraError
from tests.fakes.files import pair, save
from tests.fakes.webui import extra_networks as fakes
from tests.fakes.webui.a1111 import A1111Fake, MulticondLearnedConditioning, SdConditioning
from tests.fakes.webui.a1111_model import LAYERS

RANK = 2
NAMES = ("a", "b", "c")
UNCHANGED = ("forward", "_apply", "_load_from_state_dict")


@pytest.fixture(scope="module")
def loras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loras")
    for seed, name in enumerate(NAMES):
        tensors: dict[str, Tensor] = {}
        for i, (layer, shape) in enumerate(LAYERS.items()):
            tensors |= pair(layer, shape, RANK, alpha=RANK, seed=10 * seed + i, size=0.7)
        save(folder / f"{name}.safetensors", tensors)
    unet = {key: tensor for key, tensor in tensors.items() if "unet" in key}
    save(folder / "unet.safetensors", unet)
    return folder


@pytest.fixture
def start(loras: Path) -> Iterator[Callable[..., A1111Fake]]:
    """Start the web UI with Remora in it and stop it at the end."""
    before = {name: getattr(nn.Linear, name) for name in UNCHANGED}
    running: list[Any] = []

    def begin(script: Callable[[], object] = extension.register, **more: Any) -> A1111Fake:
        running.append(A1111Fake(loras, script, **more).running())
        return running[-1].__enter__()

    yield begin
    for one in reversed(running):
        one.__exit__(None, None, None)
    assert {name: getattr(nn.Linear, name) for name in UNCHANGED} == before


@pytest.fixture
def host(start: Callable[..., A1111Fake]) -> Iterator[A1111Fake]:
    host = start()
    yield host
    assert host.callbacks.printed == []
    assert host.extra_networks.shown == []


def fresh(host: A1111Fake, prompt: Any, **more: Any) -> Tensor:
    """Return the picture of a fresh start while the running web UI is set aside."""
    host.processing.StableDiffusionProcessing.cached_c[:] = [None, None]
    host.processing.StableDiffusionProcessing.cached_uc[:] = [None, None]
    return one(host.generate(prompt, **more))


def one(found: SimpleNamespace) -> Tensor:
    assert len(found.images) == 1
    return found.images[0]


def weights(host: A1111Fake) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in host.models.model_data.sd_model.state_dict().items()}


def same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def hashes(text: str) -> list[str]:
    """Return the names below "Lora hashes"."""
    return re.findall(r"(\w+): [0-9a-f]{12}", text)


# --- being there ---


def test_the_host_is_known_by_what_it_can_do(host: A1111Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_host() is A1111
    monkeypatch.delattr(host.processing.StableDiffusionProcessing, "cached_params")
    assert current_host() is None


def test_models_go_by_the_names_that_the_host_shows(host: A1111Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    one, old = (
        SimpleNamespace(name=f"sub/{name}", filename=f"/sub/{name}") for name in ("one.safetensors", "old.ckpt")
    )
    known = {"one [0123456789]": one, "old": old}
    monkeypatch.setattr(host.models, "checkpoints_list", known, raising=False)
    assert A1111.models() == {"sub/one.safetensors": Path("/sub/one.safetensors")}


def test_parts_go_by_diffusers_names_and_no_model_is_loaded_for_them(host: A1111Fake) -> None:
    model = host.models.model_data.sd_model
    assert A1111.components() == {"unet": model.unet, "text_encoder": model.clip}
    assert A1111.checkpoints() == {}  # not a safetensors file
    host.models.model_data.sd_model = None
    assert A1111.components() == {}  # `shared` has no `sd_model` here: asking it would fail
    host.models.model_data.sd_model = model


def test_names_of_the_text_encoders_of_every_family() -> None:
    from extension.hosts.a1111 import _denoiser, _text_encoders

    clip, big, unet = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)

    def wrapped(**inner: object) -> SimpleNamespace:
        return SimpleNamespace(wrapped=SimpleNamespace(**inner))

    assert _text_encoders(SimpleNamespace(cond_stage_model=wrapped(transformer=clip))) == {"text_encoder": clip}
    assert _text_encoders(SimpleNamespace(cond_stage_model=wrapped(model=big))) == {"text_encoder": big}
    sizes = SimpleNamespace(outdim=256)
    xl = SimpleNamespace(embedders=[wrapped(transformer=clip), wrapped(model=big), sizes])
    assert _text_encoders(SimpleNamespace(conditioner=xl)) == {"text_encoder": clip, "text_encoder_2": big}
    refiner = SimpleNamespace(embedders=[wrapped(model=big), sizes])
    assert _text_encoders(SimpleNamespace(conditioner=refiner)) == {"text_encoder_2": big}
    three = SimpleNamespace(
        clip_l=SimpleNamespace(transformer=clip), clip_g=SimpleNamespace(transformer=big), t5xxl=None
    )
    assert _text_encoders(SimpleNamespace(text_encoders=three)) == {"text_encoder": clip, "text_encoder_2": big}
    assert _denoiser(SimpleNamespace(model=SimpleNamespace(diffusion_model=unet))) == {"unet": unet}
    unet.joint_blocks = nn.ModuleList()
    assert _denoiser(SimpleNamespace(model=SimpleNamespace(diffusion_model=unet))) == {"transformer": unet}
    assert _denoiser(SimpleNamespace()) == _text_encoders(SimpleNamespace()) == {}


def test_starting_logs_nothing_of_patches(start: Callable[..., A1111Fake], caplog: pytest.LogCaptureFixture) -> None:
    host = start()
    host.generate("x<lora:a:1>")
    host.reload_ui()
    host.generate("x<lora:a:1>")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# --- one prompt ---


def test_t1_an_image_has_the_same_bits_after_any_history(host: A1111Fake) -> None:
    without, base = one(host.generate("a cat")), weights(host)
    made = {strength: one(host.generate(f"a cat<lora:a:{strength}>")) for strength in (1.0, 1.1, 0.2, 10, -4)}
    assert len({tuple(image.flatten().tolist()) for image in (without, *made.values())}) == 6
    for strength, image in made.items():
        assert torch.equal(one(host.generate(f"a cat<lora:a:{strength}>")), image)
        assert torch.equal(fresh(host, "a cat"), without)
        assert torch.equal(fresh(host, f"a cat<lora:a:{strength}>"), image)
    assert same(list(weights(host).values()), list(base.values()))
    assert sys.modules["networks"].backups == 0  # the built-in has copied nothing


def test_what_the_builtin_merges_is_what_remora_adds(start: Callable[..., A1111Fake]) -> None:
    host = start()
    ours = one(host.generate("a cat<lora:a:0.7><lyco:b:0.4>"))
    host.shared.opts.data[ENABLED] = False
    theirs = one(host.generate("a cat<lora:a:0.7><lyco:b:0.4>"))
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_a_lora_that_is_missing_is_said_and_the_others_are_there(host: A1111Fake) -> None:
    found = host.generate("a cat<lora:nosuch:1><lora:a:1><lora:b:x>")
    assert torch.equal(one(found), one(host.generate("a cat<lora:a:1>")))
    assert sorted("nosuch" in text for text in found.p.comments) == [False, True]
    assert hashes(found.infotexts[0]) == ["a"]


def test_steps_that_a_distilled_lora_was_not_made_for_are_said(host: A1111Fake, loras: Path) -> None:
    file = loras / "Hyper-SD15-8steps-lora.safetensors"
    file.write_bytes((loras / "b.safetensors").read_bytes())
    try:
        found = host.generate("x<lora:Hyper-SD15-8steps-lora:1>")
        assert [text for text in found.p.comments if "made for 8 steps, not 2" in text], found.p.comments
    finally:
        file.unlink()


def test_t17_names_and_tags_as_people_write_them(host: A1111Fake, loras: Path) -> None:
    (loras / "od [XL].safetensors").write_bytes((loras / "b.safetensors").read_bytes())
    try:
        wanted = one(host.generate("x<lora:b:0.5>"))
        for prompt in (
            "x<lora:od [XL]:0.5>",
            "x<lora:b:1.1.><lora:b:0.5>",
            "x<lora:b:te=0.5:unet=0.5>",
            "x<LoRA:b:0.5>",
            "x<lora:B:0.5>",
        ):
            found = host.generate(prompt)
            assert torch.equal(one(found), wanted), prompt
            assert len(found.p.comments) == ("1.1." in prompt)
    finally:
        (loras / "od [XL].safetensors").unlink()


def test_a_lora_that_is_missing_fails_the_request_where_that_is_wanted(host: A1111Fake) -> None:
    before = one(host.generate("a cat"))
    host.shared.opts.data[ON_BAD_LORA] = FAIL
    with pytest.raises(LoraError, match="'nosuch' is not in the LoRA folders"):
        host.generate("a cat<lora:a:1><lora:nosuch:1>")
    assert torch.equal(one(host.generate("a cat")), before)


def test_settings_of_one_request_are_gone_with_it(host: A1111Fake) -> None:
    with pytest.raises(LoraError):
        host.generate("a cat<lora:nosuch:1>", override_settings={ON_BAD_LORA: FAIL})
    assert host.shared.opts.data[ON_BAD_LORA] != FAIL
    found = host.generate("a cat<lora:a:1>", override_settings={IN_ORDER: True})
    assert "Remora stacking: in order" in found.infotexts[0]
    assert "Remora" not in host.generate("a cat<lora:a:1>").infotexts[0]


def test_the_setting_that_adds_one_lora_to_every_prompt_is_honoured(host: A1111Fake) -> None:
    wanted = [one(host.generate(prompt)) for prompt in ("a cat<lora:a:0.5>", "a cat<lora:a:0.9>")]
    host.shared.opts.data.update(sd_lora="a", extra_networks_default_multiplier=0.5)
    found = host.generate(["a cat", "a cat<lora:a:0.9>"], batch_size=1, n_iter=2, seed=0)
    assert [text.split("\n")[0] for text in found.infotexts] == ["a cat<lora:a:0.5>", "a cat<lora:a:0.9>"]
    hires = host.generate("a cat", enable_hr=True)
    assert hires.p.all_hr_prompts == hires.p.all_prompts == ["a cat<lora:a:0.5>"]
    assert torch.equal(one(host.generate("a cat")), wanted[0])
    host.shared.opts.data.update(sd_lora="x: y")
    own = "a cat<lora:x\\: y:0.5>"
    assert all(host.generate(prompt).infotexts[0].startswith(f"{own}\n") for prompt in ("a cat", own))
    host.shared.opts.data.update(sd_lora="None")


# --- another extension that wants the tags ---


def session_of_process() -> Session:
    assert extension._session is not None
    return extension._session


def told() -> dict[str, Any]:
    """Return the answer that the tab receives."""
    assert extension._session is not None
    return state_of(extension._session)


def test_beside_loractl_the_loras_have_their_effect_with_remora_on_and_off(start: Callable[..., A1111Fake]) -> None:
    host = start()
    wanted = one(host.generate("a cat<lora:a:1>"))
    loractl = fakes.Loractl(
        host.extra_networks, type(host.extra_networks.extra_network_registry["lora"].remora.replaced)
    )
    for enabled in (True, True, False, False, True):
        host.shared.opts.data[ENABLED] = enabled
        loractl.process(None)
        image = one(host.generate("a cat<lora:a:1>"))
        assert (image - wanted).abs().max() <= 1e-5 * wanted.abs().max(), enabled
        assert torch.equal(image, wanted) == enabled
    assert loractl.active == [["a"]] * 2  # while Remora was off
    assert [one["name"] for one in told()["loras"]] == ["a"]
    assert ["sd-webui-loractl" in sentence for sentence in told()["conflicts"]] == [True]
    assert host.extra_networks.shown == []


@pytest.mark.parametrize("fails", [True, False])
def test_tags_that_nothing_applies_are_an_error_in_the_log_the_tab_and_the_picture(
    start: Callable[..., A1111Fake], fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Another extension replaced the host's `activate`, and calls nothing."""
    host = start()
    bare = one(host.generate("a cat"))
    host.extra_networks.activate = lambda p, data: None
    if fails:
        host.shared.opts.data[ON_BAD_LORA] = FAIL
        with pytest.raises(LoraError, match="nothing applied <lora:a:1>"):
            host.generate("a cat<lora:a:1>")
    else:
        found = host.generate("a cat<lora:a:1>")
        assert torch.equal(one(found), bare)
        assert ["nothing applied <lora:a:1>" in comment for comment in found.p.comments] == [True]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "nothing applied <lora:a:1>" in record.getMessage()
    assert [(one["state"], "nothing applied <lora:a:1>" in one["reason"]) for one in told()["loras"]] == [
        ("failed", True)
    ]


# --- the text encoder's cache ---


def asked(host: A1111Fake, prompt: str, **more: Any) -> int:
    """How many texts are encoded for a picture."""
    clip = host.models.model_data.sd_model.clip
    clip.asked.clear()
    host.generate(prompt, **more)
    return len(clip.asked)


def test_texts_are_encoded_anew_when_and_only_when_what_they_depend_on_has_changed(host: A1111Fake) -> None:
    both = 2  # the prompt and the negative one
    assert asked(host, "a cat<lora:a:1>") == both
    assert asked(host, "a cat<lora:a:1>") == 0
    assert asked(host, "a cat<lora:a:1:0.5>") == 0  # only the unet's strength
    assert asked(host, "a cat<lora:a:1><lora:unet:1>") == 0  # has nothing for text encoders at all
    assert asked(host, "a cat<lora:a:0.9>") == both
    assert asked(host, "a cat") == both
    assert asked(host, "a cat<lora:a:0:1>") == 0
    assert asked(host, "a cat<hypernet:h:1>") == both  # another kind of network, which may depend on anything
    assert asked(host, "a dog<hypernet:h:1>") == 1


def test_texts_are_encoded_anew_when_the_way_of_stacking_has_changed(host: A1111Fake) -> None:
    host.generate("a cat<lora:a:1>")
    assert asked(host, "a cat<lora:a:1>", override_settings={IN_ORDER: True}) == 2
    assert asked(host, "a cat", override_settings={IN_ORDER: True}) == 2
    assert asked(host, "a cat") == 0  # without LoRA there is nothing to stack


# --- one LoRA for each image ---

PROMPTS = ["a cat<lora:a:1>", "a cat<lora:b:0.8:0.5>", "a cat"]
"""Equal texts: the host would encode them once."""


def check_batch(host: A1111Fake, prompts: list[str], **more: Any) -> None:
    """Image i of the batch is what prompt i gives alone, and so is its text."""
    found = host.generate(list(prompts), batch_size=len(prompts), **more)
    assert len(found.images) == len(prompts)
    for i, prompt in enumerate(prompts):
        alone = host.generate(prompt, seed=1 + i, **more)
        worst = (found.images[i] - one(alone)).abs().max()
        assert worst <= 1e-5 * one(alone).abs().max(), (i, worst)
        assert hashes(found.infotexts[i]) == hashes(alone.infotexts[0]) == re.findall(r"<lora:(\w+)", prompt)


def test_t9_each_image_of_a_batch_has_its_own(host: A1111Fake) -> None:
    check_batch(host, PROMPTS)
    assert host.models.model_data.sd_model.unet.calls[0] == 6  # and all in one call


@pytest.mark.parametrize(
    ("prompts", "options", "calls"),
    [
        (["a cat AND a hat<lora:a:1>", "a dog<lora:b:1>", "x AND y AND z<lora:c:1>"], {}, [9]),
        (PROMPTS, {"skip_uncond": True}, [3]),
        (PROMPTS, {"batch_cond_uncond": False}, [3, 3]),
        (["a AND b<lora:a:1>", "c<lora:b:1>"], {"batch_cond_uncond": False}, [2, 2, 1]),
        (["a AND b<lora:a:1>", "c<lora:b:1>"], {"skip_uncond": True}, [3]),
        ([f"{'very ' * 10}long<lora:a:1>", f"{'very ' * 10}good<lora:b:1>"], {}, [2, 2]),
        (
            [f"{'very ' * 10}x AND {'so ' * 20}y AND {'so ' * 20}z<lora:a:1>", f"{'much ' * 10}z<lora:b:1>"],
            {"batch_cond_uncond": False},
            [2, 2, 2],
        ),
    ],
    ids=["AND", "trimmed", "chunks", "chunks that mix images", "trimmed AND", "lengths differ", "chunks and lengths"],
)
def test_t9_however_the_rows_are_called(
    host: A1111Fake, prompts: list[str], options: dict[str, Any], calls: list[int]
) -> None:
    host.shared.opts.data.update(options)
    check_batch(host, prompts)
    assert host.models.model_data.sd_model.unet.calls[: len(calls)] == calls


def test_t9_each_batch_of_a_job_and_the_texts_of_all(host: A1111Fake) -> None:
    prompts = ["a<lora:a:1>", "b", "c", "d", "e<lora:b:1>", "f<lora:a:1><lora:c:1>"]
    found = host.generate(prompts, batch_size=2, n_iter=3)
    assert [hashes(text) for text in found.infotexts] == [["a"], [], [], [], ["b"], ["a", "c"]]
    assert hashes(found.grid) == ["a"]  # it is the first image's
    every = [host.create_infotext(found.p, found.p.all_prompts, index=i) for i in range(6)]
    assert [hashes(text) for text in every] == [["a"], [], [], [], ["b"], ["a", "c"]]
    for i, prompt in enumerate(prompts):
        torch.testing.assert_close(found.images[i], one(host.generate(prompt, seed=1 + i)), rtol=1e-4, atol=1e-5)


def test_prompts_encoded_by_stack_are_the_same_kinds_of_lists_and_come_back_in_order() -> None:
    from extension.hosts._conditionings import _by_stack

    told: list[Any] = []
    remora: Any = SimpleNamespace(image=lambda index: told.append(index))

    def encode(model: Any, prompts: SdConditioning, steps: int) -> MulticondLearnedConditioning:
        told.append((list(prompts), prompts.is_negative_prompt, prompts.width, steps))
        return MulticondLearnedConditioning((len(prompts),), [[text.upper()] for text in prompts])

    prompts = SdConditioning(["a", "b", "c"], is_negative_prompt=True, width=768)
    found = _by_stack(encode, ["x", "y", "x"], remora)(None, prompts, 20)
    assert told == [0, (["a", "c"], True, 768, 20), 1, (["b"], True, 768, 20), None]
    assert (found.shape, found.batch) == ((3,), [["A"], ["B"], ["C"]])
    listed = _by_stack(lambda model, texts: [text * 2 for text in texts], ["x", "y", "x"], remora)(
        None, ["a", "b", "c"]
    )
    assert listed == ["aa", "bb", "cc"]


def test_images_that_are_alike_cost_nothing_more(host: A1111Fake) -> None:
    assert asked(host, ["a<lora:a:1>", "a<lora:a:1>", "a<lora:a:1>"], batch_size=3) == 2
    check_batch(host, ["a<lora:a:1>", "b<lora:a:1>"])


# --- passes ---


def test_t11_the_hires_pass_has_the_loras_of_its_own_prompt(host: A1111Fake) -> None:
    own = host.generate("a cat<lora:a:1>", enable_hr=True, hr_prompt="a cat<lora:b:1>")
    assert hashes(own.infotexts[0]) == ["a", "b"]
    without = host.generate("a cat<lora:a:1>", enable_hr=True, hr_prompt="a cat")
    both = host.generate("a cat<lora:a:1>", enable_hr=True)
    assert [hashes(found.infotexts[0]) for found in (without, both)] == [["a"], ["a"]]
    images = [one(found) for found in (own, without, both)]
    assert not any(torch.equal(images[i], images[i - 1]) for i in range(3))
    assert torch.equal(fresh(host, "a cat<lora:a:1>", enable_hr=True, hr_prompt="a cat<lora:b:1>"), images[0])


def test_t11_the_hires_pass_of_a_batch(host: A1111Fake) -> None:
    prompts, hires = ["x<lora:a:1>", "x<lora:b:1>"], ["y<lora:b:1>", "y"]
    found = host.generate(prompts, batch_size=2, enable_hr=True, hr_prompt=hires)
    assert [hashes(text) for text in found.infotexts] == [["a", "b"], ["b"]]
    for i in range(2):
        alone = one(host.generate(prompts[i], seed=1 + i, enable_hr=True, hr_prompt=hires[i]))
        assert (found.images[i] - alone).abs().max() <= 1e-5 * alone.abs().max()


@pytest.mark.parametrize("order", [1, 2])
def test_the_first_steps_alone_have_it_and_the_others_go_on_as_without(host: A1111Fake, order: int) -> None:
    """`stop=2` of 4 steps, against a LoRA that is taken off by hand after two; second-order samplers call twice."""
    # the stand-in's steps are calls
    more = {"steps": 4 * order, "sampler_options": {"second_order": order == 2}}

    def off_by_hand(call: int) -> None:
        if call == 2 * order:
            A1111.remora._session.model.engine.set_multiplier(0, 0.0)  # type: ignore[attr-defined]

    want = one(host.generate("x<lora:unet:1>", during=off_by_hand, **more))
    assert torch.equal(one(host.generate("x<lora:unet:1:stop=2>", **more)), want)
    assert not torch.equal(one(host.generate("x<lora:unet:1>", **more)), want)
    assert not torch.equal(one(host.generate("x", **more)), want)


def test_a_schedule_in_a1111_is_its_value_at_each_step(host: A1111Fake) -> None:
    def by_hand(step: int) -> None:
        value = max(step - 1, 0) / 4  # of six steps, by loractl's formula
        A1111.remora._session.model.engine.set_multiplier(0, {"unet": value, "text_encoder": 1.0})  # type: ignore[attr-defined]

    want = one(host.generate("x<lora:a:1:0.5>", during=by_hand, steps=6))
    assert torch.equal(one(host.generate("x<lora:a:1:0@0,1@1>", steps=6)), want)
    both = one(host.generate("x<lora:a:1:0@0,1@1>", steps=6, enable_hr=True))
    assert torch.equal(one(host.generate("x<lora:a:1:0@0,1@1:hrunet=0@0,1@1>", steps=6, enable_hr=True)), both)


@pytest.mark.parametrize("together", [True, False])
def test_halves_add_up_to_the_whole(host: A1111Fake, together: bool) -> None:
    """Guidance is linear, so in one step what each half does alone comes to what both do."""
    host.shared.opts.data["batch_cond_uncond"] = together
    tags = ("", "<lora:unet:1>", "<lora:unet:1:half=pos>", "<lora:unet:1:half=neg>")
    none, whole, positive, negative = (one(host.generate(f"x AND y{tag}", steps=1)) for tag in tags)
    assert ((positive - none) + (negative - none) - (whole - none)).abs().max() < 1e-5
    assert min((one - none).abs().max() for one in (positive, negative)) > 1e-3


@pytest.mark.parametrize("together", [True, False])
def test_a_region_goes_with_the_part_of_the_prompt_that_it_is_written_in(host: A1111Fake, together: bool) -> None:
    """Of the whole picture: then the parts make a difference in the layers alone that are given the prompt."""
    host.shared.opts.data["batch_cond_uncond"] = together
    tag, told = "<lora:unet:1:mask=0,0,1,1>", []

    def note(_: object) -> None:
        strengths = A1111.remora._session.model.engine._plan.strengths  # type: ignore[attr-defined]
        told.append(strengths.now.stack.regions[0][0][1])

    first, second, whole = (
        one(host.generate(prompt, steps=1, during=note)) for prompt in (f"x{tag} AND y", f"x AND y{tag}", f"x{tag}")
    )
    assert set(told[: len(told) // 3]) == {0}
    assert None in told
    assert not torch.equal(first, second), "keys and values of one part have it, and those of the other have not"
    assert (whole - one(host.generate("x<lora:unet:1>", steps=1))).abs().max() < 1e-5, "a prompt of one part is whole"


def test_images_are_numbered_from_one(host: A1111Fake) -> None:
    prompts = ["x<lora:a:1:rows=2>"] * 2
    found = host.generate(prompts, batch_size=2)
    for image, prompt in enumerate(("x", "x<lora:a:1>")):
        alone = one(host.generate(prompt, seed=1 + image))
        assert (found.images[image] - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_hires_has_strengths_of_its_own(host: A1111Fake) -> None:
    want = one(host.generate("x<lora:a:0.5>", enable_hr=True, hr_prompt="x<lora:a:1>"))
    assert torch.equal(one(host.generate("x<lora:a:0.5:hr=1>", enable_hr=True)), want)
    base = one(host.generate("x<lora:a:1>", enable_hr=True, hr_prompt="x"))
    assert torch.equal(one(host.generate("x<lora:a:1:pass=base>", enable_hr=True)), base)


@pytest.mark.parametrize("refiner", ["B", "other"])
def test_a_refiner_is_a_pass(host: A1111Fake, refiner: str) -> None:
    host.shared.opts.data["sd_checkpoints_limit"] = 2
    job = {"refiner": refiner, "checkpoint": "A"}

    def off_for_the_refiner(step: int) -> None:
        if step == 1:
            A1111.remora._session.end()  # type: ignore[attr-defined]

    want = one(host.generate("a<lora:unet:1>", during=off_for_the_refiner, **job))
    assert torch.equal(one(host.generate("a<lora:unet:1:pass=base>", **job)), want)
    assert not torch.equal(one(host.generate("a<lora:unet:1>", **job)), want)
    alone = one(host.generate("a<lora:unet:1:pass=refiner>", **job))
    assert not torch.equal(alone, want)
    assert not torch.equal(alone, one(host.generate("a", **job)))


@pytest.mark.parametrize("refiner", ["B", "other"])
@pytest.mark.parametrize("kept", [1, 2])
def test_t11_a_refiner_has_the_loras_too(host: A1111Fake, refiner: str, kept: int) -> None:
    """It is loaded into the same modules, or beside them, or is there already, and the host says nothing of LoRAs."""
    host.shared.opts.data["sd_checkpoints_limit"] = kept
    job = {"refiner": refiner, "checkpoint": "A"}
    first = one(host.generate("a<lora:a:1>", **job))
    assert not torch.equal(first, one(host.generate("a", **job)))
    assert torch.equal(one(host.generate("a<lora:a:1>", **job)), first)
    # the built-in loses its LoRAs while a model of another configuration is loaded, so both models are there for it
    host.shared.opts.data["sd_checkpoints_limit"] = 2
    host.generate("a", **job)
    as_the_builtin(host, lambda: one(host.generate("a<lora:a:1>", **job)))
    assert torch.equal(one(host.generate("a<lora:a:1>", **job)), first)


def as_the_builtin(host: A1111Fake, make: Callable[[], Tensor]) -> None:
    """Compare Remora's picture with the built-in's, which merges into any model that is called."""
    ours = make()
    host.shared.opts.data[ENABLED] = False
    theirs = make()
    host.shared.opts.data[ENABLED] = True
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_a_model_swapped_between_two_steps_has_the_loras_too(host: A1111Fake) -> None:
    """As an extension may do it: nothing is encoded anew, and no callback comes."""
    host.shared.opts.data["sd_checkpoints_limit"] = 2
    for name in "BA":
        host.generate("a", checkpoint=name)

    def swap(step: int) -> None:
        host.reload_model_weights("AB"[step])

    plain = one(host.generate("a", checkpoint="A", during=swap))
    assert not torch.equal(one(host.generate("a<lora:unet:1>", checkpoint="A", during=swap)), plain)
    as_the_builtin(host, lambda: one(host.generate("a<lora:unet:1>", checkpoint="A", during=swap)))


def test_a_refiner_serves_a_batch_too(host: A1111Fake) -> None:
    host.shared.opts.data["sd_checkpoints_limit"] = 2
    check_batch(host, PROMPTS, refiner="B", checkpoint="A")


@pytest.mark.parametrize("kept", [1, 2])
def test_t18_checkpoints_there_and_back(host: A1111Fake, kept: int) -> None:
    host.shared.opts.data["sd_checkpoints_limit"] = kept
    images = [one(host.generate("a<lora:a:1>", checkpoint=name)) for name in "ABA"]
    assert torch.equal(images[0], images[2])
    assert not torch.equal(images[0], images[1])
    others = [one(host.generate("a<lora:a:1>", checkpoint=name)) for name in ("other", "A")]
    assert torch.equal(others[1], images[0])
    assert torch.equal(one(host.generate("a", checkpoint="B")), fresh(host, "a", checkpoint="B"))


def test_t18_what_was_merged_is_not_put_back_into_another_checkpoint(
    host: A1111Fake, caplog: pytest.LogCaptureFixture
) -> None:
    merged = {"override_settings": {MERGE: "always"}}
    first = one(host.generate("a<lora:a:1>", refiner="B", checkpoint="A", **merged))
    live = one(host.generate("a<lora:a:1>", refiner="B", checkpoint="A"))
    assert (first - live).abs().max() <= 1e-5 * live.abs().max()
    without = one(host.generate("a", checkpoint="B"))
    host.generate("a<lora:a:1>", refiner="A", checkpoint="B", **merged)
    assert torch.equal(one(host.generate("a", checkpoint="B")), without)
    assert "was changed by something else" not in caplog.text


def test_a_request_for_a_mode_of_former_versions_is_live(host: A1111Fake) -> None:
    former = host.generate("a<lora:a:1>", override_settings={MERGE: "when it pays"})
    assert torch.equal(one(former), one(host.generate("a<lora:a:1>")))
    assert "Remora mode" not in former.infotexts[0]
    assert hashes(former.infotexts[0]) == ["a"]


# --- what goes wrong ---


def test_t4_interrupted_and_made_again(host: A1111Fake) -> None:
    def stop(step: int) -> None:
        host.interrupted = step == 1

    for prompt in ("a", "a<lora:a:1>", "a<lora:b:0.5>"):
        wanted = one(host.generate(prompt))
        host.generate(["x<lora:a:1>", "y<lora:c:1>"], batch_size=2, during=stop)
        host.interrupted = False
        assert torch.equal(one(host.generate(prompt)), wanted), prompt


def test_a_rule_shows_how_far_it_is_and_ends_with_the_users_button(host: A1111Fake, loras: Path) -> None:
    rule = "combine=ties:density=0.5"
    prompt, state, kept = f"x<lora:a:1:{rule}><lora:b:0.5:{rule}>", host.shared.state, loras.parent / "remora/combined"
    plain, base = one(host.generate("x")), weights(host)
    for button in ("interrupted", "skipped"):
        state.begin("txt2img")
        state.press = button
        found = host.generate(prompt, batch_size=2)
        assert (found.images, found.infotexts) == ([], [])
        why = "combining a + b by ties was interrupted after 0 of 3 layers, so that the picture is not made"
        assert found.info == why
        assert state.shown == ["Combining LoRA: 0 of 3 layers"] * 3 + [None]
        assert list(kept.iterdir()) == []
        session = host.extra_networks.extra_network_registry["lora"].remora._batch.__self__.remora._session
        assert state_of(session)["notes"] == [why]
        state.press = ""
        state.begin("txt2img")
        assert torch.equal(one(host.generate("x")), plain)
    assert same(list(weights(host).values()), list(base.values()))
    made = one(host.generate(prompt))
    assert not torch.equal(made, plain)
    assert "Combining LoRA: 3 of 3 layers" in state.shown
    assert state.shown[-1] is None
    (file,) = kept.iterdir()
    state.begin("txt2img")
    assert torch.equal(one(host.generate(prompt)), made)
    assert (state.shown, [*kept.iterdir()]) == ([], [file])


def test_t4_a_failure_in_the_middle_leaves_nothing_behind(host: A1111Fake) -> None:
    wanted, base = one(host.generate("a")), weights(host)

    def fail(step: int) -> None:
        if step == 1:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        host.generate(["x<lora:a:1>", "y<lora:c:1>"], batch_size=2, during=fail)
    assert torch.equal(one(host.generate("a<lora:b:1>", disable_extra_networks=True)), wanted)  # which activates none
    assert torch.equal(one(host.generate("a")), wanted)
    assert same(list(weights(host).values()), list(base.values()))


def test_no_lora_outlives_a_batch_whose_first_prompt_has_none(host: A1111Fake) -> None:
    wanted = one(host.generate("a"))
    host.generate(["x", "y<lora:c:1>"], batch_size=2)  # the host sees no tags and takes nothing off
    assert torch.equal(one(host.generate("a<lora:b:1>", disable_extra_networks=True)), wanted)


def test_t2_a_generation_within_another_leaves_the_outer_ones_loras(host: A1111Fake) -> None:
    """As a detailer does it, or a script that makes a picture in between; however often."""
    prompts = ["x<lora:a:1>", "y<lora:c:1>"]
    wanted = host.generate(prompts, batch_size=2).images

    def detail(step: int) -> None:
        if step == 1:
            host.generate("a face<lora:b:1>")

    for _ in range(5):
        found = host.generate(prompts, batch_size=2, during=detail)
        assert same(found.images, wanted)
        assert [hashes(text) for text in found.infotexts] == [["a"], ["c"]]


def test_bare_activation_at_a_load_is_nothing(host: A1111Fake) -> None:
    host.extra_networks.activate(host.new(), {})
    assert host.extra_networks.shown == []


# --- the built-in ---


def test_the_setting_hands_back_and_takes_again_without_a_restart(host: A1111Fake) -> None:
    networks = sys.modules["networks"]
    ours, none = one(host.generate("a<lora:a:1>")), one(host.generate("a"))
    assert networks.originals.Linear_forward is None  # its patches are undone
    base = weights(host)
    for _ in range(2):
        host.shared.opts.data[ENABLED] = False
        theirs = one(host.generate("a<lora:a:1>"))
        assert networks.backups > 0
        assert [net.name for net in networks.loaded_networks] == ["a"]
        host.shared.opts.data[ENABLED] = True
        assert torch.equal(one(host.generate("a")), none)  # what it had merged is off the weights again
        assert torch.equal(one(host.generate("a<lora:a:1>")), ours)
        assert (theirs - ours).abs().max() <= 1e-5 * ours.abs().max()
        assert networks.loaded_networks == []
        assert networks.networks_in_memory == {}
        layers = host.models.model_data.sd_model.modules()
        assert not any(getattr(layer, "network_weights_backup", None) is not None for layer in layers)
        assert same(list(weights(host).values()), list(base.values()))


def test_where_no_layer_of_the_unet_is_called_the_builtin_has_the_tags(
    host: A1111Fake, caplog: pytest.LogCaptureFixture
) -> None:
    networks, ours = sys.modules["networks"], one(host.generate("a<lora:a:1>"))
    unet = host.models.model_data.sd_model.unet
    unet.forward = lambda x, timesteps, context: 0.5 * x  # as an engine in its place
    try:
        found = host.generate("a<lora:a:1>")
        assert networks.loaded_networks == []
        assert "Remora warnings: " in found.infotexts[0]
        assert "2 of 3 layers were never called: " in found.infotexts[0]
        assert any("never called" in comment for comment in found.p.comments)
        assert sum("the web UI's own LoRA gets the tags" in record.message for record in caplog.records) == 1
        host.generate("a<lora:a:1>")
        assert [net.name for net in networks.loaded_networks] == ["a"]
    finally:
        del unet.forward
    host.generate("a<lora:a:1>")
    assert [net.name for net in networks.loaded_networks] == ["a"], "nothing tells that the engine is gone"
    for enabled in (False, True):
        host.shared.opts.data[ENABLED] = enabled
        found = host.generate("a<lora:a:1>")
    assert torch.equal(one(found), ours)
    assert networks.loaded_networks == []
    assert "Remora warnings" not in found.infotexts[0]


def test_handed_back_remora_is_inert(host: A1111Fake) -> None:
    host.shared.opts.data[ENABLED] = False
    found = host.generate(["x<lora:a:1>", "x<lora:b:1>"], batch_size=2)
    networks = sys.modules["networks"]
    assert [net.name for net in networks.loaded_networks] == ["a"]  # as it is without us: the first prompt's
    assert not any(hashes(text) for text in found.infotexts)
    assert host.paste({"Prompt": "x", "Lora hashes": ""})["Prompt"] == "x (the built-in was here)"
    assert found.p.cached_params([], 1, {"lora": ["a"]})[-1] == {"lora": ["a"]}


def test_class_patches_of_others_on_top_of_the_builtins_stay(start: Callable[..., A1111Fake]) -> None:
    theirs = {}

    def another(extension_of_ours: Callable[[], object] = extension.register) -> None:
        extension_of_ours()
        theirs["below"] = below = nn.Linear.forward
        nn.Linear.forward = theirs["forward"] = lambda self, x: below(self, x)

    host = start(another)
    try:
        wanted, none = one(host.generate("a<lora:a:1>")), one(host.generate("a"))
        assert not torch.equal(wanted, none)
        assert sys.modules["networks"].backups == 0
        host.shared.opts.data[ENABLED] = False
        host.generate("a<lora:a:1>")
        host.shared.opts.data[ENABLED] = True
        assert torch.equal(one(host.generate("a<lora:a:1>")), wanted)
        assert torch.equal(one(host.generate("a")), none)
    finally:
        extension.unregister()
        assert nn.Linear.forward is theirs["forward"]
        nn.Linear.forward = theirs["below"]
        A1111._builtin.wake()


def test_without_the_builtin_tags_are_served_all_the_same(start: Callable[..., A1111Fake]) -> None:
    host = start(builtin=False)
    assert not torch.equal(one(host.generate("a<lora:a:1>")), one(host.generate("a")))
    host.shared.opts.data[ENABLED] = False
    assert torch.equal(one(host.generate("a<lora:a:1>")), one(host.generate("a")))


def test_a_reload_of_the_page_changes_nothing(host: A1111Fake) -> None:
    wanted = one(host.generate("a<lora:a:1>")), one(host.generate("a"))
    for _ in range(2):
        host.reload_ui()
        found = host.generate("a<lora:a:1>"), host.generate("a")
        assert same([one(image) for image in found], wanted)
    for category, callbacks in host.callbacks.callback_map.items():
        assert len(callbacks) == len({id(callback.callback) for callback in callbacks}), category


def test_t21_taken_down_the_host_is_as_it_was(start: Callable[..., A1111Fake], loras: Path) -> None:
    untouched = A1111Fake(loras, lambda: None)
    host = start(lambda: None)
    names = ("parse_prompts", "activate")
    functions = {name: getattr(host.extra_networks, name) for name in names}
    of_class = dict(vars(host.processing.StableDiffusionProcessing))
    inner, load = host.processing.process_images_inner, host.models.load_model_weights
    host._load_script = extension.register
    host.reload_ui()
    host.generate("a<lora:a:1>")
    host._load_script = lambda: None
    host.reload_ui()
    assert {name: getattr(host.extra_networks, name) for name in names} == functions
    changed = {
        name for name, value in vars(host.processing.StableDiffusionProcessing).items() if of_class[name] is not value
    }
    assert changed <= {"cached_c", "cached_uc"}
    assert (host.processing.process_images_inner, host.models.load_model_weights) == (inner, load)
    assert host.extra_networks.extra_network_registry["lora"].__class__.__name__ == "ExtraNetworkLora"
    assert set(vars(untouched.callbacks)) == set(vars(host.callbacks))


# --- parameters texts, embeddings ---


def test_pasted_parameters_find_the_file_by_its_hash_and_name_the_settings(host: A1111Fake, loras: Path) -> None:
    text = host.generate("x<lora:a:1>").infotexts[0]
    digest = re.search(r"a: ([0-9a-f]{12})", text)
    assert digest is not None
    pasted = {
        "Prompt": "x <lora:renamed:0.5>",
        "Hires prompt": "y <lora:renamed:0.7>",
        "Lora hashes": f"renamed: {digest[1]}",
        "Remora mode": "merged",
    }
    found = host.paste(pasted)
    assert (found["Prompt"], found["Hires prompt"]) == ("x <lora:a:0.5>", "y <lora:a:0.7>")
    info = host.shared.opts.data_labels[MERGE]
    assert found[info.infotext] == "always"  # what the host looks for, and the value as its setting takes it
    assert host.paste({**pasted, "Remora mode": "auto"})[info.infotext] == "never"  # a mode of former versions
    empty = {"Prompt": "x <lora:renamed:0.5>", "Lora hashes": "renamed: e3b0c44298fc"}
    assert host.paste(empty)["Prompt"] == "x <lora:renamed:0.5>"


def test_a_name_in_the_hashes_has_no_mark_that_ends_it(host: A1111Fake, loras: Path) -> None:
    (loras / "od,d.safetensors").write_bytes((loras / "a.safetensors").read_bytes())
    try:
        assert hashes(host.generate("x<lora:od,d:1>").infotexts[0]) == ["odd"]
    finally:
        (loras / "od,d.safetensors").unlink()


def test_a_textual_inversion_that_came_with_a_lora_is_there_while_it_is(host: A1111Fake, loras: Path) -> None:
    tensors = pair("lora_unet_input_blocks_1_1_proj_in", (8, 4), RANK, alpha=RANK)
    tensors["bundle_emb.mark.string_to_param.*"] = torch.ones(2, 8)
    path = save(loras / "bundled.safetensors", tensors)
    database = host.hijack.model_hijack.embedding_db
    seen: list[list[str]] = []
    note: Any = lambda step: seen.append(list(database.word_embeddings))  # noqa: E731
    try:
        assert asked(host, "mark<lora:bundled:1>", during=note) == 2
        assert asked(host, "mark<lora:bundled:1>", during=note) == 0
        assert asked(host, "mark", during=note) == 2  # the word means something else now
        assert seen == [["mark"]] * 4 + [[]] * 2
        database.expected_shape = 1024
        found = host.generate("mark<lora:bundled:1>")
        sentence = "embedding 'mark' is read as plain words: it is 8 wide, and the model takes 1024"
        assert sentence in found.p.comments
        assert f"Remora warnings: {sentence}" in found.infotexts[0]
        database.expected_shape = -1
    finally:
        path.unlink()


def test_the_settings_are_the_hosts(host: A1111Fake) -> None:
    assert {ENABLED, DEFAULT_MULTIPLIER, MERGE} <= set(host.shared.opts.data)
    assert host.shared.opts.data_labels[ENABLED].section == ("remora", "Remora")


# --- tags inside the prompt's grammar ---


GRAMMAR_ON = {GRAMMAR: True}


@pytest.mark.parametrize(
    ("place", "written"),
    [
        ("x [<lora:a:1>::0.5]", "x <lora:a:1:stop=0.5>"),
        ("x [<lora:a:1>:<lora:b:1>:4]", "x <lora:a:1:stop=4><lora:b:1:start=4>"),
        ("x (<lora:a:0.8>:1.5)", "x <lora:a:1.2>"),
        ("x [<lora:unet:1>|]", "x <lora:unet:1@0,0@1,1@2,0@3,1@4,0@5:curve=step>"),
        ("\uff1clora\uff1aa\uff1a1\uff1ex", "<lora:a:1>x"),  # the full-width marks of an input method
    ],
)
def test_a_place_in_the_prompt_is_to_the_bit_what_the_same_fields_are(
    host: A1111Fake, place: str, written: str
) -> None:
    found = host.generate(place, steps=6, override_settings=GRAMMAR_ON)
    assert torch.equal(one(found), one(host.generate(written, steps=6)))
    assert found.infotexts[0].startswith(place)
    if "(" in place:
        assert "Remora limits: a: times 1.5" in found.infotexts[0]
        assert "Remora grammar: on" in found.infotexts[0]


def test_while_it_is_off_a_place_changes_nothing_and_that_is_said(
    host: A1111Fake, caplog: pytest.LogCaptureFixture
) -> None:
    found = host.generate("x [<lora:a:1>::0.5]", steps=4)
    assert torch.equal(one(found), one(host.generate("x [::0.5]<lora:a:1>", steps=4)))
    sentence = "a acts in all steps: its place in the prompt (until 50 %) does not count for tags; turn on"
    assert sentence in found.infotexts[0]
    assert any(sentence in comment for comment in found.p.comments)
    assert any(sentence in record.getMessage() for record in caplog.records)
    by_tag = host.generate("x [<lora:a:1:grammar=1>::0.5]", steps=4)
    assert torch.equal(one(by_tag), one(host.generate("x <lora:a:1:stop=0.5>", steps=4)))


def test_the_tab_switches_the_setting_and_the_web_ui_keeps_it(
    host: A1111Fake, loras: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    A1111.set_option(GRAMMAR, True)
    try:
        assert told()["grammar"] is True
        assert json.loads((loras.parent / "config.json").read_text())[GRAMMAR] is True
        on = host.generate("x [<lora:a:1>::0.5]", steps=4)
        assert torch.equal(one(on), one(host.generate("x <lora:a:1:stop=0.5>", steps=4)))
        host.shared.cmd_opts.freeze_settings = True
        with pytest.raises(PermissionError, match="--freeze-settings"):
            A1111.set_option(GRAMMAR, False)
        host.shared.cmd_opts.freeze_settings = False
        with monkeypatch.context() as patch:
            patch.setattr(host.shared.cmd_opts, "freeze", True, raising=False)
            with pytest.raises(PermissionError, match=r"--freeze$"):
                A1111.set_option(GRAMMAR, False)
        frozen = AssertionError("settings in section 'Remora' are frozen")
        monkeypatch.setattr(host.shared.opts, "set", Mock(side_effect=frozen))
        with pytest.raises(PermissionError, match="are frozen"):
            A1111.set_option(GRAMMAR, False)
    finally:
        host.shared.cmd_opts.freeze_settings = False
        host.shared.opts.data.pop(GRAMMAR)
        (loras.parent / "config.json").unlink()


def test_a_tag_of_the_negative_prompt_is_for_the_rows_of_its_half(host: A1111Fake) -> None:
    want = one(host.generate("x<lora:unet:1:half=neg>", negative_prompt="bad "))
    on = host.generate("x", negative_prompt="bad <lora:unet:1>", override_settings=GRAMMAR_ON)
    assert torch.equal(one(on), want)
    off = host.generate("x", negative_prompt="bad <lora:unet:1>")
    assert not torch.equal(one(off), want)
    assert "unet is not applied: it stands in the negative prompt" in off.infotexts[0]


@pytest.mark.parametrize("together", [True, False])
def test_a_tag_in_a_part_of_the_prompt_acts_on_the_rows_of_that_part(host: A1111Fake, together: bool) -> None:
    host.shared.opts.data["batch_cond_uncond"] = together
    rows: list[Tensor] = []
    unet = host.models.model_data.sd_model.unet
    hook = unet.register_forward_hook(lambda module, args, output: rows.append(output.clone()))

    def outputs(prompt: str) -> Tensor:
        rows.clear()
        host.generate(prompt, steps=1, override_settings=GRAMMAR_ON)
        return torch.cat(rows)

    plain, first, second, both = map(outputs, ("x AND y", "x<lora:unet:1> AND y", "x AND y<lora:unet:1>", "x AND y"))
    whole = outputs("x AND y<lora:unet:1:grammar=0>")
    hook.remove()
    assert torch.equal(plain, both)
    for found, part in ((first, 0), (second, 1)):
        for row in range(3):
            wanted = whole[row] if row == part else plain[row]
            assert (found[row] - wanted).abs().max() < 1e-5, (part, row)
    assert (whole - plain).abs().max() >= 1e-5


def test_a_tag_that_a_comment_cuts_is_said(host: A1111Fake) -> None:
    found = host.generate("x <lora:hash\n, y <lora:a:1>")  # as the host has it after the comment of `hash#1:1>`
    (cut,) = [one for one in told()["loras"] if one["asked"] == "hash"]
    assert "is not closed" in cut["reason"]
    assert "Enable comments" in cut["reason"]
    assert found.images


def test_of_two_files_of_one_name_the_builtins_is_taken(host: A1111Fake, loras: Path) -> None:
    """It lists folders by the numbers in their names, and a later file replaces an earlier one."""
    made = []
    for number, folder in ((2, "v2"), (10, "v10")):
        (loras / folder).mkdir()
        tensors: dict[str, Tensor] = {}
        for i, (layer, shape) in enumerate(LAYERS.items()):
            tensors |= pair(layer, shape, RANK, alpha=RANK, seed=number + i, size=0.7)
        made.append(save(loras / folder / "twice.safetensors", tensors))
    try:
        found = host.generate("x<lora:twice:1>")
        assert torch.equal(one(found), one(host.generate("x<lora:v10/twice:1>")))
        assert "twice fits several files, v10/twice, v2/twice: v10/twice is applied" in found.infotexts[0]
        assert "fits several" not in host.generate("x<lora:v2/twice:1>").infotexts[0]
    finally:
        for folder in ("v2", "v10"):
            (loras / folder / "twice.safetensors").unlink()
            (loras / folder).rmdir()


def recorded(session: Session) -> list[tuple[int, list[tuple[str, str, str]]]]:
    """Return seed and LoRA of each recorded picture, the first one first."""
    found = reversed(session.record.pictures())
    return [(one.seed, [(lora.name, lora.strength, lora.state) for lora in one.loras]) for one in found]


def test_every_picture_can_be_asked_which_lora_it_used_and_every_lora_for_its_pictures(host: A1111Fake) -> None:
    session = session_of_process()
    host.generate(["x <lora:a:0.5>", "x <lora:b:1>"], batch_size=1, n_iter=2, seed=4)
    host.generate("x", seed=4)
    host.generate("x <lora:a:1> <lora:gone:1>", seed=9)
    a, b = ("a", "0.5", "applied"), ("b", "1", "applied")
    last = [("a", "1", "applied"), ("gone", "", "missing")]
    assert recorded(session) == [(4, [a]), (5, [b]), (4, []), (9, last)]
    found = {name: session.record.pictures(session.catalog.find(name)) for name in "abc"}
    assert {name: [one.seed for one in pictures] for name, pictures in found.items()} == {
        "a": [9, 4],
        "b": [5],
        "c": [],
    }


def test_a_hires_pass_leaves_the_record_the_lora_of_the_picture(host: A1111Fake) -> None:
    session = session_of_process()
    host.generate("x <lora:a:1>", enable_hr=True, hr_prompt="x <lora:b:1>")
    assert [name for name, *_ in recorded(session)[0][1]] == ["a"]


def test_a_generation_that_fails_is_no_picture(host: A1111Fake) -> None:
    session = session_of_process()

    def fail(step: int) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        host.generate("x <lora:a:1>", during=fail)
    assert recorded(session) == []
    host.generate("x")
    assert recorded(session) == [(1, [])]
