"""Remora in Forge, Forge Classic and reForge, by a fake that has of each what an extension meets there."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from fastapi import FastAPI
from torch import Tensor, nn

import extension
from extension.generation.options import ENABLED, GRAMMAR, MERGE, ON_BAD_LORA
from extension.generation.state import state_of
from extension.hosts import current_host, known_hosts
from extension.hosts._chunk_parts import ChunkParts
from extension.hosts._forge import _FAMILIES
from extension.hosts.forge import FORGE
from extension.hosts.forge_neo import FORGE_NEO
from lib_lora import Row
from lib_lora.execution import hooks
from lib_lora.naming.architectures.base import known_architectures
from tests.fakes import forge
from tests.fakes.files import pair, save
from tests.fakes.forge import CHANNELS, SAMPLING, WIDTH, Condition, FakeForge

SINGLE = 2e-6
"""Largest difference of a picture made alone and made in a batch, of the largest number: other kernels, other sums."""

KEY = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"
ALL = pytest.mark.parametrize("kind", forge.KINDS)


def pictures(p: Any) -> Tensor:
    return torch.stack(p.images)


def apart(one: Tensor, other: Tensor) -> float:
    return ((one - other).abs().max() / other.abs().max()).item()


def session() -> Any:
    return extension._session


@ALL
def test_a_host_knows_itself_and_no_other(web: FakeForge, kind: str) -> None:
    host = current_host()
    assert host is not None
    assert host.name == kind


def test_the_families_of_a_forge_are_those_of_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class that is not known, and any family may load."""
    cases = {
        ("StableDiffusion", "StableDiffusionXL", "Mugen", "PiD"): {"sd1", "sdxl"},
        ("StableDiffusion", "Newest"): None,
        (): None,
    }
    for names, families in cases.items():
        loader = ModuleType("backend.loader")
        loader.possible_models = tuple(type(name, (), {}) for name in names)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "backend", ModuleType("backend"))
        monkeypatch.setitem(sys.modules, "backend.loader", loader)
        assert FORGE_NEO.families == families
    known = {one.name for one in known_architectures()}
    hosts = [one.families or set() for one in known_hosts()]
    assert set().union(*hosts, filter(None, _FAMILIES.values())) <= known


def test_a_forge_is_asked_before_what_it_is_a_fork_of() -> None:
    from extension.hosts.forge import FORGE
    from extension.hosts.forge_classic import FORGE_CLASSIC
    from extension.hosts.reforge import REFORGE

    assert all("a1111" in host.before for host in (FORGE, FORGE_CLASSIC, REFORGE))


@ALL
def test_components_have_diffusers_names_and_the_roots_that_adapters_are_named_by(web: FakeForge) -> None:
    web.reload()
    host = session().host
    found = host.components()
    model = web.model.forge_objects
    assert found == {
        "unet": model.unet.model.diffusion_model,
        "text_encoder": model.clip.cond_stage_model.clip_l.transformer,
    }
    assert {name: id(part) for name, part in host.components().items()} == {k: id(v) for k, v in found.items()}


def test_there_is_no_component_before_the_first_generation_and_asking_loads_none(web: FakeForge) -> None:
    assert session().host.components() == {}
    assert not hasattr(web.model, "forge_objects")


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        (["clip_l"], {"text_encoder": "clip_l"}),
        (["clip_h"], {"text_encoder": "clip_h"}),
        (["clip_l", "clip_g"], {"text_encoder": "clip_l", "text_encoder_2": "clip_g"}),
        (["clip_g"], {"text_encoder_2": "clip_g"}),
        (["clip_l", "t5xxl"], {"text_encoder": "clip_l", "text_encoder_2": "t5xxl"}),
        (
            ["clip_g", "clip_l", "t5xxl"],
            {"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"},
        ),
        (["t5xxl"], {"text_encoder": "t5xxl"}),
    ],
)
def test_text_encoders_are_numbered_as_in_diffusers(parts: list[str], want: dict[str, str]) -> None:
    from extension.hosts._forge import text_encoders

    joint = nn.Module()
    for name in parts:
        joint.add_module(name, nn.Module())
        joint.get_submodule(name).transformer = nn.Linear(1, 1)
    joint.logit_scale = nn.Parameter(torch.ones(()))
    found = text_encoders(joint)
    assert {name: id(part) for name, part in found.items()} == {
        name: id(joint.get_submodule(part).transformer) for name, part in want.items()
    }


