"""Super-tuning: changes of single entries of the weight, and in its hybrid (Supra) a plain pair beside them.

dW[indices] = m values, plus m alpha / r B A. `supertuning_indices` are places in the flattened weight. Source:
huggingface/peft tuners/supertuning/layer.py.
"""

from dataclasses import dataclass

from torch import Tensor

from ..errors import UnsupportedError
from ._rows import shape_text, unfit
from ._sparse import Entries
from .base import Adapter, At, Origin, Params, Proportional, Site, Tensors

_A, _B = "supertuning_lora_A.weight", "supertuning_lora_B.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Supertuning(Proportional):
    """Single entries, and a pair."""

    entries: Entries
    down: Tensor | None = None  # (r, in)
    up: Tensor | None = None  # (out, r)
    scale: float = 1.0

    name = "supertuning"
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

    @property
    def rank(self) -> int | None:
        return None if self.down is None else self.down.shape[0]

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        dense = self.entries.dense(at.device, at.dtype)
        if self.down is not None and self.up is not None:
            up, down = at.put(self.up)[:, : at.rank], at.put(self.down)[: at.rank]
            dense.flatten(1).addmm_(up, down, alpha=self.scale)
        return dense, at.multiplier
