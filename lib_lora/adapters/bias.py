"""A change of the layer's bias beside any other kind: b' = b + m diff_b (LyCORIS, ComfyUI comfy/lora.py)."""

from dataclasses import dataclass

from torch import Tensor

from ._modifier import Modifier
from .base import Adapter, Origin, Params, Site, Tensors, bias_for


@dataclass(frozen=True, slots=True, eq=False)
class Bias(Modifier):
    """`diff_b` around another adapter."""

    inner: Adapter
    bias: Tensor  # (out,)

    name = "bias"
    params = Params(frozenset({"diff_b"}))
    kinds = frozenset({"linear", "conv", "attention"})
    row_fields = ("bias",)
    has_bias = True

    @classmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Adapter:
        (name,) = cls.params.required
        bias = bias_for(site, name, params[name])
        assert bias is not None
        return cls(inner, bias)

    def delta_bias(self) -> Tensor:
        return self.bias + self.inner.delta_bias() if self.inner.has_bias else self.bias
