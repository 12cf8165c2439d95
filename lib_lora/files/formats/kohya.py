"""kohya sd-scripts and those that write alike: a prefix, the module path with `_` for each dot, and the parameter.

`lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight`      -> the denoiser, down_blocks.0.attentions.0.proj_in
`lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha`                 -> text_encoder_2
`lora_unet__blocks_0_cross_attn_k.lora_down.weight`                  (VideoX-Fun, which joins an empty name, too)
`lora_transformer_transformer_blocks_0_attn_to_out_0.dora_scale`     (OneTrainer's first format, early ai-toolkit)
`lora_prior_unet_down_blocks_0_2_attention_attn_to_q.lora_up.weight` (Stable Cascade) -> prior
`lycoris_down_blocks_0_attentions_0_proj_in.lora_up.weight`          (LyCORIS as a library) -> any component

Sources: kohya-ss/sd-scripts networks/lora.py, `LORA_PREFIX_UNET`, `LORA_PREFIX_TEXT_ENCODER` and its numbered kin;
aigc-apps/VideoX-Fun videox_fun/utils/lora_utils.py, `LoRANetwork.create_modules`; Nerogar/OneTrainer
modules/util/convert_lora_util.py, `convert_to_mixture`, and modules/modelSaver/wuerstchen/WuerstchenLoRASaver.py;
KohakuBlueleaf/LyCORIS lycoris/wrapper.py, `LycorisNetwork.LORA_PREFIX`.
The parameter is all that follows the first dot: every kind that LyCORIS, OneTrainer or musubi-tuner trains is saved so.
The block names may be diffusers' or ldm's; that is the architecture's matter, not the spelling's.
"""

from ..components import DENOISER
from .base import KeyFormat

KOHYA = KeyFormat(
    name="kohya",
    before=("diffusers", "peft"),  # whose patterns take any module name
    patterns=(
        r"(?:(?P<component>lora_(?:unet|te\d?|transformer|prior_unet|prior_te))|lycoris)"
        r"__?(?P<module>[^._][^.]*)\.(?P<param>.+)",
        r"(?P<param>lokr_factor)",  # of the whole file, blissful-tuner networks/lokr.py
    ),
    example="lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight",
    components={
        **dict.fromkeys(("lora_unet", "lora_transformer"), DENOISER),
        "lora_prior_unet": "prior",
        **dict.fromkeys(("lora_te", "lora_te1", "lora_prior_te"), "text_encoder"),
        **{f"lora_te{number}": f"text_encoder_{number}" for number in (2, 3, 4)},
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
