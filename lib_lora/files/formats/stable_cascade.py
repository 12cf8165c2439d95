"""Stable Cascade's prior: `lora_prior_unet_` and `lora_prior_te_` before a flattened module path.

`lora_prior_unet_down_blocks_0_2_attention_attn_to_q.lora_down.weight` -> prior, down_blocks.0.2.attention.attn.to_q
`lora_prior_te_text_model_encoder_layers_0_mlp_fc1.alpha`              -> text_encoder

Sources: Nerogar/OneTrainer modules/modelSaver/wuerstchen/WuerstchenLoRASaver.py; Comfy-Org/ComfyUI comfy/lora.py.
"""

from .base import KeyFormat

STABLE_CASCADE = KeyFormat(
    name="stable_cascade",
    before=("diffusers", "peft"),  # whose patterns take any module name
    patterns=(r"(?P<component>lora_prior_(?:unet|te))_(?P<module>[^.]+)\.(?P<param>.+)",),
    example="lora_prior_unet_down_blocks_0_2_attention_attn_to_q.lora_down.weight",
    components={"lora_prior_unet": "prior", "lora_prior_te": "text_encoder"},
    flattened=True,
)
