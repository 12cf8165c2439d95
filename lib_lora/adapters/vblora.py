"""VB-LoRA: a pair whose pieces are mixtures of a few vectors of one bank, https://arxiv.org/abs/2405.15179.

`vblora_logits_A` (r, in / v, bank) and `vblora_logits_B` (out / v, r, bank): the `topk` largest logits of a piece, put
through softmax, mix as many vectors of `vblora_vector_bank` (bank, v), which all layers share. With
`save_only_topk_weights` the file has the places (..., topk) and all but the last of the mixing weights (..., topk - 1).
There is no alpha. Source: huggingface/peft tuners/vblora/layer.py and model.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import TensorFields, wide
from ._rows import taken, unfit
from ._trainer import configured_count
from .base import Factors, LowRank, Origin, Params, Rows, Shapes, Site, Tensors

_LOGITS = frozenset({"vblora_logits_A", "vblora_logits_B"})
_SAVED = frozenset({f"{name}_topk_{part}" for name in _LOGITS for part in ("indices", "weights")})


@dataclass(frozen=True, slots=True, eq=False)
class Mixture(TensorFields):
    """Which vectors of the bank make each piece."""

    places: Tensor  # (..., k)
    weights: Tensor  # (..., k)

    exact = frozenset({"places"})

    @classmethod
    def of(cls, params: Tensors, name: str, origin: Origin, bank: int) -> Self:
        """Read the logits, or what was saved in their place.

        Raises:
            ValueError: the tensors do not fit each other or the bank.
        """
        if name in params:
            logits, count = params[name], configured_count(origin, "topk")
            if logits.ndim != 3 or logits.shape[2] != bank or count > bank:
                raise unfit(f"{name} of {bank} logits, {count} or more", logits)
            largest, places = logits.to(wide(logits.dtype)).topk(count, dim=-1)
            return cls(places, largest.softmax(-1))
        places, weights = params[f"{name}_topk_indices"].long(), params[f"{name}_topk_weights"]
        if places.ndim != 3 or weights.shape != (*places.shape[:2], places.shape[2] - 1):
            raise unfit(f"{name} (..., k) and (..., k - 1)", places, weights)
        if bool(((places < 0) | (places >= bank)).any()):
            raise ValueError(f"{name} reaches outside of a bank of {bank}")
        weights = weights.to(wide(weights.dtype))
        return cls(places, torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], -1))

    def mixed(self, bank: Tensor) -> Tensor:
        return (self.weights.unsqueeze(-1) * bank.to(self.weights)[self.places]).sum(-2)


@dataclass(frozen=True, slots=True, eq=False)
class VBLoRA(LowRank):
    a: Mixture  # (r, in / v)
    b: Mixture  # (out / v, r)
    bank: Tensor  # (bank, v)
    rows: Rows
    """The rows of the delta that are meant."""

    name = "vblora"
    params = Params(frozenset(), _LOGITS | _SAVED)
    row_fields = ("rows",)
    shared = frozenset({"vblora_vector_bank"})
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return shapes.keys() in (_LOGITS, _SAVED)

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        bank = origin.shared.get("vblora_vector_bank")
        if bank is None or bank.ndim != 2:
            raise UnsupportedError("of VB-LoRA without vblora_vector_bank, which all its layers share")
        a, b = (Mixture.of(params, name, origin, bank.shape[0]) for name in sorted(_LOGITS))
        out, inside, each, rank = site.shape[0], site.inside, bank.shape[1], a.places.shape[0]
        if a.places.shape[1] * each != inside or b.places.shape[0] * each != out or b.places.shape[1] != rank:
            raise unfit(f"A (r, {inside} / {each}, ...) and B ({out} / {each}, r, ...)", a.places, b.places)
        return cls(a, b, bank, ((0, out),))

    @property
    def rank(self) -> int:
        return self.a.places.shape[0]

    def factors(self, rank: int | None = None) -> Factors:
        down, up = self.a.mixed(self.bank).flatten(1), self.b.mixed(self.bank).transpose(1, 2).flatten(0, 1)
        return Factors(down[:rank], taken(up, self.rows)[:, :rank])
