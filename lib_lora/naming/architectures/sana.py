"""Sana and Sana-Video: linear attention and a feed-forward of convolutions, 2240 or 1152 wide; Gemma 2.

Source: NVlabs/Sana diffusion/model/nets/sana_multi_scale.py and sana_blocks.py against diffusers'
SanaTransformer2DModel, as `convert_sana_transformer_to_diffusers` has it. SanaVideoTransformer3DModel has one more
convolution, over time.
"""

from .base import Architecture, Names, Variant, layers, linears, named, within

_BLOCK: Names = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": "attn1.to_out.0",
    "attn.q_norm": "attn1.norm_q",
    "attn.k_norm": "attn1.norm_k",
    "cross_attn.q_linear": "attn2.to_q",
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
    "cross_attn.proj": "attn2.to_out.0",
    "cross_attn.q_norm": "attn2.norm_q",
    "cross_attn.k_norm": "attn2.norm_k",
    "mlp.inverted_conv.conv": "ff.conv_inverted",
    "mlp.depth_conv.conv": "ff.conv_depth",
    "mlp.point_conv.conv": "ff.conv_point",
    "mlp.t_conv": "ff.conv_temp",
}

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
        **within("blocks.{}", "transformer_blocks.{}", _BLOCK),
        "x_embedder.proj": "patch_embed.proj",
        **linears("t_embedder.mlp", "time_embed.emb.timestep_embedder"),
        "t_block.1": "time_embed.linear",
        **linears("y_embedder.y_proj", "caption_projection", ("fc1", "fc2")),
        "attention_y_norm": "caption_norm",
        "final_layer.linear": "proj_out",
    },
)