def test_what_has_no_ldm_unet_is_a_transformer_and_a_compiled_one_is_itself(web: FakeForge) -> None:
    web.reload()
    inner, compiled = nn.Module(), nn.Module()
    compiled._orig_mod = inner
    web.model.forge_objects.unet.model.diffusion_model = compiled
    assert session().host.components()["transformer"] is inner


@ALL
def test_classes_that_define_a_forward_are_patched_before_a_model_is_built(web: FakeForge, kind: str) -> None:
    classes = session().host.layer_classes()
    assert all("forward" in vars(one) for one in classes)
    assert not any(issubclass(one, nn.ConvTranspose2d) for one in classes)
    assert web.ops.Linear in classes or web.ops.Linear.__base__ in classes
    assert set(classes) <= set(hooks._patches)


@ALL
def test_a_lora_is_applied_and_removed_to_the_bit(web: FakeForge) -> None:
    """T1: without, with, without; also with a negative and a large strength, and fifty times."""
    before = pictures(web.generate("cat"))
    with_lora = pictures(web.generate("cat<lora:a:1.0>"))
    assert apart(with_lora, before) > 1e-3
    for strength in (10.0, -4.0, *(round(0.1 * i, 1) for i in range(1, 24))):
        web.generate(f"cat<lora:a:{strength}>")
        web.generate("cat")
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), with_lora)
    assert torch.equal(pictures(web.generate("cat")), before)
    assert not web.printed


@ALL
def test_the_loader_leaves_room_for_what_the_lora_will_take_on_the_gpu(web: FakeForge) -> None:
    web.generate("cat")
    web.generate("cat<lora:a:1.0>")
    web.generate("cat<lora:a:1.0><lora:unet:1.0>")
    sizes = {name: next(web.lora_dir.rglob(f"{name}.safetensors")).stat().st_size for name in ("a", "unet")}
    assert web.reserved == [SAMPLING, SAMPLING + sizes["a"], SAMPLING + sizes["a"] + sizes["unet"]]


@ALL
@pytest.mark.parametrize("chunks", [1, 4])
def test_halves_add_up_to_the_whole(web: FakeForge, chunks: int) -> None:
    """Guidance is linear, so in one step what each half does alone comes to what both do. The call tells them apart."""
    web.chunks = chunks
    tags = ("", "<lora:unet:1>", "<lora:unet:1:half=pos>", "<lora:unet:1:half=neg>")
    none, whole, positive, negative = (pictures(web.generate(f"cat AND dog{tag}", steps=1)) for tag in tags)
    assert ((positive - none) + (negative - none) - (whole - none)).abs().max() < 1e-5
    assert min(apart(one, none) for one in (positive, negative)) > 1e-4


@ALL
@pytest.mark.parametrize("chunks", [1, 4])
def test_tags_within_brackets_parts_and_negative_prompts(web: FakeForge, chunks: int) -> None:
    web.chunks = chunks

    def made(*prompts: str, **more: Any) -> Tensor:
        return pictures(web.generate(*prompts, steps=4, **more))

    window, negative = made("x <lora:unet:1:stop=2><lora:b:1.5>"), made("cat<lora:unet:1:half=neg>")
    bare, whole = made("cat AND dog"), made("cat AND dog<lora:unet:1>")
    web.opts.data[GRAMMAR] = True
    assert torch.equal(made("x [<lora:unet:1>::2](<lora:b:1>:1.5)"), window)
    assert torch.equal(made("cat", negative_prompt="bad<lora:unet:1>"), negative)
    part = made("cat AND dog<lora:unet:1>")
    assert min(apart(part, bare), apart(part, whole)) > 1e-4, "one part has it, and the other rows do not"


