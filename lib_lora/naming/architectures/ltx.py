"""LTX-Video (2B, 2048 wide, and 13B, 4096 wide; T5-XXL), and LTX-2 and 2.3, which have others for sound beside such
blocks (Gemma 3): diffusers' own blocks under diffusers' names, but for the norms.

Sources: Lightricks/LTX-Video ltx_video/models/transformers/transformer3d.py against LTXVideoTransformer3DModel;
Lightricks/LTX-2 packages/ltx-core/src/ltx_core/model/transformer/model.py against LTX2VideoTransformer3DModel. A LoRA
of nothing but LTX-2's layers for pictures looks like one of LTX-Video 13B. The projection of its text is in a component
of its own, as in huggingface/diffusers loaders/lora_pipeline.py, LTX2LoraLoaderMixin.
"""

from ._encoders import CAPTION_SIGN
from .base import Architecture, Variant, aliases, layers, named

_BLOCK = "transformer_blocks.{}"
_SIGNS = (
    # one sign, as others have such layers, too (CogView 4, Cosmos-Predict2)
    layers(r"transformer_blocks_\d+_(attn[12]_to_([qkv]|out_0)|ff_net_0_proj):4096$", 1),
    # here text is as wide as what asks for it
    layers(r"transformer_blocks_\d+_attn2_to_[kv]:4096$"),
    layers(r"(patchify_proj|proj_in):128$", 1),
)


def _names(*attentions: str) -> dict[str, str]:
    """Return the names of embedders, and of the norms of queries and keys of these attentions."""
    norms = {f"{_BLOCK}.{one}.{part}_norm": f"{_BLOCK}.{one}.norm_{part}" for one in attentions for part in "qk"}
    return {"patchify_proj": "proj_in", "adaln_single": "time_embed", **norms}


LTX = Architecture(
    name="ltx",
    title="LTX-Video",
    signs=(
        *_SIGNS,
        layers(r"transformer_blocks_\d+_attn2_to_[kv]:2048$"),
        layers(r"transformer_blocks_\d+_(attn[12]_to_(q|out_0)|ff_net_0_proj):2048$", 1),
        CAPTION_SIGN,
        named("ltx(v|-?video)?($|[_/-](?!2(?!b)))"),
    ),
    variants=(Variant("LTX-Video 2B", width=2048), Variant("LTX-Video 13B", width=4096)),
    names=_names("attn1", "attn2"),
)
LTX2 = Architecture(
    name="ltx2",
    title="LTX-2",
    signs=(
        layers(r"transformer_blocks_\d+_audio_(attn[12]_to|ff_net)_.*:(2048|8192)$", 10),
        layers(r"transformer_blocks_\d+_(audio_to_video|video_to_audio)_attn_", 10),
        *_SIGNS,
        layers(r"(audio_)?caption_projection_linear_1:3840$"),
        named("ltx(-?video)?-?2(?!b)"),
    ),
    names={
        **_names("attn1", "attn2", "audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn"),
        "audio_patchify_proj": "audio_proj_in",
        "audio_adaln_single": "audio_time_embed",
        "prompt_adaln_single": "prompt_adaln",  # LTX-2.3
        "audio_prompt_adaln_single": "audio_prompt_adaln",
        "av_ca_video_scale_shift_adaln_single": "av_cross_attn_video_scale_shift",
        "av_ca_audio_scale_shift_adaln_single": "av_cross_attn_audio_scale_shift",
        "av_ca_a2v_gate_adaln_single": "av_cross_attn_video_a2v_gate",
        "av_ca_v2a_gate_adaln_single": "av_cross_attn_audio_v2a_gate",
    },
    aliases=aliases("connectors", {"aggregate_embed": "text_proj_in"}),
)
