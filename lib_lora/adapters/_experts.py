"""LoRA on the weights of experts, one parameter (experts, out, in) or (experts, in, out): PEFT's `target_parameters`.

The file has one pair for all experts: lora_A (r * experts, in), expert by expert, and lora_B (out, r * experts), rank
by rank. dW[e] = alpha / r * B[e] A[e]. Which dimension of the parameter is `in` is not in the file. PEFT takes the last
one, unless the module says `is_transposed`; PEFT 0.17 and 0.18 always took the other one. Where the sizes fit one way
alone, that is used; square matrices are read as the PEFT that saved the file reads them.

Source: huggingface/peft tuners/lora/layer.py, `ParamWrapper`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ._rows import unfit
from .base import Adapter, At, Origin, Params, Site, Tensors
from .lora import as_plain


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsLoRA(Adapter):
    down: Tensor  # (experts, r, in)
    up: Tensor  # (experts, out, r)
    scale: float
    transposed: bool
    """Whether the parameter is (experts, in, out)."""

    name = "lora"
    params = Params(required=frozenset({"lora_up.weight", "lora_down.weight"}), optional=frozenset({"alpha"}))
    kinds = frozenset({"experts"})
    by_rows = True  # rows of the parameter are experts

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        if not cls.params.required <= params.keys() <= cls.params.required | cls.params.optional:
            raise UnsupportedError("of experts, on which a LoRA is lora_A and lora_B alone")
        experts, first, last = site.shape
        down, up = as_plain(params["lora_down.weight"], site, origin), params["lora_up.weight"]
        inner, outer = down.shape[-1], up.shape[0]
        likely = site.transposed or _is_early(origin.config)
        fitting = [one for one in (likely, not likely) if (outer, inner) == _sizes(first, last, one)]
        total = down.shape[0]
        if not fitting or down.ndim != 2 or up.shape[1:] != (total,) or total % experts:
            pairs = [
                f"({experts} r, {one}) and ({other}, {experts} r)" for one, other in ((last, first), (first, last))
            ]
            raise unfit(f"{' or '.join(pairs)}", down, up)
        rank = total // experts
        down = down.reshape(experts, rank, inner)
        up = up.reshape(outer, rank, experts).permute(2, 0, 1)
        return cls(down, up, origin.alpha.scale(rank), fitting[0])

    def delta_weight(self, at: At) -> Tensor:
        down, up = at.cut(self.down)[:, : at.rank], at.cut(self.up)[:, :, : at.rank]
        delta = torch.bmm(down.mT, up.mT) if self.transposed else torch.bmm(up, down)
        return delta.mul_(self.scale * at.multiplier)


def _is_early(config: Mapping[str, object]) -> bool:
    """Tell whether PEFT 0.17 or 0.18 wrote a configuration; the first of them wrote no version."""
    version = re.match(r"(\d{1,9})\.(\d{1,9})", str(config.get("peft_version") or "0.17"))
    early = version is not None and (int(version[1]), int(version[2])) < (0, 19)
    return early and bool(config.get("target_parameters"))


def _sizes(first: int, last: int, transposed: bool) -> tuple[int, int]:
    return (last, first) if transposed else (first, last)
