"""diffusers before PEFT: dotted paths, `lora.down`, `lora_linear_layer.down`, or processors' `to_q_lora.down`.

`unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight`
`text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_linear_layer.up.weight`
`down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.up.weight`   (every component is tried)

Source: huggingface/diffusers utils/state_dict_utils.py, `DIFFUSERS_TO_PEFT` and `DIFFUSERS_OLD_TO_PEFT`.
"""

from __future__ import annotations

from .base import KeyFormat

_COMPONENT = r"(?:(?P<component>unet|text_encoder(?:_[23])?)\.)?"

DIFFUSERS = KeyFormat(
    name="diffusers",
    patterns=(
        _COMPONENT
        + r"(?P<module>.+?)(?:\.processor)?\.(?P<leaf>to_(?:q|k|v|out))_lora\.(?P<param>down\.weight|up\.weight)",
        _COMPONENT + r"(?P<module>.+)\.(?:lora|lora_linear_layer)\.(?P<param>down\.weight|up\.weight|up\.bias|alpha)",
        # written by `pack_weights`, and by converters that keep kohya's parameter names under dotted paths
        _COMPONENT + r"(?P<module>.+)\.(?P<param>lora_(?:down|up|mid)\.weight|alpha)",
    ),
    example="unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight",
    params={"down.weight": "lora_down.weight", "up.weight": "lora_up.weight", "up.bias": "lora_up.bias"},
    leaves={"to_out": "to_out.0"},
)
