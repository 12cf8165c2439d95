"""DiffSynth-Studio's LoRA of MiniMax-H3, whose queries, keys and values are by turns, head by head.

Other programs have the rows of all queries first, under the same name. What tells DiffSynth's is PEFT's adapter name
without any prefix.

Source: huggingface/diffusers loaders/lora_conversion_utils.py, `_convert_non_diffusers_minimax_h3_lora_to_diffusers`.
"""

from .base import KeyFormat

DIFFSYNTH = KeyFormat(
    name="diffsynth",
    before=("peft",),
    patterns=(
        r"(?P<module>(?:token_refiner\.)?blocks\.\d+\.attn)\.(?P<leaf>qkv_proj)\.(?P<param>lora_[AB])\.default\.weight",
    ),
    example="blocks.0.attn.qkv_proj.lora_A.default.weight",
    params={"lora_A": "lora_down.weight", "lora_B": "lora_up.weight"},
    leaves={"qkv_proj": "qkv_proj_by_head"},
)
