"""How a dotted key begins: the same for every spelling that has dots, so that one layer's keys stay together.

A file may mix them: OneTrainer and ai-toolkit write `lora_A.weight` beside `alpha`, `dora_scale` or `magnitude`.

`transformer.` is diffusers' component, but also where OpenCLIP keeps its blocks; those are `transformer.resblocks.`.
`diffusion_model.` is ComfyUI's name for every denoiser, `text_encoders.clip_l.transformer.` its name for a text
encoder: they give a role, not a component, see `components.py`. The two CLIP models alone have one number everywhere;
T5 is the first, second or third, as the family has it.

Some tools keep the checkpoint's prefix and write `model.diffusion_model.`.

ai-toolkit puts the two experts of Wan 2.2 below `diffusion_model.` where one file has both
(`diffusion_model.transformer_1.`, `split_multistage_loras`); PixArt's first LoRA have PEFT's wrapper behind the
component (`unet.base_model.model.`). Its text encoders have kohya's names before dots (`lora_te1.text_model.`,
`LoRASpecialNetwork`). OMI, which OneTrainer wrote for a while, has the models' own names: `clip_l.`, `clip_g.`, `t5.`,
`llama.` (Open-Model-Initiative/OMI-Model-Standards, convert/lora/convert_flux_lora.py and its kin).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..components import EXPERTS

WRAPPER = r"base_model\.model\."
"""PEFT's own: the model inside its wrapper."""
COMPONENT = (
    r"(?:diffusion_model\.(?=transformer_[12]\.))?"
    r"(?P<component>unet|prior|conditional_transformer|transformer(?:_[12]|_ref)?(?!\.resblocks\.)|text_encoder(?:_[234])?|diffusion_model"
    r"|connectors|text_embedding_projection"
    r"|text_encoders\.\w+(?:\.transformer)?|lora_te[1-4]?|clip_[lg]|t5|llama)\."
)
"""Begin of the keys of one component; a plain checkpoint has none."""
START = rf"(?:{WRAPPER})?(?:model\.(?=diffusion_model\.))?(?:{COMPONENT}(?:{WRAPPER})?)?"
"""What may come before the layer."""
_CLIPS = {"clip_l": "text_encoder", "clip_g": "text_encoder_2"}  # in every family that has them (SD3, SDXL, Flux)
COMPONENTS = {
    "transformer_1": EXPERTS[0],
    "text_embedding_projection": "connectors",  # LTX-2
    "conditional_transformer": EXPERTS[0],  # Ideogram 4, beside an unconditional one
    **{f"lora_te{number}": f"text_encoder_{number}" for number in (2, 3, 4)},
    **dict.fromkeys(("lora_te", "lora_te1"), "text_encoder"),
    **_CLIPS,
    **{f"text_encoders.{name}{end}": component for name, component in _CLIPS.items() for end in ("", ".transformer")},
    "t5": "text_encoders.t5xxl",
    "llama": "text_encoders.llama",
}
"""What `COMPONENT` finds -> diffusers' name, where they differ."""

PARAMS = "|".join(
    (
        r"alpha|dora_scale|bora_\w+|scalar",
        r"lora_(?:down|up|mid)(?:\.weight)?|lora_up\.bias",
        r"hada_w[12]_[ab]|hada_t[12]",
        r"lokr_w[12](?:_[ab])?|lokr_t2",
        r"diff|diff_b|set_weight|set_bias|reshape_weight|w_norm|b_norm",
        r"oft_blocks(?:\.\d+)?|oft_diag|rescale",
        r"lambda_layer|base_[qp]|base_lambda",
        r"bias_(?:indices|values|size)",
    )
)
"""Parameters of kohya, LyCORIS and ComfyUI whose name alone tells them from a checkpoint's."""

_START = re.compile(rf"{START}(?P<rest>.+)")
_DEEPEST = 8
"""Parts of a parameter's name at most; a hostile key has thousands."""
_INSIDE = frozenset({"base_layer", "in_proj", "out_proj"})
"""Layers inside another layer that has adapters of its own."""


def layers_above(key: str) -> Iterator[tuple[str | None, str, str]]:
    """Yield the component, the layer and the parameter that a dotted key may mean, the longest layer first.

    A part with a number is a layer of a list, so no parameter begins with it.
    """
    match = _START.fullmatch(key)
    if match is None:
        return
    component, steps = match["component"], match["rest"].split(".")
    for length in range(len(steps) - 1, max(0, len(steps) - 1 - _DEEPEST), -1):
        if steps[length].isdecimal() or steps[length] in _INSIDE:
            return
        named = None if component is None else COMPONENTS.get(component, component)
        yield named, ".".join(steps[:length]), ".".join(steps[length:])
