"""The transformer of Cosmos-Predict2 under its two names; Anima has the same.

Checkpoints have it below `net`, SimpleTuner's Anima has diffusers' model below `core`.
Source: NVIDIA's MiniTrainDIT, as in tdrussell/diffusion-pipe models/cosmos_predict2_modeling.py, against diffusers'
CosmosTransformer3DModel; Nerogar/OneTrainer modules/model/AnimaModel.py, `diffusers_to_original`;
bghira/SimpleTuner helpers/models/anima/transformer.py.
"""

from __future__ import annotations

from ...files.components import DENOISER
from .base import aliases, layers, linears

_ATTENTION = {
    "q_proj": "to_q",
    "k_proj": "to_k",
    "v_proj": "to_v",
    "output_proj": "to_out.0",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
_PARTS = ("self_attn", "cross_attn", "mlp")


def _table() -> dict[str, str]:
    block = {"mlp.layer1": "ff.net.0.proj", "mlp.layer2": "ff.net.2"}
    for i, part in enumerate(_PARTS, 1):
        block |= {f"adaln_modulation_{part}.{j}": f"norm{i}.linear_{j}" for j in (1, 2)}
        if part != "mlp":
            block |= {f"{part}.{native}": f"attn{i}.{diffusers}" for native, diffusers in _ATTENTION.items()}
    table = {f"blocks.{{}}.{own}": f"transformer_blocks.{{}}.{name}" for own, name in block.items()}
    return table | {
        "x_embedder.proj.1": "patch_embed.proj",
        "t_embedder.1": "time_embed.t_embedder",
        "t_embedding_norm": "time_embed.norm",
        **linears("final_layer.adaln_modulation", "norm_out", ("1", "2")),
        "final_layer.linear": "proj_out",
    }


COSMOS_ALIASES = (
    *aliases(DENOISER, dict(_table())),
    *aliases(DENOISER, {f"net.{native}": native for native in _table()}),
    *aliases(DENOISER, {native: f"core.{diffusers}" for native, diffusers in _table().items()}),
)

COSMOS_SIGNS = (
    layers(r"(net_)?blocks_\d+_((self|cross)_attn_(q|k|v|output)_proj|mlp_layer[12]):", 4),
    layers(r"(net_)?blocks_\d+_adaln_modulation_(self_attn|cross_attn|mlp)_[12]:", 4),
    layers(r"(core_)?transformer_blocks_\d+_(attn2_to_[kv]:1024|norm[123]_linear_[12]:)", 4),
    layers(r"core_transformer_blocks_\d+_", 4),
    layers(r"(core_)?transformer_blocks_\d+_attn[12]_to_q:2048$", 1),
)
"""What Anima and Cosmos-Predict2 have alike."""
