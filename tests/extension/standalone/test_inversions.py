"""Textual inversions that came with a LoRA: what prompts read, and that nothing stays."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from extension.hosts.standalone import STANDALONE
from extension.hosts.txt2img import Txt2Img
from extension.standalone import offload
from extension.standalone.demo import Demo
from extension.standalone.encode import encode_skipping
from extension.standalone.inversions import TextualInversions
from extension.standalone.model import load_model
from extension.standalone.render import Watch, render
from extension.standalone.studio import Studio, open_studio
from extension.text.infotext import parse_infotext
from tests.fakes import accelerator
from tests.fakes.checkpoints import tiny_pipeline
from tests.fakes.files import pair, save

WIDTHS = {"text_encoder": 64, "text_encoder_2": 128}
WATCH = Watch(lambda _: None, lambda: False)
SMALL = Txt2Img("a photo of mychar, red", steps=2, width=64, height=64, seed=7)


def vectors(count: int, width: int = 64, seed: int = 1) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def encoded(pipeline: Any, text: str) -> tuple[Tensor, ...]:
    """Return the embeddings that a pipeline gives its UNet for a prompt and for a negative prompt."""
    found = pipeline.encode_prompt(
        text,
        device=torch.device("cpu"),
        num_images_per_prompt=1,
        do_classifier_free_guidance=True,
        negative_prompt=text,
    )
    return tuple(tensor for tensor in found if tensor is not None)


def same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> bool:
    return len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def trace(pipeline: Any) -> dict[str, object]:
    """All that loading an embedding may leave behind."""
    found: dict[str, object] = {}
    for name in ("text_encoder", "text_encoder_2"):
        encoder = getattr(pipeline, name, None)
        if encoder is not None:
            found[name] = (encoder.config.to_json_string(), [hooks(module) for module in encoder.modules()])
            found |= {f"{name}.{key}": (id(p), p._version, p.requires_grad) for key, p in encoder.named_parameters()}
    for name in ("tokenizer", "tokenizer_2"):
        tokenizer = getattr(pipeline, name, None)
        found[name] = (id(tokenizer), 0 if tokenizer is None else len(tokenizer))
    return found


def hooks(module: nn.Module) -> tuple[int, int]:
    return len(module._forward_hooks), len(module._forward_pre_hooks)


def by_diffusers(pipeline: Any, parts: Mapping[str, Tensor], token: str) -> Any:
    """Return a copy of the pipeline with the embedding loaded as diffusers does it."""
    other = copy.deepcopy(pipeline)
    for name, tensor in parts.items():
        tokenizer = getattr(other, "tokenizer" if name == "text_encoder" else "tokenizer_2")
        other.load_textual_inversion(tensor, token=token, tokenizer=tokenizer, text_encoder=getattr(other, name))
    return other


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("family", ["sd1", "sd2", "sdxl", "sdxl-refiner"])
def test_prompts_read_the_vectors_as_with_diffusers(family: str, count: int) -> None:
    pipeline = tiny_pipeline(family)
    encoders = [name for name in WIDTHS if getattr(pipeline, name, None) is not None]
    parts = {name: vectors(count, WIDTHS[name]) for name in encoders}
    spelled = {"text_encoder": "clip_l", "text_encoder_2": "clip_g"}
    reference = by_diffusers(pipeline, parts, "mychar")
    plain = encoded(pipeline, "a photo of mychar, red")
    before = trace(pipeline)  # not earlier: the first call leaves hooks of transformers
    inversions = TextualInversions(pipeline)
    assert inversions.use({"mychar": {spelled[name]: tensor for name, tensor in parts.items()}}) == []
    got = encoded(pipeline, inversions.spell("a photo of mychar, red"))
    assert same(got, encoded(reference, "a photo of mychar, red"))
    assert not same(got, plain)
    inversions.use({})
    assert trace(pipeline) == before
    assert inversions.spell("a photo of mychar, red") == "a photo of mychar, red"
    assert same(encoded(pipeline, "a photo of mychar, red"), plain)


def test_layers_skipped_read_them_too() -> None:
    pipeline = tiny_pipeline("sd1")
    reference = by_diffusers(pipeline, {"text_encoder": vectors(2)}, "mychar")
    inversions = TextualInversions(pipeline)
    inversions.use({"mychar": {"string_to_param.*": vectors(2)}})
    text = inversions.spell("mychar alone")
    want = encode_skipping(reference, [reference.maybe_convert_prompt("mychar alone", reference.tokenizer)], 2)
    assert torch.equal(encode_skipping(pipeline, [text], 2), want)


def test_an_encoder_that_looks_for_the_highest_id_still_finds_the_end() -> None:
    pipeline = tiny_pipeline("sdxl")
    encoder = pipeline.text_encoder_2
    getattr(encoder, "text_model", encoder).eos_token_id = 2  # as in the configuration of every published XL
    inversions = TextualInversions(pipeline)
    inversions.use({"mychar": {"clip_l": vectors(1), "clip_g": vectors(1, 128)}})
    spelled = inversions.spell("mychar and more")
    ids = torch.tensor([pipeline.tokenizer_2(spelled).input_ids])
    longer = torch.tensor([pipeline.tokenizer_2(f"{spelled} words").input_ids])
    with torch.no_grad():
        # at the embedding's own place the text after it would not count
        assert not torch.equal(encoder(ids).text_embeds, encoder(longer).text_embeds)


def test_a_name_is_found_as_a_word_in_any_case_and_the_longest_wins() -> None:
    pipeline = tiny_pipeline("sd1")
    inversions = TextualInversions(pipeline)
    assert inversions.use({"Cat": {"clip_l": vectors(2)}, "cat (big)": {"clip_l": vectors(1)}}) == []
    spelled = inversions.spell("CAT, cat (big) catalog,a cat.")
    assert spelled == "<remora-0-0> <remora-0-1>, <remora-1-0> catalog,a <remora-0-0> <remora-0-1>."
    assert pipeline.tokenizer.convert_ids_to_tokens(pipeline.tokenizer("CAT").input_ids)[1:-1] != ["<remora-0-0>"]


def test_words_around_are_read_as_without() -> None:
    pipeline = tiny_pipeline("sd1")
    plain = pipeline.tokenizer("a red fox, runs").input_ids
    inversions = TextualInversions(pipeline)
    inversions.use({"mychar": {"clip_l": vectors(1)}})
    own = pipeline.tokenizer.convert_tokens_to_ids("<remora-0-0>")
    ids = pipeline.tokenizer(inversions.spell("a mychar red fox, runs")).input_ids
    assert [number for number in ids if number != own] == plain


def test_those_of_now_take_the_place_of_those_before() -> None:
    pipeline = tiny_pipeline("sd1")
    inversions = TextualInversions(pipeline)
    inversions.use({"one": {"clip_l": vectors(1)}})
    inversions.use({"two": {"clip_l": vectors(1, seed=2)}})
    assert inversions.spell("one two") == "one <remora-0-0>"
    assert sum(hooks(module)[0] for module in pipeline.text_encoder.modules()) == 1


def test_vectors_are_read_once_for_the_file_may_be_overwritten() -> None:
    pipeline = tiny_pipeline("sd1")
    inversions, tensor = TextualInversions(pipeline), vectors(1)
    inversions.use({"mychar": {"clip_l": tensor}})
    before = encoded(pipeline, inversions.spell("mychar"))
    tensor.zero_()
    assert same(encoded(pipeline, inversions.spell("mychar")), before)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"clip_g": (1, 128)}, "no vectors for text_encoder, only clip_g"),
        ({"clip_l": (1, 64)}, "no vectors for text_encoder_2, only clip_l"),
        ({"clip_l": (1, 32), "clip_g": (1, 128)}, "text_encoder wants vectors of width 64, got shape (1, 32)"),
        ({"clip_l": (0, 64), "clip_g": (0, 128)}, "got shape (0, 64)"),
        ({"clip_l": (1, 1, 64), "clip_g": (1, 128)}, "got shape (1, 1, 64)"),
        ({"clip_l": (1, 64), "clip_g": (2, 128)}, "not as many vectors for one text encoder as for the other"),
    ],
)
def test_what_does_not_fit_is_left_out_with_the_reason(parts: dict[str, tuple[int, ...]], reason: str) -> None:
    pipeline = tiny_pipeline("sdxl")
    before = trace(pipeline)
    inversions = TextualInversions(pipeline)
    (sentence,) = inversions.use({"mychar": {name: torch.zeros(shape) for name, shape in parts.items()}})
    assert sentence.startswith("embedding 'mychar' is read as plain words: ")
    assert reason in sentence
    assert inversions.spell("mychar") == "mychar"
    assert trace(pipeline) == before


def test_a_failure_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = tiny_pipeline("sdxl")
    before = trace(pipeline)

    def fails(*arguments, **named):
        raise RuntimeError("no hooks")

    monkeypatch.setattr(pipeline.text_encoder_2, "register_forward_pre_hook", fails)
    inversions = TextualInversions(pipeline)
    with pytest.raises(RuntimeError, match="no hooks"):
        inversions.use({"mychar": {"clip_l": vectors(1), "clip_g": vectors(1, 128)}})
    assert trace(pipeline) == before
    assert inversions.spell("mychar") == "mychar"


@pytest.fixture
def studio(demo: Demo, tmp_path: Path) -> Iterator[Studio]:
    """Return the demo model, and a LoRA without effect that brings two embeddings."""
    key = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_v"
    tensors = pair(key, (128, 128), 2, size=0.0)
    tensors["bundle_emb.mychar.string_to_param.*"] = vectors(2, 128)
    tensors["bundle_emb.forxl.clip_g"] = vectors(1, 1280)
    save(tmp_path / "char.safetensors", tensors)
    yield open_studio(load_model(demo.model, torch.float32), torch.device("cpu"), [tmp_path])
    STANDALONE.close()


def made(studio: Studio, **change: Any) -> np.ndarray:
    return np.asarray(render(studio, replace(SMALL, **change), WATCH).pictures[0].image)


def test_a_job_has_the_embeddings_of_its_loras_and_only_it(studio: Studio) -> None:
    with_lora = f"{SMALL.prompt} <lora:char:1>"
    before, plain = trace(studio.model.pipeline), made(studio, prompt=f"{SMALL.prompt} ")
    changed = made(studio, prompt=with_lora)
    assert not np.array_equal(changed, plain)
    assert np.array_equal(made(studio, prompt="a house <lora:char:1>"), made(studio, prompt="a house "))
    assert trace(studio.model.pipeline) == before
    assert np.array_equal(made(studio, prompt=f"{SMALL.prompt} "), plain)
    for other in ({"negative_prompt": "bad mychar"}, {"clip_skip": 2}):
        assert not np.array_equal(
            made(studio, prompt=f"{SMALL.prompt} <lora:char:1>", **other),
            made(studio, prompt=f"{SMALL.prompt} ", **other),
        )
    negative = {"negative_prompt": "mychar"}
    assert not np.array_equal(made(studio, prompt="a <lora:char:1>", **negative), made(studio, prompt="a ", **negative))


def test_a_job_tells_of_an_embedding_that_does_not_fit(studio: Studio) -> None:
    result = render(studio, replace(SMALL, prompt="forxl <lora:char:1>"), WATCH)
    assert result.notes == (
        "embedding 'forxl' is read as plain words: it has no vectors for text_encoder, only clip_g",
    )
    text = result.pictures[0].infotext
    assert text.startswith("forxl <lora:char:1>\n")
    assert result.notes[0] in parse_infotext(text).settings["Remora warnings"]


def test_tokens_are_counted_as_they_are_read(studio: Studio) -> None:
    words = "mychar " * 38
    notes = render(studio, replace(SMALL, prompt=f"{words}<lora:char:1>"), WATCH).notes
    assert "the prompt has 76 tokens; only the first 75 were read" in notes


def test_a_job_that_fails_takes_them_off(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    before = trace(studio.model.pipeline)

    def fails(*arguments, **named):
        raise torch.cuda.OutOfMemoryError("no memory left")

    monkeypatch.setattr(studio.model.pipeline.vae, "decode", fails)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        made(studio, prompt="mychar <lora:char:1>")
    assert trace(studio.model.pipeline) == before


@pytest.mark.parametrize("mode", [offload.MODEL, offload.SEQUENTIAL, offload.GROUP, offload.NONE])
def test_every_offload_mode_reads_the_same(mode: str) -> None:
    pipeline = tiny_pipeline("sd1")
    for part in (pipeline.unet, pipeline.text_encoder, pipeline.vae):
        part.requires_grad_(False)
    inversions = TextualInversions(pipeline)
    inversions.use({"mychar": {"clip_l": vectors(2)}})
    text = inversions.spell("a mychar")
    want, plain = encode_skipping(pipeline, [text], 1), encode_skipping(pipeline, ["a mychar"], 1)
    with accelerator.simulated():
        offload.set_mode(pipeline, mode, accelerator.device())
        for _ in range(2):
            got = encode_skipping(pipeline, [text], 1)
            assert got.device == accelerator.device()
            # attention on the simulated accelerator is another kernel
            assert (got.cpu() - want).abs().max() <= 1e-5 * want.abs().max()
        inversions.use({})
        offload._remove(pipeline)
    assert torch.equal(encode_skipping(pipeline, ["a mychar"], 1), plain)