@ALL
@pytest.mark.parametrize("chunks", [1, 2, 9])
@pytest.mark.parametrize("together", [("cat{} AND house",), ("house AND cat{}", "house AND cat")])
def test_a_region_goes_with_the_part_of_the_prompt_that_it_is_written_in(
    web: FakeForge, loras: Path, chunks: int, together: tuple[str, ...]
) -> None:
    """However a step is split: in the layers that are given the prompt, only the rows of the part have the LoRA."""
    save(loras / "keys.safetensors", pair(KEY, (CHANNELS, WIDTH), 2, seed=7, size=0.8))
    web.chunks = chunks
    changed: dict[tuple[int, str], set[bool]] = defaultdict(set)

    def note(layer: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        bare = F.linear(args[0], layer.weight, layer.bias)
        for row, text in enumerate(args[0]):
            which = next(name for name, one in texts.items() if torch.equal(one, text))
            changed[row % len(together), which.strip()].add(not torch.equal(output[row], bare[row]))

    web.generate("cat")
    texts = {
        name: web.model.get_learned_conditioning([name])[0] for name in ("cat ", " cat", "house ", " house", "bad")
    }
    layer = web.model.forge_objects.unet.model.diffusion_model.input_blocks[1][1].transformer_blocks[0].attn2.to_k
    with layer.register_forward_hook(note):
        web.generate(*[prompt.format("<lora:keys:1:mask=left>") for prompt in together], steps=1)
    want = {"cat": {True}, "house": {False}, "bad": {True}}
    assert {text: found for (image, text), found in changed.items() if image == 0} == want
    assert not any(True in found for (image, _), found in changed.items() if image)


def test_rows_of_one_part_and_rows_that_others_join_are_whole_batches() -> None:
    parts = ChunkParts()
    plain = [{"model_conds": {"c_crossattn": Condition(torch.zeros(1))}} for _ in range(2)]
    marked = parts.mark(lambda: plain)
    parts.joined(list, [{"c_crossattn": Condition(torch.zeros(1))}])
    assert parts(2) is None
    parts.joined(list, [one["model_conds"] for one in reversed(marked)])
    assert parts(4) == [Row(0, part=1), Row(1, part=1), Row(0, part=0), Row(1, part=0)]
    assert parts(3) is None
    parts.begin(2)
    assert parts(4) is None, "nothing is joined yet"
    parts.joined(list, [one["model_conds"] for one in marked])
    assert parts(8) is None, "four images, and two have LoRA of their own"


@pytest.mark.parametrize("missing", ["compile_weighted_conditions", "cond_cat"])
def test_a_forge_that_tells_no_parts_is_said_once_and_serves_all_else(
    web: FakeForge, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    delattr(web.modules["backend.sampling.sampling_function"], missing)
    session().host.take_over()
    assert f"without backend.sampling.sampling_function.{missing}, regions do not know the parts" in caplog.text


@ALL
def test_steps_and_passes_in_forge(web: FakeForge) -> None:
    def off(step: int) -> None:
        if step == 2:
            session().model.engine.set_multiplier(0, 0.0)  # type: ignore[union-attr]

    web.on_step = off
    want = pictures(web.generate("cat<lora:unet:1>", steps=4))
    web.on_step = lambda step: None
    assert torch.equal(pictures(web.generate("cat<lora:unet:1:stop=2>", steps=4)), want)
    base, hires = (
        pictures(web.generate(prompt, hr_prompt=again))
        for prompt, again in (("cat<lora:a:1>", "cat"), ("cat", "cat<lora:a:1>"))
    )
    assert torch.equal(pictures(web.generate("cat<lora:a:1:pass=base>", hr_prompt="cat<lora:a:1:pass=base>")), base)
    assert torch.equal(pictures(web.generate("cat<lora:a:1:pass=hires>", hr_prompt="cat<lora:a:1:pass=hires>")), hires)


@ALL
def test_the_built_in_never_patches_and_nothing_of_ours_is_in_the_model(web: FakeForge) -> None:
    web.reload()
    unet = web.model.forge_objects.unet.model.diffusion_model
    state, modules = dict(unet.state_dict()), [name for name, _ in unet.named_modules()]
    web.generate("cat<lora:a:1.0>", batch_size=1)
    assert not any(web.builtin.activated)
    assert web.model.current_lora_hash == str([])
    assert web.model.forge_objects_after_applying_lora.unet.patches == {}
    web.modules["modules.extra_networks"].activate(web.generate("dog<lora:b>"), {})
    web.generate("cat<lora:a:1.0>")
    seen: list[list[str]] = []
    web.on_step = lambda step: seen.append([name for name, _ in unet.named_modules()])
    web.generate("cat<lora:a:1.0>")
    assert seen == [modules] * 2
    assert dict(unet.state_dict()).keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in unet.state_dict().items())


@ALL
def test_images_of_a_batch_have_their_own(web: FakeForge) -> None:
    """T9: three prompts with a LoRA, another at another strength, and none; each as if made alone."""
    prompts = ("cat<lora:a:1.0>", "cat<lora:b:0.4>", "cat")
    together = pictures(web.generate(*prompts))
    for image, prompt in zip(together, prompts, strict=True):
        assert apart(image, pictures(web.generate(prompt))[0]) < SINGLE
    assert apart(together[0], together[2]) > 1e-3
    assert apart(together[1], together[2]) > 1e-3


@ALL
@pytest.mark.parametrize("chunks", [1, 2, 9])
@pytest.mark.parametrize("prompt", ["cat{} AND dog", "cat{}"])
def test_rows_are_whole_batches_however_a_step_is_split(web: FakeForge, chunks: int, prompt: str) -> None:
    """Chunks by memory, AND parts, and conditions of an area: what is made in one call differs, the pictures do not."""
    web.chunks, web.areas = chunks, 2
    prompts = [prompt.format(tag) for tag in ("<lora:a:1.0>", "<lora:b:0.4>")]
    together = pictures(web.generate(*prompts))
    rows = set(web.model.forge_objects.unet.model.diffusion_model.calls)
    assert rows == {(1, "cat{}"): {2}, (9, "cat{} AND dog"): {4, 6}}.get((chunks, prompt), rows)
    for image, one in zip(together, prompts, strict=True):
        assert apart(image, pictures(web.generate(one))[0]) < SINGLE


@ALL
def test_equal_texts_with_different_text_encoder_strengths_are_not_one(web: FakeForge) -> None:
    """The host encodes equal texts once; only where their stacks are equal, too, may they share."""
    together = pictures(web.generate("cat<lora:text:1>", "cat<lora:text:-1>", "cat<lora:text:1>"))
    assert torch.equal(together[0], together[2])
    for image, prompt in zip(together, ("cat<lora:text:1>", "cat<lora:text:-1>"), strict=False):
        assert apart(image, pictures(web.generate(prompt))[0]) < SINGLE
    assert apart(together[0], together[1]) > 1e-4


@ALL
def test_texts_are_encoded_again_when_and_only_when_their_strength_changes(web: FakeForge) -> None:
    web.generate("cat<lora:a:1.0>")
    texts = web.model.forge_objects.clip.cond_stage_model.clip_l.texts
    texts.clear()
    web.generate("cat<lora:a:1.0>")
    assert texts == []
    web.generate("cat<lora:a:te=1.0:unet=0.3>")
    web.generate("cat<lora:a:1.0><lora:unet:1.0>")
    assert texts == []
    web.generate("cat<lora:a:0.9>")
    assert texts == [["bad"], ["cat"]]
    texts.clear()
    web.generate("cat")
    assert texts == [["bad"], ["cat"]]


@ALL
def test_each_pass_has_its_own(web: FakeForge) -> None:
    """T11: one LoRA in the first pass, another in the second, none in either; each in its pass only."""
    for first, second in (("<lora:a:1>", "<lora:b:1>"), ("<lora:a:1>", ""), ("", "<lora:b:1>")):
        p = web.generate(f"cat{first}", hr_prompt=[f"cat{second}"])
        again = web.generate(f"cat{first}", hr_prompt=[f"cat{second}"])
        assert torch.equal(pictures(p), pictures(again))
        both = web.generate(f"cat{first}", hr_prompt=[f"cat{first}"])
        assert apart(pictures(p), pictures(both)) > 1e-4
        hashes = p.infotexts[0].get("Lora hashes", "")
        assert [name for name in "ab" if f"{name}: " in hashes] == [n for n in "ab" if f":{n}:" in first + second]


@ALL
def test_an_empty_prompt_that_the_host_encodes_in_between_ends_nothing(web: FakeForge) -> None:
    """Classic and reForge activate nothing, for an object without prompts, whenever they have loaded a model."""
    want = pictures(web.generate("cat<lora:a:1.0>"))
    bare = web.modules["modules.processing"].StableDiffusionProcessing()
    web.on_step = lambda step: web.modules["modules.extra_networks"].activate(bare, {})
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), want)
    assert bare.extra_generation_params == {}


