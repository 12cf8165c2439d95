"""Key lists of other kinds than LoRA, of given layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .base import Shapes

FACTOR = 4


def weights(shapes: Mapping[str, tuple[int, ...]], *parts: str) -> dict[str, tuple[int, ...]]:
    """Layers whose name has one of these parts -> shape of their weight; those that are matrices."""
    found = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if name.endswith(".weight")}
    return {name: shape for name, shape in found.items() if len(shape) == 2 and any(part in name for part in parts)}


def lokr(key: Callable[[str, str], str | None], layers: Mapping[str, tuple[int, ...]], rank: int = 2) -> Shapes:
    """LoKr as LyCORIS, musubi-tuner and ai-toolkit have it: w1 full, w2 of low rank."""
    found: Shapes = {}
    for layer, (out, inside) in layers.items():
        params = {
            "lokr_w1": (FACTOR, FACTOR),
            "lokr_w2_a": (out // FACTOR, rank),
            "lokr_w2_b": (rank, inside // FACTOR),
            "alpha": (),
        }
        found |= {name: shape for param, shape in params.items() if (name := key(layer, param)) is not None}
    return found
