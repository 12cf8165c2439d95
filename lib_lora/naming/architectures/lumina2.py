"""Lumina Image 2.0: 26 layers and two refiners, 2304 wide, with fewer heads for keys and values; Gemma 2.

Source: Alpha-VLLM/Lumina-Image-2.0 models/model.py, NextDiT, against diffusers' Lumina2Transformer2DModel.
"""

from .base import Architecture, Sign, few_keys, linears, named, within

_LAYER = {
    "attention.out": "attn.to_out.0",
    "attention.q_norm": "attn.norm_q",
    "attention.k_norm": "attn.norm_k",
    **{f"feed_forward.w{i}": f"feed_forward.linear_{i}" for i in (1, 2, 3)},
    "attention_norm2": "norm2",
}
_MODULATED = {"attention_norm1": "norm1.norm", "adaLN_modulation.1": "norm1.linear"}
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
    names={
        **within("layers.{}", "layers.{}", _LAYER | _MODULATED),
        **within("noise_refiner.{}", "noise_refiner.{}", _LAYER | _MODULATED),
        **within("context_refiner.{}", "context_refiner.{}", _LAYER | {"attention_norm1": "norm1"}),
        "cap_embedder": "time_caption_embed.caption_embedder",
        **linears("t_embedder.mlp", "time_caption_embed.timestep_embedder"),
        "final_layer.adaLN_modulation.1": "norm_out.linear_1",  # a scale alone, so nothing to swap
        "final_layer.linear": "norm_out.linear_2",
    },
    aliases=(*few_keys("attention.qkv", "attn.to_", "layers.{}", "noise_refiner.{}", "context_refiner.{}"),),
)