def test_weights_may_be_read_again_from_the_files_the_model_was_loaded_from(web: FakeForge, tmp_path: Path) -> None:
    web.reload()
    host = session().host
    assert host.checkpoints() == {}  # there is no such file
    checkpoint, encoder = (save(tmp_path / f"{name}.safetensors", {}) for name in ("model", "clip"))
    (tmp_path / "vae.pt").write_bytes(b"")
    web.model.sd_checkpoint_info.filename = str(checkpoint)
    web.model_data.forge_loading_parameters["additional_modules"] = [str(encoder), str(tmp_path / "vae.pt")]
    assert host.checkpoints() == {name: [checkpoint, encoder] for name in ("unet", "text_encoder")}


@ALL
def test_the_refiner_has_the_stack_of_the_prompt(web: FakeForge) -> None:
    """T11: the model is another one in the middle."""
    p = web.generate("cat<lora:a:1.0>", refine_at=1, steps=2)
    web.checkpoint = "one"
    bare = web.generate("cat", refine_at=1, steps=2)
    web.checkpoint = "one"
    assert apart(pictures(p), pictures(bare)) > 1e-3
    again = web.generate("cat<lora:a:1.0>", refine_at=1, steps=2)
    assert torch.equal(pictures(p), pictures(again))
    assert not web.printed


