"""PixArt alpha and sigma: 28 blocks, 1152 wide; T5-XXL.

Source: PixArt-alpha/PixArt-sigma diffusion/model/nets/PixArtMS.py and PixArt_blocks.py against diffusers'
PixArtTransformer2DModel, as huggingface/diffusers scripts/convert_pixart_sigma_to_diffusers.py has it.
"""

from __future__ import annotations

from ...files.components import DENOISER
from ._t5 import CAPTION_SIGN, T5_ALIASES
from .base import Architecture, Sign, aliases, named

_BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": "attn1.to_out.0",
    "cross_attn.q_linear": "attn2.to_q",
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
    "cross_attn.proj": "attn2.to_out.0",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
}
_EMBEDDERS = {"t": "timestep", "csize": "resolution", "ar": "aspect_ratio"}
_OWN = "transformer_blocks.{}."

PIXART = Architecture(
    name="pixart",
    title="PixArt",
    flow=False,
    signs=(
        # Sana has attention of this width, too, but no such feed-forward
        Sign(
            r"^(denoiser|\?):(transformer_blocks_\d+_attn[12]_to_([qkv]|out_0)"
            r"|blocks_\d+_(attn_(qkv|proj)|cross_attn_(q_linear|kv_linear|proj))):1152$",
            weight=1,
        ),
        Sign(r"^(denoiser|\?):(transformer_blocks_\d+_ff_net_0_proj|blocks_\d+_mlp_fc1):1152$"),
        CAPTION_SIGN,
        named("pixart"),
    ),
    # what DiT, Stable Diffusion 3 and its kin have beside layers of this width
    never=Sign(r"^(denoiser|\?):transformer_blocks_\d+_(attn_(to|add)_|ff_context_|norm1_(context|emb)_)"),
    aliases=(
        *aliases(
            DENOISER,
            {
                f"blocks.{{}}.{native}": _OWN + own if isinstance(own, str) else tuple(_OWN + part for part in own)
                for native, own in _BLOCK.items()
            },
        ),
        *aliases(
            DENOISER,
            {
                f"{native}_embedder.mlp.{linear}": f"adaln_single.emb.{own}_embedder.linear_{1 + linear // 2}"
                for native, own in _EMBEDDERS.items()
                for linear in (0, 2)
            },
        ),
        *aliases(
            DENOISER,
            {
                "x_embedder.proj": "pos_embed.proj",
                "y_embedder.y_proj.fc1": "caption_projection.linear_1",
                "y_embedder.y_proj.fc2": "caption_projection.linear_2",
                "t_block.1": "adaln_single.linear",
                "final_layer.linear": "proj_out",
            },
        ),
        *T5_ALIASES,
    ),
)
