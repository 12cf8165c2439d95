"""Whole tensors under PEFT's wrapper, which no checkpoint has: a file may consist of them, as BitFit's files do."""

from dataclasses import replace

from ._dotted import WRAPPER
from .whole import WHOLE

WHOLE_PEFT = replace(
    WHOLE,
    name="whole_peft",
    before=("whole",),
    patterns=tuple(rf"(?={WRAPPER}){pattern}" for pattern in WHOLE.patterns),
    example="base_model.model.blocks.0.norm1.weight",
    configured=True,
    alone=True,
)
