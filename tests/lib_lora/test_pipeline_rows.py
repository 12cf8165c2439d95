"""Whose rows the calls of diffusers' pipelines have, and what their components are."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import diffusers
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
    RowsError,
    Stack,
    Strength,
    Window,
)
from lib_lora.files.components import DENOISER, TEXT_ENCODER, role
from lib_lora.strengths.pipeline_rows import _POSITIVE_FIRST
from tests.fakes.contract import worst
from tests.fakes.demo import demo_pipeline
from tests.fakes.files import pair, save
from tests.fakes.models import kohya_lora

PROMPTS = ["two red circles", "a blue square"]
SOURCES = Path(diffusers.__file__).parent

# a pipeline ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = demo_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def file(pipe: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = {"unet": pipe.unet, "text_encoder": pipe.text_encoder}
    return kohya_lora(tmp_path_factory.mktemp("rows") / "a.safetensors", parts)


def made(pipe: Any, prompts: list[str], each: int, guidance: float, latents: Tensor) -> Tensor:
    found: Tensor = pipe(
        prompts,
        negative_prompt=["grey"] * len(prompts),
        num_images_per_prompt=each,
        guidance_scale=guidance,
        num_inference_steps=1,
        latents=latents,
        height=32,
        width=32,
        output_type="latent",
    ).images
    return found


BOTH, UNET, TEXT = 1.0, {"unet": 1.5}, {"text_encoder": 1.0, "unet": 0.3}


@pytest.mark.parametrize(
    ("each", "own", "guidance", "by_pipeline"),
    [
        (1, (BOTH, 0.0), 5.0, True),
        (1, (0.0, TEXT), 1.0, False),
        (2, (BOTH, UNET), 5.0, False),  # of each prompt
        (2, (TEXT, BOTH), 1.0, True),
        (2, (UNET, 0.0, {"text_encoder": 1.0}, BOTH), 5.0, True),  # of each image; a text encoder sees the prompt once
    ],
)
def test_each_image_is_the_one_made_alone(
    pipe: Any, file: Path, each: int, own: tuple[Any, ...], guidance: float, by_pipeline: bool
) -> None:
    parts = {"unet": pipe.unet, "text_encoder": pipe.text_encoder}
    latents = torch.randn(2 * each, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    with Engine.for_pipeline(pipe) if by_pipeline else Engine(parts) as engine:
        engine.activate(Stack([Entry(file, PerImage(own))]))
        got = made(pipe, PROMPTS, each, guidance, latents)
        for image in range(2 * each):
            engine.activate(Stack([Entry(file, own[image * len(own) // (2 * each)])]))
            want = made(pipe, [PROMPTS[image // each]], 1, guidance, latents[image : image + 1])
            assert worst(got[image : image + 1], want) < 2e-4, image


def test_what_a_text_encoder_cannot_tell_apart_is_refused(pipe: Any, file: Path) -> None:
    latents = torch.randn(4, 4, 4, 4)
    with Engine.for_pipeline(pipe) as engine:
        engine.activate(Stack([Entry(file, PerImage((BOTH, 0.0, 0.0, 0.0)))]))
        with pytest.raises(RowsError, match="2 images of one prompt have strengths of their own for the text_encoder"):
            made(pipe, PROMPTS, 2, 5.0, latents)
        engine.activate(Stack([Entry(file, PerImage((BOTH, 0.0)))]))
        with pytest.raises(RowsError, match="unknown which of them the 3 rows"):
            made(pipe, [*PROMPTS, "green"], 1, 5.0, latents[:3])
        engine.activate(Stack([Entry(file, PerImage(({"unet": 1.0}, 0.0)))]))
        with pytest.raises(RowsError, match="makes 3 images"):
            made(pipe, [*PROMPTS, "green"], 1, 5.0, latents[:3])
        engine.use_image(1)
        made(pipe, PROMPTS, 1, 5.0, latents[:2])


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        result: Tensor = self.layer(hidden_states)
        return result


class Pipeline:
    """Calls its model as diffusers' pipelines do, `p` for the positive prompts and `n` for the negative ones."""

    do_classifier_free_guidance = True

    def __init__(self) -> None:
        self.transformer, self.seen = Denoiser(), ""

    def register_modules(self, **_: object) -> None: ...

    def __call__(self, layout: str, latents: Tensor, steps: int = 3) -> list[Tensor]:
        timesteps = torch.arange(steps, 0, -1)
        found = list[Tensor]()
        for t in timesteps:
            assert t
            found += [self.transformer(torch.cat([latents] * len(call))) for call in layout.split()]
        return found


