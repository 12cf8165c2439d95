"""Text encoding with CLIP layers skipped, for SD 1.x and 2.x."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def encode_skipping(pipeline: Any, texts: Sequence[str], clip_skip: int) -> Tensor:
    """Encode texts by the text encoder's layer `clip_skip` from the end, 1 being the last, and its final norm.

    diffusers' own `clip_skip` fails with the flattened CLIPTextModel of transformers 5.6 and later.

    Returns:
        (texts, tokens, width), where the pipeline runs.
    """
    tokenizer, encoder = pipeline.tokenizer, pipeline.text_encoder
    tokens = tokenizer(
        list(texts), padding="max_length", max_length=tokenizer.model_max_length, truncation=True, return_tensors="pt"
    )
    states = encoder(tokens.input_ids.to(pipeline._execution_device), output_hidden_states=True).hidden_states
    if clip_skip >= len(states):
        clip_skip = len(states) - 1  # the first one is the embedding, not a layer
    norm = getattr(encoder, "text_model", encoder).final_layer_norm
    encoded: Tensor = norm(states[-clip_skip])
    return encoded
