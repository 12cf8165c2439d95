"""Text encoders under all their names. They are layers of text encoders alone, so a model of any family has them.

CLIP: adapters are named after transformers' nested tree up to 5.5, `text_model.encoder.layers.0.self_attn.q_proj`.
From 5.6 on CLIPTextModel has no `text_model` level any more; CLIPTextModelWithProjection kept it. Sources:
transformers models/clip/modeling_clip.py; mlfoundations/open_clip src/open_clip/transformer.py.

T5: adapters are named after transformers' `T5EncoderModel`. Its table of words is `shared`, and the same module as
`encoder.embed_tokens`, which is all that A1111 has. Sources: transformers models/t5/modeling_t5.py;
modules/models/sd3/other_impls.py of A1111, `T5XXLModel`; for UMT5 Wan-Video/Wan2.1 wan/modules/t5.py against
transformers' UMT5EncoderModel.

Llama, Gemma, Qwen and their kin: transformers has the layers of one language model under several names. The bare model
has none above them (`layers`), one with a head calls it `model`; where there is vision too, it was
`language_model.model` or `model` up to 4.51 and is `model.language_model` since. Checkpoints and ComfyUI have kept
`model.layers` throughout; kohya's scripts flatten the bare model's names. Sources: transformers
models/{llama,gemma2,qwen3,qwen2_5_vl,llava}/modeling_*.py; Comfy-Org/ComfyUI comfy/text_encoders/llama.py.
"""

from ...files.components import TEXT_ENCODER
from .base import Names, Sign, aliases, layers, within

_CLIP = ("encoder", "embeddings", "final_layer_norm")
_CLIP_LAYER = "text_model.encoder.layers.{}"
# as in diffusers 0.16, see huggingface/diffusers utils/state_dict_utils.py, `DIFFUSERS_OLD_TO_DIFFUSERS`
_OLD_ATTENTION = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out.0": "out_proj"}
_OPEN_CLIP_BLOCK = {
    "attn": "self_attn",  # nn.MultiheadAttention: q, k and v are windows of its in_proj_weight, see places.py
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_OPEN_CLIP: Names = {
    **within("transformer.resblocks.{}", _CLIP_LAYER, _OPEN_CLIP_BLOCK),
    "token_embedding": "text_model.embeddings.token_embedding",
    "ln_final": "text_model.final_layer_norm",
}
_UMT5_BLOCK = {
    **{f"attn.{part}": f"layer.0.SelfAttention.{part}" for part in "qkvo"},
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "norm1": "layer.0.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
    "norm2": "layer.1.layer_norm",
}
_LANGUAGE_MODELS = ("model", "language_model", "model.language_model", "language_model.model")
_NAMES: Names = {
    # transformers' CLIP, alone or inside ldm's FrozenCLIPEmbedder (`transformer.`)
    **{f"{above}{part}": f"text_model.{part}" for above in ("", "transformer.") for part in _CLIP},
    "transformer.text_model": "text_model",
    **within(f"{_CLIP_LAYER}.self_attn", f"{_CLIP_LAYER}.self_attn", _OLD_ATTENTION),
    # T5 inside the wrapper of A1111, Forge and ComfyUI
    **{f"transformer.{part}": part for part in ("encoder.block", "encoder.final_layer_norm", "shared")},
    "encoder.embed_tokens": "shared",
    # UMT5 as Wan has it; all other T5 have transformers' names
    **within("blocks.{}", "encoder.block.{}", _UMT5_BLOCK),
    "token_embedding": "shared",
    "norm": "encoder.final_layer_norm",
    **{f"{above}.{part}": part for above in _LANGUAGE_MODELS for part in ("layers", "embed_tokens", "norm")},
    "language_model.lm_head": "lm_head",
    "model.visual": "visual",
    # HunyuanDiT's BERT
    **{f"bert.{part}": part for part in ("encoder", "embeddings")},
}
ENCODER_ALIASES = (
    *aliases(TEXT_ENCODER, _NAMES),
    *aliases(TEXT_ENCODER, _OPEN_CLIP),
    # inside ldm's FrozenOpenCLIPEmbedder
    *aliases(TEXT_ENCODER, {f"model.{native}": own for native, own in _OPEN_CLIP.items()}),
)

BIG_G_SIGN = Sign(r"^text_encoder_2:.*:1280$", weight=2)
"""Of OpenCLIP bigG/14 as the second text encoder, which several families have."""
CAPTION_SIGN = layers(r"caption_projection_linear_1:4096$", 2)
"""Of a transformer that projects what T5-XXL says by two layers of diffusers' kind (LTX-Video, PixArt)."""
