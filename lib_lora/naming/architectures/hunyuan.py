"""HunyuanVideo and FramePack (20 double and 40 single blocks of Flux's kind, 3072 wide; Llama 3 and CLIP-L),
HunyuanImage 2.1 (20 and 40, 3584 wide) and HunyuanVideo 1.5 (54 double blocks, 2048 wide), both with Qwen 2.5 VL and
ByT5.

HunyuanVideo has Tencent's own tree, ComfyUI's and diffusers'; FramePack is diffusers' in all programs. Tencent's code
of the later two has queries, keys and values apart; checkpoints of HunyuanImage, and ComfyUI, have them as one.
Sources: Tencent/HunyuanVideo hyvideo/modules/models.py and token_refiner.py against diffusers'
HunyuanVideoTransformer3DModel; Comfy-Org/ComfyUI comfy/ldm/hunyuan_video/model.py, which has Flux's own blocks under
the same names as Flux and a refiner named alike. OMI's `fc0`: Nerogar/OneTrainer up to de1437cb,
modules/util/convert/lora/convert_hunyuan_video_lora.py. Tencent-Hunyuan/HunyuanImage-2.1
hyimage/models/hunyuan/modules/hunyuanimage_dit.py and HunyuanVideo-1.5
hyvideo/models/transformers/hunyuanvideo_1_5_transformer.py, as huggingface/diffusers
scripts/convert_hunyuan_image_to_diffusers.py and scripts/convert_hunyuan_video1_5_to_diffusers.py have them; and as
kohya's trainers and ComfyUI have them, kohya-ss/sd-scripts networks/convert_hunyuan_image_lora_to_comfy.py and
kohya-ss/musubi-tuner src/musubi_tuner/networks/convert_hunyuan_video_1_5_lora_to_comfy.py.
"""

from collections.abc import Mapping

from ...files.components import DENOISER
from .base import Alias, Architecture, Names, Variant, aliases, layers, linears, named, within
from .flux import FLUX_BLOCKS, FLUX_SIGNS, MODULATION, MODULATION_SIGN, OTHERS, SINGLE_BLOCKS, double_blocks

_SINGLE = "single_transformer_blocks.{}"
_REFINER = ("txt_in.individual_token_refiner.blocks.{}", "context_embedder.token_refiner.refiner_blocks.{}")
_LAYERS = ("in_layer", "out_layer")
_QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
_FUSED: Names = {"img_attn_qkv": _QKV, "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")}
_APART: Names = {
    **{f"img_attn_{part}": f"attn.to_{part}" for part in "qkv"},
    **{f"txt_attn_{part}": f"attn.add_{part}_proj" for part in "qkv"},
}
_DOUBLE: Names = {
    "img_mod.linear": "norm1.linear",
    "img_attn_q_norm": "attn.norm_q",
    "img_attn_k_norm": "attn.norm_k",
    "img_attn_proj": "attn.to_out.0",
    "txt_mod.linear": "norm1_context.linear",
    "txt_attn_q_norm": "attn.norm_added_q",
    "txt_attn_k_norm": "attn.norm_added_k",
    "txt_attn_proj": "attn.to_add_out",
    # fc0 is OMI's
    **{
        f"{one}_mlp.{fc}": f"{own}.net.0.proj"
        for one, own in (("img", "ff"), ("txt", "ff_context"))
        for fc in ("fc1", "fc0")
    },
    **{f"{one}_mlp.fc2": f"{own}.net.2" for one, own in (("img", "ff"), ("txt", "ff_context"))},
}
_REFINER_BLOCK: Names = {
    "self_attn_qkv": _QKV,
    "self_attn_proj": "attn.to_out.0",
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc0": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
    "adaLN_modulation.1": "norm_out.linear",
}
_SINGLE_BLOCK: Names = {"modulation.linear": "norm.linear", "q_norm": "attn.norm_q", "k_norm": "attn.norm_k"}
_COMFY: Names = {
    **double_blocks(MODULATION),
    "single_blocks.{}.modulation.lin": f"{_SINGLE}.norm.linear",
    **within(
        *_REFINER,
        {"self_attn.qkv": _QKV, "self_attn.proj": "attn.to_out.0", "mlp.0": "ff.net.0.proj", "mlp.2": "ff.net.2"},
    ),
}
_TEXT = {
    "txt_in.t_embedder": "context_embedder.time_text_embed.timestep_embedder",
    "txt_in.c_embedder": "context_embedder.time_text_embed.text_embedder",
}
_VIDEO = {"time_in": "time_text_embed.timestep_embedder", "guidance_in": "time_text_embed.guidance_embedder"}
_IMAGE = {
    "time_in": "time_guidance_embed.timestep_embedder",
    "time_r_in": "time_guidance_embed.timestep_embedder_r",
    "guidance_in": "time_guidance_embed.guidance_embedder",
}
_VIDEO15 = {"time_in": "time_embed.timestep_embedder"}
_BYT5 = {
    "byt5_in.layernorm": "context_embedder_2.norm",
    **{f"byt5_in.fc{i}": f"context_embedder_2.linear_{i}" for i in (1, 2, 3)},
}


def _names(embedders: Mapping[str, str], double: Names, more: Names) -> Names:
    """Return Tencent's names of a family: its embedders of numbers, layers of its double blocks, and others."""
    pairs = {**embedders, "txt_in.t_embedder": _TEXT["txt_in.t_embedder"]}.items()
    return {
        **double_blocks({**double, **_DOUBLE}),
        **within(*_REFINER, _REFINER_BLOCK),
        "txt_in.input_embedder": "context_embedder.proj_in",
        "img_in": "x_embedder",
        "final_layer.linear": "proj_out",
        **{name: own for one in pairs for name, own in linears(*one, ("mlp.0", "mlp.2")).items()},
        **linears("txt_in.c_embedder", _TEXT["txt_in.c_embedder"], ("linear_1", "linear_2")),
        **more,
    }


