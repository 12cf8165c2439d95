"""VideoX-Fun: `lora_unet__`, where kohya has one underscore, before the flattened path of a transformer's layer.

`lora_unet__blocks_0_cross_attn_k.lora_down.weight` -> the denoiser, blocks.0.cross_attn.k
`lora_unet__layers_0_attention_to_k.alpha`          -> the same for Z-Image, whose LoRA are often spelled so

Source: aigc-apps/VideoX-Fun videox_fun/utils/lora_utils.py, `LoRANetwork.create_modules`: prefix, name of the model in
its root (which is empty) and name of the layer, joined by dots, and each dot made an underscore. Its text encoders'
layers have a model around them, so that their keys are kohya's.
"""

from ..components import DENOISER
from .base import KeyFormat

VIDEOX_FUN = KeyFormat(
    name="videox_fun",
    before=("kohya",),  # which would take the second underscore for a part of the layer's name
    patterns=(r"(?P<component>lora_unet)__(?P<module>[^._][^.]*)\.(?P<param>.+)",),
    example="lora_unet__blocks_0_cross_attn_k.lora_down.weight",
    components={"lora_unet": DENOISER},
    # it reads files whose parameters have PEFT's names, too
    params={"lora_A.weight": "lora_down.weight", "lora_B.weight": "lora_up.weight"},
    flattened=True,
)
