"""ACE-Step 1.5 (music): 24 layers with self and cross attention, 2048 wide; Qwen 3.

Source: ace-step/ACE-Step-1.5 against diffusers' AceStepTransformer1DModel, as
`_convert_non_diffusers_ace_step_lora_to_diffusers` and scripts/convert_ace_step_to_diffusers.py have it. Its own code
has the transformer below `decoder`, as ComfyUI's has, and LoRA without that.
"""

from .base import Architecture, layers, named

_PARTS = {
    **{f"{part}_proj": f"to_{part}" for part in "qkv"},
    "o_proj": "to_out.0",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
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
        **(
            {
                f"layers.{{}}.{kind}.{native}": f"layers.{{}}.{kind}.{own}"
                for kind in ("self_attn", "cross_attn")
                for native, own in _PARTS.items()
            }
            | {"proj_in.1": "proj_in_conv", "proj_out.1": "proj_out_conv"}
            | {f"decoder.{part}": part for part in ("layers", "condition_embedder", "time_embed", "time_embed_r")}
        )
    },
)
