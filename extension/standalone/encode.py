"""Text encoding with CLIP layers skipped, for SD 1.x and 2.x."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def encode_skipping(pipeline: Any, texts: Sequence[str], clip_skip: int) -> Tensor:
    """Encode texts by the text encoder's layer `clip_skip` from the end, 1 being the last, and its final norm.

    diffusers' own `clip_skip` fails with the flattened CLIPTextModel of transformers 5.6 and later.

    Returns:
        (texts, tokens, width), on the pipeline's device.
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


@torch.no_grad()
def encode_each(
    pipeline: Any, prompt: str, negative_prompt: str, clip_skip: int, use_images: Iterable[Callable[[], None]]
) -> dict[str, Tensor]:
    """Encode the same texts once for each image, as the LoRA of images may differ.

    Args:
        pipeline: of Stable Diffusion 1.x, 2.x or XL.
        prompt: of all.
        negative_prompt: of all.
        clip_skip: as in `encode_skipping`; XL always takes the last layer but one.
        use_images: one function per image, called before its texts are encoded.

    Returns:
        Arguments of the pipeline, each with a row for every image.
    """
    found = []
    for use_image in use_images:
        use_image()
        if clip_skip > 1:
            found.append([encode_skipping(pipeline, [text], clip_skip) for text in (prompt, negative_prompt)])
            continue
        made = pipeline.encode_prompt(
            prompt=prompt,
            negative_prompt=negative_prompt,
            device=pipeline._execution_device,
            num_images_per_prompt=1,
            do_classifier_free_guidance=True,
        )
        found.append(list(made))
    names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
    return {name: torch.cat(parts) for name, parts in zip(names, zip(*found, strict=True), strict=False)}
