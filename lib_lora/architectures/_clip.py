"""CLIP text encoders under their names: transformers' nested and flattened trees, ldm's wrapper, and OpenCLIP.

Adapters are named after the nested tree of transformers up to 5.5, `text_model.encoder.layers.0.self_attn.q_proj`.
From 5.6 on CLIPTextModel has no `text_model` level any more; CLIPTextModelWithProjection kept it.
Sources: transformers models/clip/modeling_clip.py; mlfoundations/open_clip src/open_clip/transformer.py.
"""

from __future__ import annotations

from .base import Alias

_MAX_LAYERS = 32  # OpenCLIP bigG, the deepest of the families here

_BLOCK = {
    "attn": "self_attn",  # nn.MultiheadAttention: q, k and v are windows of its in_proj_weight, see layer.py
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def clip_aliases(component: str) -> tuple[Alias, ...]:
    """transformers' trees, alone or inside ldm's FrozenCLIPEmbedder (`transformer.`)."""
    pairs = [(inner, f"text_model.{inner}") for inner in ("encoder", "embeddings", "final_layer_norm")]
    pairs += [
        (f"transformer.{inner}", f"text_model.{inner}") for inner in ("encoder", "embeddings", "final_layer_norm")
    ]
    pairs.append(("transformer.text_model", "text_model"))
    return tuple(Alias(component, native, diffusers) for native, diffusers in pairs)


def open_clip_aliases(component: str) -> tuple[Alias, ...]:
    """OpenCLIP's text tower, alone or inside ldm's FrozenOpenCLIPEmbedder (`model.`)."""
    pairs: list[tuple[str, str]] = []
    for prefix in ("", "model."):
        for i in range(_MAX_LAYERS):
            native, diffusers = f"{prefix}transformer.resblocks.{i}", f"text_model.encoder.layers.{i}"
            pairs += [(f"{native}.{inner}", f"{diffusers}.{leaf}") for inner, leaf in _BLOCK.items()]
        pairs += [
            (f"{prefix}token_embedding", "text_model.embeddings.token_embedding"),
            (f"{prefix}ln_final", "text_model.final_layer_norm"),
        ]
    return tuple(Alias(component, native, diffusers) for native, diffusers in pairs)
