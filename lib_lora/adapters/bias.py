"""A change of the layer's bias beside any other kind: b' = b + m diff_b (LyCORIS, ComfyUI comfy/lora.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from ._modifier import Modifier
from .base import Adapter, Kind, Origin, Params, Rows, Site, bias_for, taken


@dataclass(frozen=True, slots=True, eq=False)
class Bias(Modifier):
    """`diff_b` around another adapter."""

    inner: Adapter
    bias: Tensor  # (out,)

    name: ClassVar[str] = "bias"
    params: ClassVar[Params] = Params(frozenset({"diff_b"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "conv", "attention"})
    has_bias: ClassVar[bool] = True

    @classmethod
    def around(cls, inner: Adapter, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        (name,) = cls.params.required
        bias = bias_for(site, name, params[name])
        assert bias is not None
        return cls(inner, bias)

    def cut(self, inner: Adapter, rows: Rows) -> Self:
        return replace(self, inner=inner, bias=taken(self.bias, rows))

    def delta_bias(self) -> Tensor:
        return self.bias + self.inner.delta_bias() if self.inner.has_bias else self.bias
