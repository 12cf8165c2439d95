"""What a host tells Remora of a batch, and what it is told."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from extension.generation.options import DYLORA, ENABLED, FAIL, HASHES, IN_ORDER, ON_BAD_LORA, SPLIT_QKV, TABLE
from extension.generation.session import Session
from extension.guest import Guest
from extension.hosts import Batch, Outcome
from extension.hosts.standalone import StandaloneHost
from extension.standalone.demo import Demo
from extension.text.grammar import read
from lib_lora import LoraError, Region
from lib_lora.inspection.skeleton import skeleton
from tests.fakes.demo import demo_pipeline
from tests.fakes.files import pair, save


@dataclass
class Setup:
    """A guest over the small model's text encoder."""

    host: StandaloneHost
    session: Session
    guest: Guest
    encoder: nn.Module
    folder: Path

    def batch(self, *images: str, **more: object) -> Outcome:
        """Put these in force; an image's tags are separated by spaces."""
        return self.guest.batch(Batch(tuple(tuple(image.split()) for image in images), **more))  # type: ignore[arg-type]

    def output(self) -> Tensor:
        with torch.no_grad():
            return self.encoder(torch.arange(10)[None]).last_hidden_state


@pytest.fixture
def setup(demo: Demo, tmp_path: Path) -> Iterator[Setup]:
    for path in demo.loras.iterdir():
        shutil.copy(path, tmp_path)
    pipeline = demo_pipeline()
    host = StandaloneHost()
    host.open([tmp_path], {})
    host.set_components(pipeline.components)
    host.add_options(TABLE)
    session = Session(host)
    yield Setup(host, session, Guest(host, session, session.close), pipeline.text_encoder.eval(), tmp_path)
    session.close()


def test_a_batch_of_images_with_loras_of_their_own(setup: Setup) -> None:
    """T9, as far as a text encoder shows it: image by image as when each is made alone."""
    alone = []
    for image in ("zorp:0.8", "", "stripes:0.5"):
        setup.batch(image)
        alone.append(setup.output())
    outcome = setup.batch("zorp:0.8", "", "stripes:0.5")
    assert [[used.name for used in outcome.image(i)] for i in range(3)] == [["zorp"], [], ["stripes"]]
    assert len(set(setup.guest.text_keys())) == 2  # stripes changes the UNet only
    for i, want in enumerate(alone):
        setup.guest.image(i)
        assert torch.equal(setup.output(), want)


def test_the_text_key_changes_when_and_only_when_text_encoders_do(setup: Setup) -> None:
    setup.batch("zorp:1:0.2")
    key = setup.guest.text_key()
    setup.batch("zorp:1:0.9")
    assert setup.guest.text_key() == key
    setup.batch("zorp:0.9")
    assert setup.guest.text_key() != key
    setup.batch("zorp:0:1")
    off = setup.guest.text_key()
    setup.batch("")
    assert setup.guest.text_key() == off
    setup.batch("zorp:1", without=frozenset({"text_encoder", "text_encoder_2"}))
    assert setup.guest.text_key() == off
    setup.batch("zorp:1")
    setup.host.set_option(IN_ORDER, True)
    before = setup.guest.text_key()
    setup.batch("zorp:1")
    assert setup.guest.text_key() != before


def test_one_bad_tag_never_disables_the_others(setup: Setup) -> None:
    outcome = setup.batch("zorp:1.1. stripes no-such a:b=1", "zorp no-such")
    assert [[used.name for used in outcome.image(i)] for i in range(2)] == [["stripes"], ["zorp"]]
    for part in ("'1.1.' is not a number", "'no-such'", "'b' is not a setting"):
        assert sum(part in problem for problem in outcome.problems) == 1


def test_a_tag_that_is_not_closed_is_told_where_it_is_no_word(setup: Setup) -> None:
    (negative,) = (tag for _, tag in read("bad <lora:x:y", on=False, negative=True).tags)
    (open_tag,) = (tag for _, tag in read("a <lora:zorp:0.5", on=False).tags)
    assert setup.guest.batch(Batch(((negative,),))).problems == ()
    (problem,) = setup.guest.batch(Batch(((open_tag,),))).problems
    assert problem.endswith("the tag is not closed, '>' is missing")  # this host has no comments


