"""Qwen-Image, Edit and Layered: 60 double blocks, 3072 wide, Qwen2.5-VL. Its own code, ComfyUI's and diffusers' agree.

Source: diffusers' QwenImageTransformer2DModel; Comfy-Org/ComfyUI comfy/ldm/qwen_image/model.py.
"""

from ._flux_blocks import JOINT_ATTENTION_SIGN
from ._llm import LLM_ALIASES
from .base import Architecture, Sign, layers, named

QWEN_IMAGE = Architecture(
    name="qwen_image",
    title="Qwen-Image",
    before=("flux",),  # a file of nothing but layers that both have leaves out the most of Flux
    signs=(
        layers(r"transformer_blocks_\d+_(img|txt)_(mlp_net_|mod_1:3072$)", 6),
        # FLUX.1 and HunyuanVideo call their double blocks so, too, but have 19 or 20 of them
        layers(r"transformer_blocks_[2-5]\d_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):3072$"),
        JOINT_ATTENTION_SIGN,
        # Qwen2.5-VL 7B
        Sign(
            r"^text_encoder[^:]*:(model_)?(language_model_)?layers_\d+_(self_attn_[qkv]_proj|mlp_(gate|up)_proj):3584$",
            weight=1,
        ),
        named(r"qwen[_-]image(?![_-]?2[._]1)"),
    ),
    never=layers(r"transformer_blocks_\d+_(encoder_proj|img_mlp_(shared_)?expert)"),  # Nucleus-Image's
    aliases=LLM_ALIASES,
)
