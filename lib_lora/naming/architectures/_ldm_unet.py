"""The UNet of Stable Diffusion under its two names: ldm's (A1111, Forge, checkpoints) and diffusers'.

The numbering does not depend on how many blocks a family has, so one table serves SD 1, 2, XL and the refiner.
Source: CompVis/stable-diffusion ldm/modules/diffusionmodules/openaimodel.py against diffusers' UNet2DConditionModel.
"""

from __future__ import annotations

import re

from ...files.components import DENOISER
from .base import aliases, linears

_BLOCKS = 4  # the most any of the families has
_LAYERS = 2  # resnets in a down block; an up block has one more

_RESNET = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}

_SINGLE = {
    "input_blocks.0.0": "conv_in",
    **linears("time_embed", "time_embedding"),
    **linears("label_emb.0", "add_embedding"),
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
}

_DIFFUSERS = re.compile(
    r"(?P<part>down|up)_blocks\.(?P<block>\d+)\.(?:(?:resnets|attentions)\.(?P<layer>\d+)|(?P<sampler>\w+samplers))\."
)
_LDM = re.compile(r"(?P<part>input|output)_blocks\.(?P<block>\d+)\.")
_MIDDLE = re.compile(r"(?:mid_block|middle_block)\.")

UNET_BLOCKS = ("BASE", *(f"IN{i:02}" for i in range(12)), "M00", *(f"OUT{i:02}" for i in range(12)))
_PLAIN = {*(f"IN{i:02}" for i in (0, 3, 6, 9, 10, 11)), *(f"OUT{i:02}" for i in range(3))}
"""Without attention in SD 1 and 2."""
UNET_LISTS: tuple[tuple[str, ...], ...] = (
    UNET_BLOCKS,
    tuple(one for one in UNET_BLOCKS if one not in _PLAIN),  # 17
    ("BASE", *(f"IN{i:02}" for i in range(9)), "M00", *(f"OUT{i:02}" for i in range(9))),  # 20: SDXL
    ("BASE", "IN04", "IN05", "IN07", "IN08", "M00", *(f"OUT{i:02}" for i in range(6))),  # 12: with attention in SDXL
)
"""Lists of block weights, by length: 26, 17, 20 and 12."""


def _resnet(native: str, diffusers: str) -> dict[str, str]:
    return {f"{native}.{inner}": f"{diffusers}.{leaf}" for inner, leaf in _RESNET.items()}


def _table() -> dict[str, str | tuple[str, ...]]:
    table: dict[str, str | tuple[str, ...]] = dict(_SINGLE)
    for i in range(_BLOCKS):
        for j in range(_LAYERS):
            table |= _resnet(f"input_blocks.{3 * i + j + 1}.0", f"down_blocks.{i}.resnets.{j}")
            table[f"input_blocks.{3 * i + j + 1}.1"] = f"down_blocks.{i}.attentions.{j}"
        table[f"input_blocks.{3 * i + 3}.0.op"] = f"down_blocks.{i}.downsamplers.0.conv"
        for j in range(_LAYERS + 1):
            table |= _resnet(f"output_blocks.{3 * i + j}.0", f"up_blocks.{i}.resnets.{j}")
            table[f"output_blocks.{3 * i + j}.1"] = f"up_blocks.{i}.attentions.{j}"
        for place in (1, 2):  # behind the attention where the block has one
            table[f"output_blocks.{3 * i + 2}.{place}.conv"] = f"up_blocks.{i}.upsamplers.0.conv"
    for j in range(2):
        table |= _resnet(f"middle_block.{2 * j}", f"mid_block.resnets.{j}")
    table["middle_block.1"] = "mid_block.attentions.0"
    return table


UNET_ALIASES = aliases(DENOISER, _table())

IN_UNET = r"^(denoiser|\?):(down|mid|middle|up|input|output)_block"
"""The begin of a sign's pattern: the blocks of a UNet. Transformers have names such as `attn2.to_k`, too."""
FINEST = r"^(denoiser|\?):(down_blocks_0|up_blocks_2|input_blocks_[12]|output_blocks_[678])_"
"""The same: the blocks of full size in a UNet of 3 levels."""


def unet_block(dotted: str) -> str | None:
    """Return the block of a UNet's layer; empty beside the blocks, None where it is no UNet's."""
    if _MIDDLE.match(dotted):
        return "M00"
    if ldm := _LDM.match(dotted):
        return f"{'IN' if ldm['part'] == 'input' else 'OUT'}{int(ldm['block']):02}"
    if own := _DIFFUSERS.match(dotted):
        block, layer = int(own["block"]), own["layer"]
        if own["part"] == "down":
            return f"IN{3 * block + (3 if layer is None else int(layer) + 1):02}"
        return f"OUT{3 * block + (2 if layer is None else int(layer)):02}"
    if dotted.startswith("conv_in."):
        return "IN00"
    beside = ("time_embed.", "time_embedding.", "label_emb.", "add_embedding.", "conv_norm_out.", "conv_out.")
    return "" if dotted.startswith((*beside, "out.0.", "out.2.")) else None
