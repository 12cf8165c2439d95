"""XLabs' LoRA of Flux.1, and ByteDance's USO: parameters of attention processors.

`double_blocks.0.processor.qkv_lora1.down.weight`   -> double_blocks.0.img_attn.qkv
`double_blocks.0.processor.proj_lora2.up.weight`    -> double_blocks.0.txt_attn.proj
`single_blocks.0.processor.qkv_lora.down.weight`    -> single_blocks.0.linear1_qkv     (linear1 without its MLP)
`single_blocks.0.processor.proj_lora.up.weight`     -> single_blocks.0.linear2

There is no alpha: the product is added as it is.

Source: XLabs-AI/x-flux src/flux/modules/layers.py, `DoubleStreamBlockLoraProcessor` and
`SingleStreamBlockLoraProcessor`; Comfy-Org/ComfyUI comfy/lora_convert.py, `convert_uso_lora`.
"""

from ..components import DENOISER
from .base import KeyFormat

XLABS = KeyFormat(
    name="xlabs",
    patterns=(
        r"(?:(?P<component>diffusion_model)\.)?(?P<module>(?:double|single)_blocks\.\d+)\.processor\."
        r"(?P<leaf>(?:qkv|proj)_lora[12]?)\.(?P<param>(?:down|up)\.weight)",
    ),
    example="double_blocks.0.processor.qkv_lora1.down.weight",
    components={"diffusion_model": DENOISER},
    params={"down.weight": "lora_down.weight", "up.weight": "lora_up.weight"},
    leaves={
        "qkv_lora1": "img_attn.qkv",
        "qkv_lora2": "txt_attn.qkv",
        "proj_lora1": "img_attn.proj",
        "proj_lora2": "txt_attn.proj",
        "qkv_lora": "linear1_qkv",
        "proj_lora": "linear2",
    },
)
