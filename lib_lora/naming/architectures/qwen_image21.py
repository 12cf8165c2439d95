"""Qwen-Image 2.1: 32 blocks of one stream, 4096 wide, Qwen 3 VL.

ComfyUI's checkpoints have the first two layers of the MLP as one.

Source: diffusers' QwenImage21Transformer2DModel; for the layer of two vladmandic/sdnext pipelines/qwen/qwen21_lora.py.
"""

from .base import Architecture, layers, named

_MLP = "transformer_blocks.{}.img_mlp."

QWEN_IMAGE21 = Architecture(
    name="qwen_image21",
    title="Qwen-Image 2.1",
    signs=(
        layers(r"transformer_blocks_\d+_img_mlp_(gate_up|gate_layer|proj):4096$", 6),
        layers(r"transformer_blocks_\d+_img_mlp_out:12288$", 6),
        layers(r"txt_in_(in|out)_layer:4096$"),
        layers(r"transformer_blocks_\d+_attn_to_([qkv]|out_0):4096$", 1),  # as in FLUX.2 Klein
        named("qwen[_-]image[_-]?2[._]1"),
    ),
    names={f"{_MLP}gate_up": (f"{_MLP}gate_layer", f"{_MLP}proj")},
)
