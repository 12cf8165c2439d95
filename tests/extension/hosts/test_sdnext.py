"""SD.Next: what its stand-in gives and withholds, from the start of the program to the last pass of a picture."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from torch import Tensor

from extension.generation.options import FAIL, GRAMMAR, ON_BAD_LORA, TABLE
from extension.generation.session import Session
from extension.generation.state import state_of
from extension.guest import Guest
from extension.hosts.sdnext import SDNextHost
from extension.standalone.demo import Demo
from lib_lora import LoraError
from tests.fakes.files import pair, save
from tests.fakes.quantized.nunchaku import SVDQW4A4Linear
from tests.fakes.webui import sdnext as fake
from tests.fakes.webui.sdnext_lora import BASE_OF_SVD, LaterLora, ParallelHead, SDNQLinear, network
from tests.fakes.webui.sdnext_session import Setup, new_pipeline, started
from tests.fakes.webui.tags import applied_by

A, B = "<lora:zorp:0.8>", "<lora:stripes:0.5>"
TEXT = {"lora_apply_te": True}
ROUNDING = 1e-4  # of the largest value: kernels add up a batch in another order


@pytest.fixture
def setup(demo: Demo, tmp_path: Path) -> Iterator[Setup]:
    with started(demo, tmp_path) as made:
        yield made


@pytest.fixture
def later(demo: Demo, tmp_path: Path) -> Iterator[Setup]:
    """Start the program with what single files of later versions add to its own LoRA."""
    with started(demo, tmp_path, LaterLora) as made:
        yield made


def near(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() <= ROUNDING * wanted.abs().max())


def of_lora(infotext: str) -> list[str]:
    return [part for part in infotext.split("\n")[1].split("; ") if part.startswith(("LoRA", "Remora"))]


def test_where_its_modules_are_not_it_is_not_current() -> None:
    assert not SDNextHost().is_current()


def test_the_tags_are_taken_over_after_the_registry_was_cleared(setup: Setup) -> None:
    assert setup.web.extra_networks.extra_network_registry["lora"] is not setup.web.builtin
    assert {"include", "exclude"} <= set(fake.signature_of(setup.web).parameters)
    plain, with_lora = setup.picture("x"), setup.picture(f"x{A}")
    assert not torch.equal(plain, with_lora)
    assert setup.web.builtin.calls == []
    assert setup.web.extra_networks.shown == []


def test_tags_that_nothing_applies_are_an_error(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    """Another extension replaced the host's `activate`, and calls nothing; the picture before had a LoRA."""
    plain = setup.picture("x")
    setup.picture(f"x{A}")
    setup.web.extra_networks.activate = lambda p, *args, **kwargs: None
    assert torch.equal(setup.picture(f"x{B}"), plain)
    (error,) = {one.getMessage() for one in caplog.records if one.levelno == logging.ERROR}
    assert "nothing applied <lora:stripes:0.5>" in error
    assert [one.state for one in setup.session.outcomes] == ["failed"]
    setup.web.opts.data[ON_BAD_LORA] = FAIL
    with pytest.raises(LoraError, match="nothing applied"):
        setup.picture(f"x{B}")


class Engine(torch.nn.Module):
    """nunchaku's FLUX: an object of C++."""

    __module__ = "nunchaku.models.transformers.transformer_flux"


def fused_gelu_mlp(x: torch.Tensor, *layers: torch.nn.Module) -> torch.Tensor:
    return x