LAYOUTS = {
    "StableDiffusionPipeline": "np",
    "StableDiffusionPAGPipeline": "npp",
    "ZImagePipeline": "pn",
    "LuminaPipeline": "pn",
    "StableCascadePriorPipeline": "pn",
    "WuerstchenDecoderPipeline": "pn",
    "FluxPipeline": "p n",
    "WanPipeline": "p n",
    "StableDiffusion3Pipeline": "np p",  # the last one leaves layers out
    "FluxControlPipeline": "p",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_halves_are_as_the_pipeline_has_them(tmp_path: Path, name: str) -> None:
    """Three steps, as a step may be taken for the second half of the former one."""
    pipe, x = type("Own", (type(name, (Pipeline,), {}),), {})(), torch.randn(2, 8)
    file = save(tmp_path / "a.safetensors", pair("transformer.layer", (8, 8), 4))
    with Engine({"transformer": pipe.transformer}) as engine:
        plain = pipe.transformer(x)
        engine.activate(Stack([Entry(file)]))
        strong = pipe.transformer(x)
        engine.activate(Stack([Entry(file, Halves(1.0, 0.0))]))
        want = [torch.cat([strong if half == "p" else plain for half in call]) for call in LAYOUTS[name].split()] * 3
        got = pipe(LAYOUTS[name], x)
        assert len(got) == len(want)
        assert all(worst(one, other) < 1e-5 for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize(
    ("name", "guided", "layout"),
    [
        ("InstructPix2PixPipeline", True, "pnn"),
        ("OmniGenPipeline", None, "pn"),
        ("DanceDiffusionPipeline", False, "pp"),
    ],
)
def test_halves_that_are_not_known_are_refused(tmp_path: Path, name: str, guided: bool | None, layout: str) -> None:
    pipe, x = type(name, (Pipeline,), {"do_classifier_free_guidance": guided})(), torch.randn(2, 8)
    file = save(tmp_path / "a.safetensors", pair("transformer.layer", (8, 8), 4))
    with Engine({"transformer": pipe.transformer}) as engine:
        engine.activate(Stack([Entry(file, Halves(1.0, 0.0))]))
        with pytest.raises(RowsError, match="unknown which"):
            pipe(layout, x)
        engine.activate(Stack([Entry(file, PerImage((1.0, 0.0)))]))
        pipe(layout, x)  # whose images are known


@pytest.mark.parametrize("name", ["decoder", "prior_prior", "unconditional_transformer"])
def test_a_decoder_is_a_denoiser_in_all_respects(tmp_path: Path, name: str) -> None:
    """As of Stable Cascade and UnCLIP: its schedule, its places, its images and its halves."""
    file, model = save(tmp_path / "a.safetensors", pair("lora_unet_layer", (8, 8, 1, 1), 4)), Denoiser()
    model.layer, x = nn.Conv2d(8, 8, 1).requires_grad_(False), torch.randn(2, 8, 2, 4)
    pipe = type("WuerstchenDecoderPipeline", (Pipeline,), {})()
    pipe.transformer = model
    with Engine({name: model}) as engine:
        plain = model(x)
        engine.activate(Stack([Entry(file)]))
        strong = model(x)
        assert worst(strong, plain) > 0.01
        engine.activate(Stack([Entry(file, PerImage((Strength(1.0), 0.0)))]))
        assert worst(model(x), torch.cat([strong[:1], plain[1:]])) < 1e-5
        engine.activate(Stack([Entry(file, Strength(1.0, region=Region.rectangle(0, 0, 0.5, 1)))]))
        assert worst(model(x), torch.cat([strong[..., :2], plain[..., 2:]], -1)) < 1e-5
        for schedule in (Strength(Curve(((0.0, 0.0), (1.0, 1.0)))), Strength(during=Window(0.5))):
            engine.activate(Stack([Entry(file, schedule)]))
            for step, want in enumerate((plain, strong)):
                engine.set_moment(Moment(step, 2))
                assert worst(model(x), want) < 1e-5
        engine.activate(Stack([Entry(file, Halves(1.0, 0.0))]))
        for got in pipe("pn", x):
            assert worst(got, torch.cat([strong, plain])) < 1e-5
        assert engine.silent == frozenset()


def test_a_part_of_a_model_that_is_called_alone_is_refused(tmp_path: Path) -> None:
    """As `get_text_features` does it: no call of the component tells the rows."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False), torch.randn(2, 8)
    unet, file = (
        Denoiser(),
        save(tmp_path / "a.safetensors", pair("lora_te_0", (8, 8), 4) | pair("lora_unet_layer", (8, 8), 4)),
    )
    with Engine({"text_encoder": model, "unet": unet}) as engine:
        engine.activate(Stack([Entry(file)]))
        want = model[0](x)
        engine.activate(Stack([Entry(file, PerImage((1.0, 0.0)))]))
        with pytest.raises(RowsError, match="outside of a call of its model"):
            model[0](x)
        engine.use_image(0)
        assert worst(model[0](x), want) < 1e-6
        engine.activate(Stack([Entry(file, PerImage((1.0, {"text_encoder": 1.0})))]))
        assert worst(model[0](x), want) < 1e-6, "the images are alike there"


# all pipelines --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def sources() -> str:
    """Return the code of all pipelines, modular ones too."""
    files = [one for part in ("pipelines", "modular_pipelines") for one in sorted((SOURCES / part).rglob("*.py"))]
    return "\n".join([one.read_text(encoding="utf-8") for one in files])


def classes_in(*folders: str) -> set[str]:
    texts = [one.read_text(encoding="utf-8") for folder in folders for one in (SOURCES / folder).rglob("*.py")]
    return set(re.findall(r"^class (\w+)\([^)]*ModelMixin", "\n".join(texts), re.MULTILINE))


def components_in(text: str) -> dict[str, set[str]]:
    """Return name -> the words of its annotations, from the parameters of `__init__` and from `ComponentSpec`."""
    found = defaultdict[str, set[str]](set)
    for parameters in re.findall(r"    def __init__\(\s*self,(.*?)\n    \)", text, re.DOTALL):
        for name, annotation in re.findall(r"^\s+(\w+): ([^=\n]+?)(?:,| =)", parameters, re.MULTILINE):
            found[name] |= set(re.findall(r"\w+", annotation))
    for name, annotation in re.findall(r"ComponentSpec\(\s*\"(\w+)\",\s*(\w+)", text):
        found[name].add(annotation)
    return found


def test_every_component_of_diffusers_has_its_role() -> None:
    components, own = components_in(sources()), classes_in("models/transformers", "models/unets")
    own |= {"WuerstchenPrior", "WuerstchenDiffNeXt", "UNetFlatConditionModel"}
    assert len(components) > 80
    assert len(own) > 60
    denoisers = {name for name, words in components.items() if words & own}
    assert denoisers >= {"unet", "transformer", "transformer_2", "prior", "decoder", "prior_prior", "super_res_first"}
    assert {name for name in components if role(name) == DENOISER} == denoisers - NO_DENOISERS
    texts = {name for name, words in components.items() if words & TEXT_MODELS} - {"prompt_enhancer"}
    assert texts >= {"text_encoder", "text_encoder_4", "prior_text_encoder", "bert"}
    assert {name for name in components if role(name) == TEXT_ENCODER} == texts


NO_DENOISERS = {"motion_adapter", "rvq_depth_decoder"}
"""A part of a UNet; the end of an autoregressive model, which is called for each token."""
TEXT_MODELS = {"CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel", "LlamaForCausalLM", "PreTrainedModel"}


def test_pipelines_with_the_positive_prompts_first_are_known() -> None:
    """By the code that puts both together for one call."""
    joins = r"\[(?:negative_)?prompt_embeds, (?:negative_)?prompt_embeds\]|prompt_embeds \+ negative_prompt_embeds"
    first = set[str]()
    for own in re.split(r"^class ", sources(), flags=re.MULTILINE):
        name = re.match(r"\w*Pipeline", own)
        if name and any(not one.startswith("[negative") for one in re.findall(joins, own)):
            first.add(name[0])
    assert first
    assert {name for name in first if not name.startswith(_POSITIVE_FIRST)} == set()
    assert all(any(name.startswith(one) for name in first) for one in _POSITIVE_FIRST)
