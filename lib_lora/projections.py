"""Attention of diffusers whose projections were fused: `to_qkv` is called, and `to_q`, which is still there, is not.

Source: huggingface/diffusers models/attention.py, `AttentionModuleMixin.fuse_projections`, and models/
attention_processor.py, `Attention.fuse_projections`; what `pipe.fuse_qkv_projections()` calls.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

PARTS = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
}
"""Fused projection -> what it is made of, in the order of its outputs."""


def are_fused(attention: nn.Module) -> bool:
    """Whether a module calls its fused projections now."""
    if attention.__dict__.get("fused_projections") is not True:
        return False
    if hasattr(attention, "unfuse_projections"):
        return True
    # the attention of UNets stays marked when it is taken back: its processor tells
    return type(getattr(attention, "processor", None)).__name__.startswith("Fused")


def fused(attention: nn.Module) -> Iterator[tuple[str, dict[str, nn.Module]]]:
    """Yield the name of each fused projection that is in use, and the layers it was made of, in the order of its rows.

    Nothing where the module's projections are not fused.
    """
    if not are_fused(attention):
        return
    for name, parts in PARTS.items():
        layers = {part: attention._modules.get(part) for part in parts}
        found = {part: layer for part, layer in layers.items() if layer is not None}
        if attention._modules.get(name) is not None and len(found) == len(parts):
            yield name, found
