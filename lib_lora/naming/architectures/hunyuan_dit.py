"""HunyuanDiT: 40 blocks, 1408 wide, the later half with skips; a Chinese BERT and mT5.

Source: Tencent/HunyuanDiT hydit/modules/models.py, attn_layers.py and poolers.py against diffusers' HunyuanDiT2DModel,
as huggingface/diffusers scripts/convert_hunyuandit_to_diffusers.py has it. The second and third norm of a block have
each other's names in the two trees, and both have weights: nothing tells which is meant, so the model's own names hold.
"""

from __future__ import annotations

from ...files.components import DENOISER, TEXT_ENCODER
from .base import Alias, Architecture, Sign, aliases, named

_BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn1.Wqkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn2.q_proj": "attn2.to_q",
    "attn2.kv_proj": ("attn2.to_k", "attn2.to_v"),
    **{f"attn{i}.out_proj": f"attn{i}.to_out.0" for i in (1, 2)},
    **{f"attn{i}.{part}_norm": f"attn{i}.norm_{part}" for i in (1, 2) for part in "qk"},
    "default_modulation.1": "norm1.linear",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
}
_OWN = "blocks.{}."

HUNYUAN_DIT = Architecture(
    name="hunyuan_dit",
    title="HunyuanDiT",
    flow=False,
    signs=(
        Sign(r"^(denoiser|\?):blocks_\d+_attn[12]_(Wqkv|q_proj|out_proj|to_q|to_out_0):1408$"),
        Sign(r"^(denoiser|\?):blocks_\d+_(mlp_fc1|ff_net_0_proj|default_modulation_1|norm1_linear):1408$"),
        Sign(r"^(denoiser|\?):blocks_\d+_attn2_(kv_proj|to_[kv]):1024$"),
        named("hunyuan[_-]?dit"),
    ),
    aliases=(
        *aliases(
            DENOISER,
            {
                _OWN + native: _OWN + own if isinstance(own, str) else tuple(_OWN + part for part in own)
                for native, own in _BLOCK.items()
            },
        ),
        *aliases(
            DENOISER,
            {
                "x_embedder.proj": "pos_embed.proj",
                "t_embedder.mlp.0": "time_extra_emb.timestep_embedder.linear_1",
                "t_embedder.mlp.2": "time_extra_emb.timestep_embedder.linear_2",
                "extra_embedder.0": "time_extra_emb.extra_embedder.linear_1",
                "extra_embedder.2": "time_extra_emb.extra_embedder.linear_2",
                "pooler": "time_extra_emb.pooler",
                "style_embedder": "time_extra_emb.style_embedder",
                "mlp_t5.0": "text_embedder.linear_1",
                "mlp_t5.2": "text_embedder.linear_2",
                "final_layer.linear": "proj_out",
            },
        ),
        Alias(DENOISER, "final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True),  # shift and scale
        *aliases(TEXT_ENCODER, {f"bert.{part}": part for part in ("encoder", "embeddings")}),  # BERT with a head
    ),
)
