"""AuraFlow: 4 double and 32 single layers, 3072 wide; Pile-T5 under the names of UMT5.

Sources: cloneofsimo/minRF advanced/mmdit.py and Comfy-Org/ComfyUI comfy/ldm/aura/mmdit.py against diffusers'
AuraFlowTransformer2DModel.
"""

from .base import Architecture, layers, linears, named, within
from .flux import OTHERS, SINGLE_ATTENTION_SIGN

_FEED_FORWARD = {"c_fc1": "linear_1", "c_fc2": "linear_2", "c_proj": "out_projection"}
_DOUBLE = {
    **{f"attn.w2{part}": f"attn.to_{part}" for part in "qkv"},
    "attn.w2o": "attn.to_out.0",
    **{f"attn.w1{part}": f"attn.add_{part}_proj" for part in "qkv"},
    "attn.w1o": "attn.to_add_out",
    **{f"mlpX.{native}": f"ff.{own}" for native, own in _FEED_FORWARD.items()},
    **{f"mlpC.{native}": f"ff_context.{own}" for native, own in _FEED_FORWARD.items()},
    "modX.1": "norm1.linear",
    "modC.1": "norm1_context.linear",
}
_SINGLE = {
    **{f"attn.w1{part}": f"attn.to_{part}" for part in "qkv"},
    "attn.w1o": "attn.to_out.0",
    **{f"mlp.{native}": f"ff.{own}" for native, own in _FEED_FORWARD.items()},
    "modCX.1": "norm1.linear",
}

AURAFLOW = Architecture(
    name="auraflow",
    title="AuraFlow",
    signs=(
        SINGLE_ATTENTION_SIGN,
        layers(r"(joint_transformer_blocks|double_layers|single_layers)_\d+_.*:(3072|8192)$", 10),
        # what Flux's single blocks have not
        layers(r"single_transformer_blocks_\d+_(attn_to_out_0|norm1_linear|ff_(linear_[12]|out_projection)):", 10),
        named("auraflow"),
    ),
    never=OTHERS,
    names={
        **within("double_layers.{}", "joint_transformer_blocks.{}", _DOUBLE),
        **within("single_layers.{}", "single_transformer_blocks.{}", _SINGLE),
        **linears("t_embedder.mlp", "time_step_proj"),
        "cond_seq_linear": "context_embedder",
        "init_x_linear": "pos_embed.proj",
        "final_linear": "proj_out",
    },
    swapped={"modF.1": "norm_out.linear"},
)
