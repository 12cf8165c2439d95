"""Several tensors of one shape merged to one, by the rules and names of PEFT's `add_weighted_adapter`.

Each rule takes the tensors of all files for one place: one factor of a pair, or the whole change of a weight. Ties in
size, rounding and order of drawing are PEFT's, so that equal tensors and an equal seed give equal results.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RULES = ("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune")


def merge_tensors(
    tensors: Sequence[Tensor], strengths: Sequence[float], rule: str, density: float, generator: torch.Generator
) -> Tensor:
    """Merge tensors of one shape.

    Args:
        tensors: one of each file.
        strengths: of each file.
        rule: one of RULES.
        density: the share of entries that each tensor keeps, above 0 and at most 1. `linear` keeps all.
        generator: draws the entries that the DARE rules keep.

    Raises:
        ValueError: the rule is unknown, the density is out of its range, or the strengths are not one for each tensor.
    """
    if rule not in RULES:
        raise ValueError(f"There is no rule {rule!r} to merge by. Give one of {', '.join(RULES)}.")
    if not 0.0 < density <= 1.0:
        raise ValueError(f"The density is {density}. Give a share above 0 and at most 1.")
    if not tensors or len(tensors) != len(strengths):
        raise ValueError(f"There are {len(tensors)} tensors and {len(strengths)} strengths. Give one for each.")
    kept = list(tensors)
    if density < 1.0 and rule.startswith("dare"):
        kept = [_random(one, density, generator) for one in kept]
    elif density < 1.0 and rule != "linear":
        kept = [_largest(one, density) for one in kept]
    whole = torch.stack(kept)
    factors = torch.tensor(strengths, dtype=whole.dtype).reshape(-1, *[1] * (whole.dim() - 1))
    weighted = whole * factors
    if not rule.endswith("ties"):
        return weighted.sum(0)
    agree = whole.sign() == torch.where(whole.sum(0) >= 0, 1, -1)  # the sign is elected before the strengths count
    return (weighted * agree).sum(0) / agree.sum(0).clamp_min(1)


def without_shared(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a change less its part along another, which is orthogonal to the other."""
    square = other.square().sum()
    if not square:
        return tensor
    return tensor - (tensor * other).sum() / square * other


def _largest(tensor: Tensor, density: float) -> Tensor:
    flat = tensor.flatten()
    places = flat.abs().topk(int(density * flat.numel())).indices
    return torch.zeros_like(flat).index_copy(0, places, flat[places]).reshape(tensor.shape)


def _random(tensor: Tensor, density: float, generator: torch.Generator) -> Tensor:
    return tensor * torch.bernoulli(torch.full_like(tensor, density), generator=generator) / density
