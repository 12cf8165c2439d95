"""Z-Image (Base, Turbo, Edit): 30 blocks and two refiners, 3840 wide, Qwen 3. Checkpoints have q, k and v as one.

diffusers keeps the first and the last layer in dictionaries by patch size, of which only `2-1` exists.
Source: Comfy-Org/ComfyUI comfy/ldm/lumina/model.py, which serves Lumina 2 as well, against diffusers'
ZImageTransformer2DModel; for its older names vladmandic/sdnext pipelines/z_image/zimage_lora.py.
"""

from __future__ import annotations

from ...files.components import DENOISER
from ._flux_blocks import below
from ._llm import LLM_ALIASES
from .base import Alias, Architecture, Sign, aliases, named

_BLOCKS = ("layers.{}", "noise_refiner.{}", "context_refiner.{}")
_RENAMED: dict[str, str | tuple[str, ...]] = {
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
        Sign(
            r"^(denoiser|\?):(layers|noise_refiner|context_refiner)_\d+_"
            r"(attention_(qkv|to_[qkv]|to_out_0|out|wo)|feed_forward_w[13]):3840$",
            weight=4,
        ),
        Sign(r"^(denoiser|\?):(layers|noise_refiner|context_refiner)_\d+_feed_forward_w2:10240$", weight=4),
        Sign(r"^(denoiser|\?):(layers|noise_refiner|context_refiner)_\d+_attention_to_([qkv]|out_0):(3840|\?)$"),
        named("z[_-]?image"),
    ),
    aliases=(
        *(
            Alias(
                DENOISER,
                f"{block}.attention.qkv",
                tuple(f"{block}.attention.to_{part}" for part in "qkv"),
                sizes=("in", "rest", "rest"),
            )
            for block in _BLOCKS
        ),
        *aliases(
            DENOISER,
            {
                **{
                    f"{block}.{native}": below(block, diffusers)
                    for block in _BLOCKS
                    for native, diffusers in _RENAMED.items()
                },
                "x_embedder": "all_x_embedder.2-1",
                "final_layer.linear": "all_final_layer.2-1.linear",
                "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
            },
        ),
        *LLM_ALIASES,
    ),
)
