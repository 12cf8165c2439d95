"""NVIDIA Cosmos-Predict2 (28 blocks of 2048, or 36 of 5120; T5), and Anima: its smaller transformer, Qwen3 0.6B, and an
adapter between them that checkpoints keep inside the transformer, SD.Next beside it as `llm_adapter`, and diffusers as
`text_conditioner`.

Checkpoints have the transformer below `net`, SimpleTuner's Anima has diffusers' model below `core`. A file for the
transformer alone fits both, and nothing tells which it was made for but what its trainer wrote about itself: it is
taken for Anima, which has many more.
Sources: NVIDIA's MiniTrainDIT, as in tdrussell/diffusion-pipe models/cosmos_predict2_modeling.py, against diffusers'
CosmosTransformer3DModel; Nerogar/OneTrainer modules/model/AnimaModel.py, `diffusers_to_original`;
bghira/SimpleTuner helpers/models/anima/transformer.py; kohya-ss/sd-scripts library/anima_models.py; diffusers'
AnimaTextConditioner; circlestone-labs/Anima.
"""

from ...files.components import DENOISER
from .base import Alias, Architecture, Names, Sign, Variant, aliases, layers, linears, named, within

_ATTENTION = {
    **{f"{part}_proj": f"to_{part}" for part in "qkv"},
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
_ALIASES = (
    *aliases(DENOISER, _NAMES),
    *aliases(DENOISER, {f"net.{native}": own for native, own in _NAMES.items()}),
    *aliases(DENOISER, {native: f"core.{diffusers}" for native, diffusers in _NAMES.items()}),
)
_SIGNS = (
    layers(r"(net_)?blocks_\d+_((self|cross)_attn_(q|k|v|output)_proj|mlp_layer[12]):", 4),
    layers(r"(net_)?blocks_\d+_adaln_modulation_(self_attn|cross_attn|mlp)_[12]:", 4),
    layers(r"(core_)?transformer_blocks_\d+_(attn2_to_[kv]:1024|norm[123]_linear_[12]:)", 4),
    layers(r"core_transformer_blocks_\d+_", 4),
    layers(r"(core_)?transformer_blocks_\d+_attn[12]_to_q:2048$", 1),
)
_ADAPTER = ("llm_adapter", "text_conditioner")

COSMOS_PREDICT2 = Architecture(
    name="cosmos_predict2",
    title="Cosmos-Predict2",
    signs=(
        *_SIGNS,
        # the larger one's widths
        layers(r"(net_)?blocks_\d+_((self|cross)_attn_(q|k|v|output)_proj|mlp_layer[12]|adaln_.*):(5120|20480)$"),
        layers(r"(core_)?transformer_blocks_\d+_(attn[12]_to|ff_net|norm[123]_linear)_.*:(5120|20480)$"),
        named("cosmos(?!.?3)"),
    ),
    variants=(Variant("Cosmos-Predict2 2B", width=2048), Variant("Cosmos-Predict2 14B", width=5120)),
    aliases=_ALIASES,
)
ANIMA = Architecture(
    name="anima",
    title="Anima",
    before=("cosmos_predict2",),
    signs=(
        layers(r"(net_)?(llm_adapter|text_conditioner)_", 5),
        Sign(r"^(llm_adapter|text_conditioner):", weight=5),
        *_SIGNS,
        # Qwen3 0.6B; Stable Diffusion 2 has layers as wide, but not at the root
        Sign(r"^text_encoder[^:]*:(model_)?layers_\d+_(self_attn_[qkv]_proj|mlp_(gate|up)_proj):1024$", weight=4),
        named("anima"),
    ),
    aliases=(
        *_ALIASES,
        *(Alias(DENOISER, name, "text_conditioner") for name in ("llm_adapter", "net.llm_adapter")),
        *(Alias(own, name, "") for own in _ADAPTER for name in (*_ADAPTER, "net.llm_adapter")),
    ),
)