def _comfy(embedders: Mapping[str, str]) -> tuple[Alias, ...]:
    """Return ComfyUI's names of a family, whose blocks are named as in Flux."""
    pairs = {**embedders, **_TEXT}.items()
    numbers = {name: own for one in pairs for name, own in linears(*one, _LAYERS).items()}
    return (*FLUX_BLOCKS, *aliases(DENOISER, {**_COMFY, **numbers}))


_SWAPPED = {"final_layer.adaLN_modulation.1": "norm_out.linear"}  # shift and scale
LATE_BLOCK_SIGNS = (
    layers(r"double_blocks_19_(img|txt)_.*:(3072|12288)$"),
    layers(r"transformer_blocks_19_(ff|norm1)_context_.*:(3072|12288)$"),
    layers(r"single_(transformer_)?blocks_(38|39)_.*:(3072|15360)$"),
)
"""Flux's blocks, but more of them, as Motif-Video has."""
ATTENTION_2048 = layers(r"transformer_blocks_\d+_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):2048$")
"""What MiniMax-Music 3 and Nucleus-Image have in part."""

HUNYUAN_VIDEO = Architecture(
    name="hunyuan_video",
    title="HunyuanVideo",
    before=("motif_video",),
    image_first=("HunyuanVideoTransformer3DModel", "HunyuanVideoFramepackTransformer3DModel"),
    signs=(
        *FLUX_SIGNS,
        MODULATION_SIGN,
        layers(r"double_blocks_\d+_(img|txt)_(mlp_fc1|mod_linear):3072$"),
        layers(r"single_blocks_\d+_modulation_linear:3072$"),
        layers(r"(txt_in_individual_|context_embedder_)token_refiner_.*:3072$"),
        *LATE_BLOCK_SIGNS,
        named("hunyuan[_-]video(?![_-]1[._]5)|framepack"),
    ),
    never=OTHERS,
    inputs=("x_embedder.proj",),
    variants=(
        Variant("HunyuanVideo for text to video", inputs=16),
        Variant("HunyuanVideo for image to video", inputs=33),
    ),
    names=_names(
        _VIDEO,
        _FUSED,
        {
            **within("single_blocks.{}", _SINGLE, _SINGLE_BLOCK),
            **linears("vector_in", "time_text_embed.text_embedder", _LAYERS),
        },
    ),
    swapped=_SWAPPED,
    aliases=SINGLE_BLOCKS,
    comfy=_comfy(_VIDEO),
)
HUNYUAN_IMAGE = Architecture(
    name="hunyuan_image",
    title="HunyuanImage 2.1",
    signs=(
        layers(r"double_blocks_\d+_(img|txt)_(attn_|mlp_|mod_).*:3584$"),
        layers(r"single_blocks_\d+_(linear1|modulation_).*:3584$"),
        layers(r"single_transformer_blocks_\d+_(attn_to_[qkv]|norm_linear|proj_mlp):3584$"),
        layers(r"single_(transformer_)?blocks_\d+_(proj_out|linear2(_fc)?):17920$"),
        layers(r"transformer_blocks_\d+_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):3584$"),
        layers(r"transformer_blocks_\d+_(norm1(_context)?_linear|ff(_context)?_net_0_proj):3584$"),
        layers(r"(txt_in_individual_|context_embedder_)token_refiner_.*:3584$"),
        named("hunyuan[_-]?image"),
    ),
    inputs=("x_embedder.proj",),
    names=_names(
        _IMAGE,
        _FUSED,
        {**within("single_blocks.{}", _SINGLE, _SINGLE_BLOCK), **_BYT5},
    ),
    swapped=_SWAPPED,
    aliases=(
        *SINGLE_BLOCKS,
        *aliases(  # of Tencent's own code; checkpoints, kohya's scripts and ComfyUI have them as one
            DENOISER,
            {
                **double_blocks(_APART),
                **{f"single_blocks.{{}}.linear1_{part}": f"{_SINGLE}.attn.to_{part}" for part in "qkv"},
                "single_blocks.{}.linear1_mlp": f"{_SINGLE}.proj_mlp",
                "single_blocks.{}.linear2.fc": (f"{_SINGLE}.proj_out",),
            },
        ),
    ),
    comfy=_comfy(_IMAGE),
)
HUNYUAN_VIDEO15 = Architecture(
    name="hunyuan_video15",
    title="HunyuanVideo 1.5",
    signs=(
        # not the second layer of a feed-forward, which has 2048 inputs in a model that is 512 wide
        layers(r"double_blocks_\d+_(img|txt)_(attn_|mlp_(0|fc[01])|mod_).*:2048$"),
        ATTENTION_2048,
        layers(r"(txt_in_individual_|context_embedder_)token_refiner_.*:2048$"),
        named("hunyuan[_-]video[_-]1[._]5|hunyuanvideo-"),
    ),
    # MiniMax-Music's and Nucleus-Image's
    never=layers(r"transformer_blocks_\d+_(ff_(in|out):|encoder_proj|img_mlp_(shared_)?expert)"),
    names=_names(
        _VIDEO15,
        _APART,
        {
            **_BYT5,
            "vision_in.proj.0": "image_embedder.norm_in",
            **linears("vision_in.proj", "image_embedder", ("1", "3")),
            "vision_in.proj.4": "image_embedder.norm_out",
            "cond_type_embedding": "cond_type_embed",
        },
    ),
    swapped=_SWAPPED,
    comfy=_comfy(_VIDEO15),
)
