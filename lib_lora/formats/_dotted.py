"""How a dotted key begins: the same for every spelling that has dots, so that one layer's keys stay together.

A file may mix them: OneTrainer and ai-toolkit write `lora_A.weight` beside `alpha`, `dora_scale` or `magnitude`.

`transformer.` is diffusers' component, but also where OpenCLIP keeps its blocks; those are `transformer.resblocks.`.
`diffusion_model.` is ComfyUI's name for whatever denoises, a UNet or a transformer, so it names no component.
"""

from __future__ import annotations

WRAPPER = r"base_model\.model\."
"""PEFT's own: the model inside its wrapper."""
COMPONENT = r"(?:(?P<component>unet|transformer(?:_2)?(?!\.resblocks\.)|text_encoder(?:_[23])?)\.|diffusion_model\.)"
"""What tells the keys of one component from another's, and from those of a plain checkpoint."""
START = rf"(?:{WRAPPER})?{COMPONENT}?"
"""What may come before the layer."""
