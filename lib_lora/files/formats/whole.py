"""Whole tensors beside adapters: the trained bias, norm or layer itself, not a change of it.

`base_model.model.blocks.0.attn.to_q.bias`                           (`bias="all"` and `bias="lora_only"`)
`base_model.model.blocks.0.attn.to_q.base_layer.bias`
`base_model.model.proj_out.modules_to_save.default.weight`           (newer PEFT saves `proj_out.weight`)
`base_model.model.proj_out.original_module.bias`                     (as it was: saved with `bias="all"`, too)
`transformer.transformer_blocks.0.attn.norm_q.weight`                (FLUX control in diffusers)
`double_blocks.0.img_attn.norm.query_norm.scale`                     (Black Forest Labs' control LoRA for FLUX.1)

A checkpoint has the same names, so a file of nothing else is no adapter, unless PEFT's wrapper is in front, as in files
of BitFit: `whole_peft.py`. Sources: huggingface/peft utils/save_and_load.py, `get_peft_model_state_dict`;
huggingface/diffusers loaders/lora_pipeline.py, `FluxLoraLoaderMixin`; Comfy-Org/ComfyUI comfy/lora_convert.py,
`convert_lora_bfl_control`.
"""

from ._dotted import COMPONENTS, START
from .base import KeyFormat

_FACTOR = r"(?:(?=\w*?(?:lora|lokr|loha|hada|ia3))\w+|\w+_[AB])"
"""How an unknown algorithm may call a factor, which is no layer of the model. It looks ahead once: a key that repeats
`lora` ten thousand times costs no time.
"""
_MODULE = rf"(?P<module>(?:(?!{_FACTOR}\.(?:weight|bias|scale)$)[^.]+\.)*?(?!{_FACTOR}\.)[^.]+)"
_PARAM = (
    r"(?:\.(?P<untrained>original_module))?(?:\.base_layer)?"
    r"(?:\.modules_to_save(?:\.(?P<adapter>[^.]+))?)?\.(?P<param>weight|bias|scale)"
)

WHOLE = KeyFormat(
    name="whole",
    patterns=(START + _MODULE + _PARAM,),
    example="transformer.transformer_blocks.0.attn.norm_q.weight",
    components=COMPONENTS,
    params={"weight": "set_weight", "scale": "set_weight", "bias": "set_bias"},
    alone=False,
    last=True,
)
