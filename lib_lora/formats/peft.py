"""PEFT, and diffusers since it saves through PEFT: `lora_A`, `lora_B`, with or without `base_model.model.`.

`base_model.model.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight`          (component unknown)
`base_model.model.down_blocks.0.attentions.0.proj_in.lora_B.default.weight`            (named adapter)
`unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight`        (diffusers)

Source: huggingface/peft utils/save_and_load.py. Alpha is not among the tensors; it comes from `adapter_config.json` or
from the header's `lora_adapter_metadata`, see `network.py`.
"""

from __future__ import annotations

from .base import KeyFormat

_BEGIN = r"(?:base_model\.model\.)?(?:(?P<component>unet|text_encoder(?:_[23])?)\.)?(?P<module>.+)"

PEFT = KeyFormat(
    name="peft",
    before=("diffusers",),  # whose pattern for a bare `.alpha` would take the file's alphas away
    patterns=(
        _BEGIN + r"\.(?P<param>lora_[AB])(?:\.(?P<adapter>[^.]+))?\.weight",
        _BEGIN + r"\.lora_B(?:\.(?P<adapter>[^.]+))?\.(?P<param>bias)",
        r"base_model\.model\.(?:(?P<component>unet|text_encoder(?:_[23])?)\.)?(?P<module>.+)\.(?P<param>alpha)",
        _BEGIN + r"\.(?P<param>lora_magnitude_vector)(?:\.(?P<adapter>[^.]+))?(?:\.weight)?",
    ),
    example="base_model.model.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight",
    params={"lora_A": "lora_down.weight", "lora_B": "lora_up.weight", "bias": "lora_up.bias"},
)
