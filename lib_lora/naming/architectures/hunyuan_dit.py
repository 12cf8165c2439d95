"""HunyuanDiT: 40 blocks, 1408 wide, the later half with skips; a Chinese BERT and mT5.

Source: Tencent/HunyuanDiT hydit/modules/models.py, attn_layers.py and poolers.py against diffusers' HunyuanDiT2DModel,
as huggingface/diffusers scripts/convert_hunyuandit_to_diffusers.py has it. The second and third norm of a block have
each other's names in the two trees, and both have weights: nothing tells which is meant, so the model's own names hold.
"""

from .base import Architecture, Names, layers, linears, named, within

_BLOCK: Names = {
    "attn1.Wqkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn2.q_proj": "attn2.to_q",
    "attn2.kv_proj": ("attn2.to_k", "attn2.to_v"),
    **{f"attn{i}.out_proj": f"attn{i}.to_out.0" for i in (1, 2)},
    **{f"attn{i}.{part}_norm": f"attn{i}.norm_{part}" for i in (1, 2) for part in "qk"},
    "default_modulation.1": "norm1.linear",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
}

HUNYUAN_DIT = Architecture(
    name="hunyuan_dit",
    title="HunyuanDiT",
    flow=False,
    signs=(
        layers(r"blocks_\d+_attn[12]_(Wqkv|q_proj|out_proj|to_q|to_out_0):1408$"),
        layers(r"blocks_\d+_(mlp_fc1|ff_net_0_proj|default_modulation_1|norm1_linear):1408$"),
        layers(r"blocks_\d+_attn2_(kv_proj|to_[kv]):1024$"),
        named("hunyuan[_-]?dit"),
    ),
    names={
        **within("blocks.{}", "blocks.{}", _BLOCK),
        "x_embedder.proj": "pos_embed.proj",
        **linears("t_embedder.mlp", "time_extra_emb.timestep_embedder"),
        **linears("extra_embedder", "time_extra_emb.extra_embedder"),
        "pooler": "time_extra_emb.pooler",
        "style_embedder": "time_extra_emb.style_embedder",
        **linears("mlp_t5", "text_embedder"),
        "final_layer.linear": "proj_out",
    },
    swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"},
)
