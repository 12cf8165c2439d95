"""Stable Cascade: the prior (stage C, 2048 wide) and the decoder (stage B); OpenCLIP bigG.

Sources: Stability-AI/StableCascade modules/common.py and stage_c.py, whose attention is torch's; Comfy-Org/ComfyUI
comfy/ldm/cascade/common.py, which has it apart; diffusers' StableCascadeUNet. OneTrainer's LoRA are named after
ComfyUI's tree, its newest (`in_proj.0`) after the parts of torch's.
"""

from ...files.components import DENOISER
from .base import Alias, Architecture, layers, named

_LAYERS = tuple(f"{side}_blocks.{{}}.{{}}.attention" for side in ("down", "up"))
_QKV = tuple("qkv")

STABLE_CASCADE = Architecture(
    name="stable_cascade",
    title="Stable Cascade",
    signs=(
        # blocks of layers by number, where Stable Diffusion's have names
        layers(
            r"(down|up)_blocks_\d+_\d+_"
            r"(attention_|channelwise_|kv_mapper_|mapper(_sca|_crp)?:|depthwise:)",
            10,
        ),
        named("stable[_-]cascade"),
    ),
    names={
        **{f"{layer}.attn.to_{part}": f"{layer}.to_{part}" for layer in _LAYERS for part in _QKV},
        **{f"{layer}.attn.out_proj": f"{layer}.to_out.0" for layer in _LAYERS},
    },
    aliases=(
        Alias(DENOISER, "clip_mapper", "clip_txt_pooled_mapper", times=4),  # the decoder's
        *(Alias(DENOISER, f"{layer}.attn.in_proj", tuple(f"{layer}.to_{part}" for part in _QKV)) for layer in _LAYERS),
    ),
)
