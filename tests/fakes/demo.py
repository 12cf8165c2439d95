"""The demo that comes with Remora, as tests take it."""

from __future__ import annotations

from typing import Any

import torch

from extension.standalone.demo import find_demo
from extension.standalone.model import load_model


def demo_pipeline() -> Any:
    """Load the demo's pipeline anew, in single precision."""
    pipeline = load_model(find_demo().model, torch.float32).pipeline
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        part.eval().requires_grad_(False)
    return pipeline
