"""FLUX.1 (dev, schnell, Fill, Kontext, Krea, control: 19 double and 38 single blocks, 3072 wide), FLUX.2, and Chroma:
FLUX.1-schnell's blocks without their modulation, which one small network makes for all of them.

FLUX.2 is dev (6144 wide, 8 double and 48 single blocks, Mistral 3), Klein 9B (4096) and 4B (3072, both Qwen 3).
Modulation is shared by all blocks of a kind, and both trees have a single block's inputs as one layer.
Sources: black-forest-labs/flux src/flux/model.py and modules/layers.py against diffusers' FluxTransformer2DModel;
black-forest-labs/flux2 src/flux2/model.py against Flux2Transformer2DModel; lodestone-rock/flow
src/models/chroma/model.py, as in ComfyUI comfy/ldm/chroma/model.py, against ChromaTransformer2DModel.
"""

from ...files.components import DENOISER
from .base import Alias, Architecture, Names, Sign, Variant, aliases, layers, linears, named, within

_DOUBLE: Names = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn.norm.query_norm": "attn.norm_q",
    "img_attn.norm.key_norm": "attn.norm_k",
    "img_attn.proj": "attn.to_out.0",
    "img_mlp.0": "ff.net.0.proj",
    "img_mlp.2": "ff.net.2",
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn.norm.query_norm": "attn.norm_added_q",
    "txt_attn.norm.key_norm": "attn.norm_added_k",
    "txt_attn.proj": "attn.to_add_out",
    "txt_mlp.0": "ff_context.net.0.proj",
    "txt_mlp.2": "ff_context.net.2",
}
_LINEAR1 = tuple(
    f"single_transformer_blocks.{{}}.{name}" for name in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")
)

FLUX_LIST = ("CLIP", "T5", "IN", *(f"D{i:02}" for i in range(19)), *(f"S{i:02}" for i in range(38)), "OUT")
"""The list of block weights of the block-weight extension: 61 names."""


MODULATION = {"img_mod.lin": "norm1.linear", "txt_mod.lin": "norm1_context.linear"}


def double_blocks(table: Names) -> Names:
    """Return the names of layers of a double block in a model."""
    return within("double_blocks.{}", "transformer_blocks.{}", table)


SINGLE_BLOCKS: tuple[Alias, ...] = (
    Alias(DENOISER, "single_blocks.{}.linear1", _LINEAR1, sizes=("in", "in", "in", "rest")),
    Alias(DENOISER, "single_blocks.{}.linear2", "single_transformer_blocks.{}.proj_out"),
    # linear1 without its MLP, as XLabs trains it; the name is ComfyUI's
    Alias(DENOISER, "single_blocks.{}.linear1_qkv", _LINEAR1[:3]),
)
"""What HunyuanVideo's own code calls so, too."""
FLUX_BLOCKS: tuple[Alias, ...] = (
    *SINGLE_BLOCKS,
    *aliases(
        DENOISER,
        {
            **double_blocks(_DOUBLE),
            "single_blocks.{}.norm.query_norm": "single_transformer_blocks.{}.attn.norm_q",
            "single_blocks.{}.norm.key_norm": "single_transformer_blocks.{}.attn.norm_k",
        },
    ),
)
_FLUX_LAYERS = (
    *FLUX_BLOCKS,
    *aliases(DENOISER, {"img_in": "x_embedder", "txt_in": "context_embedder", "final_layer.linear": "proj_out"}),
    Alias(DENOISER, "img_in.proj", ("x_embedder",)),  # OMI's name
)

