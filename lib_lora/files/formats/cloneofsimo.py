"""cloneofsimo's lora: layers have numbers, in the order in which torch lists the modules that were trained.

`unet:4:up`            -> unet, 4, lora_up.weight
`text_encoder:47:down` -> text_encoder, 47, lora_down.weight
`<s1>`, of which the header says `<embed>` -> an embedding of that name

The header also lists the classes of modules that were trained, `"unet": '["CrossAttention", "Attention", "GEGLU"]'`.
There is no alpha: the trainer multiplies `up` by the scale before it saves.

Source: cloneofsimo/lora lora_diffusion/lora.py, `save_safeloras_with_embeds` and `_find_modules_v2`: linear layers
below modules of these classes, and with `inject_trainable_lora_extended` convolutions, too. The order of the modules is
that of diffusers' UNet2DConditionModel and transformers' CLIPAttention, down to the lines of their `__init__`.
"""

from __future__ import annotations

from .base import KeyFormat, Numbering

_ATTENTION = r"(down_blocks\.\d+|up_blocks\.\d+|mid_block)\.attentions\.\d+\.transformer_blocks\.\d+"
_PROJECTION = rf"{_ATTENTION}\.attn[12]\.to_(q|k|v|out\.0)"
_RESNET = r"(down_blocks\.\d+|up_blocks\.\d+|mid_block)\.resnets\.\d+"
_LAYERS = {
    "CrossAttention": _PROJECTION,
    "Attention": _PROJECTION,  # CrossAttention's later name
    "GEGLU": rf"{_ATTENTION}\.ff\.net\.0\.proj",
    "CLIPAttention": r"text_model\.encoder\.layers\.\d+\.self_attn\.(q|k|v|out)_proj",
}
_LINEAR_OF_RESNET = rf"{_RESNET}\.time_emb_proj"
_ALL_OF_RESNET = rf"{_RESNET}\.(conv1|time_emb_proj|conv2|conv_shortcut)"

# the middle is made last; in a transformer block the feed-forward once was between the attentions, later behind them
_BLOCKS = ("down_blocks", "up_blocks", "mid_block", "attentions", "resnets", "transformer_blocks")
_INSIDE = ("to_q", "to_k", "to_v", "to_out", "net", "proj", "conv1", "time_emb_proj", "conv2", "conv_shortcut")
_TEXT = ("text_model", "encoder", "layers", "self_attn", "k_proj", "v_proj", "q_proj", "out_proj")

CLONEOFSIMO = KeyFormat(
    name="cloneofsimo",
    patterns=(r"(?P<component>unet|text_encoder):(?P<module>[0-9]{1,5}):(?P<param>up|down)",),
    example="unet:4:up",
    params={"up": "lora_up.weight", "down": "lora_down.weight"},
    numberings=tuple(
        Numbering({**_LAYERS, **resnet}, (*_BLOCKS, *block, *_INSIDE, *_TEXT))
        for block in (("attn1", "ff", "attn2"), ("attn1", "attn2", "ff"))
        for resnet in ({}, {"ResnetBlock2D": _LINEAR_OF_RESNET}, {"ResnetBlock2D": _ALL_OF_RESNET})
    ),
    embedding="<embed>",
)
