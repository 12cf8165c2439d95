"""Single-file checkpoints: the parts are those of the pipeline they were written from, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from extension.standalone.layout import CheckpointError
from extension.standalone.model import load_model
from extension.standalone.single_file import load_single_file
from extension.standalone.tokenizer import TokenizerError, build_tokenizer
from lib_lora import FileError, PickleError
from tests.fakes.checkpoints import FAMILIES, save_checkpoint, tiny_pipeline

PARTS = ("unet", "vae", "text_encoder", "text_encoder_2")
NOISE_SEED = 3

pytest.importorskip("transformers", "5", reason="the embedded web UI needs transformers 5")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tiny pipelines' tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer([]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """Family -> a pipeline and its checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    pipelines = {family: tiny_pipeline(family) for family in FAMILIES}
    return {
        family: (p, save_checkpoint(p, family, folder / f"{family}.safetensors")) for family, p in pipelines.items()
    }


def picture(pipeline: Any, family: str) -> torch.Tensor:
    """Make a picture straight with a pipeline, (1, 3, 64, 64)."""
    pipeline.set_progress_bar_config(disable=True)
    arguments: dict[str, Any] = {
        "prompt": "a red fox",
        "negative_prompt": "blur",
        "num_inference_steps": 2,
        "generator": torch.Generator().manual_seed(NOISE_SEED),
        "output_type": "pt",
    }
    if family == "sdxl-refiner":
        arguments |= {"image": torch.zeros(1, 4, 8, 8), "strength": 1.0}
    else:
        arguments |= {"width": 64, "height": 64}
    return pipeline(**arguments).images


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_and_the_picture_are_the_same(
    family: str, checkpoints: dict[str, tuple[Any, Path]], vocabulary: Path
) -> None:
    original, path = checkpoints[family]
    loaded = load_single_file(path, torch.float32, tokenizer=vocabulary)
    assert type(loaded) is type(original)
    for name in PARTS:
        ours, theirs = getattr(loaded, name, None), getattr(original, name, None)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            expected = theirs.state_dict()
            assert ours.state_dict().keys() == expected.keys(), name
            assert all(torch.equal(value, expected[key]) for key, value in ours.state_dict().items()), name
    assert torch.equal(picture(loaded, family), picture(original, family))


def test_half_precision_is_half_everywhere(checkpoints: dict[str, tuple[Any, Path]], vocabulary: Path) -> None:
    loaded = load_single_file(checkpoints["sdxl"][1], torch.bfloat16, tokenizer=vocabulary)
    for name in PARTS:
        assert {value.dtype for value in getattr(loaded, name).parameters()} == {torch.bfloat16}, name


@pytest.mark.parametrize(
    ("metadata", "option", "expected"),
    [
        ({}, None, "epsilon"),
        ({"modelspec.prediction_type": "v"}, None, "v_prediction"),
        ({"modelspec.prediction_type": "epsilon"}, None, "epsilon"),
        ({"ss_v_parameterization": "True"}, None, "v_prediction"),
        ({"modelspec.prediction_type": "v"}, "epsilon", "epsilon"),
        ({}, "v_prediction", "v_prediction"),
    ],
)
def test_the_prediction_type_is_the_users_else_the_files(
    checkpoints: dict[str, tuple[Any, Path]],
    vocabulary: Path,
    tmp_path: Path,
    metadata: dict[str, str],
    option: str | None,
    expected: str,
) -> None:
    path = save_checkpoint(checkpoints["sd1"][0], "sd1", tmp_path / "x.safetensors", metadata)
    loaded = load_single_file(path, torch.float32, option, vocabulary)
    assert loaded.scheduler.config.prediction_type == expected


@pytest.mark.parametrize(("answer", "expected"), [(-2.0, "v_prediction"), (0.0, "epsilon")])
def test_sd2_is_told_apart_by_what_it_answers(tmp_path: Path, vocabulary: Path, answer: float, expected: str) -> None:
    pipeline = tiny_pipeline("sd2")
    torch.nn.init.zeros_(pipeline.unet.conv_out.weight)
    torch.nn.init.constant_(pipeline.unet.conv_out.bias, 0.5 + answer)  # the probe asks with 0.5 everywhere
    path = save_checkpoint(pipeline, "sd2", tmp_path / "x.safetensors")
    assert load_single_file(path, torch.float16, tokenizer=vocabulary).scheduler.config.prediction_type == expected


def test_markers_of_zero_terminal_snr_are_read(
    checkpoints: dict[str, tuple[Any, Path]], vocabulary: Path, tmp_path: Path
) -> None:
    tensors = load_file(checkpoints["sdxl"][1]) | {"v_pred": torch.zeros(0), "ztsnr": torch.zeros(0)}
    save_file(tensors, tmp_path / "x.safetensors")
    config = load_single_file(tmp_path / "x.safetensors", torch.float32, tokenizer=vocabulary).scheduler.config
    assert config.prediction_type == "v_prediction"
    assert config.rescale_betas_zero_snr is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.diffusion_model.out.2.bias"), "has no weight conv_out.bias for UNet2DConditionModel"),
        (
            lambda t: t.update({"model.diffusion_model.time_embed.2.bias": torch.zeros(3)}),
            r"time_embedding.linear_2.bias for UNet2DConditionModel has shape \(3,\), not \(128,\)",
        ),
        (lambda t: [t.pop(key) for key in list(t) if key.startswith("first_stage")], "has no VAE"),
        (lambda t: [t.pop(key) for key in list(t) if key.startswith("cond_stage")], "has no text encoder"),
        (lambda t: [t.pop(key) for key in list(t) if key.startswith("model.")], "not a Stable Diffusion checkpoint"),
        (
            lambda t: t.update({"model.diffusion_model.input_blocks.1.0.extra.weight": torch.zeros(3)}),
            "no place for: down_blocks.0.resnets.0.extra.weight",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_what_is_wrong(
    checkpoints: dict[str, tuple[Any, Path]], vocabulary: Path, tmp_path: Path, change: Any, message: str
) -> None:
    tensors = load_file(checkpoints["sd1"][1])
    change(tensors)
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_single_file(tmp_path / "x.safetensors", torch.float32, tokenizer=vocabulary)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, lora_file: Path) -> None:
    with pytest.raises(CheckpointError, match="not a Stable Diffusion checkpoint"):
        load_model(lora_file, torch.float32)
    with pytest.raises(CheckpointError, match="neither a checkpoint file nor a diffusers folder"):
        load_model(tmp_path / "nothing", torch.float32)
    (tmp_path / "old.ckpt").write_bytes(b"PK\x03\x04")
    with pytest.raises(PickleError):
        load_model(tmp_path / "old.ckpt", torch.float32)
    (tmp_path / "cut.safetensors").write_bytes(b"\x00\x01")
    with pytest.raises(FileError, match="truncated, or not a safetensors file"):
        load_model(tmp_path / "cut.safetensors", torch.float32)


def test_without_a_vocabulary_the_error_says_where_to_get_one(
    checkpoints: dict[str, tuple[Any, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("extension.standalone.tokenizer.find_vocabulary", lambda: None)
    with pytest.raises(TokenizerError, match="openai-clip"):
        load_single_file(checkpoints["sd1"][1], torch.float32)
    with pytest.raises(TokenizerError, match="no CLIP tokenizer"):
        load_single_file(checkpoints["sd1"][1], torch.float32, tokenizer=tmp_path)
