"""AdaLoRA: a LoRA with learnt singular values, https://arxiv.org/abs/2303.10512.

dW = B (A * E) alpha / (ranknum + 1e-5), huggingface/peft tuners/adalora/layer.py. `ranknum` is the rank the training
began with, `init_r` of the configuration: pruning takes ranks away and leaves it as it is. PEFT does not save it.
"""

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import Self

from ..tensors import LARGEST, wide
from ._rotation import number
from ._rows import unfit
from .base import Adapter, Factors, Origin, Params, Site, Tensors
from .lora import LoRA


@dataclass(frozen=True, slots=True, eq=False)
class AdaLoRA(LoRA):
    """A LoRA and its singular values."""

    values: Tensor | None = None  # (r,)

    name = "adalora"
    params = Params(
        required=frozenset({"lora_up.weight", "lora_down.weight", "lora_E"}), optional=frozenset({"ranknum", "alpha"})
    )
    kinds = Adapter.kinds

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        lora, values = super(AdaLoRA, cls).from_params(params, site, origin), params["lora_E"]
        if values.numel() != lora.rank:
            raise unfit(f"lora_E ({lora.rank}, 1)", values)
        begun, said = number(params, "ranknum"), origin.config.get("init_r")
        if begun is None:
            begun = float(said) if isinstance(said, int) and 0 < said <= LARGEST else float(lora.rank)
        scale = origin.alpha.fixed
        scale = (origin.alpha.value or begun) / (begun + 1e-5) if scale is None else scale
        return replace(lora, scale=scale, schedule=None, values=values.reshape(-1))

    def factors(self, rank: int | None = None) -> Factors:
        assert self.values is not None
        factors, values = super(AdaLoRA, self).factors(rank), self.values[:rank]
        dtype = wide(factors.down.dtype, values.dtype)
        values = values.to(dtype).view(-1, *(1,) * (factors.down.ndim - 1))
        return Factors(factors.down.to(dtype) * values, factors.up)
