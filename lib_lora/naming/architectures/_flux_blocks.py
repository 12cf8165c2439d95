"""Blocks of Flux.1's own code against diffusers' names; Chroma and others were made of them.

Source: black-forest-labs/flux src/flux/model.py and modules/layers.py against diffusers' FluxTransformer2DModel.
"""

from __future__ import annotations

from ...files.components import DENOISER
from .base import Alias, Names, Sign, aliases, layers, within

_DOUBLE: Names = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn.norm.query_norm": "attn.norm_q",
    "img_attn.norm.key_norm": "attn.norm_k",
    "img_attn.proj": "attn.to_out.0",
    "img_mlp.0": "ff.net.0.proj",
    "img_mlp.2": "ff.net.2",
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn.norm.query_norm": "attn.norm_added_q",
    "txt_attn.norm.key_norm": "attn.norm_added_k",
    "txt_attn.proj": "attn.to_add_out",
    "txt_mlp.0": "ff_context.net.0.proj",
    "txt_mlp.2": "ff_context.net.2",
}
_LINEAR1 = tuple(
    f"single_transformer_blocks.{{}}.{name}" for name in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")
)

FLUX_LIST = ("CLIP", "T5", "IN", *(f"D{i:02}" for i in range(19)), *(f"S{i:02}" for i in range(38)), "OUT")
"""The list of block weights of the block-weight extension: 61 names."""


def double_blocks(table: Names) -> tuple[Alias, ...]:
    """Aliases below `double_blocks.{}` and `transformer_blocks.{}`."""
    return aliases(DENOISER, within("double_blocks.{}", "transformer_blocks.{}", table))


FLUX_BLOCKS: tuple[Alias, ...] = (
    *double_blocks(_DOUBLE),
    Alias(DENOISER, "single_blocks.{}.linear1", _LINEAR1, sizes=("in", "in", "in", "rest")),
    # linear1 without its MLP, as XLabs trains it; the name is ComfyUI's
    Alias(DENOISER, "single_blocks.{}.linear1_qkv", _LINEAR1[:3]),
    Alias(DENOISER, "img_in.proj", ("x_embedder",)),  # OMI's name, beside the one below
    *aliases(
        DENOISER,
        {
            "single_blocks.{}.linear2": "single_transformer_blocks.{}.proj_out",
            "single_blocks.{}.norm.query_norm": "single_transformer_blocks.{}.attn.norm_q",
            "single_blocks.{}.norm.key_norm": "single_transformer_blocks.{}.attn.norm_k",
            "img_in": "x_embedder",
            "txt_in": "context_embedder",
            "final_layer.linear": "proj_out",
        },
    ),
)

SINGLE_ATTENTION_SIGN = layers(r"single_transformer_blocks_\d+_attn_to_(?:[qkv]|qkv):3072$")
"""What AuraFlow has as well."""
JOINT_ATTENTION_SIGN = layers(r"transformer_blocks_\d+_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):3072$", 1)
"""What Qwen-Image has as well."""
NATIVE_SIGNS = (
    layers(r"double_blocks_\d+_(img|txt)_(attn_qkv|attn_proj|mlp_0):3072$"),
    layers(r"single_blocks_\d+_linear1:3072$"),
    # OFT and others that do not tell how wide their layers are
    layers(r"double_blocks_\d+_(img|txt)_attn_(qkv|proj):\?$", 1),
)
"""What FLUX.2 Klein 4B has as well, in names of Flux's own code."""
FLUX_SIGNS: tuple[Sign, ...] = (
    *NATIVE_SIGNS,
    SINGLE_ATTENTION_SIGN,
    JOINT_ATTENTION_SIGN,
    layers(r"single_transformer_blocks_\d+_proj_mlp:3072$"),
    layers(r"single_(blocks_\d+_linear2|transformer_blocks_\d+_proj_out):15360$", 2),
    layers(r"(double_blocks_\d+_(img|txt)_mlp_2|transformer_blocks_\d+_ff_context_net_2):12288$", 1),
    layers(r"transformer_blocks_\d+_ff_context_net_0_proj:3072$", 2),
)
"""What FLUX.1, Chroma and HunyuanVideo have alike, in all names: their blocks, by their width."""
FLUX_DIFFUSERS_SIGNS = FLUX_SIGNS[len(NATIVE_SIGNS) :]
"""What BRIA 3.2, FIBO, Ovis-Image and Motif-Video have as well, in diffusers' names."""
OTHERS = layers(
    r"(time_embed_|timestep_embedder_|caption_projection_|context_embedder:3584$"
    r"|context_embedder_linear_[12]:|transformer_blocks_\d+_attn1_|double_blocks_\d+_attn_(img|txt)_attn_"
    r"|(txt_)?mode_blocks_|early_stream_modulations_|double_blocks_\d+_(img|txt)_mlp_net_|x_embedders_)"
)
"""What Mochi, LongCat-Image, BRIA 3.2 and FIBO, Ovis-Image, Motif, JoyImage-Edit and FLUX.3 have beside such blocks.

Source: diffusers models/transformers. A file of LoRA on attention alone tells nothing between these and FLUX.1.
"""
MODULATION_SIGN = layers(
    r"(double_blocks_\d+_(img|txt)_mod_lin|single_blocks_\d+_modulation_lin"
    r"|transformer_blocks_\d+_norm1(_context)?_linear|single_transformer_blocks_\d+_norm_linear):3072$"
)
"""What of these only Chroma has not."""
T5_INPUT_SIGN = layers(r"(txt_in|context_embedder):4096$", 2)
"""What of these only HunyuanVideo has not, and Stable Diffusion 3 has as well: one layer between T5 and the blocks."""
