"""Writes the LoRA files as people find them: kohya's and ModelSpec's metadata, a preview beside and inside."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from PIL import Image
from safetensors.torch import save, save_file
from torch import Tensor

from .adapters import seed_of
from .ideas import Idea, lessons
from .world import Scene

DATE = "2026-11-22"
PREVIEW_SIDE = 192  # pixels


def write_lora(path: Path, idea: Idea, tensors: Mapping[str, Tensor], preview: Image.Image | None = None) -> None:
    """Write a LoRA and its preview picture, `name.png`.

    Args:
        path: of the file.
        idea: that it shows.
        tensors: under kohya's keys.
        preview: what a prompt with it gives, which needs the file first.
    """
    if preview is None:
        save_file(dict(tensors), path)
        return
    large = preview.resize((PREVIEW_SIDE, PREVIEW_SIDE), Image.Resampling.BICUBIC)
    large.quantize(256, dither=Image.Dither.NONE).save(path.with_suffix(".png"), optimize=True)
    save_file(dict(tensors), path, metadata=metadata(idea, tensors, preview))


def metadata(idea: Idea, tensors: Mapping[str, Tensor], preview: Image.Image) -> dict[str, str]:
    """Return what sd-scripts writes into a file (`train_network.py`, `sai_model_spec.py`), as far as it applies."""
    by_lycoris = idea.algorithm not in ("lora", "dora")
    arguments = {"algo": idea.algorithm, **({"conv_dim": idea.rank} if idea.convolutions else {}), **idea.extra}
    said = {
        "ss_output_name": idea.name,
        "ss_sd_model_name": "remora-shapes",
        "ss_base_model_version": "sd_v1",
        "ss_network_module": "lycoris.kohya" if by_lycoris else "networks.lora",
        "ss_network_dim": str(idea.rank),
        "ss_network_alpha": str(idea.rank),
        "ss_network_args": json.dumps(arguments if by_lycoris else {"use_dora": idea.algorithm == "dora"}),
        "ss_learning_rate": str(idea.rate),
        "ss_max_train_steps": str(idea.steps),
        "ss_num_train_images": str(idea.pictures),
        "ss_resolution": "(96, 96)",
        "ss_tag_frequency": json.dumps({f"1_{idea.name}": tag_frequency(idea)}),
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": "stable-diffusion-v1/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.title": idea.title,
        "modelspec.description": idea.says,
        "modelspec.author": "Remora",
        "modelspec.license": "Apache-2.0",
        "modelspec.date": DATE,
        "modelspec.resolution": "96x96",
        "modelspec.prediction_type": "epsilon",
        "modelspec.tags": f"demo, {idea.algorithm}",
        "modelspec.thumbnail": data_url(preview),
        "modelspec.hash_sha256": f"0x{hashlib.sha256(save(dict(tensors))).hexdigest()}",
    }
    if idea.trigger:
        said["modelspec.trigger_phrase"] = idea.trigger
    return said


def tag_frequency(idea: Idea) -> dict[str, int]:
    """Count the words for what is in the pictures that an idea was learned from."""
    drawn = islice(lessons(idea, seed_of(idea)), idea.pictures)
    counted = Counter(tag for lesson in drawn for tag in _tags(lesson.scene))
    return dict(counted.most_common())


def data_url(picture: Image.Image) -> str:
    """Return a picture as ModelSpec wants its thumbnail: a `data:` URL."""
    stream = io.BytesIO()
    picture.convert("RGB").save(stream, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def _tags(scene: Scene) -> list[str]:
    kinds = [word for kind in scene.kinds for word in (kind.shape, kind.colour, kind.size) if word]
    return [*dict.fromkeys(kinds), f"{scene.ground} ground"]
