"""Kinds whose keys are known, and refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from .base import Adapter, At, Origin, Params, Site


class Refused(Adapter):
    """A kind that no adapter of a layer can be."""

    __slots__ = ()

    reason: ClassVar[str]

    @classmethod
    def claims(cls, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        return bool(cls.params.optional & shapes.keys())

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        raise UnsupportedError(cls.reason)

    def delta_weight(self, at: At) -> Tensor:
        raise UnsupportedError(self.reason)


def any_of(*names: str) -> Params:
    """Return the parameters of a kind that is refused, whichever of them are there."""
    return Params(frozenset(), frozenset(names))
