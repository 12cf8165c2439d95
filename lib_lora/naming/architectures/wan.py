"""Wan 2.1 and 2.2 (text, image and video to video; 1.3B, 5B and 14B; VACE, Animate), SkyReels V2 and Helios; UMT5.

Source: Wan-Video/Wan2.1 and Wan2.2 wan/modules/model.py against diffusers' WanTransformer3DModel. The second norm of a
block is the one before cross attention in diffusers and the one before the feed-forward in Wan's own code; only that
before cross attention has weights, so that no name has two meanings.

Wan 2.2's 14B is two such models, see `EXPERTS` in `components.py`.
"""

import re

from ...files.components import DENOISER, EXPERTS, NOISE
from .base import Architecture, Variant, aliases, layers, linears, named, within

_ATTENTION = {**{part: f"to_{part}" for part in "qkv"}, "o": "to_out.0", "norm_q": "norm_q", "norm_k": "norm_k"}
_IMAGE = {"k_img": "add_k_proj", "v_img": "add_v_proj", "norm_k_img": "norm_added_k"}
_BLOCK = {
    **{f"self_attn.{native}": f"attn1.{own}" for native, own in _ATTENTION.items()},
    **{f"cross_attn.{native}": f"attn2.{own}" for native, own in (_ATTENTION | _IMAGE).items()},
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
}

_ANIMATE_2 = {
    f"{attention}.{native}": f"{attention}.{own}"
    for attention, layers in (("self_attn", _ATTENTION), ("cross_attn", _ATTENTION | _IMAGE))
    for native, own in layers.items()
    if native != own
}
"""Of diffusers' Wan-Animate-2, whose blocks have their own names from Wan's code, and attention has diffusers'."""

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WITH_NOISE = re.compile(
    r"(?<![a-z])(high|low)(?=(?:[\W_]*(?:high|low))?[\W_]*noise)|(?<=noise)[\W_]*(high|low)(?![a-z])"
)
_BEHIND = (
    r"v?\d[\d.]*|e(?:poch)?\d+|(?:\d+)?steps?\d*|fp\d+|bf16|r(?:ank)?\d+|lora|[ti]2v|wan\d*|a?14b|final|last|comfy|pro"
)
"""What may stand behind the word: a version, an epoch, a precision. Else `high` is of heels, or of a school."""
_AT_END = re.compile(rf"high|low|{_BEHIND}")
_BARE = re.compile(r"(?<![a-z])(high|low)$")
_BETWEEN = re.compile(r"[\W_]+")
_CAPITALS = re.compile(r"(?<![A-Za-z])(HIGH|LOW)(?![A-Za-z])")


def experts_named(name: str) -> tuple[str, ...]:
    """Return the `EXPERTS` that the name of a file speaks of; none or both where it leaves the choice.

    Trainers write Wan 2.2's LoRA in pairs, `…_high_noise` and `…_low_noise` (ostris/ai-toolkit, `save_lora`); what is
    published is called `HighNoise`, `T2V_HIGH_Lightning`, `low-v2` and so on as well. Where noise is spoken of, other
    words do not count. Else the word has to stand out by its capitals, or be the last but for versions and the like.
    """
    text = _WORD.sub("_", name).lower()
    words = {before or behind for before, behind in _WITH_NOISE.findall(text)}
    if not words:
        capitals = () if name.isupper() else _CAPITALS.findall(name)
        words = {*_at_end(text), *(word.lower() for word in capitals)}
    return tuple(one for one, word in zip(EXPERTS, NOISE, strict=True) if word in words)


def _at_end(text: str) -> list[str]:
    """Return each `high` and `low` that is the last word but for what `_BEHIND` names.

    Words are looked at one by one from the end, as one expression for all of them would try each way to part them.
    """
    found: list[str] = []
    for word in reversed([word for word in _BETWEEN.split(text) if word]):
        found += _BARE.findall(word)
        if not _AT_END.fullmatch(word):
            break
    return found


WAN = Architecture(
    name="wan",
    title="Wan 2",
    signs=(
        layers(r"(vace_)?blocks_\d+_(block_)?(self|cross)_attn_([qkvo]|[kv]_img):(1536|3072|5120)$"),
        layers(r"blocks_\d+_(block_)?(self|cross)_attn_(to_([qkv]|out_0)|add_[kv]_proj):(1536|3072|5120)$"),
        layers(r"(vace_)?blocks_\d+_attn[12]_(to_([qkv]|out_0)|add_[kv]_proj):(1536|3072|5120)$"),
        layers(r"(vace_)?blocks_\d+_ffn_(0|net_0_proj):(1536|3072|5120)$"),
        layers(r"(vace_)?blocks_\d+_ffn_(net_)?2:(8960|13824|14336)$"),
        named("wan|skyreels|helios"),
    ),
    inputs=("patch_embedding",),
    experts_named=experts_named,
    variants=(
        Variant("Wan 1.3B", width=1536),
        Variant("Wan 2.2 5B", width=3072),
        Variant("Wan 14B", width=5120),
        Variant("Wan for text to video", inputs=16),
        Variant("Wan with a control video", inputs=32),
        Variant("Wan for image to video", inputs=36),
        Variant("Wan Fun Control", inputs=48),
        Variant("Wan 2.2 Fun Control", inputs=52),
        Variant("Wan 2.1 for image to video", layers=r"(add_[kv]_proj|[kv]_img|img_emb|image_embedder)([._]|$)"),
        Variant("Wan VACE", layers=r"vace_(blocks|patch)"),
        Variant("Wan Animate", layers=r"face_adapter|face_encoder|motion_encoder|pose_patch"),
        Variant("Wan S2V", layers=r"audio_(injector|encoder)|casual_audio"),
    ),
    names={
        **within("blocks.{}", "blocks.{}", _BLOCK),
        **within("vace_blocks.{}", "vace_blocks.{}", _BLOCK),
        **within("blocks.{}.block", "blocks.{}", _BLOCK),
        "vace_blocks.{}.before_proj": "vace_blocks.{}.proj_in",
        "vace_blocks.{}.after_proj": "vace_blocks.{}.proj_out",
        "face_adapter.fuser_blocks.{}.linear1_q": "face_adapter.{}.to_q",
        "face_adapter.fuser_blocks.{}.linear1_kv": ("face_adapter.{}.to_k", "face_adapter.{}.to_v"),
        "face_adapter.fuser_blocks.{}.linear2": "face_adapter.{}.to_out",
        "face_adapter.fuser_blocks.{}.q_norm": "face_adapter.{}.norm_q",
        "face_adapter.fuser_blocks.{}.k_norm": "face_adapter.{}.norm_k",
        **linears("text_embedding", "condition_embedder.text_embedder"),
        **linears("time_embedding", "condition_embedder.time_embedder"),
        "time_projection.1": "condition_embedder.time_proj",
        "img_emb.proj.0": "condition_embedder.image_embedder.norm1",
        "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
        "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
        "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
        "head.head": "proj_out",
    },
    aliases=aliases(DENOISER, within("blocks.{}", "blocks.{}", _ANIMATE_2)),
)
