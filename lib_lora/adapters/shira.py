"""Changes of single entries of the weight.

SHiRA: dW[i, j] = m w, https://arxiv.org/abs/2406.13175. `shira_weight` (n,) has the changes and `shira_indices` (2, n)
their rows and columns, as fp32 where Windows saved them. Source: huggingface/peft tuners/shira/layer.py and model.py.

Super-tuning: dW[indices] = m values, and in its hybrid (Supra) a plain pair beside them, plus m alpha / r B A.
`supertuning_indices` are places in the flattened weight. Source: huggingface/peft tuners/supertuning/layer.py.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import TensorFields
from ._rows import places_in, shape_of, shape_text, unfit
from .base import Adapter, At, Origin, Params, Proportional, Rows, Site, Tensors

_A, _B = "supertuning_lora_A.weight", "supertuning_lora_B.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Entries(TensorFields):
    """Values that are added to entries of a weight."""

    places: Tensor  # (n,), in the flattened weight
    values: Tensor  # (n,)
    shape: tuple[int, ...]

    exact = frozenset({"places"})

    def take(self, rows: Rows) -> Self:
        chosen, places = places_in(self.places, rows, math.prod(self.shape[1:]))
        return replace(self, places=places, values=self.values[chosen], shape=shape_of(self.shape, rows))

    def dense(self, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        """Return the whole change, times a scale."""
        dense = torch.zeros(self.shape, device=device, dtype=dtype)
        values = self.values.to(device, dtype)
        # added up where a place occurs twice, as sparse tensors are
        dense.view(-1).index_put_(
            (self.places.to(device),), values if scale == 1.0 else values * scale, accumulate=True
        )
        return dense


@dataclass(frozen=True, slots=True, eq=False)
class SHiRA(Proportional):
    entries: Entries

    name = "shira"
    params = Params(frozenset({"shira_weight", "shira_indices"}))
    row_fields = ("entries",)
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        values, indices = params["shira_weight"], params["shira_indices"]
        if values.ndim != 1 or indices.shape != (2, values.shape[0]):
            want = "shira_weight (n,) and shira_indices (2, n)"
            raise unfit(want, values, indices)
        indices, limits = indices.long(), torch.tensor([[site.shape[0]], [site.inside]])
        if bool(((indices < 0) | (indices >= limits)).any()):
            raise ValueError(f"shira_indices reach outside of ({site.shape[0]}, {site.inside})")
        return cls(Entries(indices[0] * site.inside + indices[1], values, site.shape))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        return self.entries.dense(at.device, at.dtype), at.multiplier


@dataclass(frozen=True, slots=True, eq=False)
class Supertuning(Proportional):
    entries: Entries
    down: Tensor | None = None  # (r, in)
    up: Tensor | None = None  # (out, r)
    scale: float = 1.0

    name = "supertuning"
    scaled = True
    params = Params(frozenset({"supertuning_values"}), frozenset({"supertuning_indices", _A, _B, "alpha"}))
    shaped_by = (_B, _A)
    row_fields = ("entries", "up")
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        values, indices = params["supertuning_values"], params.get("supertuning_indices")
        if indices is None:
            raise UnsupportedError(
                "of Super-tuning without supertuning_indices, the largest entries of its base weight: "
                "save it again with save_precomputed_indices=True"
            )
        if values.ndim != 1 or indices.shape != values.shape:
            raise unfit("values and indices (n,)", values, indices)
        indices, (out, inside) = indices.long(), (site.shape[0], site.inside)
        if bool(((indices < 0) | (indices >= out * inside)).any()):
            raise ValueError(f"supertuning_indices reach outside of ({out}, {inside})")
        down, up = params.get(_A), params.get(_B)
        if down is None and up is None:
            return cls(Entries(indices, values, site.shape))
        if down is None or up is None or down.shape[1:] != (inside,) or up.shape != (out, down.shape[0]):
            got = " and ".join("none" if one is None else shape_text(one) for one in (down, up))
            raise ValueError(f"want {_A} (r, {inside}) and {_B} ({out}, r), got {got}")
        return cls(Entries(indices, values, site.shape), down, up, origin.alpha.scale(down.shape[0]))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        dense = self.entries.dense(at.device, at.dtype)
        if self.down is not None and self.up is not None:
            up, down = at.put(self.up)[:, : at.rank], at.put(self.down)[: at.rank]
            dense.flatten(1).addmm_(up, down, alpha=self.scale)
        return dense, at.multiplier
