"""Beside the layer for few tokens, by an effective weight for many: for kinds whose cost beside it is large per token.

A rotation passes over every token once or several times. Over the weight it passes once per call, however many tokens
there are. Only in dtypes in which the sum of the weight and its change loses nothing that matters, see `effective.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .effective import EXACT
from .factored import Factored
from .operation import named_arguments, place_of_input
from .strength import Strengths
from .transient import Transient

if TYPE_CHECKING:
    from .patch import BaseForward


class ByTokens:
    """Two ways of one linear layer, and the number of tokens from which the second is the cheaper one.

    Where rows of the batch or places of the picture have strengths of their own it is the first: the second takes a
    pass for each.
    """

    at_rest = False

    def __init__(self, beside: Factored, dense: Transient, tokens: int, strengths: Strengths) -> None:
        self._beside = beside
        self._dense = dense
        self._tokens = tokens
        self._strengths = strengths

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward of the layer with its adapters."""
        x: Tensor = named_arguments(args, kwargs)[place_of_input(args, kwargs)]
        alike = not self._strengths.mixed and not self._beside.is_regional
        many = alike and x.dtype in EXACT and x.numel() >= self._tokens * x.shape[-1]
        return (self._dense if many else self._beside).run(layer, base_forward, args, kwargs)

    def follow(self, layer: nn.Module, device: torch.device) -> None:
        """Whichever lies beside the layer goes along."""
        self._beside.follow(layer, device)
        self._dense.follow(layer, device)

    def prefetch(self, layer: nn.Module) -> None:
        """Nothing: the first call tells which of the two is needed."""

    def release(self, layer: nn.Module) -> None:
        """Drop what was placed; the home copy stays."""
        self._beside.release(layer)
        self._dense.release(layer)

    def park(self, layer: nn.Module) -> None:
        """Both keep what they have."""
        self._beside.park(layer)
        self._dense.park(layer)

    def resume(self, layer: nn.Module) -> bool:
        """Both have it again; of what neither has, the first call tells which is needed."""
        self._beside.resume(layer)
        self._dense.resume(layer)
        return True

    def forget_stale(self, layer: nn.Module) -> None:
        """Have both look at the base weight again, if it has changed."""
        self._beside.forget_stale(layer)
        self._dense.forget_stale(layer)

    @property
    def parked_bytes(self) -> int:
        """What both keep."""
        return self._beside.parked_bytes + self._dense.parked_bytes
