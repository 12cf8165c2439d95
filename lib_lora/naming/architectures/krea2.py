"""Krea 2: 28 blocks, 6144 wide, a text fusion of 12 layers of Qwen3-VL before them. Fewer keys and values than queries.

SimpleTuner can train q, k and v as the one layer that diffusers' `fuse_projections` makes of them.
Source: krea-ai/krea-2, as in kohya-ss/musubi-tuner src/musubi_tuner/krea2/krea2_mmdit.py, against diffusers'
Krea2Transformer2DModel; bghira/SimpleTuner helpers/models/krea2/transformer.py, `fuse_projections`.
"""

from .base import Architecture, few_keys, layers, linears, named, within

_FUSION = ("text_fusion.layerwise_blocks.{}", "text_fusion.refiner_blocks.{}")
_LAYERS = {
    "attn.wq": "attn.to_q",
    "attn.wk": "attn.to_k",
    "attn.wv": "attn.to_v",
    "attn.wo": "attn.to_out.0",
    "attn.gate": "attn.to_gate",
    "mlp.gate": "ff.gate",
    "mlp.up": "ff.up",
    "mlp.down": "ff.down",
}

KREA2 = Architecture(
    name="krea2",
    title="Krea 2",
    signs=(
        layers(r"(txtfusion|text_fusion)_", 5),
        layers(r"blocks_\d+_(attn_(w[qkvo]|gate)|mlp_(gate|up|down)):(6144|16384)$", 4),
        layers(r"transformer_blocks_\d+_(attn_(to_gate|to_qkv)|ff_(gate|up)):6144$", 4),
        # FLUX.2 calls its double blocks so, too, but has 8 of them
        layers(r"transformer_blocks_([89]|[12]\d)_attn_to_([qkv]|out_0):6144$"),
        layers(r"(time_mod_proj|tproj_1|txtmlp_[13]):"),
        named("krea[_-]?2"),
    ),
    names={
        **within("blocks.{}", "transformer_blocks.{}", _LAYERS),
        **within("txtfusion.layerwise_blocks.{}", "text_fusion.layerwise_blocks.{}", _LAYERS),
        **within("txtfusion.refiner_blocks.{}", "text_fusion.refiner_blocks.{}", _LAYERS),
        "first": "img_in",
        **linears("tmlp", "time_embed"),
        "tproj.1": "time_mod_proj",
        **linears("txtmlp", "txt_in", ("1", "3")),
        "txtfusion.projector": "text_fusion.projector",
        "last.linear": "final_layer.linear",
    },
    aliases=few_keys("attn.to_qkv", "attn.to_", "transformer_blocks.{}", *_FUSION),
)
