"""HunyuanVideo and FramePack: 20 double and 40 single blocks of Flux's kind, 3072 wide; Llama 3 and CLIP-L.

Sources: Tencent/HunyuanVideo hyvideo/modules/models.py and token_refiner.py against diffusers'
HunyuanVideoTransformer3DModel; Comfy-Org/ComfyUI comfy/ldm/hunyuan_video/model.py, which has Flux's own blocks under
the same names as Flux and a refiner named alike. FramePack is diffusers' tree in all programs.
"""

from __future__ import annotations

from ..components import DENOISER
from ._clip import CLIP_ALIASES
from ._flux_blocks import FLUX_BLOCKS, below, double_blocks
from ._llm import LLM_ALIASES
from .base import Alias, Architecture, Sign, aliases

_REFINER = "txt_in.individual_token_refiner.blocks.{}"
_OWN_REFINER = "context_embedder.token_refiner.refiner_blocks.{}"
_DOUBLE: dict[str, str | tuple[str, ...]] = {
    "img_mod.linear": "norm1.linear",
    "img_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn_q_norm": "attn.norm_q",
    "img_attn_k_norm": "attn.norm_k",
    "img_attn_proj": "attn.to_out.0",
    "img_mlp.fc1": "ff.net.0.proj",
    "img_mlp.fc2": "ff.net.2",
    "txt_mod.linear": "norm1_context.linear",
    "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn_q_norm": "attn.norm_added_q",
    "txt_attn_k_norm": "attn.norm_added_k",
    "txt_attn_proj": "attn.to_add_out",
    "txt_mlp.fc1": "ff_context.net.0.proj",
    "txt_mlp.fc2": "ff_context.net.2",
}
_REFINER_BLOCK: dict[str, str | tuple[str, ...]] = {
    "self_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "self_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),  # ComfyUI
    "self_attn_proj": "attn.to_out.0",
    "self_attn.proj": "attn.to_out.0",
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.0": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
    "mlp.2": "ff.net.2",
    "adaLN_modulation.1": "norm_out.linear",
}
_EMBEDDERS = {
    "txt_in.t_embedder": "context_embedder.time_text_embed.timestep_embedder",
    "txt_in.c_embedder": "context_embedder.time_text_embed.text_embedder",
    "time_in": "time_text_embed.timestep_embedder",
    "vector_in": "time_text_embed.text_embedder",
    "guidance_in": "time_text_embed.guidance_embedder",
}
_LINEARS = {  # of an embedder, however Tencent's and ComfyUI's trees call them
    **dict.fromkeys(("mlp.0", "in_layer", "linear_1"), "linear_1"),
    **dict.fromkeys(("mlp.2", "out_layer", "linear_2"), "linear_2"),
}

HUNYUAN_VIDEO = Architecture(
    name="hunyuan_video",
    title="HunyuanVideo",
    signs=(
        Sign(r"^(denoiser|\?):double_blocks_\d+_(img|txt)_(mlp_fc1|mod_linear):3072$", weight=10),
        Sign(r"^(denoiser|\?):single_blocks_\d+_modulation_linear:3072$", weight=10),
        Sign(r"^(denoiser|\?):(txt_in_individual_|context_embedder_)token_refiner_.*:3072$", weight=10),
        # Flux's blocks, but more of them
        Sign(r"^(denoiser|\?):(double_blocks|transformer_blocks)_19_(img_|txt_|attn_|ff_|norm1_).*:(3072|12288)$"),
        Sign(r"^(denoiser|\?):single_(transformer_)?blocks_(38|39)_.*:(3072|15360)$", weight=20),
        Sign(
            r"^meta:(ss_base_model_version:(hunyuan[-_]?video$|framepack)"
            r"|modelspec_architecture:(hunyuan-video(?!-1\.5)|framepack))",
            weight=10,
        ),
    ),
    aliases=(
        *FLUX_BLOCKS,
        *double_blocks(_DOUBLE),
        *double_blocks({"img_mod.lin": "norm1.linear", "txt_mod.lin": "norm1_context.linear"}),
        *(
            Alias(DENOISER, f"{_REFINER}.{native}", below(_OWN_REFINER, diffusers))
            for native, diffusers in _REFINER_BLOCK.items()
        ),
        *(
            Alias(DENOISER, f"{native}.{linear}", f"{own}.{own_linear}")
            for native, own in _EMBEDDERS.items()
            for linear, own_linear in _LINEARS.items()
        ),
        *aliases(
            DENOISER,
            {
                "single_blocks.{}.modulation.linear": "single_transformer_blocks.{}.norm.linear",
                "single_blocks.{}.modulation.lin": "single_transformer_blocks.{}.norm.linear",
                "single_blocks.{}.q_norm": "single_transformer_blocks.{}.attn.norm_q",
                "single_blocks.{}.k_norm": "single_transformer_blocks.{}.attn.norm_k",
                "txt_in.input_embedder": "context_embedder.proj_in",
            },
        ),
        Alias(DENOISER, "final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True),  # shift and scale
        *CLIP_ALIASES,
        *LLM_ALIASES,
    ),
)