@ALL
def test_switching_checkpoints_and_back_gives_the_same_pictures_and_keeps_nobody_alive(web: FakeForge) -> None:
    first = pictures(web.generate("cat<lora:a:1.0>"))
    old = weakref.ref(web.model.forge_objects.unet.model.diffusion_model)
    web.checkpoint = "two"
    second = pictures(web.generate("cat<lora:a:1.0>"))
    gc.collect()
    assert old() is None
    web.checkpoint = "one"
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), first)
    web.checkpoint = "two"
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), second)
    assert not torch.equal(first, second)


def test_a_model_that_is_switched_to_without_a_word_is_followed(web: FakeForge) -> None:
    """reForge keeps several models loaded, and tells nobody when it goes back to one."""
    first = pictures(web.generate("cat<lora:a:1.0>"))
    one = web.model
    web.checkpoint = "two"
    web.generate("cat<lora:a:1.0>")
    web.checkpoint = "one"
    web.model_data.sd_model = one
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), first)


@ALL
def test_after_a_failure_in_the_middle_the_next_picture_is_as_from_a_clean_start(web: FakeForge) -> None:
    bare, with_b = pictures(web.generate("cat")), pictures(web.generate("cat<lora:b:1.0>"))

    def fail(step: int) -> None:
        raise forge.SamplerError

    for prompt, want in (("cat", bare), ("cat<lora:b:1.0>", with_b)):
        web.on_step = fail
        with pytest.raises(forge.SamplerError):
            web.generate("cat<lora:a:1.0>")
        web.on_step = lambda step: None
        assert torch.equal(pictures(web.generate(prompt)), want)


