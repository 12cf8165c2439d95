"""Kinds whose keys are known, and refused with the reason."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..errors import UnsupportedError
from .base import Adapter, At, Origin, Params, Shapes, Site, Tensors


class Refused(Adapter):
    """A kind that no adapter of a layer can be; one of its parameters is enough to be of it."""

    reason: ClassVar[str]

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return bool(cls.params.optional & shapes.keys())

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        raise UnsupportedError(cls.reason)

    def delta_weight(self, at: At) -> Tensor:
        raise UnsupportedError(self.reason)


def refused(module: str, name: str, reason: str, *params: str) -> type[Refused]:
    """Make the kind of this name in a module, by its reason and parameters."""
    values = {"name": name, "reason": reason, "params": Params(frozenset(), frozenset(params)), "__module__": module}
    return type(name, (Refused,), values)
