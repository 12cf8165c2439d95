"""kohya sd-scripts: `lora_unet_` and `lora_te…_` before a flattened module path.

`lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight` -> unet, down_blocks.0.attentions.0.proj_in
`lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha`            -> text_encoder_2

Source: kohya-ss/sd-scripts networks/lora.py, `LORA_PREFIX_UNET`, `LORA_PREFIX_TEXT_ENCODER` and its numbered kin.
The parameter is all that follows the first dot: every kind that LyCORIS, OneTrainer or musubi-tuner trains is saved so.
The block names may be diffusers' or ldm's; that is the architecture's matter, not the spelling's.
"""

from ..components import DENOISER
from .base import KeyFormat

KOHYA = KeyFormat(
    name="kohya",
    before=("diffusers", "peft"),  # whose patterns take any module name
    patterns=(
        r"(?P<component>lora_unet|lora_te\d?)_(?P<module>[^.]+)\.(?P<param>.+)",
        r"(?P<param>lokr_factor)",  # of the whole file, blissful-tuner networks/lokr.py
    ),
    example="lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight",
    components={
        "lora_unet": DENOISER,
        "lora_te": "text_encoder",
        "lora_te1": "text_encoder",
        "lora_te2": "text_encoder_2",
        "lora_te3": "text_encoder_3",
        "lora_te4": "text_encoder_4",  # HiDream, OneTrainer
    },
    # some tools save PEFT's parameter names under kohya's module names
    params={
        "lora_A.weight": "lora_down.weight",
        "lora_B.weight": "lora_up.weight",
        "lora_B.bias": "lora_up.bias",
        "lora_magnitude_vector.weight": "lora_magnitude_vector",
        "magnitude": "lora_magnitude_vector",  # ai-toolkit
        "lora_AB.weight": "lora_mixer.weight",
    },
    flattened=True,
)
