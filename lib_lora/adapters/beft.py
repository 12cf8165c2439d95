"""BEFT: a change of the bias alone, b' = b + m beft_bias, https://arxiv.org/abs/2509.15974.

A layer without a bias gets one. Source: huggingface/peft tuners/beft/layer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from .base import Kind, Origin, Params, Site, bias_for
from .full import Full


class BEFT(Full):
    """A change of the bias."""

    __slots__ = ()

    name: ClassVar[str] = "beft"
    params: ClassVar[Params] = Params(frozenset({"beft_bias"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear"})

    @classmethod
    def claims(cls, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        return cls.params.claim(shapes)

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        return cls(None, bias_for(site, "beft_bias", params["beft_bias"]), site.shape)

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        return None
