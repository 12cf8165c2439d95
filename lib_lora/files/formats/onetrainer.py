"""OneTrainer's first format, `lora_transformer_` before a flattened path of diffusers: kohya's spelling otherwise.

`lora_transformer_single_transformer_blocks_0_attn_to_k.lora_down.weight`
`lora_transformer_transformer_blocks_0_attn_to_out_0.dora_scale`

Its text encoders are `lora_te1_` and so on, which is kohya's format. ai-toolkit wrote so before it took PEFT's names.
Source: Nerogar/OneTrainer modules/util/convert_lora_util.py, `convert_to_mixture`; ostris/ai-toolkit
toolkit/lora_special.py, `unet_prefix`.
"""

from ..components import DENOISER
from .base import KeyFormat
from .kohya import KOHYA

ONETRAINER = KeyFormat(
    name="onetrainer",
    before=("diffusers", "peft"),  # whose patterns take any module name
    patterns=(r"(?P<component>lora_transformer)_(?P<module>[^.]+)\.(?P<param>.+)",),
    example="lora_transformer_single_transformer_blocks_0_attn_to_k.lora_down.weight",
    components={"lora_transformer": DENOISER},
    params=KOHYA.params,
    flattened=True,
)
