"""Lumina Image 2.0: 26 layers and two refiners, 2304 wide, with fewer heads for keys and values; Gemma 2.

Source: Alpha-VLLM/Lumina-Image-2.0 models/model.py, NextDiT, against diffusers' Lumina2Transformer2DModel.
"""

from __future__ import annotations

from ...files.components import DENOISER
from ._llm import LLM_ALIASES
from .base import Alias, Architecture, Sign, aliases, named

_STACKS = ("layers", "noise_refiner", "context_refiner")
_LAYER = {
    "attention.out": "attn.to_out.0",
    "attention.q_norm": "attn.norm_q",
    "attention.k_norm": "attn.norm_k",
    **{f"feed_forward.w{i}": f"feed_forward.linear_{i}" for i in (1, 2, 3)},
    "attention_norm2": "norm2",
}
_MODULATED = {"attention_norm1": "norm1.norm", "adaLN_modulation.1": "norm1.linear"}
_PLAIN = {"attention_norm1": "norm1"}
_ANY = r"^(denoiser|\?):(layers|(noise|context)_refiner)_\d+_"

FEED_FORWARD_2304 = Sign(rf"{_ANY}feed_forward_(w|linear_)[13]:2304$")
"""What Lumina-Next has as well."""

LUMINA2 = Architecture(
    name="lumina2",
    title="Lumina Image 2.0",
    signs=(
        Sign(rf"{_ANY}(attention_(qkv|out)|attn_to_([qkv]|out_0)):2304$"),
        FEED_FORWARD_2304,
        Sign(rf"{_ANY}(adaLN_modulation_1|norm1_linear):1024$", weight=1),
        named("lumina"),
    ),
    aliases=(
        *(
            Alias(
                DENOISER,
                f"{stack}.{{}}.attention.qkv",
                tuple(f"{stack}.{{}}.attn.to_{part}" for part in "qkv"),
                sizes=("in", "rest", "rest"),
            )
            for stack in _STACKS
        ),
        *aliases(
            DENOISER,
            {
                f"{stack}.{{}}.{native}": f"{stack}.{{}}.{own}"
                for stack in _STACKS
                for native, own in (_LAYER | (_PLAIN if stack == "context_refiner" else _MODULATED)).items()
            },
        ),
        *aliases(
            DENOISER,
            {
                "cap_embedder": "time_caption_embed.caption_embedder",
                "t_embedder.mlp.0": "time_caption_embed.timestep_embedder.linear_1",
                "t_embedder.mlp.2": "time_caption_embed.timestep_embedder.linear_2",
                "final_layer.adaLN_modulation.1": "norm_out.linear_1",  # a scale alone, so nothing to swap
                "final_layer.linear": "norm_out.linear_2",
            },
        ),
        *LLM_ALIASES,
    ),
)