@ALL
def test_the_setting_hands_tags_back_and_takes_them_again(web: FakeForge) -> None:
    bare, ours = pictures(web.generate("cat")), pictures(web.generate("cat<lora:a:1.0>"))
    web.opts.data[ENABLED] = False
    theirs = pictures(web.generate("cat<lora:a:1.0>"))
    assert web.builtin.activated[-1] == ["a"]
    assert apart(theirs, ours) > 1e-4
    assert apart(theirs, bare) > 1e-4
    assert web.model.current_lora_hash != str([])
    web.opts.data[ENABLED] = True
    again = pictures(web.generate("cat<lora:a:1.0>"))
    assert torch.equal(again, ours)
    assert web.model.current_lora_hash == str([])
    assert torch.equal(pictures(web.generate("cat")), bare)
    web.opts.data[ENABLED] = False
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), theirs)


@ALL
def test_weights_that_the_built_in_merged_into_are_put_back_before_ours_are_looked_at(web: FakeForge) -> None:
    """What needs the base weight, such as the norms of DoRA, must not see the built-in's."""
    web.opts.data[ENABLED] = False
    web.generate("cat<lora:a:1.0>")
    layer = web.model.forge_objects.unet.model.diffusion_model.input_blocks[1][1].transformer_blocks[0].attn2.to_q
    merged = layer.weight.clone()
    web.opts.data[ENABLED] = True
    seen: list[Tensor] = []
    begin = session().begin_batch

    def looking(*args: Any, **kwargs: Any) -> Any:
        seen.append(layer.weight.clone())
        return begin(*args, **kwargs)

    session().begin_batch = looking
    web.generate("cat<lora:b:1.0>")
    assert not torch.equal(seen[0], merged)
    web.generate("cat")
    assert torch.equal(seen[0], layer.weight)


def test_patches_that_the_built_in_applies_at_each_call_are_taken_off(web: FakeForge) -> None:
    bare = pictures(web.generate("cat"))
    web.opts.data[ENABLED], web.online = False, True
    assert apart(pictures(web.generate("cat<lora:a:1.0>")), bare) > 1e-4
    web.opts.data[ENABLED] = True
    assert torch.equal(pictures(web.generate("cat")), bare)
    layers = web.model.forge_objects.unet.model.modules()
    assert not any(hasattr(layer, "forge_online_loras") for layer in layers)


def test_what_is_unloaded_is_as_it_was(kind: str, loras: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T21: every function and object the host had is there again, and it serves its tags."""
    fake = FakeForge(kind, loras)
    with forge.running(fake, monkeypatch):
        networks, processing = fake.modules["modules.extra_networks"], fake.modules["modules.processing"]
        found = dict(vars(networks)), dict(vars(processing.StableDiffusionProcessing))
        forwards = {cls: dict(vars(cls)) for cls in (fake.ops.Linear, nn.Linear, nn.Conv2d)}
        extension.register()
        fake.start(FastAPI())
        fake.generate("cat<lora:a:1.0>")
        fake.unload()
        assert (dict(vars(networks)), dict(vars(processing.StableDiffusionProcessing))) == found
        assert networks.extra_network_registry == {"lora": fake.builtin}
        assert {cls: dict(vars(cls)) for cls in forwards} == forwards
        fake.generate("cat<lora:a:1.0>")
        assert fake.builtin.activated == [["a"]]
        extension.unregister()


@ALL
def test_parameters_tell_the_truth_of_each_image_and_of_each_batch(web: FakeForge) -> None:
    p = web.generate("cat<lora:a:1>", "cat<lora:b:1>", "cat", "dog", "dog<lora:a:1>", "dog", batch_size=3)
    told = [text.get("Lora hashes", "") for text in p.infotexts]
    assert [text.partition(":")[0] for text in told] == ["a", "b", "", "", "a", ""]
    shorts = {text.partition(": ")[2] for text in told if text}
    assert all(len(one) == 12 for one in shorts)
    assert len(shorts) == 2
    p = web.generate("cat<lora:a:1>", "dog", batch_size=1)
    assert ["Lora hashes" in text for text in p.infotexts] == [True, False]


def test_problems_are_said_where_the_host_says_its_own(web: FakeForge) -> None:
    p = web.generate("cat<lora:nobody:1><lora:a:x>")
    assert len(p.comments) == 2
    assert any("nobody" in text for text in p.comments)
    web.opts.data[ON_BAD_LORA] = "fail the generation"
    with pytest.raises(Exception, match="nobody"):
        web.generate("cat<lora:nobody:1>")


def test_the_lora_for_every_prompt_is_there_once(web: FakeForge) -> None:
    """The built-in's setting keeps its meaning, also for a batch, and is seen in the prompt."""
    by_hand = pictures(web.generate("cat<lora:a:0.7>", "cat<lora:a:0.7>"))
    web.opts.data |= {"sd_lora": "a", "extra_networks_default_multiplier": 0.7}
    p = web.generate("cat", "cat<lora:a:0.7>")
    assert torch.equal(pictures(p), by_hand)
    assert p.all_prompts[0] == "cat<lora:a:0.7>"


def test_a_pasted_text_finds_its_file_by_hash(web: FakeForge) -> None:
    web.generate("cat<lora:a:1>")
    digest = web.generate("cat<lora:a:1>").infotexts[0]["Lora hashes"].partition(": ")[2]
    params = {"Prompt": "cat <lora:renamed:1>", "Lora hashes": f"renamed: {digest}", "Steps": "2"}
    for callback in web.callbacks["infotext_pasted"]:
        callback("", params)
    assert params["Prompt"] == "cat <lora:a:1>"


@ALL
def test_merged_weights_are_put_back_to_the_bit_wherever_the_host_has_moved_them(web: FakeForge) -> None:
    """It makes new parameters of the same numbers whenever it moves a layer."""
    bare = pictures(web.generate("cat"))
    live = pictures(web.generate("cat<lora:a:1.0>"))
    web.opts.data[MERGE] = "always"
    merged = web.generate("cat<lora:a:1.0>")
    assert apart(pictures(merged), live) < 1e-5
    web.on_step = lambda step: moved(web)
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), pictures(merged))
    web.on_step = lambda step: None
    assert torch.equal(pictures(web.generate("cat")), bare)


