"""PixArt alpha and sigma: 28 blocks, 1152 wide; T5-XXL.

Source: PixArt-alpha/PixArt-sigma diffusion/model/nets/PixArtMS.py and PixArt_blocks.py against diffusers'
PixArtTransformer2DModel, as huggingface/diffusers scripts/convert_pixart_sigma_to_diffusers.py has it.
"""

from ._encoders import CAPTION_SIGN
from .base import Architecture, Names, layers, linears, named, within

_BLOCK: Names = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": "attn1.to_out.0",
    "cross_attn.q_linear": "attn2.to_q",
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
    "cross_attn.proj": "attn2.to_out.0",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
}

PIXART = Architecture(
    name="pixart",
    title="PixArt",
    flow=False,
    signs=(
        # Sana has attention of this width, too, but no such feed-forward
        layers(
            r"(transformer_blocks_\d+_attn[12]_to_([qkv]|out_0)"
            r"|blocks_\d+_(attn_(qkv|proj)|cross_attn_(q_linear|kv_linear|proj))):1152$",
            1,
        ),
        layers(r"(transformer_blocks_\d+_ff_net_0_proj|blocks_\d+_mlp_fc1):1152$"),
        CAPTION_SIGN,
        named("pixart"),
    ),
    # what DiT, Stable Diffusion 3 and its kin have beside layers of this width
    never=layers(r"transformer_blocks_\d+_(attn_(to|add)_|ff_context_|norm1_(context|emb)_)"),
    names={
        **within("blocks.{}", "transformer_blocks.{}", _BLOCK),
        **linears("t_embedder.mlp", "adaln_single.emb.timestep_embedder"),
        **linears("csize_embedder.mlp", "adaln_single.emb.resolution_embedder"),
        **linears("ar_embedder.mlp", "adaln_single.emb.aspect_ratio_embedder"),
        "x_embedder.proj": "pos_embed.proj",
        **linears("y_embedder.y_proj", "caption_projection", ("fc1", "fc2")),
        "t_block.1": "adaln_single.linear",
        "final_layer.linear": "proj_out",
    },
)
