"""A change of the layer's bias beside any other kind: b' = b + m diff_b (LyCORIS, ComfyUI comfy/lora.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from .base import Adapter, Kind, Modifier, Origin, Params, Site, shape_text


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
        bias = params["diff_b"]
        if bias.numel() != site.shape[0]:
            raise ValueError(f"want diff_b of {site.shape[0]}, got {shape_text(bias)}")
        return cls(inner, bias.reshape(-1))

    def delta_bias(self) -> Tensor:
        return self.bias + self.inner.delta_bias() if self.inner.has_bias else self.bias