def moved(web: FakeForge) -> None:
    for layer in web.model.forge_objects.unet.model.modules():
        weight = layer._parameters.get("weight")
        if weight is not None:
            layer.weight = nn.Parameter(weight.clone(), requires_grad=False)


@ALL
def test_a_model_in_another_dtype_than_it_computes_in_is_served(web: FakeForge, kind: str) -> None:
    """Low bits, cast at each call: the LoRA acts as on the wide weights."""
    web.reload()
    bare, wide = pictures(web.generate("cat")), pictures(web.generate("cat<lora:a:1.0>"))
    unet = web.model.forge_objects.unet.model.diffusion_model
    for layer in unet.modules():
        weight = layer._parameters.get("weight")
        if weight is not None:
            layer.weight = nn.Parameter(weight.to(torch.float8_e4m3fn), requires_grad=False)
    low_bare, low = pictures(web.generate("cat")), pictures(web.generate("cat<lora:a:1.0>"))
    effect, low_effect = (wide - bare).flatten(), (low - low_bare).flatten()
    assert torch.cosine_similarity(effect, low_effect, dim=0) > 0.97
    assert torch.equal(pictures(web.generate("cat")), low_bare)
    assert all(layer.weight.dtype == torch.float8_e4m3fn for layer in unet.modules() if hasattr(layer, "weight"))


def test_no_host_module_is_imported_by_importing_a_host_file() -> None:
    assert not any(name == "backend" or name.startswith("ldm_patched") for name in sys.modules)


# --- Forge Neo ---

NEO = pytest.mark.parametrize("kind", ["forge_neo"])


@NEO
def test_neo_is_known_by_its_patcher(web: FakeForge) -> None:
    patcher = web.modules["backend.patcher.base"].ModelPatcher
    assert current_host() is FORGE_NEO
    patcher.refresh_loras = lambda self: None
    try:
        assert current_host() is FORGE
    finally:
        del patcher.refresh_loras


@NEO
def test_a_module_of_the_host_that_fails_to_be_imported_stops_nothing_and_is_logged_once(
    web: FakeForge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "operations_int8.py").write_text("import a_package_that_is_not_there", "utf-8")
    monkeypatch.setattr(web.modules["backend"], "__path__", [str(tmp_path)], raising=False)
    monkeypatch.delitem(sys.modules, "backend.operations_int8", raising=False)
    first, again = FORGE_NEO.layer_classes(), FORGE_NEO.layer_classes()
    assert first == again != ()
    (line,) = [record.getMessage() for record in caplog.records if "operations_int8" in record.getMessage()]
    assert "cannot be imported" in line
    assert "a_package_that_is_not_there" in line


