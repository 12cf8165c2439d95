"""The names that a tag may refer to beside the LoRA: block-weight presets and regions; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib_lora import Region

from . import block_weights
from .any_name import AnyName
from .block_weights import BlockPresets


@dataclass(frozen=True)
class Known:
    """Presets and regions by name."""

    blocks: BlockPresets = block_weights.BUILT_IN
    regions: Mapping[str, Region] = field(default_factory=dict)
    """The user's own regions."""


BUILT_IN = Known()
"""The presets that Remora ships."""
ANY = Known(BlockPresets(AnyName(()), AnyName(())), AnyName(Region(1, 1, b"\xff")))
"""Every name, for tags that are only stored."""
