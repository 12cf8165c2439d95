"""Z-Image (Base, Turbo, Edit): 30 blocks and two refiners, 3840 wide, Qwen 3. Checkpoints have q, k and v as one.

diffusers keeps the first and the last layer in dictionaries by patch size, of which only `2-1` exists. musubi-tuner has
diffusers' names.
Source: Comfy-Org/ComfyUI comfy/ldm/lumina/model.py, which serves Lumina 2 as well, against diffusers'
ZImageTransformer2DModel; for its older names vladmandic/sdnext pipelines/z_image/zimage_lora.py; kohya-ss/musubi-tuner
src/musubi_tuner/zimage/zimage_model.py and networks/convert_z_image_lora_to_comfy.py.
"""

from ...files.components import DENOISER
from .base import Architecture, Names, aliases, few_keys, layers, named, within

_LISTS = ("layers.{}", "noise_refiner.{}", "context_refiner.{}")
_RENAMED: Names = {
    "attention.out": ("attention.to_out.0",),  # no prefix of the next
    "attention.out.0": "attention.to_out.0",
    "attention.wo": "attention.to_out.0",
    "attention.q_norm": "attention.norm_q",
    "attention.k_norm": "attention.norm_k",
}

Z_IMAGE = Architecture(
    name="z_image",
    title="Z-Image",
    image_first=("ZImageTransformer2DModel",),
    signs=(
        # Lumina 2 has the same names at 2304
        layers(
            r"(layers|noise_refiner|context_refiner)_\d+_"
            r"(attention_(qkv|to_[qkv]|to_out_0|out|wo)|feed_forward_w[13]):3840$",
            4,
        ),
        layers(r"(layers|noise_refiner|context_refiner)_\d+_feed_forward_w2:10240$", 4),
        layers(r"(layers|noise_refiner|context_refiner)_\d+_attention_to_([qkv]|out_0):(3840|\?)$"),
        named("z[_-]?image"),
    ),
    comfy=(
        *few_keys("attention.qkv", "attention.to_", *_LISTS),
        *(one for listed in _LISTS for one in aliases(DENOISER, within(listed, listed, _RENAMED))),
        *aliases(
            DENOISER,
            {
                "x_embedder": "all_x_embedder.2-1",
                "final_layer.linear": "all_final_layer.2-1.linear",
                "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
            },
        ),
    ),
)
