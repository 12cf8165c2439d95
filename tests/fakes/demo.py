"""The demo that comes with Remora, as tests take it."""

from __future__ import annotations

import copy
import io
import json
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from extension.standalone.demo import Demo, find_demo
from extension.standalone.model import load_model

TRANSFORMERS = int(transformers.__version__.partition(".")[0])


def demo_pipeline() -> Any:
    """Return the demo's pipeline in single precision, as if it were loaded anew."""
    pickled, tensors = _pickled()
    return _Copier(io.BytesIO(pickled), tensors).load()


class _Pickler(pickle.Pickler):
    """This pickler writes all but the tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, Tensor] = {}

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors[id(value)] = value
        return id(value)


class _Copier(pickle.Unpickler):
    """This unpickler copies each tensor. `copy.deepcopy` of a pipeline takes several times as long."""

    def __init__(self, file: io.BytesIO, tensors: Mapping[int, Tensor]) -> None:
        super().__init__(file)
        self._tensors, self._copies = tensors, dict[int, Tensor]()

    def persistent_load(self, pid: int) -> Tensor:
        if pid not in self._copies:
            self._copies[pid] = copy.deepcopy(self._tensors[pid])
        return self._copies[pid]


def copied_demo(folder: Path) -> Demo:
    """Copy the demo's model and LoRA into a folder; tests may write there."""
    found = find_demo()
    copied = Demo(folder / found.model.name, folder / found.loras.name)
    shutil.copytree(found.model, copied.model)
    shutil.copytree(found.loras, copied.loras)
    if TRANSFORMERS < 5:
        _write_as_before(copied.model)
    return copied


@lru_cache(maxsize=1)
def _pickled() -> tuple[bytes, Mapping[int, Tensor]]:
    pickler = _Pickler(file := io.BytesIO())
    pickler.dump(_loaded())
    return file.getvalue(), pickler.tensors


def _loaded() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        model = find_demo().model if TRANSFORMERS >= 5 else copied_demo(Path(folder)).model
        pipeline = load_model(model, torch.float32).pipeline
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        part.eval().requires_grad_(False)
    return pipeline


def _write_as_before(model: Path) -> None:
    """Write the text encoder and the tokenizer as transformers before 5 reads them.

    The embedded web UI needs transformers 5, which needs a newer torch than 2.1. The extension's tests use its demo.
    """
    weights = model / "text_encoder" / "model.safetensors"
    save_file({f"text_model.{key}": value for key, value in load_file(weights).items()}, weights, {"format": "pt"})
    read = json.loads((model / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (model / "tokenizer" / "vocab.json").write_text(json.dumps(read["vocab"]), encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in read["merges"])]
    (model / "tokenizer" / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
