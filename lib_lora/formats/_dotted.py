"""How a dotted key begins: the same for every spelling that has dots, so that one layer's keys stay together.

A file may mix them: OneTrainer and ai-toolkit write `lora_A.weight` beside `alpha`, `dora_scale` or `magnitude`.

`transformer.` is diffusers' component, but also where OpenCLIP keeps its blocks; those are `transformer.resblocks.`.
`diffusion_model.` is ComfyUI's name for whatever denoises, and `text_encoders.clip_l.transformer.` that of a text
encoder: they say what a component does, not which it is, see `components.py`. ai-toolkit puts the two experts of Wan
2.2 below it where one file has both (`diffusion_model.transformer_1.`, `split_multistage_loras`); PixArt's first LoRA
have PEFT's wrapper behind the component (`unet.base_model.model.`).
"""

from __future__ import annotations

from ..components import EXPERTS

WRAPPER = r"base_model\.model\."
"""PEFT's own: the model inside its wrapper."""
COMPONENT = (
    r"(?:diffusion_model\.(?=transformer_[12]\.))?"
    r"(?P<component>unet|prior|transformer(?:_[12])?(?!\.resblocks\.)|text_encoder(?:_[234])?|diffusion_model"
    r"|text_encoders\.\w+(?:\.transformer)?)\."
)
"""What tells the keys of one component from another's, and from those of a plain checkpoint."""
COMPONENTS = {"transformer_1": EXPERTS[0]}
"""Those that have another name in diffusers."""
START = rf"(?:{WRAPPER})?(?:{COMPONENT}(?:{WRAPPER})?)?"
"""What may come before the layer."""
