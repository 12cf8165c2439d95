"""What HunyuanVideo and HunyuanVideo 1.5 have in common: the double blocks but for their attention, and the refiner.

Sources: Tencent/HunyuanVideo hyvideo/modules/models.py and token_refiner.py against diffusers'
HunyuanVideoTransformer3DModel; Comfy-Org/ComfyUI comfy/ldm/hunyuan_video/model.py, which has Flux's own blocks under
the same names as Flux and a refiner named alike. OMI's `fc0`: Nerogar/OneTrainer up to de1437cb,
modules/util/convert/lora/convert_hunyuan_video_lora.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...files.components import DENOISER
from ._flux_blocks import FLUX_BLOCKS, double_blocks
from .base import Alias, Names, aliases, within

_REFINER = "txt_in.individual_token_refiner.blocks.{}"
_OWN_REFINER = "context_embedder.token_refiner.refiner_blocks.{}"
_DOUBLE: Names = {
    "img_mod.linear": "norm1.linear",
    "img_attn_q_norm": "attn.norm_q",
    "img_attn_k_norm": "attn.norm_k",
    "img_attn_proj": "attn.to_out.0",
    "img_mlp.fc1": "ff.net.0.proj",
    "img_mlp.fc0": "ff.net.0.proj",  # OMI
    "img_mlp.fc2": "ff.net.2",
    "txt_mod.linear": "norm1_context.linear",
    "txt_attn_q_norm": "attn.norm_added_q",
    "txt_attn_k_norm": "attn.norm_added_k",
    "txt_attn_proj": "attn.to_add_out",
    "txt_mlp.fc1": "ff_context.net.0.proj",
    "txt_mlp.fc0": "ff_context.net.0.proj",  # OMI
    "txt_mlp.fc2": "ff_context.net.2",
}
_REFINER_BLOCK: Names = {
    "self_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "self_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),  # ComfyUI
    "self_attn_proj": "attn.to_out.0",
    "self_attn.proj": "attn.to_out.0",
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc0": "ff.net.0.proj",  # OMI
    "mlp.0": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
    "mlp.2": "ff.net.2",
    "adaLN_modulation.1": "norm_out.linear",
}
_EMBEDDERS = {
    "txt_in.t_embedder": "context_embedder.time_text_embed.timestep_embedder",
    "txt_in.c_embedder": "context_embedder.time_text_embed.text_embedder",
}
_LINEARS = {  # of an embedder, however Tencent's and ComfyUI's trees call them
    **dict.fromkeys(("mlp.0", "in_layer", "linear_1"), "linear_1"),
    **dict.fromkeys(("mlp.2", "out_layer", "linear_2"), "linear_2"),
}

HUNYUAN_BLOCKS: tuple[Alias, ...] = (
    *FLUX_BLOCKS,
    *double_blocks(_DOUBLE),
    *double_blocks({"img_mod.lin": "norm1.linear", "txt_mod.lin": "norm1_context.linear"}),
    *aliases(DENOISER, within(_REFINER, _OWN_REFINER, _REFINER_BLOCK)),
    *aliases(DENOISER, {"txt_in.input_embedder": "context_embedder.proj_in"}),
    Alias(DENOISER, "final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True),  # shift and scale
)


def embedders(names: Mapping[str, str]) -> tuple[Alias, ...]:
    """Aliases of the two linear layers of each of these embedders."""
    return tuple(
        Alias(DENOISER, f"{native}.{linear}", f"{own}.{own_linear}")
        for native, own in {**_EMBEDDERS, **names}.items()
        for linear, own_linear in _LINEARS.items()
    )
