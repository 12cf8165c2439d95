"""Lens: 48 double blocks, 1536 wide, with the text features of GPT-OSS.

All programs have the names of microsoft/Lens. Sources: vladmandic/sdnext pipelines/lens/transformer.py;
comfyanonymous/ComfyUI comfy/ldm/lens/model.py; huggingface/diffusers pull request 13837.
"""

from .base import Architecture, layers, named

LENS = Architecture(
    name="lens",
    title="Lens",
    signs=(
        layers(r"transformer_blocks_\d+_attn_(img|txt)_qkv:1536$", 6),
        layers(r"transformer_blocks_\d+_(img|txt)_(mlp_w([13]:1536|2:4096)|mod_1:1536)$"),
        layers(r"transformer_blocks_\d+_attn_to_add_out:1536$", 4),  # Stable Diffusion 3's, too
        layers(r"txt_in:11520$"),  # four layers of 2880
        named("lens(?![a-z])"),
    ),
    inputs=("img_in",),
)
