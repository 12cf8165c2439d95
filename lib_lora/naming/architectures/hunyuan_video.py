"""HunyuanVideo and FramePack: 20 double and 40 single blocks of Flux's kind, 3072 wide; Llama 3 and CLIP-L.

Tencent's own tree, ComfyUI's and diffusers', see `_hunyuan_blocks.py`. FramePack is diffusers' in all programs.
"""

from ._clip import CLIP_ALIASES
from ._flux_blocks import FLUX_SIGNS, MODULATION_SIGN, OTHERS, double_blocks
from ._hunyuan_blocks import HUNYUAN_BLOCKS, embedders
from ._llm import LLM_ALIASES
from .base import Architecture, Variant, layers, named

LATE_BLOCK_SIGNS = (
    layers(r"double_blocks_19_(img|txt)_.*:(3072|12288)$"),
    layers(r"transformer_blocks_19_(ff|norm1)_context_.*:(3072|12288)$"),
    layers(r"single_(transformer_)?blocks_(38|39)_.*:(3072|15360)$"),
)
"""Flux's blocks, but more of them, as Motif-Video has."""

HUNYUAN_VIDEO = Architecture(
    name="hunyuan_video",
    title="HunyuanVideo",
    before=("motif_video",),
    image_first=("HunyuanVideoTransformer3DModel", "HunyuanVideoFramepackTransformer3DModel"),
    signs=(
        *FLUX_SIGNS,
        MODULATION_SIGN,
        layers(r"double_blocks_\d+_(img|txt)_(mlp_fc1|mod_linear):3072$"),
        layers(r"single_blocks_\d+_modulation_linear:3072$"),
        layers(r"(txt_in_individual_|context_embedder_)token_refiner_.*:3072$"),
        *LATE_BLOCK_SIGNS,
        named("hunyuan[_-]video(?![_-]1[._]5)|framepack"),
    ),
    never=OTHERS,
    inputs=("x_embedder.proj",),
    variants=(
        Variant("HunyuanVideo for text to video", inputs=16),
        Variant("HunyuanVideo for image to video", inputs=33),
    ),
    names={
        "single_blocks.{}.modulation.linear": "single_transformer_blocks.{}.norm.linear",
        "single_blocks.{}.modulation.lin": "single_transformer_blocks.{}.norm.linear",
        "single_blocks.{}.q_norm": "single_transformer_blocks.{}.attn.norm_q",
        "single_blocks.{}.k_norm": "single_transformer_blocks.{}.attn.norm_k",
    },
    aliases=(
        *HUNYUAN_BLOCKS,
        *double_blocks(
            {
                "img_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
                "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
            }
        ),
        *embedders(
            {
                "time_in": "time_text_embed.timestep_embedder",
                "vector_in": "time_text_embed.text_embedder",
                "guidance_in": "time_text_embed.guidance_embedder",
            }
        ),
        *CLIP_ALIASES,
        *LLM_ALIASES,
    ),
)
