"""Banks of output heads beside the LoRA of a distilled MiniMax-H3: the bare names of its two output layers.

`proj_out.weight` (heads, out, in), `audio_proj_out.bias` (heads, out)

Source: vladmandic/sdnext modules/lora/network_pdd.py, `load`. The header has `pdd_num_steps` and `pdd_block_size`.
"""

from .base import KeyFormat

PDD = KeyFormat(
    name="pdd",
    patterns=(r"(?P<module>(?:audio_)?proj_out)\.(?P<param>weight|bias)",),
    example="audio_proj_out.weight",
    params={"weight": "heads.weight", "bias": "heads.bias"},
    alone=False,  # checkpoints have these names, too
)