class Mlp(torch.nn.Module):
    """nunchaku's MLP of Qwen-Image, which hands its layers to one function."""

    __module__ = "nunchaku.models.attention"

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.ModuleList([SVDQW4A4Linear(torch.nn.Linear(64, 64)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fused_gelu_mlp(x, *self.net)


class Called(Mlp):
    """nunchaku's MLP of SDXL, which calls its layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net[1](self.net[0](x))


@pytest.mark.parametrize(
    ("part", "name"),
    [(Engine, "by nunchaku in C++"), (Mlp, "by nunchaku, several layers at once (fused_gelu_mlp)"), (None, "OpenVINO")],
)
def test_a_model_whose_layers_are_not_called_is_left_to_the_builtin_and_said(
    setup: Setup, part: type[torch.nn.Module] | None, name: str
) -> None:
    setup.picture(f"x{A}")
    unet = setup.web.pipe.unet
    if part is not None:
        unet.fused = part()
    else:
        setup.web.opts.data.update(cuda_compile_backend="openvino_fx", cuda_compile=["Model"])
    found = setup.web.generate(f"x{B}")
    assert setup.web.builtin.calls == [["stripes:0.5"]]
    assert [name in text for text in of_lora(found.infotexts[0]) if "warnings" in text] == [True]
    assert [name in note for note in state_of(setup.session)["notes"]] == [True]


def test_a_model_of_nunchaku_whose_layers_are_called_is_served(setup: Setup) -> None:
    plain = setup.picture("x")
    setup.web.pipe.unet.quantized = Called()
    assert not torch.equal(setup.picture(f"x{A}"), plain)
    assert setup.web.builtin.calls == []
    assert state_of(setup.session)["notes"] == []


def test_where_the_builtin_cannot_be_taken_off_the_setting_fails_the_picture(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = setup.picture(f"x{A}")

    def broken() -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(setup.host, "quiet_builtin", broken)
        setup.web.opts.data[ON_BAD_LORA] = FAIL
        with pytest.raises(LoraError, match="RuntimeError: injected"):
            setup.picture(f"x{A}")
    assert applied_by(setup.host) == "handed back"
    assert any("RuntimeError: injected" in note for note in state_of(setup.session)["notes"])
    setup.session.model_changed()
    assert torch.equal(setup.picture(f"x{A}"), ours)
    assert state_of(setup.session)["notes"] == []


def test_t1_what_comes_after_a_lora_has_the_bits_of_what_came_before(setup: Setup) -> None:
    before, kept = setup.picture("x"), {k: v.clone() for k, v in setup.web.pipe.unet.state_dict().items()}
    first = setup.picture(f"x{A}")
    for strength in (1.1, 10, -4, 0.2):
        setup.picture(f"x<lora:zorp:{strength}>", **TEXT)
        assert torch.equal(setup.picture("x"), before)
    assert torch.equal(setup.picture(f"x{A}"), first)
    assert all(torch.equal(v, kept[k]) for k, v in setup.web.pipe.unet.state_dict().items())


def test_nobody_is_asked_for_a_model(setup: Setup) -> None:
    setup.web.data.sd_model = None
    assert setup.host.components() == {}
    assert setup.host.checkpoints() == {}
    setup.host.quiet_builtin()
    assert setup.web.asked_for_model == 0


def test_components_are_found_below_what_compiling_puts_around_them(setup: Setup) -> None:
    setup.web.pipe.unet._orig_mod_test = None
    wrapped = torch.compile(setup.web.pipe.unet, backend="eager")
    setup.web.data.sd_model = type("Pipe", (), {"unet": wrapped, "text_encoder": None, "transformer_2": None})()
    assert setup.host.components() == {"unet": setup.web.pipe.unet}
    setup.web.data.sd_model.connectors = setup.web.pipe.text_encoder  # LTX-2's are a component that a LoRA may change
    assert set(setup.host.components()) == {"unet", "connectors"}


def test_t9_each_image_of_a_batch_is_the_one_made_alone(setup: Setup) -> None:
    prompts = (f"cat{A}", f"dog{B}", "cat", f"cat{B}")
    alone = [setup.picture(prompt, **TEXT)[0] for prompt in prompts]
    together = setup.web.generate(*prompts, **TEXT)
    assert all(near(found, wanted) for found, wanted in zip(together.images, alone, strict=True))
    assert not near(together.images[0], alone[2])
    assert [of_lora(text)[:1] for text in together.infotexts] == [
        ["LoRA networks: zorp"],
        ["LoRA networks: stripes"],
        [],
        ["LoRA networks: stripes"],
    ]


def test_t9_equal_texts_with_other_loras_are_encoded_anew(setup: Setup) -> None:
    setup.picture(f"cat{A}", "cat", f"cat{A}", **TEXT)
    assert setup.web.encoded.count("cat") == 2
    setup.web.encoded.clear()
    setup.picture(f"dog{A}", f"dog{B}")  # text encoders are left alone, or not in the file
    assert setup.web.encoded.count("dog") == 1


def test_each_batch_of_a_picture_has_its_own(setup: Setup) -> None:
    result = setup.web.generate(f"cat{A}", "cat", f"cat{B}", batch_size=1, n_iter=3)
    assert [of_lora(text)[:1] for text in result.infotexts] == [
        ["LoRA networks: zorp"],
        [],
        ["LoRA networks: stripes"],
    ]
    assert torch.equal(result.images[1], setup.picture("cat")[0])


def test_what_was_encoded_is_kept_as_long_as_no_text_encoder_strength_changes(setup: Setup) -> None:
    def encodes(prompt: str, **values: Any) -> bool:
        setup.web.encoded.clear()
        setup.picture(prompt, **values)
        return bool(setup.web.encoded)

    assert encodes("x")
    assert encodes(f"x{A}", **TEXT)
    assert not encodes("x<lora:zorp:te=0.8:unet=0.1>", **TEXT)
    assert not encodes("x<lora:zorp:0.3>")  # text encoders are left alone
    assert encodes("x<lora:zorp:te=0.7:unet=0.8>", **TEXT)
    assert not encodes("x", **TEXT)


def test_the_cache_that_goes_by_text_alone_is_emptied_when_text_encoders_change(setup: Setup) -> None:
    cache = setup.web.modules["modules.sd_hijack_te"].prompt_cache.cache
    setup.picture("x")
    cache["x"] = "plain"
    setup.picture(f"x{A}")
    assert cache == {"x": "plain"}
    setup.picture(f"x{A}", **TEXT)
    assert cache == {}
    cache["x"] = "with LoRA"
    setup.host.wake_builtin()
    assert cache == {}


def test_lora_apply_te_is_honoured(setup: Setup) -> None:
    only_unet = setup.picture("x<lora:zorp:te=0:unet=0.8>", **TEXT)
    assert torch.equal(setup.picture(f"x{A}"), only_unet)
    assert not torch.equal(setup.picture(f"x{A}", **TEXT), only_unet)


def test_a_lora_of_text_encoders_alone_says_which_setting_leaves_it_out(setup: Setup) -> None:
    own = setup.web.pipe.text_encoder.named_modules()
    layer = next(one for name, one in own if name.endswith("encoder.layers.0.self_attn.q_proj"))
    key = "lora_te_text_model_encoder_layers_0_self_attn_q_proj"
    save(setup.loras / "words.safetensors", pair(key, tuple(layer.weight.shape), 2, size=0.5))
    setup.session.catalog.refresh()
    plain = setup.picture("x")
    assert torch.equal(setup.picture("x<lora:words:1>"), plain)
    (outcome,) = setup.session.outcomes
    turn = "turn on “LoRA native apply to text encoder” in SD.Next's settings"
    assert (outcome.state, outcome.advice) == ("none", turn)
    assert outcome.sentence.endswith(f"which are in text_encoder; {turn}")
    assert outcome.sentence in setup.session.warnings()
    setup.picture(f"x{A}")
    assert setup.session.outcomes[0].state == "applied"
    setup.picture("x<lora:words:1>", **TEXT)
    assert setup.session.outcomes[0].state == "applied"
    setup.picture("x<lora:words:te=0:unet=1>", **TEXT)
    assert "turn on" not in setup.session.outcomes[0].advice


def test_a_tag_without_a_multiplier_has_the_hosts_default(setup: Setup) -> None:
    setup.web.opts.extra_networks_default_multiplier = 0.8
    assert torch.equal(setup.picture("x<lora:zorp>"), setup.picture(f"x{A}"))


def test_t11_the_hires_pass_has_what_its_own_prompt_says(setup: Setup) -> None:
    base, hires = setup.picture(f"x{A}"), setup.picture(f"y{B}")
    result = setup.web.generate(f"x{A}", refiner_prompt=f"y{B}")
    assert torch.equal(result.images[0], base[0] + hires[0])
    assert of_lora(result.infotexts[0])[0] == "LoRA networks: zorp, stripes"


def test_a_schedule_counts_the_steps_of_the_scheduler(setup: Setup) -> None:
    setup.web.steps = 6
    setup.web.data.sd_model.scheduler = DPMSolverMultistepScheduler()

    def each_step(prompt: str) -> list[Tensor]:
        setup.picture(prompt)
        return setup.web.each_step

    strong, plain = each_step("x<lora:stripes:0.5>"), each_step("x")
    first_two = each_step("x<lora:stripes:0.5:stop=2>")
    assert [torch.equal(*pair) for pair in zip(first_two, strong, strict=True)] == [True, True, *[False] * 4]
    assert [torch.equal(*pair) for pair in zip(first_two, plain, strict=True)] == [False, False, *[True] * 4]
    growing = each_step("x<lora:stripes:0@0,0.5@1>")
    assert [torch.equal(*pair) for pair in zip(growing, plain, strict=True)] == [True, True, *[False] * 4]
    assert [torch.equal(*pair) for pair in zip(growing, strong, strict=True)] == [*[False] * 5, True]


@pytest.mark.parametrize("tag", ["<lora:stripes:0.5:pass={}>", "<lora:zorp:0.7:pass={}>"], ids=["unet", "text, too"])
def test_a_second_pass_without_a_prompt_of_its_own_is_one_all_the_same(setup: Setup, tag: str) -> None:
    """The host activates nothing for it."""
    plain, with_lora = setup.picture("x"), setup.picture("x" + tag.format("base,hires"))

    def twice(prompt: str) -> Tensor:
        return torch.stack(setup.web.generate(prompt, enable_hr=True).images)

    assert torch.equal(twice("x" + tag.format("hires")), plain + with_lora)
    assert torch.equal(twice("x" + tag.format("base")), with_lora + plain)
    assert torch.equal(twice("x" + tag.format("base,hires")), with_lora + with_lora)
    assert torch.equal(twice("x"), plain + plain)
    told = setup.web.generate("x" + tag.format("hires"), enable_hr=True).infotexts[0]
    assert of_lora(told)[0] == f"LoRA networks: {tag[6:].split(':')[0]}"
    assert torch.equal(setup.picture("x" + tag.format("base")), with_lora), "the next picture begins anew"


def test_a_lora_of_one_pass_is_in_no_other(setup: Setup) -> None:
    plain, with_lora = setup.picture("x"), setup.picture("x<lora:stripes:0.5>")
    twice = setup.web.generate("x<lora:stripes:0.5:pass=hires>", refiner_prompt="x<lora:stripes:0.5:pass=hires>").images
    assert torch.equal(torch.stack(twice), plain + with_lora)
    twice = setup.web.generate("x<lora:stripes:0.5:hr=0>", refiner_prompt="x<lora:stripes:0.5:hr=0>").images
    assert torch.equal(torch.stack(twice), with_lora + plain)
    assert torch.equal(setup.picture("x<lora:stripes:0.5:pass=detailer>", detailer_enabled=True), plain + with_lora)
    assert torch.equal(setup.picture("x<lora:stripes:0.5:pass=base>", detailer_enabled=True), with_lora + plain)


def test_halves(setup: Setup) -> None:
    """The stand-in gives back the positive rows alone."""
    plain, strong = setup.picture("x"), setup.picture("x<lora:stripes:0.5>")
    assert near(setup.picture("x<lora:stripes:0.5:half=pos>"), strong)
    assert near(setup.picture("x<lora:stripes:0.5:half=neg>"), plain)
    two = setup.picture("x<lora:stripes:0.5:half=pos>", "x<lora:stripes:0.5:half=neg>")
    assert near(two[:1], strong)
    assert near(two[1:], plain)


def test_presets_of_the_block_weight_extension_are_read(setup: Setup) -> None:
    folder = setup.loras / "extensions" / "sd-webui-lora-block-weight" / "scripts"
    folder.mkdir(parents=True)
    (folder / "lbwpresets.txt").write_text("# mine\nHALF:" + ",".join(["0.5"] * 26), encoding="utf-8")
    (folder / "elempresets.txt").write_text("NOATTN::attn:0", encoding="utf-8")
    setup.web.shared.cmd_opts.data_dir = str(setup.loras)
    presets = setup.session.block_presets.all
    assert presets.lists["HALF"] == (0.5,) * 26
    assert "OUTALL" in presets.lists
    assert "NOATTN" in presets.elements
    assert not torch.equal(setup.picture("x<lora:stripes:1:HALF>"), setup.picture("x<lora:stripes:1>"))


def test_t2_t11_the_detailer_keeps_the_loras_of_its_image(setup: Setup) -> None:
    plain, with_lora = setup.picture("x"), setup.picture(f"x{A}")
    for _ in range(3):
        assert torch.equal(setup.picture(f"x{A}", detailer_enabled=True), 2 * with_lora)
    assert torch.equal(setup.picture("x", detailer_enabled=True), 2 * plain)
    assert torch.equal(setup.picture(f"x{A}", detailer_enabled=True, detailer_prompt="x"), 2 * with_lora)


def test_t2_in_a_mixed_batch_the_detailer_has_those_of_each_image_face_by_face(setup: Setup) -> None:
    prompts = (f"x{A}", "x", f"x{B}")
    alone = [setup.picture(prompt)[0] for prompt in prompts]
    result = setup.web.generate(*prompts, detailer_enabled=True, faces=2)
    assert all(near(found, 3 * wanted) for found, wanted in zip(result.images, alone, strict=True))
    assert of_lora(result.infotexts[1]) == []


def test_t11_the_detailer_has_the_loras_of_a_prompt_of_its_own(setup: Setup) -> None:
    plain, a, b = (setup.picture(prompt)[0] for prompt in ("x", f"x{A}", f"x{B}"))
    result = setup.web.generate(f"x{A}", "x", detailer_enabled=True, detailer_prompt=f"x{B}")
    assert near(result.images[0], a + b)
    assert near(result.images[1], plain + b)
    assert [of_lora(text)[0] for text in result.infotexts] == [
        "LoRA networks: zorp, stripes",
        "LoRA networks: stripes",
    ]


def test_t2_a_forced_deactivation_takes_all_off(setup: Setup) -> None:
    setup.web.opts.lora_force_reload = True
    with_lora = setup.picture(f"x{A}")
    assert setup.session.model.engine is not None
    assert len(setup.session.model.engine.stack) == 0
    assert torch.equal(setup.picture(f"x{A}", detailer_enabled=True), 2 * with_lora)


def test_t11_the_detailer_has_the_loras_of_the_first_pass_not_those_of_hires(setup: Setup) -> None:
    first, hires = setup.picture(f"x{A}"), setup.picture(f"y{B}")
    found = setup.picture(f"x{A}", refiner_prompt=f"y{B}", detailer_enabled=True)
    assert near(found, 2 * first + hires)


def test_the_detailer_alone_has_what_its_prompt_says_and_nothing_from_before(setup: Setup) -> None:
    plain, with_lora = setup.picture("x")[0], setup.picture(f"x{A}")[0]
    detailer, nothing = setup.web.shared.detailer, torch.zeros_like(plain)
    assert torch.equal(detailer.restore(nothing, fake.Processing(["x"])), plain)
    assert torch.equal(detailer.restore(nothing, fake.Processing([f"x{A}"])), with_lora)


def test_t4_an_interrupted_picture_leaves_nothing_to_the_next(setup: Setup) -> None:
    before, with_lora = setup.picture("x"), setup.picture(f"x{A}")
    setup.web.interrupt_at_step = True
    assert setup.web.generate(f"x{B}").images == []
    assert torch.equal(setup.picture("x"), before)
    setup.web.interrupt_at_step = True
    setup.web.generate(f"x{B}", "y")
    assert torch.equal(setup.picture(f"x{A}"), with_lora)


def test_a_rule_shows_how_far_it_is_and_ends_with_the_users_button(setup: Setup) -> None:
    rule = "combine=magnitude_prune:density=0.5"
    prompt, state = f"x<lora:zorp:1:{rule}><lora:stripes:0.5:{rule}>", setup.web.state
    before = setup.picture("x")
    state.press = "skipped"
    found = setup.web.generate(prompt, "y")
    assert found.images == []
    assert found.info.startswith("combining zorp + stripes by magnitude_prune was interrupted after 0 of ")
    assert [text for text in state.shown if text][2].startswith("Combining LoRA: 0 of ")
    assert (state.textinfo, state.job) == (None, "")
    assert state_of(setup.session)["notes"] == [found.info]
    state.press = ""
    assert torch.equal(setup.picture("x"), before)


def test_a_failure_fails_the_request_and_ends_the_job(setup: Setup) -> None:
    before = setup.picture("x")
    setattr(setup.web.opts, ON_BAD_LORA, FAIL)
    with pytest.raises(LoraError, match="nope"):
        setup.web.generate(f"x{A}<lora:nope:1>")
    assert setup.web.state.job == ""
    assert setup.web.extra_networks.shown == []
    assert torch.equal(setup.picture("x"), before)


def test_what_is_left_out_is_shown_and_logged(setup: Setup) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    setup.web.modules["modules.logger"].log.addHandler(handler)
    try:
        result = setup.web.generate(f"x{A}<lora:nope:1><lora:stripes:z>")
    finally:
        setup.web.modules["modules.logger"].log.removeHandler(handler)
    shown = result.comments.split("\n")
    assert ["'z' is not a number" in shown[0], "'nope'" in shown[1]] == [True, True]
    assert any("'nope'" in line for line in lines)
    assert any("zorp: " in line for line in lines)
    assert of_lora(result.infotexts[0])[0] == "LoRA networks: zorp"
    assert setup.web.generate("x").comments == ""


def test_what_is_found_when_the_model_is_called_is_in_the_parameters_and_shown(setup: Setup) -> None:
    layer = setup.web.pipe.unet.down_blocks[0].attentions[0].proj_in
    layer.forward = lambda x, *_: torch.nn.functional.conv2d(x, layer.weight, layer.bias)
    result = setup.web.generate(f"x{A}")
    (found,) = (one for one in of_lora(result.infotexts[0]) if one.startswith("Remora warnings"))
    assert "1 of " in found
    assert "1 of 264 layers was never called: unet.down_blocks.0.attentions.0.proj_in" in found
    assert "never called" in result.comments
    del layer.forward
    assert "Remora" not in setup.web.generate(f"x{A}").infotexts[0]


def test_hashes_are_those_of_the_whole_file(setup: Setup) -> None:
    found = of_lora(setup.web.generate(f"x{A}{B}").infotexts[0])
    catalog = setup.session.catalog
    hashes = [catalog.hashes.sha256(catalog.find(name))[:8] for name in ("zorp", "stripes")]
    assert found == ["LoRA networks: zorp, stripes", f"LoRA hashes: {', '.join(hashes)}"]
    (setup.loras / "zorp.safetensors").unlink()
    for row in catalog.index.rows():
        catalog.index.change(row.file, sha256="")
    result = setup.web.generate(f"x{B}")
    assert of_lora(result.infotexts[0]) == ["LoRA networks: stripes", f"LoRA hashes: {hashes[1]}"]


def test_a_text_of_all_images_names_all(setup: Setup) -> None:
    p = setup.web.generate(f"x{A}", f"y{B}").p
    processing = setup.web.modules["modules.processing"]
    (names, _) = of_lora(processing.create_infotext(p, p.all_prompts, index=0, grid="1x2"))
    assert names == "LoRA networks: zorp, stripes"
    assert of_lora(processing.create_infotext(p, iteration=0, position_in_batch=1))[0] == "LoRA networks: stripes"
    assert "LoRA networks" in p.extra_generation_params  # file names can have them


def test_t18_another_model_without_a_word_and_back(setup: Setup) -> None:
    first, plain = setup.picture(f"x{A}"), setup.picture("x")
    other = new_pipeline()
    other.unet.conv_in.weight.mul_(0.5)
    setup.web.data.sd_model = other
    setup.web.modules["modules.prompt_parser_diffusers"].cache.clear()
    assert not torch.equal(setup.picture(f"x{A}"), first)
    setup.web.load(setup.web.pipe)
    assert torch.equal(setup.picture(f"x{A}"), first)
    assert torch.equal(setup.picture("x"), plain)


def test_a_unet_that_was_exchanged_is_served(setup: Setup) -> None:
    setup.picture(f"x{A}")
    kept, setup.web.pipe.unet = setup.web.pipe.unet, new_pipeline().unet
    other = setup.picture("x")
    assert not torch.equal(setup.picture(f"x{A}"), other)
    setup.web.pipe.unet = kept


def test_the_setting_hands_back_and_takes_again_from_copies(setup: Setup) -> None:
    setup.web.opts.lora_fuse_native = False
    plain, with_lora = setup.picture("x"), setup.picture(f"x{A}")
    setup.web.opts.remora_enabled = False
    assert torch.equal(setup.picture(f"x{A}"), plain)  # the stand-in notes it only
    assert setup.web.builtin.calls == [["zorp:0.8"]]
    assert setup.web.builtin.excluded == [["text_encoder", "text_encoder_2", "text_encoder_3"]]
    setup.web.lora.serve(network("zorp", 0.25))
    setup.web.opts.remora_enabled = True
    assert torch.equal(setup.picture(f"x{A}"), with_lora)
    assert torch.equal(setup.picture("x"), plain)
    assert not any(hasattr(layer, "network_weights_backup") for layer in setup.web.pipe.unet.modules())
    assert setup.web.modules["modules.lora.lora_common"].previously_loaded_networks == []


def test_weights_that_were_baked_without_a_copy_are_said_to_be_inexact(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    plain = setup.picture("x")
    setup.web.opts.remora_enabled = False
    setup.picture("x")
    setup.web.lora.serve(network("zorp", 0.25))
    setup.web.opts.remora_enabled = True
    with caplog.at_level(logging.WARNING):
        after = setup.picture("x")
    assert near(after, plain)
    assert "zorp" in caplog.text
    assert "until a checkpoint is loaded" in caplog.text
    caplog.clear()
    setup.picture("x")
    assert not caplog.records  # once


def test_weights_that_were_merged_without_a_copy_are_exact_again(
    setup: Setup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    setup.web.save_checkpoint(file)
    plain, with_lora = setup.picture("x"), setup.picture(f"x{A}")
    opts, common = setup.web.opts, setup.web.modules["modules.lora.lora_common"]
    peft = setup.web.modules["modules.lora.lora_diffusers"]

    def served_until_now() -> None:
        setup.web.lora.serve(network("zorp", 0.25))

    def served_before_the_last() -> None:  # the built-in subtracted by itself, and records nothing any more
        setup.web.lora.serve(network("zorp", 0.25))
        common.loaded_networks = []
        setup.web.modules["modules.lora.networks"].network_deactivate()
        common.previously_loaded_networks = []

    def served_before_it_kept_copies() -> None:
        setup.web.lora.serve(network("zorp", 0.25))
        opts.lora_fuse_native = False
        setup.picture("x")
        for layer in setup.web.data.sd_model.unet.modules():
            vars(layer).pop("network_weights_backup", None)
        setup.web.lora.serve(network("zorp", 0.5))

    def served_by_diffusers() -> None:  # whose merge leaves no marks
        opts.lora_fuse_diffusers = True
        peft.diffuser_loaded.append("zorp")
        with torch.no_grad():
            setup.web.data.sd_model.unet.conv_in.weight += 0.25

    cases = (served_until_now, served_before_the_last, served_before_it_kept_copies, served_by_diffusers)
    for loads, serve in enumerate(cases):
        opts.remora_enabled = False
        serve()
        opts.remora_enabled = True
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert torch.equal(setup.picture(f"x{A}"), with_lora), serve.__name__
        assert f"{file} is loaded again" in caplog.text
        assert setup.web.loads == loads + 1, serve.__name__
    assert torch.equal(setup.picture("x"), plain)
    assert setup.web.loads == len(cases)  # once each
    opts.remora_enabled = opts.lora_fuse_diffusers = False
    opts.lora_fuse_native = True
    setup.web.lora.serve(network("zorp", 0.25))
    file.unlink()
    opts.remora_enabled = True
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert near(setup.picture("x"), plain)
    assert "the checkpoint could not be loaded again" in caplog.text
    assert ["could not be loaded again" in one for one in state_of(setup.session)["conflicts"]] == [True]
    assert setup.web.loads == len(cases)
    setup.web.load(new_pipeline())
    assert state_of(setup.session)["conflicts"] == []


def test_copies_from_before_the_builtin_was_set_to_merge_without_them_are_used(setup: Setup) -> None:
    plain = setup.picture("x")
    setup.web.opts.lora_fuse_native = setup.web.opts.remora_enabled = False
    setup.picture("x")
    setup.web.lora.serve(network("zorp", 3.3))
    setup.web.opts.lora_fuse_native = setup.web.opts.remora_enabled = True
    assert torch.equal(setup.picture("x"), plain)


def test_what_later_versions_leave_beside_the_weights_is_taken_off_and_given_back(later: Setup) -> None:
    web, pipe = later.web, later.web.pipe
    pipe.scheduler = DPMSolverMultistepScheduler()
    web.steps = 2
    attention = pipe.unet.down_blocks[0].attentions[0].transformer_blocks[0].attn1
    attention.to_q = quantized = SDNQLinear(attention.to_q)
    plain, with_lora = later.picture("x"), later.picture(f"x{A}")
    head, values = pipe.unet.conv_out, pipe.unet.conv_norm_out.weight.clone()
    offloaded: list[str] = []
    web.modules["modules.sd_models"].set_diffuser_offload = lambda pipe, op: offloaded.append(op)
    cases = {
        "hooks of a mask, and heads": (network("zorp", 0.25, masked=True, heads=(torch.sin, torch.cos)),),
        "one of two networks in each layer": (network("zorp", 0.25), network("stripes", 0.5)),
    }
    web.opts.lora_fuse_native = False  # with copies, so that what is merged is exact
    for title, networks in cases.items():
        web.opts.lora_stack_mode = "klora" if len(networks) == 2 else "sum"
        web.opts.remora_enabled = False
        web.lora.serve(*networks)
        builtins = later.picture("x")
        assert not torch.equal(builtins, plain), title
        web.opts.remora_enabled = True
        assert torch.equal(later.picture(f"x{A}"), with_lora), title
        assert torch.equal(later.picture("x"), plain), title
        assert pipe.unet.conv_out is head, title
        assert torch.equal(pipe.unet.conv_norm_out.weight, values), title
        assert not any(layer._forward_hooks or isinstance(layer, ParallelHead) for layer in pipe.unet.modules()), title
        assert (web.lora.scheduled, quantized.svd_up, hasattr(quantized, BASE_OF_SVD)) == ({}, None, False), title
        web.opts.remora_enabled = False
        web.lora.serve(*networks)
        assert torch.equal(later.picture("x"), builtins), title
        web.lora.serve()
    assert offloaded == ["model"]  # a module that comes back has no hook of the offloader


class OfTomorrow(LaterLora):
    """Changes a part of the pipeline that Remora does not know."""

    walked = (*LaterLora.walked, "transformer_4")
    subtracted = walked


def test_parts_of_the_pipeline_that_the_builtin_alone_changes_are_clean_again(
    demo: Demo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with started(demo, tmp_path, OfTomorrow) as later:
        part = later.web.pipe.transformer_4 = new_pipeline().text_encoder
        layer = next(one for one in part.modules() if isinstance(one, torch.nn.Linear))
        weight = layer.weight.detach().clone()
        later.web.opts.remora_enabled = False
        later.picture("x")
        later.web.lora.serve(network("zorp", 0.25))
        later.web.opts.remora_enabled = True
        with caplog.at_level(logging.WARNING):
            later.picture("x")
        assert near(layer.weight, weight)
        assert "until a checkpoint is loaded" in caplog.text


def test_an_override_of_one_request_does_not_last(setup: Setup) -> None:
    with_lora = setup.picture(f"x{A}")
    setup.web.opts.remora_enabled = False
    setup.picture(f"x{A}")
    del setup.web.opts.data["remora_enabled"]
    assert torch.equal(setup.picture(f"x{A}"), with_lora)


def test_t17_a_pasted_text_names_what_is_here_and_brings_settings(setup: Setup) -> None:
    text = setup.web.generate(f"x{A}").infotexts[0]
    ((_, hashes),) = [part.split(": ") for part in of_lora(text) if part.startswith("LoRA hashes")]
    parameters = {
        "Prompt": "x<lora:theirs:0.8>",
        "LoRA networks": "theirs",
        "LoRA hashes": hashes,
        "Remora mode": "merged",
        "Steps": 1,
    }
    pasted = setup.web.paste(text, parameters)
    assert pasted["Prompt"] == "x<lora:zorp:0.8>"
    assert pasted["overrides"] == {"remora_merge": "always"}
    former = setup.web.paste(text, {**parameters, "Remora mode": "auto"})
    assert former["overrides"] == {"remora_merge": "never"}


def test_a_pasted_hash_of_digits_has_lost_its_zeros(setup: Setup) -> None:
    catalog = setup.session.catalog
    catalog.index.change(catalog.find("stripes"), sha256="00123456" + 56 * "a")
    parameters = {"Prompt": "<lora:theirs:1>", "LoRA networks": "theirs", "LoRA hashes": 123456}
    assert setup.web.paste("", parameters)["Prompt"] == "<lora:stripes:1>"


def test_settings_are_the_hosts(setup: Setup) -> None:
    labels = setup.web.opts.data_labels
    assert {option.key for option in TABLE} <= set(labels)
    assert {labels[option.key].section for option in TABLE if not option.expert} == {("remora", "Remora")}
    setup.web.opts.remora_merge = "always"
    assert setup.host.option("remora_merge") == "always"


def test_checkpoints_are_where_the_model_came_from(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, single = tmp_path / "model", tmp_path / "model.safetensors"
    (folder / "unet").mkdir(parents=True)
    (folder / "unet" / "weights.safetensors").touch()
    single.touch()

    def found(path: Path) -> object:
        setup.web.pipe.sd_checkpoint_info = type("Info", (), {"filename": str(path)})()
        return setup.host.checkpoints()

    assert found(folder) == {"unet": [folder / "unet" / "weights.safetensors"]}
    assert found(single) == {"unet": [single], "text_encoder": [single]}
    assert found(tmp_path / "gone") == {}
    known = {path.name: type("Info", (), {"name": path.name, "filename": str(path)}) for path in (folder, single)}
    listing = ModuleType("modules.sd_checkpoint")
    monkeypatch.setattr(listing, "checkpoints_list", known, raising=False)
    monkeypatch.setitem(sys.modules, "modules.sd_checkpoint", listing)
    assert setup.host.models() == {"model": folder, "model.safetensors": single}


def test_t21_unloading_leaves_every_object_that_was_there(demo: Demo, tmp_path: Path) -> None:
    web, host = fake.SDNext(new_pipeline(), demo.loras, lora_fuse_native=True), SDNextHost()
    with web.running():
        before = _functions(web)
        session = Session(host)
        host.add_options(TABLE)
        web.start(lambda: host.connect(Guest(host, session, session.close)))
        assert _functions(web) != before
        web.generate(f"x{A}")
        level = logging.getLogger("lib_lora").level
        host.unload()
        assert _functions(web) == before
        assert web.extra_networks.extra_network_registry == {"lora": web.builtin}
        assert not logging.getLogger("lib_lora").handlers
        assert level == logging.INFO != logging.getLogger("lib_lora").level


def _functions(web: fake.SDNext) -> dict[str, object]:
    embedder = web.modules["modules.prompt_parser_diffusers"].PromptEmbedder
    places: list[tuple[str, Any]] = [
        ("networks", web.extra_networks),
        ("processing", web.modules["modules.processing"]),
        ("embedder", embedder),
        ("detailer", fake.Detailer),
    ]
    return {
        f"{where}.{name}": value
        for where, owner in places
        for name, value in vars(owner).items()
        if callable(value) and not isinstance(value, type)
    }


def test_tags_within_brackets_and_in_negative_prompts(setup: Setup) -> None:
    """To the bit what the same fields are; without the tag and its brackets in what is encoded."""
    window, negative = setup.picture("x <lora:stripes:1:start=0.5>"), setup.picture("x<lora:stripes:1:half=neg>")
    setup.web.opts.data[GRAMMAR] = True
    setup.web.encoded.clear()
    assert torch.equal(setup.picture("x [<lora:stripes:1>:0.5]"), window)
    assert set(setup.web.encoded) <= {"x ", ""}
    found = setup.web.generate("x", negative_prompts=["<lora:stripes:1>"])
    assert torch.equal(torch.stack(found.images), negative)
    assert "<lora" not in "".join(setup.web.encoded)
    assert "Remora limits: stripes: negative prompt" in found.infotexts[0]
    setup.web.opts.data[GRAMMAR] = False
    assert "stripes is not applied: it stands in the negative prompt" in str(
        setup.web.generate("x", negative_prompts=["<lora:stripes:1>"]).infotexts[0]
    )


def test_every_picture_can_be_asked_which_lora_it_used_also_after_a_detailer(setup: Setup) -> None:
    setup.picture(f"x{A}", f"x{B}", detailer_enabled=True, detailer_prompt=f"face{B}")
    setup.picture("x")
    found = [(one.seed, [(lora.name, lora.state) for lora in one.loras]) for one in setup.session.record.pictures()]
    assert found == [(1, []), (2, [("stripes", "applied")]), (1, [("zorp", "applied")])]
    (zorp,) = setup.session.record.pictures(setup.session.catalog.find("zorp"))
    assert (zorp.seed, zorp.loras[0].strength) == (1, "UNet 0.8")  # the host's default leaves text encoders out
