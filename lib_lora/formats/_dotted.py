"""How a dotted key begins: the same for every spelling that has dots, so that one layer's keys stay together.

A file may mix them: OneTrainer and ai-toolkit write `lora_A.weight` beside `alpha`, `dora_scale` or `magnitude`.

`transformer.` is diffusers' component, but also where OpenCLIP keeps its blocks; those are `transformer.resblocks.`.
`diffusion_model.` is ComfyUI's name for whatever denoises, and `text_encoders.clip_l.transformer.` that of a text
encoder: they say what a component does, not which it is, see `components.py`.
"""

from __future__ import annotations

WRAPPER = r"base_model\.model\."
"""PEFT's own: the model inside its wrapper."""
COMPONENT = (
    r"(?P<component>unet|transformer(?:_2)?(?!\.resblocks\.)|text_encoder(?:_[234])?|diffusion_model"
    r"|text_encoders\.\w+(?:\.transformer)?)\."
)
"""What tells the keys of one component from another's, and from those of a plain checkpoint."""
START = rf"(?:{WRAPPER})?(?:{COMPONENT})?"
"""What may come before the layer."""
