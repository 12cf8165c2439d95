"""Dotted paths with a parameter of kohya or LyCORIS behind, and diffusers' own spellings from before PEFT.

`unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight`
`text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_linear_layer.up.weight`
`down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.up.weight`   (every component is tried)
`down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.lambda_layer`    (T-LoRA)
`transformer_blocks.0.attn.processor.to_q_proj_lora.down.weight`                            (T-LoRA on Flux: add_q_proj)
`diffusion_model.double_blocks.0.img_attn.qkv.lokr_w1`                                      (ComfyUI, ai-toolkit)
`clip_l.text_model.encoder.layers.0.mlp.fc1.lora_down.weight`                               (OMI)
`transformer.double_blocks.0.img_attn.qkv.2.lora_down.weight`           (OMI: parts of fused layers, `Alias.diffusers`)

Sources: huggingface/diffusers utils/state_dict_utils.py, `DIFFUSERS_TO_PEFT` and `DIFFUSERS_OLD_TO_PEFT`;
ControlGenAI/T-LoRA tlora/model/lora.py and flux/model/lora.py; Comfy-Org/ComfyUI comfy/lora.py;
KohakuBlueleaf/LyCORIS, each module's `weight_list`.
"""

from ._dotted import COMPONENT, COMPONENTS, PARAMS, START
from .base import KeyFormat

# GLoRA and T-LoRA call their factors as a checkpoint might call its layers
_LAYERS = r"(?:[ab][12]|bm|[qp]_layer)\.weight"

DIFFUSERS = KeyFormat(
    name="diffusers",
    patterns=(
        START
        + r"(?P<module>.+?)(?:\.processor)?\.(?P<leaf>to_(?:q|k|v|out)|to_[qkv]_proj|add_[qkv]_proj)_lora\."
        + r"(?P<param>(?:down|up|[qp]_layer|base_[qp])\.weight|lambda_layer|base_lambda)",
        START + r"(?P<module>.+)\.(?:lora|lora_linear_layer)\.(?P<param>down\.weight|up\.weight|up\.bias|alpha)",
        START + rf"(?P<module>.+)\.(?P<param>{PARAMS})",
        COMPONENT + rf"(?P<module>.+)\.(?P<param>{_LAYERS})",
    ),
    example="unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight",
    components=COMPONENTS,
    params={
        "down.weight": "lora_down.weight",
        "up.weight": "lora_up.weight",
        "up.bias": "lora_up.bias",
        "base_q.weight": "base_q",
        "base_p.weight": "base_p",
    },
    leaves={"to_out": "to_out.0", **{f"to_{one}_proj": f"add_{one}_proj" for one in "qkv"}},
)
