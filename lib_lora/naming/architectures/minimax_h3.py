"""MiniMax-H3 (video with sound): 50 blocks, 5376 wide, whose attention is 7168 wide; Qwen 3 VL.

Source: diffusers' MiniMaxH3Transformer3DModel and `convert_minimax_h3_transformer_checkpoint_to_diffusers`. ai-toolkit,
musubi-tuner and ComfyUI have the names of its own code, and the rows of queries, keys and values one after another.
DiffSynth-Studio has these rows by turns, head by head, see files/formats/peft.py.
"""

from ...files.components import DENOISER
from .base import Alias, Architecture, Names, layers, linears, named, within

_BLOCK: Names = {
    "attn.qkv_proj": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "attn.out_proj": "attn.to_out.0",
    "attn.q_norm": "attn.norm_q",
    "attn.k_norm": "attn.norm_k",
    "mlp.fc2": "ff.net.2",
    "norm1": "norm1",
    "norm2": "norm2",
    "adaln_proj.linear": "adaln_proj.linear",
}
_QKV = tuple(f"transformer_blocks.{{}}.attn.to_{part}" for part in "qkv")
_REFINER_QKV = tuple(f"token_refiner.refiner_blocks.{{}}.attn.to_{part}" for part in "qkv")

MINIMAX_H3 = Architecture(
    name="minimax_h3",
    title="MiniMax-H3",
    basis=("time_embedder.basis", r"(.+\.)?adaln_proj\.linear|norm_out\.linear"),  # vladmandic/sdnext has it so
    signs=(
        layers(
            r"(transformer_blocks|token_refiner_refiner_blocks)_\d+_"
            r"(attn_to_[qkv]:5376|attn_to_out_0:7168|ff_net_0_proj:5376|ff_net_2:14336|adaln_proj_linear:2688)$"
        ),
        layers(
            r"(token_refiner_)?blocks_\d+_"
            r"(attn_qkv_proj(_by_head)?:5376|attn_out_proj:7168|mlp_fc1:5376|mlp_fc2:14336|adaln_proj_linear:2688)$"
        ),
        named("minimax[_-]?h3"),
    ),
    names={
        **within("blocks.{}", "transformer_blocks.{}", _BLOCK),
        **within("token_refiner.blocks.{}", "token_refiner.refiner_blocks.{}", _BLOCK),
        **linears("time_embedder", "time_embedder", ("proj_in", "proj_out")),
        "video_patch_proj": "proj_in",
        "audio_patch_proj": "audio_proj_in",
        "condition_proj": "context_embedder",
        "final_layer.norm": "norm_out.norm",
        "final_layer.adaln_proj.linear": "norm_out.linear",
        "final_layer.video_out": "proj_out",
        "final_layer.audio_out": "audio_proj_out",
    },
    swapped={  # the gate is first or last
        "blocks.{}.mlp.fc1": "transformer_blocks.{}.ff.net.0.proj",
        "token_refiner.blocks.{}.mlp.fc1": "token_refiner.refiner_blocks.{}.ff.net.0.proj",
    },
    aliases=(
        Alias(DENOISER, "blocks.{}.attn.qkv_proj_by_head", _QKV, head=128),
        Alias(DENOISER, "token_refiner.blocks.{}.attn.qkv_proj_by_head", _REFINER_QKV, head=128),
    ),
)
