"""PixArt alpha and sigma (28 blocks, 1152 wide; T5-XXL), and Sana and Sana-Video, 2240 or 1152 wide, with linear
attention and a feed-forward of convolutions in such blocks (Gemma 2).

Sources: PixArt-alpha/PixArt-sigma diffusion/model/nets/PixArtMS.py and PixArt_blocks.py against diffusers'
PixArtTransformer2DModel, as huggingface/diffusers scripts/convert_pixart_sigma_to_diffusers.py has it; NVlabs/Sana
diffusion/model/nets/sana_multi_scale.py and sana_blocks.py against SanaTransformer2DModel, as
`convert_sana_transformer_to_diffusers` has it. SanaVideoTransformer3DModel has one more convolution, over time.
"""

from ._encoders import CAPTION_SIGN
from .base import Architecture, Names, Variant, layers, linears, named, within

_ATTENTIONS: Names = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": "attn1.to_out.0",
    "cross_attn.q_linear": "attn2.to_q",
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
    "cross_attn.proj": "attn2.to_out.0",
}
_PIXART: Names = {**_ATTENTIONS, "mlp.fc1": "ff.net.0.proj", "mlp.fc2": "ff.net.2"}
_SANA: Names = {
    **_ATTENTIONS,
    **{f"attn.{part}_norm": f"attn1.norm_{part}" for part in "qk"},
    **{f"cross_attn.{part}_norm": f"attn2.norm_{part}" for part in "qk"},
    **{f"mlp.{one}_conv.conv": f"ff.conv_{one}" for one in ("inverted", "depth", "point")},
    "mlp.t_conv": "ff.conv_temp",
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
        **within("blocks.{}", "transformer_blocks.{}", _PIXART),
        **linears("t_embedder.mlp", "adaln_single.emb.timestep_embedder"),
        **linears("csize_embedder.mlp", "adaln_single.emb.resolution_embedder"),
        **linears("ar_embedder.mlp", "adaln_single.emb.aspect_ratio_embedder"),
        "x_embedder.proj": "pos_embed.proj",
        **linears("y_embedder.y_proj", "caption_projection", ("fc1", "fc2")),
        "t_block.1": "adaln_single.linear",
        "final_layer.linear": "proj_out",
    },
)
SANA = Architecture(
    name="sana",
    title="Sana",
    signs=(
        layers(
            r"(transformer_blocks_\d+_ff_conv_(inverted|depth|point|temp)"
            r"|blocks_\d+_mlp_((inverted|depth|point)_conv_conv|t_conv)):",
            5,
        ),
        layers(
            r"(transformer_blocks_\d+_attn[12]_to_([qkv]|out_0)"
            r"|blocks_\d+_(attn_(qkv|proj)|cross_attn_(q_linear|kv_linear|proj))):2240$"
        ),
        named("sana"),
    ),
    variants=(Variant("Sana 0.6B", width=1152), Variant("Sana 1.6B or 4.8B", width=2240)),
    names={
        **within("blocks.{}", "transformer_blocks.{}", _SANA),
        "x_embedder.proj": "patch_embed.proj",
        **linears("t_embedder.mlp", "time_embed.emb.timestep_embedder"),
        "t_block.1": "time_embed.linear",
        **linears("y_embedder.y_proj", "caption_projection", ("fc1", "fc2")),
        "attention_y_norm": "caption_norm",
        "final_layer.linear": "proj_out",
    },
)