SINGLE_ATTENTION_SIGN = layers(r"single_transformer_blocks_\d+_attn_to_(?:[qkv]|qkv):3072$")
"""What AuraFlow has as well."""
JOINT_ATTENTION_SIGN = layers(r"transformer_blocks_\d+_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):3072$", 1)
"""What Qwen-Image has as well."""
NATIVE_SIGNS = (
    layers(r"double_blocks_\d+_(img|txt)_(attn_qkv|attn_proj|mlp_0):3072$"),
    layers(r"single_blocks_\d+_linear1:3072$"),
    # OFT and others that do not tell how wide their layers are
    layers(r"double_blocks_\d+_(img|txt)_attn_(qkv|proj):\?$", 1),
)
"""What FLUX.2 Klein 4B has as well, in names of Flux's own code."""
FLUX_SIGNS: tuple[Sign, ...] = (
    *NATIVE_SIGNS,
    SINGLE_ATTENTION_SIGN,
    JOINT_ATTENTION_SIGN,
    layers(r"single_transformer_blocks_\d+_proj_mlp:3072$"),
    layers(r"single_(blocks_\d+_linear2|transformer_blocks_\d+_proj_out):15360$", 2),
    layers(r"(double_blocks_\d+_(img|txt)_mlp_2|transformer_blocks_\d+_ff_context_net_2):12288$", 1),
    layers(r"transformer_blocks_\d+_ff_context_net_0_proj:3072$", 2),
)
"""What FLUX.1, Chroma and HunyuanVideo have alike, in all names: their blocks, by their width."""
FLUX_DIFFUSERS_SIGNS = FLUX_SIGNS[len(NATIVE_SIGNS) :]
"""What BRIA 3.2, FIBO, Ovis-Image and Motif-Video have as well, in diffusers' names."""
OTHERS = layers(
    r"(time_embed_|timestep_embedder_|caption_projection_|context_embedder:3584$"
    r"|context_embedder_linear_[12]:|transformer_blocks_\d+_attn1_|double_blocks_\d+_attn_(img|txt)_attn_"
    r"|(txt_)?mode_blocks_|early_stream_modulations_|double_blocks_\d+_(img|txt)_mlp_net_|x_embedders_)"
)
"""What Mochi, LongCat-Image, BRIA 3.2 and FIBO, Ovis-Image, Motif, JoyImage-Edit and FLUX.3 have beside such blocks.

Source: diffusers models/transformers. A file of LoRA on attention alone tells nothing between these and FLUX.1.
"""
MODULATION_SIGN = layers(
    r"(double_blocks_\d+_(img|txt)_mod_lin|single_blocks_\d+_modulation_lin"
    r"|transformer_blocks_\d+_norm1(_context)?_linear|single_transformer_blocks_\d+_norm_linear):3072$"
)
"""What of these only Chroma has not."""
T5_INPUT_SIGN = layers(r"(txt_in|context_embedder):4096$", 2)
"""What of these only HunyuanVideo has not, and Stable Diffusion 3 has as well: one layer between T5 and the blocks."""

_LAYERS = ("in_layer", "out_layer")
_FLUX2_FEED_FORWARD = {
    "img_mlp.0": "ff.linear_in",
    "img_mlp.2": "ff.linear_out",
    "txt_mlp.0": "ff_context.linear_in",
    "txt_mlp.2": "ff_context.linear_out",
}

FLUX = Architecture(
    name="flux",
    title="FLUX.1",
    # which have the same layers: a file of nothing else is likelier for this
    before=(
        *("auraflow", "bria", "bria_fibo", "chroma", "flux2", "flux3"),
        *("hunyuan_video", "longcat_image", "motif_video", "ovis_image"),
    ),
    signs=(*FLUX_SIGNS, MODULATION_SIGN, T5_INPUT_SIGN, named(r"flux(?![._-]?2)|flex\.?1")),
    width=3072,
    never=OTHERS,
    inputs=("x_embedder",),
    variants=(
        Variant("FLUX.1", inputs=64),
        Variant("FLUX.1 Fill", inputs=384),
        Variant("FLUX.1 control (Canny or Depth)", inputs=128),
        Variant("FLUX.1 dev", layers=r"guidance_(in|embedder)"),
    ),
    names={
        "single_blocks.{}.modulation.lin": "single_transformer_blocks.{}.norm.linear",
        **linears("time_in", "time_text_embed.timestep_embedder", _LAYERS),
        **linears("vector_in", "time_text_embed.text_embedder", _LAYERS),
        **linears("guidance_in", "time_text_embed.guidance_embedder", _LAYERS),
        **double_blocks(MODULATION),
    },
    swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"},
    aliases=_FLUX_LAYERS,
)
CHROMA = Architecture(
    name="chroma",
    title="Chroma",
    before=("bria", "bria_fibo", "motif_video", "ovis_image"),
    signs=(*FLUX_SIGNS, T5_INPUT_SIGN, layers(r"distilled_guidance_layer_"), named("chroma")),
    never=OTHERS,
    names=linears("distilled_guidance_layer.layers.{}", "distilled_guidance_layer.layers.{}", _LAYERS),
    aliases=_FLUX_LAYERS,
)
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
        **linears("time_in", "time_guidance_embed.timestep_embedder", _LAYERS),
        **linears("guidance_in", "time_guidance_embed.guidance_embedder", _LAYERS),
        **double_blocks(_FLUX2_FEED_FORWARD),
    },
    swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"},
    aliases=_FLUX_LAYERS,
)
