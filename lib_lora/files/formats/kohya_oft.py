"""OFT as kohya sd-scripts trains it: `oft_unet_` before a flattened module path.

`oft_unet_down_blocks_1_attentions_0_proj_in.oft_blocks`           (number of blocks, block, block)
`oft_unet_double_blocks_0_img_attn_qkv.oft_blocks.2`               (Flux: one for each part of a fused layer)

A format of its own because here alpha 0 means that nothing may rotate, and in LyCORIS that anything may.

Source: kohya-ss/sd-scripts networks/oft.py and networks/oft_flux.py, `OFT_PREFIX_UNET`. Text encoders are not trained.
"""

from ..components import DENOISER
from .base import KeyFormat

KOHYA_OFT = KeyFormat(
    name="kohya_oft",
    before=("diffusers", "peft"),
    patterns=(r"(?P<component>oft_unet)_(?P<module>[^.]+)\.(?P<param>oft_blocks(?:\.\d+)?|alpha)",),
    example="oft_unet_down_blocks_1_attentions_0_proj_in.oft_blocks",
    components={"oft_unet": DENOISER},
    flattened=True,
)
