"""LTX-2 and LTX-2.3: LTX-Video's blocks, 4096 wide, with others for sound beside them; Gemma 3.

Source: Lightricks/LTX-2 packages/ltx-core/src/ltx_core/model/transformer/model.py against diffusers'
LTX2VideoTransformer3DModel. A LoRA of nothing but the layers for pictures looks like one of LTX-Video 13B. The
projection of the text is in a component of its own, as in huggingface/diffusers loaders/lora_pipeline.py,
LTX2LoraLoaderMixin.
"""

from ._llm import LLM_ALIASES
from ._ltx_blocks import LTX_EMBEDDERS, LTX_SIGNS, norms
from .base import Architecture, aliases, layers, named

_ATTENTIONS = ("attn1", "attn2", "audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn")

LTX2 = Architecture(
    name="ltx2",
    title="LTX-2",
    signs=(
        layers(r"transformer_blocks_\d+_audio_(attn[12]_to|ff_net)_.*:(2048|8192)$", 10),
        layers(r"transformer_blocks_\d+_(audio_to_video|video_to_audio)_attn_", 10),
        *LTX_SIGNS,
        layers(r"(audio_)?caption_projection_linear_1:3840$"),
        named("ltx(-?video)?-?2(?!b)"),
    ),
    names={
        "audio_patchify_proj": "audio_proj_in",
        "audio_adaln_single": "audio_time_embed",
        "prompt_adaln_single": "prompt_adaln",  # LTX-2.3
        "audio_prompt_adaln_single": "audio_prompt_adaln",
        "av_ca_video_scale_shift_adaln_single": "av_cross_attn_video_scale_shift",
        "av_ca_audio_scale_shift_adaln_single": "av_cross_attn_audio_scale_shift",
        "av_ca_a2v_gate_adaln_single": "av_cross_attn_video_a2v_gate",
        "av_ca_v2a_gate_adaln_single": "av_cross_attn_audio_v2a_gate",
    },
    aliases=(
        *LTX_EMBEDDERS,
        *norms(_ATTENTIONS),
        *aliases("connectors", {"aggregate_embed": "text_proj_in"}),
        *LLM_ALIASES,
    ),
)