def test_the_name_of_a_tag_that_cannot_be_read_may_have_a_colon(setup: Setup) -> None:
    setup.batch("a\\:b:nosuch=1")
    assert [one.name for one in setup.session.last.left_out] == ["a:b"]


def test_settings_that_a_distilled_lora_was_not_made_for_are_told(setup: Setup) -> None:
    shutil.copy(setup.folder / "zorp.safetensors", setup.folder / "dmd2_sdxl_4step_lora.safetensors")
    told = ("dmd2_sdxl_4step_lora was made for 4 steps, not 30",)
    assert setup.batch("dmd2_sdxl_4step_lora:1", steps=30, cfg=1.0).problems == told
    assert setup.session.last.notes == told  # what the tab shows
    assert setup.batch("dmd2_sdxl_4step_lora:1", steps=4, cfg=1.0).problems == ()
    assert setup.batch("zorp:1", steps=30, cfg=7.0).problems == ()
    assert setup.batch("dmd2_sdxl_4step_lora:1").problems == (), "a host that tells neither is believed"


def test_a_tag_without_a_number_has_the_hosts_default(setup: Setup) -> None:
    setup.batch("zorp:0.5")
    half = setup.output()
    setup.batch("zorp", default=0.5)
    assert torch.equal(setup.output(), half)
    setup.batch("zorp:te=0.5", default=2.0)
    assert torch.equal(setup.output(), half)


def test_a_failure_that_must_not_make_a_picture_leaves_nothing(setup: Setup) -> None:
    before = setup.output()
    setup.host.set_option(ON_BAD_LORA, FAIL)
    setup.batch("zorp")
    with pytest.raises(LoraError, match="no-such"):
        setup.batch("zorp", "no-such")
    assert torch.equal(setup.output(), before)


def test_settings_may_be_others_for_one_batch(setup: Setup) -> None:
    with pytest.raises(LoraError):
        setup.batch("no-such", settings={ON_BAD_LORA: FAIL})
    outcome = setup.batch("zorp", settings={IN_ORDER: True, HASHES: False})
    assert dict(outcome.settings) == {"Remora stacking": "in order"}
    assert not outcome.hashes_wanted
    assert setup.batch("zorp").hashes_wanted
    assert setup.batch("", settings={IN_ORDER: True}).settings == {}


def test_how_files_are_read_is_said_where_it_is_not_the_default(setup: Setup) -> None:
    own = {SPLIT_QKV: True, DYLORA: True}
    told = dict(setup.batch("zorp", settings=own).settings)
    assert told == {"Remora split_qkv": "as trained", "Remora DyLoRA": "as trained"}
    assert setup.guest.pasted({"Prompt": "a fox", **told}) == ("a fox", own)


def test_a_region_of_ones_own_goes_along_with_the_picture(setup: Setup) -> None:
    face = Region.rectangle(0.25, 0.1, 0.5, 0.4)
    setup.guest._session.regions.keep("face", face)
    told = dict(setup.batch("zorp:1:mask=!face+left").settings)
    assert list(told) == ["Remora regions"]
    assert "Remora regions" not in setup.batch("zorp:1:mask=left").settings
    setup.guest._session.regions.delete("face")
    prompt = "a fox <lora:zorp:1:mask=!face+left>"
    assert setup.guest.pasted({"Prompt": prompt, **told})[0] == prompt
    assert setup.guest._session.regions.all == {"face": face}
    setup.guest._session.regions.keep("face", face.inverted())
    assert setup.guest.pasted({"Prompt": prompt, **told})[0] == "a fox <lora:zorp:1:mask=!face-2+left>"
    assert setup.guest._session.regions.all == {"face": face.inverted(), "face-2": face}


