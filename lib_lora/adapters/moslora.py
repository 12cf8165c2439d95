"""MoSLoRA: a trained matrix mixes the rank components, dW = alpha / r * up M down, https://arxiv.org/abs/2406.11909.

`lora_mixer.weight` is M (r, r); the paper's own code calls it `lora_AB`. Source: wutaiqiang/MoSLoRA
subject_driven_generation/peft/tuners/lora/layer.py; huggingface/peft tuners/moslora/layer.py.
"""

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._rows import unfit
from .base import Factors, Origin, Params, Site, Tensors
from .lora import LoRA


@dataclass(frozen=True, slots=True, eq=False)
class MoSLoRA(LoRA):
    """A LoRA with a matrix between its factors."""

    mixer: Tensor | None = None  # (r, r)

    name = "moslora"
    params = Params(
        frozenset({"lora_up.weight", "lora_down.weight", "lora_mixer.weight"}),
        frozenset({"lora_up.bias", "alpha"}),
        layers=frozenset({"lora_mixer", "lora_AB"}),
    )
    kinds = frozenset({"linear", "conv", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        (name,) = cls.params.required - {"lora_up.weight", "lora_down.weight"}
        found, mixer = super(MoSLoRA, cls).from_params(params, site, origin), params[name]
        if tuple(mixer.shape) != (found.rank, found.rank):
            raise unfit(f"{name} ({found.rank}, {found.rank})", mixer)
        return replace(found, mixer=mixer)

    def factors(self, rank: int | None = None) -> Factors:
        assert self.mixer is not None
        dtype = wide(self.down.dtype)  # this product is made once per placement and must not cost precision
        mixed = self.mixer.to(dtype) @ self.down.flatten(1).to(dtype)
        return Factors(mixed.reshape(self.down.shape)[:rank], self.up[:, :rank])