@NEO
def test_folders_of_a_flag_with_a_list_are_known(web: FakeForge, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    web.modules["modules.shared"].cmd_opts.lora_dirs += [str(tmp_path / "more"), str(tmp_path / "none"), None]
    assert FORGE_NEO.adapter_dirs() == (web.lora_dir, tmp_path / "more")


@ALL
def test_a_host_that_cannot_restore_its_weights_is_asked_again(web: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record of its LoRA stays until the weights are restored."""
    bare = pictures(web.generate("cat"))
    web.opts.data[ENABLED] = False
    web.generate("cat<lora:a:1.0>")
    web.opts.data[ENABLED] = True
    host = session().host

    def broken(model: Any) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(host, "unmerge", broken)
        with pytest.raises(RuntimeError):
            host.quiet_builtin()
    assert torch.equal(pictures(web.generate("cat")), bare)


@NEO
@pytest.mark.parametrize("chosen", [None, "ERROR"])
def test_messages_are_seen_below_a_root_logger_at_error(
    kind: str, loras: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    root, ours = logging.getLogger(), [logging.getLogger(name) for name in ("extension", "lib_lora")]
    fake = FakeForge(kind, loras)
    fake.modules["modules.shared"].cmd_opts.loglevel = chosen
    with forge.running(fake, monkeypatch), monkeypatch.context() as patch:
        patch.setattr(root, "level", logging.ERROR)
        for logger in (root, *ours, *map(logging.getLogger, list(logging.Logger.manager.loggerDict))):
            logger.manager._clear_cache()  # type: ignore[attr-defined]  # of levels
        root.addHandler(handler)
        try:
            extension.register()
            fake.start(FastAPI())
            fake.generate("cat<lora:nosuch:1.0>")
            fake.unload()
            extension.unregister()
        finally:
            root.removeHandler(handler)
    assert any("nosuch" in text for text in seen) == (chosen is None)
    assert [logger.level for logger in ours] == [logging.NOTSET] * 2
    root.manager._clear_cache()


def nunchaku(web: FakeForge, on: bool) -> None:
    web.modules["backend.args"].dynamic_args.nunchaku = on


@NEO
def test_a_model_of_nunchaku_is_left_to_the_built_in_and_said(web: FakeForge, caplog: pytest.LogCaptureFixture) -> None:
    ours = pictures(web.generate("cat<lora:a:1.0>"))
    nunchaku(web, on=True)
    p = web.generate("cat<lora:b:1.0>")
    web.generate("cat<lora:b:1.0>")
    assert web.builtin.activated[-2:] == [["b"], ["b"]]
    assert "nunchaku" in p.infotexts[0]["Remora warnings"]
    assert "Remora warnings" not in web.generate("cat").infotexts[0]
    assert ["nunchaku" in note for note in state_of(session())["notes"]] == [True]
    assert ["nunchaku" in one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [True]
    nunchaku(web, on=False)
    assert torch.equal(pictures(web.generate("cat<lora:a:1.0>")), ours)
    assert state_of(session())["notes"] == []


@ALL
def test_a_compiled_engine_in_place_of_the_unet_leaves_the_tags_to_the_built_in(
    web: FakeForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    sd_unet = ModuleType("modules.sd_unet")
    sd_unet.current_unet = None
    monkeypatch.setitem(sys.modules, "modules.sd_unet", sd_unet)
    web.generate("cat<lora:a:1.0>")
    assert web.builtin.activated == []
    sd_unet.current_unet = SimpleNamespace()
    p = web.generate("cat<lora:b:1.0>")
    assert web.builtin.activated == [["b"]]
    assert "SimpleNamespace" in p.infotexts[0]["Remora warnings"]
    assert any("SimpleNamespace" in note for note in state_of(session())["notes"])
