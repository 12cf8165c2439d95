"""ACE-Step 1.5 (music): 24 layers with self and cross attention, 2048 wide; Qwen 3.

Source: ace-step/ACE-Step-1.5 against diffusers' AceStepTransformer1DModel, as
`_convert_non_diffusers_ace_step_lora_to_diffusers` and scripts/convert_ace_step_to_diffusers.py have it. Its own code
has the transformer below `decoder`, as ComfyUI's has, and LoRA without that.
"""

from .base import Architecture, layers, named, within

_ATTENTION = {
    **{f"{part}_proj": f"to_{part}" for part in "qkv"},
    "o_proj": "to_out.0",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
_LAYER = {
    **{
        f"{kind}.{native}": f"{kind}.{own}"
        for kind in ("self_attn", "cross_attn")
        for native, own in _ATTENTION.items()
    },
    **{f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}

ACE_STEP = Architecture(
    name="ace_step",
    title="ACE-Step 1.5",
    signs=(
        layers(r"layers_\d+_cross_attn_(to_([qkv]|out_0)|[qkvo]_proj):2048$"),
        # language models call them q_proj
        layers(r"layers_\d+_self_attn_to_([qkv]|out_0):2048$"),
        named("ace[_-]?step"),
    ),
    names={
        **within("decoder.layers.{}", "layers.{}", _LAYER),
        **{f"decoder.{part}": part for part in ("condition_embedder", "time_embed", "time_embed_r")},
        **{f"{above}proj_{end}.1": f"proj_{end}_conv" for above in ("decoder.", "") for end in ("in", "out")},
        **within("layers.{}", "layers.{}", _LAYER),  # its own LoRA, without `decoder`
    },
)
