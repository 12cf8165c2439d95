"""Krea 2: 28 blocks, 6144 wide, a text fusion of 12 layers of Qwen3-VL before them. Fewer keys and values than queries.

SimpleTuner can train q, k and v as the one layer that diffusers' `fuse_projections` makes of them.
Source: krea-ai/krea-2, as in kohya-ss/musubi-tuner src/musubi_tuner/krea2/krea2_mmdit.py, against diffusers'
Krea2Transformer2DModel; bghira/SimpleTuner helpers/models/krea2/transformer.py, `fuse_projections`.
"""

from __future__ import annotations

from ...files.components import DENOISER
from ._llm import LLM_ALIASES
from .base import Alias, Architecture, Sign, aliases, named

_BLOCKS = {
    "blocks.{}": "transformer_blocks.{}",
    "txtfusion.layerwise_blocks.{}": "text_fusion.layerwise_blocks.{}",
    "txtfusion.refiner_blocks.{}": "text_fusion.refiner_blocks.{}",
}
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
        Sign(r"^(denoiser|\?):(txtfusion|text_fusion)_", weight=5),
        Sign(r"^(denoiser|\?):blocks_\d+_(attn_(w[qkvo]|gate)|mlp_(gate|up|down)):(6144|16384)$", weight=4),
        Sign(r"^(denoiser|\?):transformer_blocks_\d+_(attn_(to_gate|to_qkv)|ff_(gate|up)):6144$", weight=4),
        # FLUX.2 calls its double blocks so, too, but has 8 of them
        Sign(r"^(denoiser|\?):transformer_blocks_([89]|[12]\d)_attn_to_([qkv]|out_0):6144$"),
        Sign(r"^(denoiser|\?):(time_mod_proj|tproj_1|txtmlp_[13]):"),
        named("krea[_-]?2"),
    ),
    aliases=(
        *aliases(
            DENOISER,
            {
                **{
                    f"{native}.{layer}": f"{diffusers}.{name}"
                    for native, diffusers in _BLOCKS.items()
                    for layer, name in _LAYERS.items()
                },
                "first": "img_in",
                "tmlp.0": "time_embed.linear_1",
                "tmlp.2": "time_embed.linear_2",
                "tproj.1": "time_mod_proj",
                "txtmlp.1": "txt_in.linear_1",
                "txtmlp.3": "txt_in.linear_2",
                "txtfusion.projector": "text_fusion.projector",
                "last.linear": "final_layer.linear",
            },
        ),
        *(
            Alias(
                DENOISER,
                f"{block}.attn.to_qkv",
                tuple(f"{block}.attn.to_{part}" for part in "qkv"),
                sizes=("in", "rest", "rest"),
            )
            for block in _BLOCKS.values()
        ),
        *LLM_ALIASES,
    ),
)
