"""OMI, the format that OneTrainer wrote for a while: text encoders by the models they are, before a dotted path.

`clip_l.text_model.encoder.layers.0.mlp.fc1.lora_down.weight`           -> text_encoder
`clip_g.text_model.encoder.layers.0.self_attn.q_proj.lora_up.weight`    -> text_encoder_2
`t5.encoder.block.0.layer.0.SelfAttention.q.alpha`                      -> the one that has such a layer
`llama.model.layers.0.self_attn.q_proj.lora_up.weight`                  -> likewise

What denoises is `transformer.` or `unet.` before the names of its own code, which is the format `diffusers`:
`transformer.double_blocks.0.img_attn.qkv.2.lora_down.weight`, `unet.input_blocks.4.1.proj_in.lora_down.weight`. There
a fused layer is trained apart, and its parts are numbered; see `Alias.diffusers`.

Source: Open-Model-Initiative/OMI-Model-Standards, convert/lora/convert_flux_lora.py and its kin, as in
invoke-ai/InvokeAI invokeai/backend/model_manager/omi/vendor.
"""

from ._dotted import ENCODERS, PARAMS
from .base import KeyFormat

OMI = KeyFormat(
    name="omi",
    before=("diffusers", "peft"),  # which would take the component for a part of the path
    patterns=(rf"(?P<component>clip_[lg]|t5|llama)\.(?P<module>.+)\.(?P<param>{PARAMS}|oft_R\.(?:weight|scaled_oft))",),
    example="clip_l.text_model.encoder.layers.0.mlp.fc1.lora_down.weight",
    components={**ENCODERS, "t5": "text_encoders.t5xxl", "llama": "text_encoders.llama"},
)
