"""The norms in Black Forest Labs' control LoRA for Flux.1 (Canny, Depth): their scale itself, not a change of it.

`double_blocks.0.img_attn.norm.query_norm.scale` -> double_blocks.0.img_attn.norm.query_norm, set_weight

A checkpoint has the same keys, so they make no adapter by themselves. The others are PEFT's: `img_in.lora_A.weight`,
`img_in.lora_B.bias`. `img_in` is wider there than in FLUX.1-dev, as the control image goes in beside the latents:
it fits a model that was widened so (diffusers' FluxControlPipeline), and none else.

Source: Comfy-Org/ComfyUI comfy/lora_convert.py, `convert_lora_bfl_control`; huggingface/diffusers
loaders/lora_conversion_utils.py, `_convert_bfl_flux_control_lora_to_diffusers`.
"""

from .base import KeyFormat

BFL_CONTROL = KeyFormat(
    name="bfl_control",
    patterns=(
        r"(?P<module>(?:double_blocks\.\d+\.(?:img|txt)_attn|single_blocks\.\d+)\.norm\.(?:query|key)_norm)"
        r"\.(?P<param>scale)",
    ),
    example="double_blocks.0.img_attn.norm.query_norm.scale",
    params={"scale": "set_weight"},
    alone=False,
)
