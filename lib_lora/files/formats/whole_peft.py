"""Whole tensors under PEFT's wrapper, which no checkpoint has: a file may consist of them, as BitFit's files do.

`base_model.model.blocks.0.norm1.weight`
`base_model.model.blocks.0.attn.to_q.bias`
"""

from ._dotted import COMPONENTS, START, WRAPPER
from .base import KeyFormat
from .whole import MODULE, PARAM, PARAMS

WHOLE_PEFT = KeyFormat(
    name="whole_peft",
    before=("whole",),
    patterns=(rf"(?={WRAPPER})" + START + MODULE + PARAM,),
    example="base_model.model.blocks.0.norm1.weight",
    components=COMPONENTS,
    params=PARAMS,
    configured=True,
    last=True,
)
