"""LyCORIS used as a library (`create_lycoris`): `lycoris_` before the flattened path in the wrapped module.

`lycoris_down_blocks_0_attentions_0_proj_in.lora_up.weight` -> any component, down_blocks.0.attentions.0.proj_in

Source: KohakuBlueleaf/LyCORIS lycoris/wrapper.py, `LycorisNetwork.LORA_PREFIX`. Which component was wrapped is not
in the file, so the one that has such a layer of that shape is taken.
"""

from .base import KeyFormat

LYCORIS = KeyFormat(
    name="lycoris",
    before=("diffusers", "peft"),  # whose patterns take any module name
    patterns=(r"lycoris_(?P<module>[^.]+)\.(?P<param>.+)",),
    example="lycoris_down_blocks_0_attentions_0_proj_in.lora_up.weight",
    flattened=True,
)
