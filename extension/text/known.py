"""What a tag may call by name, beside the LoRA: presets of block weights, and regions of the picture; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib_lora import Region

from . import block_weights
from .any_name import AnyName
from .block_weights import BlockPresets


@dataclass(frozen=True)
class Known:
    """The names there are."""

    blocks: BlockPresets = block_weights.BUILT_IN
    regions: Mapping[str, Region] = field(default_factory=dict)
    """The user's own."""


BUILT_IN = Known()
"""What comes along."""
ANY = Known(BlockPresets(AnyName(()), AnyName(())), AnyName(Region(1, 1, b"\xff")))
"""For tags that are only kept: what there is when they are used is not known."""
