"""The names that block weights have for the blocks of a model: IN00, M00, OUT11, D00, S37, BASE.

UNets have ldm's numbering on every host. Of transformers, double blocks are D and single blocks S, as the block-weight
extension calls Flux's; blocks of a model with one list of them are B. Layers of no block are IN and OUT there;
in a UNet they have no name and always act in full. Text encoders are BASE, or CLIP and T5.

Source of the UNets' and Flux' names: hako-mikan/sd-webui-lora-block-weight scripts/lora_block_weight.py, `BLOCKID12` to
`BLOCKIDFLUX`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Literal

from ...files.components import DENOISER, TEXT_ENCODER, role
from ._ldm_unet import UNET_LISTS, unet_block
from .flux import FLUX_LIST

BASE = "BASE"

Side = Literal["in", "mid", "out"]
"""The blocks of a denoiser before its middle, its middle, and the blocks behind it."""

_LISTED = re.compile(r"(?:^|\.)(?P<list>[a-z_]\w*)\.(?P<number>\d+)\.")
_LETTERS = {
    "transformer_blocks": "D",
    "double_blocks": "D",
    "joint_blocks": "D",
    "double_stream_blocks": "D",
    "joint_transformer_blocks": "D",
    "single_transformer_blocks": "S",
    "single_blocks": "S",
    "single_layers": "S",
    "single_stream_blocks": "S",
    "blocks": "B",
    "layers": "B",
    "visual_transformer_blocks": "B",
    "text_transformer_blocks": "T",
    "vace_blocks": "V",
    "noise_refiner": "N",
    "context_refiner": "C",
}
"""The lists of blocks that models have; of any other, the initials."""
_OUT = re.compile(r"^(?:norm_out|proj_out|final_layer|final_layernorm|out_layer|head|out)(?:\.|$)")


@lru_cache(maxsize=16384)
def block_of(component: str, name: str) -> str:
    """Return the block of a layer, by its dotted name in any tree; empty for a layer in no block."""
    if role(component) != DENOISER:
        return component if role(component) == TEXT_ENCODER else ""
    dotted = f"{name}."
    unet = None if "transformer" in component else unet_block(dotted)
    if unet is not None:
        return unet
    if _OUT.match(name):
        return "OUT"
    for listed in _LISTED.finditer(dotted):
        parts = listed["list"]
        # else a list holds the parts of a feed-forward or an embedder
        if parts in _LETTERS or any(word in parts for word in ("block", "layer", "refiner")):
            letter = _LETTERS.get(parts) or "".join(word[0] for word in parts.split("_") if word).upper()
            return f"{letter}{int(listed['number']):02}"
    return "IN"


def side_of(block: str) -> Side:
    """Return which of SD.Next's `in`, `mid` and `out` a block of the denoiser belongs to.

    Source: vladmandic/sdnext modules/lora/network.py, `multiplier`, where a layer in no block is `in`.
    """
    if block.startswith("OUT"):
        return "out"
    return "in" if block.startswith("IN") or not block else "mid"


def block_order(block: str) -> tuple[int, str]:
    """Return a key that sorts blocks as they lie in a model, text encoders first."""
    if role(block) == TEXT_ENCODER:
        return 0, block
    places = {"IN": 1, "M": 2, "OUT": 9, "D": 3, "B": 4, "S": 5}
    letters = block.rstrip("0123456789")
    # refiners stand between what comes in and the main blocks
    return places.get(letters, 2), block


def is_unet(blocks: Collection[str]) -> bool:
    """Return whether a denoiser of these blocks takes the lists of UNets."""
    return "M00" in blocks


def block_lists(denoiser: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the lists of weights that a denoiser of these blocks takes, by length; the one that suits it best first.

    A model of transformer blocks takes a weight for each, or BASE before them, or BASE and IN before and OUT behind
    them as well; Flux also takes the list of the block-weight extension.
    """
    if is_unet(denoiser):
        own = set(denoiser)
        # the fewest names that leave out none of the model's blocks, then the others
        fit = [one for one in reversed(UNET_LISTS) if own <= set(one)]
        return tuple(dict.fromkeys((*fit[:1], *UNET_LISTS)))
    blocks = tuple(one for one in denoiser if one not in ("IN", "OUT"))
    if not blocks:
        return ()
    own_lists = ((BASE, "IN", *blocks, "OUT"), (BASE, *blocks), blocks)
    if blocks != FLUX_LIST[3:-1]:
        return own_lists
    return (FLUX_LIST, *(one for one in own_lists if len(one) != len(FLUX_LIST)))
