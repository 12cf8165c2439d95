"""T5 text encoders: transformers' tree, alone or inside the wrapper of A1111, Forge and ComfyUI.

Adapters are named after transformers' `T5EncoderModel`: `encoder.block.0.layer.0.SelfAttention.q`. Its table of words
is `shared`, and the same module as `encoder.embed_tokens`, which is all that A1111 has.
Sources: transformers models/t5/modeling_t5.py; modules/models/sd3/other_impls.py of A1111, `T5XXLModel`.
"""

from ...files.components import TEXT_ENCODER
from .base import aliases, layers

T5_ALIASES = aliases(
    TEXT_ENCODER,
    {
        "transformer.encoder.block": "encoder.block",
        "transformer.encoder.final_layer_norm": "encoder.final_layer_norm",
        "transformer.shared": "shared",
        "encoder.embed_tokens": "shared",
    },
)

CAPTION_SIGN = layers(r"caption_projection_linear_1:4096$", 2)
"""Of a transformer that projects what T5-XXL says by two layers of diffusers' kind (LTX-Video, PixArt)."""
