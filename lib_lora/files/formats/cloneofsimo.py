"""cloneofsimo's lora: layers have numbers, in the order in which torch lists the modules that were trained.

`unet:4:up`            -> unet, 4, lora_up.weight
`text_encoder:47:down` -> text_encoder, 47, lora_down.weight
`<s1>`, of which the header says `<embed>` -> an embedding of that name

The header also lists the classes of modules that were trained, `"unet": '["CrossAttention", "Attention", "GEGLU"]'`.
There is no alpha: the trainer multiplies `up` by the scale before it saves.

A number is right only if the trainer counted the same layers in the same order, which nothing in the file says in full.
So all numbers of a component are compared with the model's shapes together: one layer that does not fit means that the
trainer counted otherwise, and then no number is trusted.

Source: cloneofsimo/lora lora_diffusion/lora.py, `save_safeloras_with_embeds` and `_find_modules_v2`: linear layers
below modules of these classes, and with `inject_trainable_lora_extended` convolutions, too. The modules are
in the order of diffusers' UNet2DConditionModel and transformers' CLIPAttention, down to the lines of their `__init__`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from ._header import parsed
from .base import KeyFormat, Layer, Layers, NumberingError

_ATTENTION = r"(down_blocks\.\d+|up_blocks\.\d+|mid_block)\.attentions\.\d+\.transformer_blocks\.\d+"
_PROJECTION = rf"{_ATTENTION}\.attn[12]\.to_(q|k|v|out\.0)"
_RESNET = r"(down_blocks\.\d+|up_blocks\.\d+|mid_block)\.resnets\.\d+"
_LAYERS = {
    "CrossAttention": _PROJECTION,
    "Attention": _PROJECTION,  # CrossAttention's later name
    "GEGLU": rf"{_ATTENTION}\.ff\.net\.0\.proj",
    **dict.fromkeys(
        ("CLIPAttention", "CLIPSdpaAttention", "CLIPFlashAttention2"),
        r"text_model\.encoder\.layers\.\d+\.self_attn\.(q|k|v|out)_proj",
    ),
}
_LINEAR_OF_RESNET = rf"{_RESNET}\.time_emb_proj"
_ALL_OF_RESNET = rf"{_RESNET}\.(conv1|time_emb_proj|conv2|conv_shortcut)"

# the middle is made last; in a transformer block the feed-forward once was between the attentions, later behind them
_BLOCKS = ("down_blocks", "up_blocks", "mid_block", "attentions", "resnets", "transformer_blocks")
_INSIDE = ("to_q", "to_k", "to_v", "to_out", "net", "proj", "conv1", "time_emb_proj", "conv2", "conv_shortcut")
_TEXT = ("text_model", "encoder", "layers", "self_attn", "k_proj", "v_proj", "q_proj", "out_proj")

Shape = tuple[int, ...]


_NUMBERINGS = tuple(
    ({**_LAYERS, **more}, (*_BLOCKS, *block, *_INSIDE, *_TEXT))
    for block in (("attn1", "ff", "attn2"), ("attn1", "attn2", "ff"))
    for more in ({}, {"ResnetBlock2D": _LINEAR_OF_RESNET}, {"ResnetBlock2D": _ALL_OF_RESNET})
)
"""All ways in which the trainer may have counted.

Each has the classes of modules that were trained, with a pattern for the names of the layers below them, and the parts
of these names in the order in which a model registers them.
"""


def numbered(names: Iterable[str], layers: Mapping[str, str], order: Sequence[str]) -> list[str]:
    """Return the names of the layers that the trainer counted, in the order of their numbers."""
    counted = [name for name in names if any(re.fullmatch(pattern, name) for pattern in layers.values())]
    places = {step: i for i, step in enumerate(order)}
    return sorted(counted, key=lambda name: [places[step] if step in places else int(step) for step in name.split(".")])


def _names_of(
    model: Layers, shapes: Mapping[str, Shape | None], header: str | None, _: Mapping[str, object]
) -> dict[str, str]:
    """Name the layers by the one way of counting that the shapes fit; see `NamesOf`."""
    classes = None if header is None else _classes(header)
    usable = [
        (layers if classes is None else {name: layers[name] for name in classes}, order)
        for layers, order in _NUMBERINGS
        if classes is None or layers.keys() >= set(classes)
    ]
    if not usable:
        raise NumberingError("numbered among modules of a class not known here", f"classes {header}")
    fitting: list[dict[str, str]] = []
    misfits: list[str] = []
    for layers, order in usable:
        counted = numbered(model.dotted, layers, order)
        found = {number: counted[int(number)] for number in shapes if int(number) < len(counted)}
        misfit = _misfit(shapes, {number: model.find(name) for number, name in found.items()})
        if misfit:
            misfits.append(misfit)
        elif found not in fitting:
            fitting.append(found)
    if not fitting:
        raise NumberingError("numbered as the layers of this model are not", f"{model.component}: {misfits[0]}")
    if len(fitting) > 1:
        raise NumberingError("numbered in a way that means more than one layer", model.component)
    return fitting[0]


def _classes(header: str) -> list[str]:
    """Return the classes that a header lists; itself where it is no list."""
    found = parsed(header)
    return [str(name) for name in found] if isinstance(found, list) else [header]


def _misfit(shapes: Mapping[str, Shape | None], layers: Mapping[str, Layer | None]) -> str:
    """Return the first fault of a way of counting; empty where all layers fit."""
    for number in sorted(shapes, key=int):
        shape, layer = shapes[number], layers.get(number)
        if layer is None:
            return f"there is no layer {number}"
        # a linear layer may be saved with a kernel of 1
        if shape is not None and any(a != b for a, b in zip_longest(shape, layer.shape, fillvalue=1)):
            return f"layer {number} is {layer.name} of {layer.shape}, in the file of {shape}"
    return ""


CLONEOFSIMO = KeyFormat(
    name="cloneofsimo",
    patterns=(r"(?P<component>unet|text_encoder):(?P<module>[0-9]{1,5}):(?P<param>up|down)",),
    example="unet:4:up",
    params={"up": "lora_up.weight", "down": "lora_down.weight"},
    names_of=_names_of,
    embedding="<embed>",
)
