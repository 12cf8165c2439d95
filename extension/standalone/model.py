"""Loads a pipeline from a diffusers folder or a single-file checkpoint; nothing is fetched."""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..library.hashes import hash_from
from .layout import CheckpointError, find_model
from .single_file import load_single_file

logger = logging.getLogger(__name__)

_HASH_LENGTH = 10  # hex digits, as A1111 shows a model's hash
_FAMILIES = {
    "StableDiffusionPipeline": "sd",
    "StableDiffusionXLPipeline": "sdxl",
    "StableDiffusionXLImg2ImgPipeline": "sdxl-refiner",
}
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedModel:
    """A pipeline on the CPU and its origin."""

    pipeline: Any
    path: Path
    family: str
    """sd (1.x and 2.x), sdxl or sdxl-refiner."""
    sha256: Future[str]
    """Of the checkpoint, or of a folder's unet; computed in the background, as a large file takes long."""

    @property
    def name(self) -> str:
        return self.path.stem if self.path.is_file() else self.path.name

    @property
    def checkpoints(self) -> dict[str, list[Path]]:
        """Return the safetensors files that each part of the pipeline was loaded from."""
        parts = [name for name, part in self.pipeline.components.items() if isinstance(part, torch.nn.Module)]
        if self.path.is_file():
            return {name: [self.path] for name in parts}
        variant = _variant(self.path)
        found = {name: sorted((self.path / name).glob("*.safetensors")) for name in parts}
        return {name: [file for file in files if _is_of(file, variant)] for name, files in found.items()}

    @property
    def side(self) -> int:
        """Return width and height the model was made for, in pixels."""
        return int(self.pipeline.unet.config.sample_size) * int(self.pipeline.vae_scale_factor)

    @property
    def shorthash(self) -> str:
        """Return ten hex digits; waits for the hash the first time."""
        return self.sha256.result()[:_HASH_LENGTH]


def load_model(
    path: Path, dtype: torch.dtype, prediction_type: str | None = None, tokenizer: Path | None = None
) -> LoadedModel:
    """Load a model onto the CPU.

    Raises:
        CheckpointError: the path is missing or unreadable; the text says why.
        LoraError: a file is a pickle or has a damaged header.
        TokenizerError: as `load_single_file`.
    """
    path = find_model(path)
    if path.is_file():
        pipeline = load_single_file(path, dtype, prediction_type, tokenizer)
        weights: Path | None = path
    else:
        pipeline, weights = _load_folder(path, dtype, prediction_type), _unet_file(path)
    family = _FAMILIES.get(type(pipeline).__name__)
    if family is None:
        raise CheckpointError(f"{path.name} is a {type(pipeline).__name__}; known are {', '.join(_FAMILIES)}")
    pipeline.set_progress_bar_config(disable=True)
    return LoadedModel(pipeline, path, family, _in_background(weights))


def pick_device(wanted: str) -> torch.device:
    """Return the device of this name; "auto" is the best one."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return torch.device("xpu")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def pick_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Return the dtype of this name; "auto" is half precision except on the CPU, where it is slower."""
    if wanted != "auto":
        return _DTYPES[wanted]
    return torch.float32 if device.type == "cpu" else torch.float16


def _load_folder(path: Path, dtype: torch.dtype, prediction_type: str | None) -> Any:
    import diffusers

    index = json.loads((path / "model_index.json").read_text("utf-8"))
    kind = getattr(diffusers, index["_class_name"]) if index.get("_class_name") in _FAMILIES else None
    if kind is None:
        raise CheckpointError(f"{path.name} holds a {index.get('_class_name')}; known are {', '.join(_FAMILIES)}")
    options: dict[str, Any] = {"dtype": dtype, "local_files_only": True, "use_safetensors": True}
    if (variant := _variant(path)) is not None:
        options["variant"] = variant
    try:
        pipeline = kind.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} cannot be loaded: {error}") from error
    if prediction_type is not None:
        pipeline.scheduler.register_to_config(prediction_type=prediction_type)
    return pipeline


def _variant(path: Path) -> str | None:
    """Return "fp16" if a folder contains its unet in that variant only."""
    files = list((path / "unet").glob("*.safetensors"))
    return "fp16" if files and all(_is_of(file, "fp16") for file in files) else None


def _is_of(file: Path, variant: str | None) -> bool:
    """Tell whether a file such as `model.safetensors`, `model.fp16.safetensors` or a shard is of this variant."""
    _, _, own = file.stem.partition(".")
    return own.split("-")[0] == (variant or "")


def _unet_file(path: Path) -> Path | None:
    return next(iter(sorted((path / "unet").glob("*.safetensors"))), None)


def _in_background(path: Path | None) -> Future[str]:
    pool = ThreadPoolExecutor(1, "hash")
    future = pool.submit(lambda: "" if path is None else hash_from(path, 0))
    pool.shutdown(wait=False)
    return future
