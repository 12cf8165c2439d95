"""Families that Remora knows by sight: their files have the names of diffusers' models, and few others or none.

With these entries, neither a file nor a model is taken for a family with the same names of layers.
Source: huggingface/diffusers models/transformers and models/unets at 0.42, or what is named beside a family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ...files.components import DENOISER
from ._encoders import BIG_G_SIGN
from ._ldm_unet import FINEST
from .base import Architecture, Sign, Variant, aliases, named, within
from .flux import FLUX_DIFFUSERS_SIGNS, JOINT_ATTENTION_SIGN, MODULATION_SIGN, SINGLE_ATTENTION_SIGN, T5_INPUT_SIGN
from .hunyuan import ATTENTION_2048, LATE_BLOCK_SIGNS
from .lumina2 import FEED_FORWARD_2304

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OWN = 20
"""The weight of layers that no other family has, whatever else it shares with others."""


def _own(names: str, weight: int = _OWN) -> Sign:
    return Sign(rf"^(denoiser|\?):({names})", weight)


class _Fields(TypedDict, total=False):
    never: Sign
    inputs: tuple[str, ...]
    before: tuple[str, ...]
    image_first: tuple[str, ...]
    flow: bool


def _family(name: str, title: str, words: str | None, *signs: Sign, **fields: Unpack[_Fields]) -> Architecture:
    """Return a family of hardly more than signs; `words` is the pattern of its name in metadata, if it has any."""
    named_so = () if words is None else (named(words),)
    return Architecture(name, title, (*named_so, *signs), **fields)


ATTENTION_3072 = _own(r"transformer_blocks_\d+_attn1_to_([qkv]|out_0):3072$", 3)
_MODULATION_512 = _own(r"transformer_blocks_\d+_norm1_linear:512$", 3)
_HIDREAM_O1 = ("language_model", "visual", "t_embedder1", "x_embedder", "final_layer2")
_LAYER, _MLP = "layers.{}.attention", "transformer_blocks.{}.img_mlp"

# 2B, 5B and 1.5: 30 or 42 blocks, which see text and video as one sequence
COGVIDEOX = Architecture(
    name="cogvideox",
    title="CogVideoX",
    signs=(
        _own(r"transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):1920$", 3),
        ATTENTION_3072,
        _MODULATION_512,
        _own(r"transformer_blocks_\d+_norm2_linear:512$", 3),
        named("cogvideo"),
    ),
    inputs=("patch_embed.proj",),
    flow=False,
    variants=(
        Variant("CogVideoX 2B", width=1920),
        Variant("CogVideoX 5B", width=3072),
        Variant("CogVideoX for text to video", inputs=16),
        Variant("CogVideoX for image to video", inputs=32),
    ),
)
# The language model Qwen 3 VL 8B itself, with an input and an output for pixels. musubi-tuner and ai-toolkit have it in
# their code under the names of transformers; ai-toolkit leaves out `model` when it saves, as ComfyUI's tree has none.
# HiDream-ai/HiDream-O1-Image models/qwen3_vl_transformers.py
HIDREAM_O1 = Architecture(
    name="hidream_o1",
    title="HiDream-O1",
    signs=(
        # a denoiser by its key; text encoders have such layers, too
        Sign(r"^denoiser:(model_)?language_model_layers_\d+_(self_attn_[qkvo]_proj|mlp_(gate|up)_proj):4096$", 5),
        _own("(model_)?(x_embedder_proj[12]|t_embedder1_mlp_[02]|final_layer2_linear):", 5),
        named("hidream.?o1"),
    ),
    names={f"model.{one}": one for one in _HIDREAM_O1},
    comfy=aliases(DENOISER, {one: one for one in _HIDREAM_O1}),
)
# 34 layers, which see the text and the picture as one sequence. Its own code has queries, keys and values as one.
# diffusers' `_convert_non_diffusers_ideogram4_lora_to_diffusers`
IDEOGRAM4 = Architecture(
    name="ideogram4",
    title="Ideogram 4",
    signs=(
        _own(r"layers_\d+_attention_(qkv|o|to_([qkv]|out_0)):4608$", 3),
        _own(r"layers_\d+_feed_forward_w[13]:4608$", 3),
        _own(r"layers_\d+_adaln_modulation:512$", 3),
        named("ideogram"),
    ),
    names=within(_LAYER, _LAYER, {"qkv": ("to_q", "to_k", "to_v"), "o": "to_out.0"}),
)
# text and image to video, and images; kandinskylab/kandinsky-5 kandinsky/models/dit.py
KANDINSKY5 = Architecture(
    name="kandinsky5",
    title="Kandinsky 5",
    signs=(
        _own(
            r"(text|visual)_transformer_blocks_\d+_"
            r"(self_attention|cross_attention|feed_forward|(text|visual)_modulation)_",
            10,
        ),
        named("kandinsky-?5"),
    ),
    never=_own(  # Kandinsky 6's
        r"visual_transformer_blocks_\d+_(feed_forward_net_|(audio|video)_dec|av_|va_)|audio_|video_"
        r"|time_embeddings_timestep_embedder_"
    ),
    variants=(Variant("Kandinsky 5 Lite", width=1792), Variant("Kandinsky 5 Pro", width=4096)),
)
# 32 blocks of one stream. ComfyUI's checkpoints have the first two layers of the MLP as one; for that layer
# vladmandic/sdnext pipelines/qwen/qwen21_lora.py
QWEN_IMAGE21 = Architecture(
    name="qwen_image21",
    title="Qwen-Image 2.1",
    signs=(
        _own(r"transformer_blocks_\d+_img_mlp_(gate_up|gate_layer|proj):4096$", 6),
        _own(r"transformer_blocks_\d+_img_mlp_out:12288$", 6),
        _own("txt_in_(in|out)_layer:4096$", 3),
        _own(r"transformer_blocks_\d+_attn_to_([qkv]|out_0):4096$", 1),  # as in FLUX.2 Klein
        named("qwen[_-]image[_-]?2[._]1"),
    ),
    names=within(_MLP, _MLP, {"gate_up": ("gate_layer", "proj")}),
)

_AS_FLUX = (*FLUX_DIFFUSERS_SIGNS, MODULATION_SIGN)

# 8 layers of two streams and 32 of one, of OmniGen 2's kind; boogu-project/Boogu-Image
# boogu/models/transformers/transformer_boogu.py
BOOGU = _family(
    "boogu",
    "Boogu Image",
    "boogu",
    _own(r"(double|single)_stream_layers_\d+_", 6),
    _own(r"(noise|context|ref_image)_refiner_\d+_(attn_to_([qkv]|out_0)|feed_forward_linear_[13]):3360$", 3),
)
ERNIE_IMAGE = _family(
    "ernie_image",
    "ERNIE-Image",
    "ernie",
    _own(r"layers_\d+_self_attention_to_([qkv]|out_0):", 5),
    _own(r"layers_\d+_mlp_linear_fc2:", 5),
)
# 32 layers and three refiners, of Lumina Image 2.0's kind; VectorSpaceLab/OmniGen2
# omnigen2/models/transformers/transformer_omnigen2.py
OMNIGEN2 = _family(
    "omnigen2",
    "OmniGen 2",
    "omnigen-?2",
    _own(r"(layers|(noise|context|ref_image)_refiner)_\d+_attn_to_([qkv]|out_0):2520$", 3),
    _own(r"(layers|(noise|context|ref_image)_refiner)_\d+_feed_forward_linear_[13]:2520$", 3),
    _own(r"(layers|(noise|context|ref_image)_refiner)_\d+_norm1_linear:1024$", 1),
)
# 28 blocks, which see text and picture as one sequence; what it has not is GLM-Image's
COGVIEW4 = _family(
    "cogview4",
    "CogView 4",
    "cogview-?4",
    _MODULATION_512,
    _own(r"transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):(2560|4096)$", 1),
    _own("patch_embed_text_proj:4096$", 2),
    _own("time_condition_embed_(timestep|condition)_embedder_", 4),
    never=_own("(image|glyph|prior)_projector_"),
    before=("cogview3",),
)
# 16 double and 32 single blocks with experts; HiDream-ai/HiDream-I1
# hi_diffusers/models/transformers/transformer_hidream_image.py
HIDREAM = _family(
    "hidream",
    "HiDream",
    "hidream(?!.?o1)",
    BIG_G_SIGN,
    _own(r"(double|single)_stream_blocks_\d+_block_", 10),
    image_first=("HiDreamImageTransformer2DModel",),
)
# 48 double blocks, with four layers of GPT-OSS, 2880 each; microsoft/Lens, as in vladmandic/sdnext
# pipelines/lens/transformer.py, comfyanonymous/ComfyUI comfy/ldm/lens/model.py and huggingface/diffusers pull request
# 13837. Stable Diffusion 3 has its `to_add_out`, too
LENS = _family(
    "lens",
    "Lens",
    "lens(?![a-z])",
    _own(r"transformer_blocks_\d+_attn_(img|txt)_qkv:1536$", 6),
    _own(r"transformer_blocks_\d+_(img|txt)_(mlp_w([13]:1536|2:4096)|mod_1:1536)$", 3),
    _own(r"transformer_blocks_\d+_attn_to_add_out:1536$", 4),
    _own("txt_in:11520$", 3),
    inputs=("img_in",),
)
# FLUX.1's blocks with Qwen 2.5 VL, which alone do not tell it from FLUX.1; it has not what FLUX.1, Chroma,
# HunyuanVideo, Ovis-Image, FLUX.3 and BRIA have beside such blocks
LONGCAT_IMAGE = _family(
    "longcat_image",
    "LongCat-Image",
    "longcat",
    SINGLE_ATTENTION_SIGN,
    JOINT_ATTENTION_SIGN,
    _own(r"single_transformer_blocks_\d+_proj_mlp:3072$", 3),
    _own(r"single_transformer_blocks_\d+_proj_out:15360$", 2),
    _own(r"transformer_blocks_\d+_ff_context_net_2:12288$", 1),
    _own(r"transformer_blocks_\d+_ff_context_net_0_proj:3072$", 2),
    _own(r"(single_)?transformer_blocks_\d+_norm1?(_context)?_linear:3072$", 3),
    _own("(context_embedder:3584|time_embed_timestep_embedder_linear_[12]:(256|3072))$", 3),
    never=_own(
        "time_text_embed_|timestep_embedder_|time_guidance_embed_|context_embedder:(?!3584$)|context_embedder_|"
        "distilled_guidance_|caption_projection_|double_blocks_|early_stream_modulations_|(txt_)?mode_blocks_|"
        r"transformer_blocks_\d+_(attn1_|img_)"
    ),
    inputs=("x_embedder",),
)
# Qwen-Image, Edit and Layered: 60 double blocks, which FLUX.1 and HunyuanVideo call so, too, but have 19 or 20 of them;
# a file of nothing but layers that FLUX.1 has leaves out the most of that. Qwen2.5-VL 7B. What it has not is
# Nucleus-Image's. Comfy-Org/ComfyUI comfy/ldm/qwen_image/model.py
QWEN_IMAGE = _family(
    "qwen_image",
    "Qwen-Image",
    "qwen[_-]image(?![_-]?2[._]1)",
    JOINT_ATTENTION_SIGN,
    _own(r"transformer_blocks_\d+_(img|txt)_(mlp_net_|mod_1:3072$)", 6),
    _own(r"transformer_blocks_[2-5]\d_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):3072$", 3),
    Sign(
        r"^text_encoder[^:]*:(model_)?(language_model_)?layers_\d+_(self_attn_[qkv]_proj|mlp_(gate|up)_proj):3584$",
        1,
    ),
    never=_own(r"transformer_blocks_\d+_(encoder_proj|img_mlp_(shared_)?expert)"),
    before=("flux",),
)
BRIA = _family(
    "bria",
    "BRIA 3.2",
    "bria",
    *_AS_FLUX,
    T5_INPUT_SIGN,
    _own("time_embed_timestep_embedder_", 3),
    never=_own(
        "time_text_embed_|distilled_guidance_|(double|single)_blocks_|(txt_)?mode_blocks_|early_stream_|guidance_|"
        "caption_projection_|timestep_embedder_|context_embedder:(?!4096$)|context_embedder_|time_embed_t_embedder|"
        r"transformer_blocks_\d+_attn1_"
    ),
)
BRIA_FIBO = _family(
    "bria_fibo",
    "BRIA FIBO",
    "(bria-?)?fibo(?!-?2)",
    *_AS_FLUX,
    _own("time_embed_timestep_embedder_", 3),
    _own(r"caption_projection_\d+_linear"),
    never=_own(
        "time_text_embed_|distilled_guidance_|(double|single)_blocks_|(txt_)?mode_blocks_|early_stream_|guidance_|"
        "timestep_embedder_|context_embedder:(?!4096$)|context_embedder_|caption_projection_linear|"
        r"time_embed_t_embedder|transformer_blocks_\d+_attn1_|(double|single)_stream_blocks_"
    ),
)
OVIS_IMAGE = _family(
    "ovis_image",
    "Ovis-Image",
    "ovis",
    *_AS_FLUX,
    _own("context_embedder:2048$", 4),
    _own("timestep_embedder_linear_[12]:(256|3072)$", 4),
    never=_own(
        "time_text_embed_|distilled_guidance_|(double|single)_blocks_|(txt_)?mode_blocks_|early_stream_|guidance_|"
        "time_embed_|caption_projection_|context_embedder:(?!2048$)|context_embedder_(?!norm)|"
        r"transformer_blocks_([6-9]|\d\d)_|single_transformer_blocks_(2[7-9]|[3-9]\d)_|transformer_blocks_\d+_attn1_"
    ),
)
MOTIF_VIDEO = _family(
    "motif_video",
    "Motif-Video",
    "motif",
    *_AS_FLUX,
    *LATE_BLOCK_SIGNS,
    _own("context_embedder_linear_[12]:"),
    never=_own(
        "context_embedder:|context_embedder_(?!linear)|time_embed_|caption_projection_|timestep_embedder_|"
        r"double_blocks_|distilled_guidance_|(txt_)?mode_blocks_|early_stream_|transformer_blocks_\d+_attn1_|"
        "single_blocks_"
    ),
)
FLUX3 = _family(
    "flux3",
    "FLUX.3",
    "flux[._-]?3",
    _own("(txt_)?mode_blocks_|(early|single)_stream_modulations_|x_embedders_|context_embedder:20480$"),
    _own(r"single_transformer_blocks_\d+_attn_to_[qkv]:3072$", 3),
    _own(r"single_transformer_blocks_\d+_(attn_to_out_0:3072|ff_linear_(in:3072|out:9216))$", 8),
    never=_own(
        r"single_transformer_blocks_\d+_(proj_|norm|ff_linear_\d|ff_out)|(joint_)?transformer_blocks_|double_blocks_"
    ),
)
JOY_IMAGE = _family(
    "joy_image",
    "JoyImage-Edit",
    "joy-?image",
    _own(r"double_blocks_\d+_(attn_(img|txt)_attn_|(img|txt)_mlp_net_)"),
)
NUCLEUS_IMAGE = _family(
    "nucleus_image",
    "Nucleus-Image",
    "nucleus",
    ATTENTION_2048,
    _own(r"transformer_blocks_\d+_(encoder_proj|img_mlp_(gate:|shared_expert|expert)|img_mod_\d:2048)"),
    never=_own(r"transformer_blocks_\d+_(attn_add_q|attn_to_add_out|ff_|norm1_|txt_)|.*refiner|single_|double_"),
)
MINIMAX_MUSIC3 = _family(
    "minimax_music3",
    "MiniMax-Music 3",
    "minimax-?music",
    ATTENTION_2048,
    _own(r"transformer_blocks_\d+_ff_(in|out):|(pre|post)process_conv:(2304|128)$"),
    never=_own(
        r"transformer_blocks_\d+_(attn_add_|attn_to_add_|ff_net|ff_context|norm1_|img_)|.*refiner|single_|double_"
    ),
)
GLM_IMAGE = _family(
    "glm_image",
    "GLM-Image",
    "glm-?image",
    _MODULATION_512,
    _own("(image|glyph|prior)_projector_"),
    _own(r"transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):(2560|4096)$", 1),
    _own("time_condition_embed_(timestep|condition)_embedder_", 4),
    never=_own("patch_embed_"),
)
COGVIEW3 = _family(
    "cogview3",
    "CogView 3 Plus",
    "cogview-?3",
    _MODULATION_512,
    _own(r"transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):2560$", 1),
    _own("time_condition_embed_(timestep|condition)_embedder_", 4),
    _own("patch_embed_text_proj:4096$", 2),
    never=_own(r"(image|glyph|prior)_projector_|transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):4096$"),
)
ALLEGRO = _family(
    "allegro",
    "Allegro",
    "allegro",
    _own(r"transformer_blocks_\d+_(attn[12]_to_([qkv]|out_0)|ff_net_0_proj):2304$|adaln_single_linear:2304$"),
)
PLAIN_DIT = _family(
    "plain_dit",
    "DiT",
    None,
    _own(r"transformer_blocks_\d+_norm1_emb_timestep_embedder_"),
    _own(r"transformer_blocks_\d+_ff_net_0_proj:1152$", 3),
    _own(r"transformer_blocks_\d+_attn1_to_([qkv]|out_0):1152$", 1),
    never=_own(r"adaln_single_|caption_projection_|transformer_blocks_\d+_(attn2_|attn_|ff_context_)|blocks_"),
)
LATTE = _family(
    "latte",
    "Latte",
    "latte",
    _own("temporal_transformer_blocks_"),
    never=_own("(down|up|mid)_block"),
)
LUMINA_NEXT = _family(
    "lumina_next",
    "Lumina-Next",
    None,
    FEED_FORWARD_2304,
    _own(r"layers_\d+_attn[12]_to_([qkv]|out_0):"),
    never=_own(r"layers_\d+_(attention_|attn_)|noise_refiner_|context_refiner_|x_embedder|cap_embedder"),
)
OMNIGEN = _family(
    "omnigen",
    "OmniGen",
    "omnigen(?!-?2)",
    _own(r"layers_\d+_(mlp_gate_up_proj|self_attn_to_([qkv]|out_0)):3072$"),
)
EASY_ANIMATE = _family(
    "easy_animate",
    "EasyAnimate",
    None,
    ATTENTION_3072,
    _MODULATION_512,
    _own(r"transformer_blocks_\d+_(txt_ff_|attn1_add_[qkv]_proj:3072$)|text_proj_t5"),
    never=_own(r"transformer_blocks_\d+_(ff_context_|norm1_context_|attn1_add_[qkv]_proj:1536$)|patch_embed_"),
)
BRIA_FIBO2 = _family(
    "bria_fibo2",
    "BRIA FIBO 2",
    "(bria-?)?fibo-?2",
    _own(
        r"perceiver_layers_\d+_|layers_\d+_(cross_)?attention_to_([qkv]|out_0):(3584|7680)$|"
        r"layers_\d+_feed_forward_w\d:(3584|9536)$",
    ),
)
KANDINSKY6 = _family(
    "kandinsky6",
    "Kandinsky 6",
    "kandinsky-?6",
    _own(
        "(audio|video)_(text_)?(transformer_blocks|embeddings|time_embeddings|pooled)|audio_out_layer_|"
        r"visual_transformer_blocks_\d+_((video|audio)_dec_block|va_cross|av_cross)",
    ),
    _own(
        r"visual_transformer_blocks_\d+_feed_forward_net_|time_embeddings_timestep_embedder_|"
        "visual_embeddings_in_layer:129$",
    ),
    _own(r"visual_transformer_blocks_\d+_(self_attention|visual_modulation)_", 10),
    never=_own(
        r"text_transformer_blocks_|visual_transformer_blocks_\d+_(cross_attention_|feed_forward_(in|out)_)|"
        "(pooled_)?text_embeddings_"
    ),
)
PRIOR = _family(
    "prior",
    "a prior of Kandinsky 2 or Karlo",
    None,
    _own("proj_to_clip_embeddings|embedding_proj:|encoder_hidden_states_proj:|prd_embedding"),
    _own(r"transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):2048$", 1),
    never=_own(r"transformer_blocks_\d+_(attn2_|norm\d_linear|attn_)|core_"),
    flow=False,
)
PRX = _family(
    "prx",
    "PRX",
    None,
    _own(
        r"blocks_\d+_(attention_(img_qkv|txt_kv)_proj|attention_to_out_0|(gate|up|down)_proj:(1792|6272)|"
        "modulation_lin)",
    ),
)
AMUSED = _family(
    "amused",
    "aMUSEd",
    None,
    _own(r"(down|up)_block_(attention_blocks|res_blocks)_|transformer_layers_\d+_|mlm_layer_"),
)
STABLE_AUDIO = _family(
    "stable_audio",
    "Stable Audio Open",
    None,
    _own(r"timestep_proj_\d|global_proj_\d|cross_attention_proj_\d|transformer_blocks_\d+_attn2_to_[kv]:768$"),
    _own(r"transformer_blocks_\d+_(attn[12]_to_|ff_net_0_proj).*:1536$", 1),
    never=_own(r"transformer_blocks_\d+_(attn_|ff_context|norm1_context)|joint_blocks_"),
)
STABLE_AUDIO3 = _family(
    "stable_audio3",
    "Stable Audio 3",
    None,
    _own(
        r"to_(timestep|cond|global)_embed_|transformer_blocks_\d+_((self|cross)_attn_to_|ff_proj_|to_local_embed)",
    ),
)
KANDINSKY3 = _family(
    "kandinsky3",
    "Kandinsky 3",
    None,
    _own(
        r"(down|up)_blocks_\d+_(resnets_(in|out)_|attentions_\d+_(attention_|(in|out)_norm_|feed_forward_))|"
        "add_time_condition_",
    ),
    flow=False,
)
STABLE_VIDEO = _family(
    "stable_video",
    "Stable Video Diffusion",
    None,
    _own(
        "(down|mid|middle|up|input|output)_block.*(temporal_transformer_blocks_|temporal_res_block|"
        "spatial_res_block|time_pos_embed)",
    ),
    flow=False,
)
MODELSCOPE = _family(
    "modelscope",
    "ModelScope text to video",
    None,
    _own("(down|mid|middle|up|input|output)_block.*(temp_convs|temp_attentions)_"),
    _own("transformer_in_"),
    flow=False,
)
DREAM_LITE = _family(
    "dream_lite",
    "DreamLite",
    None,
    _own(r"(down|mid|middle|up|input|output)_block.*resnets_\d+_conv\d_(depthwise|pointwise):"),
    _own("(down|mid|middle|up|input|output)_block.*attn2_to_[kv]:2048$", 1),
    never=Sign(rf"{FINEST}.*attn1_"),  # there it attends to the text alone
    flow=False,
)
