"""The demo that comes with Remora, as tests take it."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import torch

from extension.standalone.demo import find_demo
from extension.standalone.model import load_model


def demo_pipeline() -> Any:
    """Return the demo's pipeline in single precision, as if it were loaded anew."""
    return copy.deepcopy(_loaded())


@lru_cache(maxsize=1)
def _loaded() -> Any:
    pipeline = load_model(find_demo().model, torch.float32).pipeline
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        part.eval().requires_grad_(False)
    return pipeline
