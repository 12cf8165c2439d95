"""MiniMax-H3 (video with sound): 50 blocks, 5376 wide, whose attention is 7168 wide; Qwen 3 VL.

Source: diffusers' MiniMaxH3Transformer3DModel and `convert_minimax_h3_transformer_checkpoint_to_diffusers`. ai-toolkit,
musubi-tuner and ComfyUI have the names of its own code, and the rows of queries, keys and values one after another.
DiffSynth-Studio has these rows by turns, head by head, see files/formats/diffsynth.py.
"""

from __future__ import annotations

from ...files.components import DENOISER
from .base import Alias, Architecture, Sign, aliases, named

_BLOCKS = {"blocks.{}.": "transformer_blocks.{}.", "token_refiner.blocks.{}.": "token_refiner.refiner_blocks.{}."}

MINIMAX_H3 = Architecture(
    name="minimax_h3",
    title="MiniMax-H3",
    basis=("time_embedder.basis", r"(.+\.)?adaln_proj\.linear|norm_out\.linear"),  # vladmandic/sdnext has it so
    signs=(
        Sign(
            r"^(denoiser|\?):(transformer_blocks|token_refiner_refiner_blocks)_\d+_"
            r"(attn_to_[qkv]:5376|attn_to_out_0:7168|ff_net_0_proj:5376|ff_net_2:14336|adaln_proj_linear:2688)$"
        ),
        Sign(
            r"^(denoiser|\?):(token_refiner_)?blocks_\d+_"
            r"(attn_qkv_proj(_by_head)?:5376|attn_out_proj:7168|mlp_fc1:5376|mlp_fc2:14336|adaln_proj_linear:2688)$"
        ),
        named("minimax[_-]?h3"),
    ),
    aliases=(
        *(
            Alias(DENOISER, f"{native}attn.qkv_proj", tuple(f"{own}attn.to_{part}" for part in "qkv"))
            for native, own in _BLOCKS.items()
        ),
        *(
            Alias(DENOISER, f"{native}attn.qkv_proj_by_head", tuple(f"{own}attn.to_{part}" for part in "qkv"), head=128)
            for native, own in _BLOCKS.items()
        ),
        *(
            Alias(DENOISER, f"{native}mlp.fc1", f"{own}ff.net.0.proj", swapped=True)  # the gate is first or last
            for native, own in _BLOCKS.items()
        ),
        *aliases(
            DENOISER,
            {
                f"{native}{name}": f"{own}{theirs}"
                for native, own in _BLOCKS.items()
                for name, theirs in {
                    "attn.out_proj": "attn.to_out.0",
                    "attn.q_norm": "attn.norm_q",
                    "attn.k_norm": "attn.norm_k",
                    "mlp.fc2": "ff.net.2",
                    "norm1": "norm1",
                    "norm2": "norm2",
                    "adaln_proj.linear": "adaln_proj.linear",
                }.items()
            },
        ),
        *aliases(
            DENOISER,
            {
                "time_embedder.proj_in": "time_embedder.linear_1",
                "time_embedder.proj_out": "time_embedder.linear_2",
                "video_patch_proj": "proj_in",
                "audio_patch_proj": "audio_proj_in",
                "condition_proj": "context_embedder",
                "final_layer.norm": "norm_out.norm",
                "final_layer.adaln_proj.linear": "norm_out.linear",
                "final_layer.video_out": "proj_out",
                "final_layer.audio_out": "audio_proj_out",
            },
        ),
    ),
)
