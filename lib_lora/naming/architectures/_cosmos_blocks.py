"""The transformer of Cosmos-Predict2 under its two names; Anima has the same.

Checkpoints have it below `net`, SimpleTuner's Anima has diffusers' model below `core`.
Source: NVIDIA's MiniTrainDIT, as in tdrussell/diffusion-pipe models/cosmos_predict2_modeling.py, against diffusers'
CosmosTransformer3DModel; Nerogar/OneTrainer modules/model/AnimaModel.py, `diffusers_to_original`;
bghira/SimpleTuner helpers/models/anima/transformer.py.
"""

from ...files.components import DENOISER
from .base import Names, aliases, layers, linears, within

_ATTENTION = {
    "q_proj": "to_q",
    "k_proj": "to_k",
    "v_proj": "to_v",
    "output_proj": "to_out.0",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
_NAMES: Names = {
    **within("blocks.{}.self_attn", "transformer_blocks.{}.attn1", _ATTENTION),
    **within("blocks.{}.cross_attn", "transformer_blocks.{}.attn2", _ATTENTION),
    "blocks.{}.mlp.layer1": "transformer_blocks.{}.ff.net.0.proj",
    "blocks.{}.mlp.layer2": "transformer_blocks.{}.ff.net.2",
    **linears("blocks.{}.adaln_modulation_self_attn", "transformer_blocks.{}.norm1", ("1", "2")),
    **linears("blocks.{}.adaln_modulation_cross_attn", "transformer_blocks.{}.norm2", ("1", "2")),
    **linears("blocks.{}.adaln_modulation_mlp", "transformer_blocks.{}.norm3", ("1", "2")),
    "x_embedder.proj.1": "patch_embed.proj",
    "t_embedder.1": "time_embed.t_embedder",
    "t_embedding_norm": "time_embed.norm",
    **linears("final_layer.adaln_modulation", "norm_out", ("1", "2")),
    "final_layer.linear": "proj_out",
}

COSMOS_ALIASES = (
    *aliases(DENOISER, _NAMES),
    *aliases(DENOISER, {f"net.{native}": native for native in _NAMES}),
    *aliases(DENOISER, {native: f"core.{diffusers}" for native, diffusers in _NAMES.items()}),
)

COSMOS_SIGNS = (
    layers(r"(net_)?blocks_\d+_((self|cross)_attn_(q|k|v|output)_proj|mlp_layer[12]):", 4),
    layers(r"(net_)?blocks_\d+_adaln_modulation_(self_attn|cross_attn|mlp)_[12]:", 4),
    layers(r"(core_)?transformer_blocks_\d+_(attn2_to_[kv]:1024|norm[123]_linear_[12]:)", 4),
    layers(r"core_transformer_blocks_\d+_", 4),
    layers(r"(core_)?transformer_blocks_\d+_attn[12]_to_q:2048$", 1),
)
"""What Anima and Cosmos-Predict2 have alike."""
