from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from extension.standalone.demo import Demo
from extension.standalone.layout import CheckpointError
from extension.standalone.model import load_model, pick_device, pick_dtype


def test_a_folder_is_loaded_as_it_is(demo: Demo) -> None:
    model = load_model(demo.model, torch.float32)
    assert (model.family, model.name, model.side) == ("sd", "remora-shapes", 96)
    weights = demo.model / "unet" / "diffusion_pytorch_model.safetensors"
    assert model.shorthash == hashlib.sha256(weights.read_bytes()).hexdigest()[:10]
    blocks = [type(block).__name__ for block in model.pipeline.unet.down_blocks]
    assert blocks == [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"]
    assert model.pipeline.unet.dtype == torch.float32


def test_a_prediction_type_can_be_forced(demo: Demo) -> None:
    model = load_model(demo.model, torch.float32, "v_prediction")
    assert model.pipeline.scheduler.config.prediction_type == "v_prediction"


def test_a_half_precision_variant_is_found(demo: Demo, tmp_path: Path) -> None:
    folder = tmp_path / "variant"
    shutil.copytree(demo.model, folder)
    for path in list(folder.rglob("*.safetensors")):
        path.rename(path.with_name(path.name.replace(".safetensors", ".fp16.safetensors")))
    assert load_model(folder, torch.float32).family == "sd"


def test_the_files_of_each_part_are_known(demo: Demo, tmp_path: Path) -> None:
    model = load_model(demo.model, torch.float32)
    assert model.checkpoints == {
        "unet": [demo.model / "unet" / "diffusion_pytorch_model.safetensors"],
        "vae": [demo.model / "vae" / "diffusion_pytorch_model.safetensors"],
        "text_encoder": [demo.model / "text_encoder" / "model.safetensors"],
    }
    (single := tmp_path / "all.safetensors").touch()
    assert replace(model, path=single).checkpoints == {key: [single] for key in ("unet", "vae", "text_encoder")}


@pytest.mark.parametrize(
    ("present", "loaded"),
    [
        (("model.safetensors", "model.fp16.safetensors", "model.non_ema.safetensors"), ("model.safetensors",)),
        (
            ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.fp16.safetensors"),
            ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ),
        (
            ("model.fp16-00001-of-00002.safetensors", "model-00002-of-00002.fp16.safetensors"),
            ("model-00002-of-00002.fp16.safetensors", "model.fp16-00001-of-00002.safetensors"),
        ),
    ],
)
def test_files_of_other_variants_are_not_those_loaded(
    demo: Demo, tmp_path: Path, present: tuple[str, ...], loaded: tuple[str, ...]
) -> None:
    (tmp_path / "unet").mkdir()
    for name in present:
        (tmp_path / "unet" / name).touch()
    model = replace(load_model(demo.model, torch.float32), path=tmp_path)
    assert model.checkpoints["unet"] == [tmp_path / "unet" / name for name in loaded]


def test_a_folder_of_pickles_is_refused(demo: Demo, tmp_path: Path) -> None:
    folder = tmp_path / "pickles"
    shutil.copytree(demo.model, folder)
    unet = folder / "unet" / "diffusion_pytorch_model.safetensors"
    unet.rename(unet.with_suffix(".bin"))
    with pytest.raises(CheckpointError, match="pickles cannot be loaded"):
        load_model(folder, torch.float32)


def test_a_pipeline_of_another_kind_is_refused(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    with pytest.raises(CheckpointError, match="holds a FluxPipeline; known are StableDiffusionPipeline"):
        load_model(tmp_path, torch.float32)


def test_device_and_dtype_are_the_users_else_the_best() -> None:
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert pick_device("auto").type in ("cuda", "xpu", "mps", "cpu")
    assert pick_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    assert pick_dtype("auto", torch.device("cpu")) == torch.float32
    assert pick_dtype("auto", torch.device("cuda")) == torch.float16
