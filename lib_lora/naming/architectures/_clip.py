"""CLIP text encoders under their names: transformers' nested and flattened trees, ldm's wrapper, and OpenCLIP.

Adapters are named after the nested tree of transformers up to 5.5, `text_model.encoder.layers.0.self_attn.q_proj`.
From 5.6 on CLIPTextModel has no `text_model` level any more; CLIPTextModelWithProjection kept it.
Sources: transformers models/clip/modeling_clip.py; mlfoundations/open_clip src/open_clip/transformer.py.
"""

from ...files.components import TEXT_ENCODER
from .base import Sign, aliases

_BLOCK = {
    "attn": "self_attn",  # nn.MultiheadAttention: q, k and v are windows of its in_proj_weight, see layer.py
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_PROJECTIONS = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out.0": "out_proj"}
_PARTS = ("encoder", "embeddings", "final_layer_norm")

CLIP_ALIASES = aliases(
    TEXT_ENCODER,
    {
        **{part: f"text_model.{part}" for part in _PARTS},
        **{f"transformer.{part}": f"text_model.{part}" for part in _PARTS},
        "transformer.text_model": "text_model",
        **{
            f"text_model.encoder.layers.{{}}.self_attn.{old}": f"text_model.encoder.layers.{{}}.self_attn.{leaf}"
            for old, leaf in _PROJECTIONS.items()
        },
    },
)
"""transformers' trees, alone or inside ldm's FrozenCLIPEmbedder (`transformer.`).

Attention is also called as in diffusers' models: that is how diffusers 0.16 named it in LoRA files, see
huggingface/diffusers utils/state_dict_utils.py, `DIFFUSERS_OLD_TO_DIFFUSERS`.
"""

OPEN_CLIP_ALIASES = tuple(
    alias
    for prefix in ("", "model.")
    for alias in aliases(
        TEXT_ENCODER,
        {
            **{
                f"{prefix}transformer.resblocks.{{}}.{inner}": f"text_model.encoder.layers.{{}}.{leaf}"
                for inner, leaf in _BLOCK.items()
            },
            f"{prefix}token_embedding": "text_model.embeddings.token_embedding",
            f"{prefix}ln_final": "text_model.final_layer_norm",
        },
    )
)
"""OpenCLIP's text tower, alone or inside ldm's FrozenOpenCLIPEmbedder (`model.`)."""

BIG_G_SIGN = Sign(r"^text_encoder_2:.*:1280$", weight=2)
"""Of OpenCLIP bigG/14 as the second text encoder, which several families have."""
