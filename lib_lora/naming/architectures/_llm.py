"""Language models as text encoders: Llama, Gemma, Qwen and their kin, and T5.

transformers has the layers of one language model under several names. The bare model has none above them (`layers`),
one with a head calls it `model`; where there is vision too, it was `language_model.model` or `model` up to 4.51 and is
`model.language_model` since. Checkpoints and ComfyUI have kept `model.layers` throughout; kohya's scripts flatten the
bare model's names. What lies below is the same for all of them.

Sources: transformers models/{llama,gemma2,qwen3,qwen2_5_vl,llava}/modeling_*.py; Comfy-Org/ComfyUI
comfy/text_encoders/llama.py. For UMT5 Wan-Video/Wan2.1 wan/modules/t5.py against transformers' UMT5EncoderModel.
"""

from ...files.components import TEXT_ENCODER
from .base import aliases

_PARTS = ("layers", "embed_tokens", "norm")
_ABOVE = ("model", "language_model", "model.language_model", "language_model.model")

LLM_ALIASES = aliases(
    TEXT_ENCODER,
    {
        **{f"{above}.{part}": part for above in _ABOVE for part in _PARTS},
        "language_model.lm_head": "lm_head",
        "model.visual": "visual",
    },
)
"""Llama, Gemma 2, Qwen 2.5 VL, Qwen 3 and others built like them."""

_T5_BLOCK = {
    **{f"attn.{part}": f"layer.0.SelfAttention.{part}" for part in "qkvo"},
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "norm1": "layer.0.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
    "norm2": "layer.1.layer_norm",
}

UMT5_ALIASES = aliases(
    TEXT_ENCODER,
    {
        **{f"blocks.{{}}.{native}": f"encoder.block.{{}}.{own}" for native, own in _T5_BLOCK.items()},
        "token_embedding": "shared",
        "norm": "encoder.final_layer_norm",
    },
)
"""UMT5 as Wan has it. All other T5 have transformers' names, in ComfyUI and Forge as well."""
