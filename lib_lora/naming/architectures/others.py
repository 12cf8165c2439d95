"""Families that Remora knows by sight alone: their files have the names of diffusers' models, and no others.

So a file is not taken for one of a family whose layers have the same names, and the model neither.
Source: huggingface/diffusers models/transformers and models/unets at 0.42.
"""

from __future__ import annotations

from ._flux_blocks import FLUX_DIFFUSERS_SIGNS, MODULATION_SIGN, T5_INPUT_SIGN
from ._ldm_unet import IN_UNET
from .base import Architecture, Sign, named
from .cogvideox import ATTENTION_3072, MODULATION_512
from .hunyuan_video import LATE_BLOCK_SIGNS
from .hunyuan_video15 import ATTENTION_2048
from .lumina2 import FEED_FORWARD_2304

_OWN = 20
"""The weight of layers that no other family has, whatever else it shares with others."""
_D = r"^(denoiser|\?):"
_NOT_AS_FLUX = (
    r"time_text_embed_|distilled_guidance_|(double|single)_blocks_|(txt_)?mode_blocks_|early_stream_|guidance_"
)


def _own(names: str, weight: int = _OWN) -> Sign:
    return Sign(f"{_D}({names})", weight)


BRIA = Architecture(
    name="bria",
    title="BRIA 3.2",
    signs=(
        *FLUX_DIFFUSERS_SIGNS,
        MODULATION_SIGN,
        T5_INPUT_SIGN,
        _own("time_embed_timestep_embedder_", 3),
        named("bria"),
    ),
    never=_own(
        rf"{_NOT_AS_FLUX}|caption_projection_|timestep_embedder_|context_embedder:(?!4096$)|context_embedder_"
        r"|time_embed_t_embedder|transformer_blocks_\d+_attn1_"
    ),
)
BRIA_FIBO = Architecture(
    name="bria_fibo",
    title="BRIA FIBO",
    signs=(
        *FLUX_DIFFUSERS_SIGNS,
        MODULATION_SIGN,
        _own("time_embed_timestep_embedder_", 3),
        _own(r"caption_projection_\d+_linear"),
        named(r"(bria-?)?fibo(?!-?2)"),
    ),
    never=_own(
        rf"{_NOT_AS_FLUX}|timestep_embedder_|context_embedder:(?!4096$)|context_embedder_|caption_projection_linear"
        r"|time_embed_t_embedder|transformer_blocks_\d+_attn1_|(double|single)_stream_blocks_"
    ),
)
OVIS_IMAGE = Architecture(
    name="ovis_image",
    title="Ovis-Image",
    signs=(
        *FLUX_DIFFUSERS_SIGNS,
        MODULATION_SIGN,
        _own("context_embedder:2048$", 4),
        _own("timestep_embedder_linear_[12]:(256|3072)$", 4),
        named("ovis"),
    ),
    never=_own(
        rf"{_NOT_AS_FLUX}|time_embed_|caption_projection_|context_embedder:(?!2048$)|context_embedder_(?!norm)"
        r"|transformer_blocks_([6-9]|\d\d)_|single_transformer_blocks_(2[7-9]|[3-9]\d)_"
        r"|transformer_blocks_\d+_attn1_"
    ),
)
MOTIF_VIDEO = Architecture(
    name="motif_video",
    title="Motif-Video",
    signs=(
        *FLUX_DIFFUSERS_SIGNS,
        MODULATION_SIGN,
        *LATE_BLOCK_SIGNS,
        _own("context_embedder_linear_[12]:"),
        named("motif"),
    ),
    never=_own(
        r"context_embedder:|context_embedder_(?!linear)|time_embed_|caption_projection_|timestep_embedder_|double_blocks_"
        r"|distilled_guidance_|(txt_)?mode_blocks_|early_stream_|transformer_blocks_\d+_attn1_|single_blocks_"
    ),
)
FLUX3 = Architecture(
    name="flux3",
    title="FLUX.3",
    signs=(
        _own(r"(txt_)?mode_blocks_|(early|single)_stream_modulations_|x_embedders_|context_embedder:20480$"),
        _own(r"single_transformer_blocks_\d+_attn_to_[qkv]:3072$", 3),
        _own(r"single_transformer_blocks_\d+_(attn_to_out_0:3072|ff_linear_(in:3072|out:9216))$", 8),
        named("flux[._-]?3"),
    ),
    never=_own(
        r"single_transformer_blocks_\d+_(proj_|norm|ff_linear_\d|ff_out)|(joint_)?transformer_blocks_|double_blocks_"
    ),
)
JOY_IMAGE = Architecture(
    name="joy_image",
    title="JoyImage-Edit",
    signs=(_own(r"double_blocks_\d+_(attn_(img|txt)_attn_|(img|txt)_mlp_net_)"), named("joy-?image")),
)
NUCLEUS_IMAGE = Architecture(
    name="nucleus_image",
    title="Nucleus-Image",
    signs=(
        _own(r"transformer_blocks_\d+_(encoder_proj|img_mlp_(gate:|shared_expert|expert)|img_mod_\d:2048)"),
        ATTENTION_2048,
        named("nucleus"),
    ),
    never=_own(r"transformer_blocks_\d+_(attn_add_q|attn_to_add_out|ff_|norm1_|txt_)|.*refiner|single_|double_"),
)
MINIMAX_MUSIC3 = Architecture(
    name="minimax_music3",
    title="MiniMax-Music 3",
    signs=(
        _own(r"transformer_blocks_\d+_ff_(in|out):|(pre|post)process_conv:(2304|128)$"),
        ATTENTION_2048,
        named("minimax-?music"),
    ),
    never=_own(
        r"transformer_blocks_\d+_(attn_add_|attn_to_add_|ff_net|ff_context|norm1_|img_)|.*refiner|single_|double_"
    ),
)
GLM_IMAGE = Architecture(
    name="glm_image",
    title="GLM-Image",
    signs=(
        _own("(image|glyph|prior)_projector_"),
        MODULATION_512,
        Sign(rf"{_D}transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):(2560|4096)$", weight=1),
        _own("time_condition_embed_(timestep|condition)_embedder_", 4),
        named("glm-?image"),
    ),
    never=_own("patch_embed_"),
)
COGVIEW3 = Architecture(
    name="cogview3",
    title="CogView 3 Plus",
    signs=(
        MODULATION_512,
        Sign(rf"{_D}transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):2560$", weight=1),
        _own("time_condition_embed_(timestep|condition)_embedder_", 4),
        _own("patch_embed_text_proj:4096$", 2),
        named("cogview-?3"),
    ),
    never=_own(r"(image|glyph|prior)_projector_|transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):4096$"),
)
ALLEGRO = Architecture(
    name="allegro",
    title="Allegro",
    signs=(
        _own(r"transformer_blocks_\d+_(attn[12]_to_([qkv]|out_0)|ff_net_0_proj):2304$|adaln_single_linear:2304$"),
        named("allegro"),
    ),
)
DIT = Architecture(
    name="plain_dit",
    title="DiT",
    signs=(
        _own(r"transformer_blocks_\d+_norm1_emb_timestep_embedder_"),
        Sign(rf"{_D}transformer_blocks_\d+_ff_net_0_proj:1152$"),
        Sign(rf"{_D}transformer_blocks_\d+_attn1_to_([qkv]|out_0):1152$", weight=1),
    ),
    never=_own(r"adaln_single_|caption_projection_|transformer_blocks_\d+_(attn2_|attn_|ff_context_)|blocks_"),
)
LATTE = Architecture(
    name="latte",
    title="Latte",
    signs=(_own("temporal_transformer_blocks_"), named("latte")),
    never=_own(r"(down|up|mid)_block"),
)
LUMINA_NEXT = Architecture(
    name="lumina_next",
    title="Lumina-Next",
    signs=(_own(r"layers_\d+_attn[12]_to_([qkv]|out_0):"), FEED_FORWARD_2304),
    never=_own(r"layers_\d+_(attention_|attn_)|noise_refiner_|context_refiner_|x_embedder|cap_embedder"),
)
OMNIGEN = Architecture(
    name="omnigen",
    title="OmniGen",
    signs=(
        _own(r"layers_\d+_(mlp_gate_up_proj|self_attn_to_([qkv]|out_0)):3072$"),
        named("omnigen(?!-?2)"),
    ),
)
EASY_ANIMATE = Architecture(
    name="easy_animate",
    title="EasyAnimate",
    signs=(
        _own(r"transformer_blocks_\d+_(txt_ff_|attn1_add_[qkv]_proj:3072$)|text_proj_t5"),
        ATTENTION_3072,
        MODULATION_512,
    ),
    never=_own(r"transformer_blocks_\d+_(ff_context_|norm1_context_|attn1_add_[qkv]_proj:1536$)|patch_embed_"),
)
FIBO2 = Architecture(
    name="bria_fibo2",
    title="BRIA FIBO 2",
    signs=(
        _own(
            r"perceiver_layers_\d+_|layers_\d+_(cross_)?attention_to_([qkv]|out_0):(3584|7680)$|layers_\d+_feed_forward_w\d:(3584|9536)$"
        ),
        named("(bria-?)?fibo-?2"),
    ),
)
KANDINSKY6 = Architecture(
    name="kandinsky6",
    title="Kandinsky 6",
    signs=(
        _own(
            r"(audio|video)_(text_)?(transformer_blocks|embeddings|time_embeddings|pooled)|audio_out_layer_"
            r"|visual_transformer_blocks_\d+_((video|audio)_dec_block|va_cross|av_cross)"
        ),
        # the one that enlarges has Kandinsky 5's other names
        _own(
            r"visual_transformer_blocks_\d+_feed_forward_net_|time_embeddings_timestep_embedder_|visual_embeddings_in_layer:129$"
        ),
        _own(r"visual_transformer_blocks_\d+_(self_attention|visual_modulation)_", 10),
        named("kandinsky-?6"),
    ),
    never=_own(
        r"text_transformer_blocks_|visual_transformer_blocks_\d+_(cross_attention_|feed_forward_(in|out)_)|(pooled_)?text_embeddings_"
    ),
)
PRIOR = Architecture(
    name="prior",
    title="a prior of Kandinsky 2 or Karlo",
    signs=(
        _own("proj_to_clip_embeddings|embedding_proj:|encoder_hidden_states_proj:|prd_embedding"),
        Sign(rf"{_D}transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):2048$", weight=1),
    ),
    never=_own(r"transformer_blocks_\d+_(attn2_|norm\d_linear|attn_)|core_"),
    flow=False,
)
PRX = Architecture(
    name="prx",
    title="PRX",
    signs=(
        _own(
            r"blocks_\d+_(attention_(img_qkv|txt_kv)_proj|attention_to_out_0|(gate|up|down)_proj:(1792|6272)|modulation_lin)"
        ),
    ),
)
AMUSED = Architecture(
    name="amused",
    title="aMUSEd",
    signs=(_own(r"(down|up)_block_(attention_blocks|res_blocks)_|transformer_layers_\d+_|mlm_layer_"),),
)
STABLE_AUDIO = Architecture(
    name="stable_audio",
    title="Stable Audio Open",
    signs=(
        _own(r"timestep_proj_\d|global_proj_\d|cross_attention_proj_\d|transformer_blocks_\d+_attn2_to_[kv]:768$"),
        Sign(rf"{_D}transformer_blocks_\d+_(attn[12]_to_|ff_net_0_proj).*:1536$", weight=1),
    ),
    never=_own(r"transformer_blocks_\d+_(attn_|ff_context|norm1_context)|joint_blocks_"),
)
STABLE_AUDIO3 = Architecture(
    name="stable_audio3",
    title="Stable Audio 3",
    signs=(
        _own(
            r"to_(timestep|cond|global)_embed_|transformer_blocks_\d+_((self|cross)_attn_to_|ff_proj_|to_local_embed)"
        ),
    ),
)
KANDINSKY3 = Architecture(
    name="kandinsky3",
    title="Kandinsky 3",
    signs=(
        _own(
            r"(down|up)_blocks_\d+_(resnets_(in|out)_|attentions_\d+_(attention_|(in|out)_norm_|feed_forward_))|add_time_condition_"
        ),
    ),
    flow=False,
)
STABLE_VIDEO = Architecture(
    name="stable_video",
    title="Stable Video Diffusion",
    signs=(
        Sign(rf"{IN_UNET}.*(temporal_transformer_blocks_|temporal_res_block|spatial_res_block|time_pos_embed)", _OWN),
    ),
    flow=False,
)
MODELSCOPE = Architecture(
    name="modelscope",
    title="ModelScope text to video",
    signs=(Sign(rf"{IN_UNET}.*(temp_convs|temp_attentions)_", _OWN), _own("transformer_in_")),
    flow=False,
)
DREAM_LITE = Architecture(
    name="dream_lite",
    title="DreamLite",
    signs=(
        Sign(rf"{IN_UNET}.*resnets_\d+_conv\d_(depthwise|pointwise):", _OWN),
        Sign(rf"{IN_UNET}.*attn2_to_[kv]:2048$", weight=1),
    ),
    flow=False,
)