def test_a_lora_for_other_models_is_a_problem_for_the_user_and_acts(setup: Setup) -> None:
    attention = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"
    unet = skeleton({f"{attention}.weight": (4, 768), "time_embedding.linear_1.weight": (8, 4)}).to_empty(device="cpu")
    setup.host.set_components({"unet": unet})
    tensors = pair("lora_unet_time_embedding_linear_1", (8, 4), 2)
    tensors |= pair("lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k", (4, 2048), 2)
    save(setup.folder / "xl.safetensors", tensors)
    outcome = setup.batch("xl:1")
    assert [used.name for used in outcome.image(0)] == ["xl"]
    (problem,) = outcome.problems
    assert problem == "xl: made for Stable Diffusion XL, the loaded model is Stable Diffusion 1.x: 1 of 2 layers fit"


def test_what_was_used_tells_its_hashes(setup: Setup) -> None:
    (used,) = setup.batch("zorp").image(0)
    whole = (setup.folder / "zorp.safetensors").read_bytes()
    assert used.path == setup.folder / "zorp.safetensors"
    assert used.sha256() == hashlib.sha256(whole).hexdigest()
    header = 8 + int.from_bytes(whole[:8], "little")
    assert used.shorthash() == hashlib.sha256(whole[header:]).hexdigest()[:12]


def test_a_file_that_has_come_since_is_found(setup: Setup, demo: Demo) -> None:
    assert setup.batch("later").problems
    shutil.copy(demo.loras / "zorp.safetensors", setup.folder / "later.safetensors")
    assert not setup.batch("later").problems
    (setup.folder / "later.safetensors").unlink()
    assert "later" in setup.batch("later").problems[0]


def test_the_bytes_that_will_be_placed_are_those_of_the_active_files(setup: Setup) -> None:
    assert setup.guest.bytes_to_place() == 0, "nothing was ever active"
    setup.batch("zorp stripes:0.5")
    sizes = [(setup.folder / f"{name}.safetensors").stat().st_size for name in ("zorp", "stripes")]
    assert setup.guest.bytes_to_place() == sum(sizes)
    setup.batch("zorp")
    assert setup.guest.bytes_to_place() == sizes[0]


def test_a_file_that_was_overwritten_is_another_one(setup: Setup, demo: Demo) -> None:
    """The encoded prompts and hashes of what it was before are not its own."""
    path = setup.folder / "zorp.safetensors"
    (before,) = setup.batch("zorp").image(0)
    key, digest = setup.guest.text_key(), before.sha256()
    tensors = {name: tensor * 2 for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    (after,) = setup.batch("zorp").image(0)
    assert setup.guest.text_key() != key
    assert after.sha256() != digest


def test_t18_a_model_that_comes_in_the_middle_of_a_generation_has_the_loras(setup: Setup) -> None:
    """As A1111's refiner does it: nobody asks for the LoRAs again."""
    other = demo_pipeline()
    other.text_encoder.load_state_dict(setup.encoder.state_dict())
    old, plain = setup.encoder, setup.output()
    setup.batch("zorp")
    want = setup.output()
    assert not setup.guest.follow_model()
    setup.host._parts = {"text_encoder": other.text_encoder.eval(), "unet": other.unet}  # without a word
    setup.encoder = other.text_encoder
    assert torch.equal(setup.output(), plain)
    assert setup.guest.follow_model()
    assert torch.equal(setup.output(), want)
    setup.encoder = old
    assert torch.equal(setup.output(), plain)
    setup.guest.generation_ended()
    setup.encoder = other.text_encoder
    assert torch.equal(setup.output(), plain)


def test_a_model_that_came_with_a_word_has_them_when_it_is_next_used(setup: Setup) -> None:
    setup.batch("zorp")
    want = setup.output()
    setup.guest.model_changed()  # the same modules with other weights, or new ones
    assert setup.guest.follow_model()
    assert torch.equal(setup.output(), want)
    setup.guest.generation_ended()
    setup.guest.model_changed()
    assert setup.guest.follow_model()
    assert not torch.equal(setup.output(), want)


def test_the_setting_says_who_applies_loras(setup: Setup) -> None:
    assert setup.guest.enabled
    setup.host.set_option(ENABLED, False)
    assert not setup.guest.enabled
