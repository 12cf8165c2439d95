"""FLUX.2: dev (6144 wide, 8 double and 48 single blocks, Mistral 3), Klein 9B (4096) and 4B (3072, both Qwen 3).

Modulation is shared by all blocks of a kind, and both trees have a single block's inputs as one layer.
Source: black-forest-labs/flux2 src/flux2/model.py against diffusers' Flux2Transformer2DModel.
"""

from ._flux_blocks import FLUX_BLOCKS, JOINT_ATTENTION_SIGN, NATIVE_SIGNS, double_blocks
from ._llm import LLM_ALIASES
from .base import Architecture, Variant, layers, linears, named

FLUX2 = Architecture(
    name="flux2",
    title="FLUX.2",
    signs=(
        # Klein 4B is as wide as FLUX.1
        *NATIVE_SIGNS,
        JOINT_ATTENTION_SIGN,
        layers(r"(double|single)_stream_modulation_", 8),
        layers(r"single_transformer_blocks_\d+_attn_to_(qkv_mlp_proj|out):", 8),
        layers(r"transformer_blocks_\d+_ff(_context)?_linear_(in|out):", 8),
        layers(r"double_blocks_\d+_(img|txt)_mlp_2:(18432|9216)$", 8),
        layers(r"single_blocks_\d+_linear2:(24576|16384|12288)$", 8),
        layers(r"(double_blocks_\d+_(img|txt)_(attn|mlp)|single_blocks_\d+_linear1).*:(6144|4096)$"),
        layers(r"transformer_blocks_\d+_attn_add_[qkv]_proj:(6144|4096)$"),
        layers(r"transformer_blocks_[0-7]_attn_to_([qkv]|out_0):(6144|4096)$", 1),  # as in Krea 2
        named("flux[._-]?2"),
    ),
    variants=(
        Variant("FLUX.2 dev", width=6144),
        Variant("FLUX.2 Klein 9B", width=4096),
        Variant("FLUX.2 Klein 4B", width=3072),
    ),
    names={
        "single_blocks.{}.linear1": "single_transformer_blocks.{}.attn.to_qkv_mlp_proj",
        "single_blocks.{}.linear2": "single_transformer_blocks.{}.attn.to_out",
        "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
        "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
        "single_stream_modulation.lin": "single_stream_modulation.linear",
        **linears("time_in", "time_guidance_embed.timestep_embedder", ("in_layer", "out_layer")),
        **linears("guidance_in", "time_guidance_embed.guidance_embedder", ("in_layer", "out_layer")),
    },
    swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"},
    aliases=(
        *FLUX_BLOCKS,
        *double_blocks(
            {
                "img_mlp.0": "ff.linear_in",
                "img_mlp.2": "ff.linear_out",
                "txt_mlp.0": "ff_context.linear_in",
                "txt_mlp.2": "ff_context.linear_out",
            }
        ),
        *LLM_ALIASES,
    ),
)
