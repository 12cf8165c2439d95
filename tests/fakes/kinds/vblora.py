"""VB-LoRA, piece by piece. PEFT tuners/vblora/layer.py, `_get_lora_matrices`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "base_model.vblora_vector_bank": randn(generator, 9, 4, size=1.0),
        "vblora_logits_A": randn(generator, 3, shape[1] // 4, 9, size=1.0),
        "vblora_logits_B": randn(generator, shape[0] // 4, 3, 9, size=1.0),
    }


def _make_largest(shape: Shape, generator: torch.Generator) -> Tensors:
    whole = _make(shape, generator)
    made = {"base_model.vblora_vector_bank": whole.pop("base_model.vblora_vector_bank")}
    for name, logits in whole.items():
        values, places = logits.topk(2)
        made[f"{name}_topk_indices"] = places.to(torch.uint8)
        made[f"{name}_topk_weights"] = values.softmax(-1)[..., :-1].contiguous()
    return made


def _pieces(own: Tensors, name: str, i: int, j: int) -> Tensor:
    bank = own["base_model.vblora_vector_bank"]
    if name in own:
        values, places = own[name][i, j].topk(2)
        shares = values.softmax(0)
    else:
        places, first = own[f"{name}_topk_indices"][i, j].long(), own[f"{name}_topk_weights"][i, j, 0]
        shares = torch.stack([first, 1 - first])
    return shares[0] * bank[places[0]] + shares[1] * bank[places[1]]


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    made = weight.clone()
    for r in range(3):
        a = torch.cat([_pieces(own, "vblora_logits_A", r, j) for j in range(weight.shape[1] // 4)])
        b = torch.cat([_pieces(own, "vblora_logits_B", j, r) for j in range(weight.shape[0] // 4)])
        made += multiplier * torch.outer(b, a)
    return made


_CONFIG = {"peft_type": "VBLORA", "topk": 2}
SAMPLES = (
    Sample("vblora", "vblora", _make, _effective, frozenset({"linear", "attention"}), prefix=PEFT, config=_CONFIG),
    Sample(
        "vblora, only the largest",
        "vblora",
        _make_largest,
        _effective,
        frozenset({"linear"}),
        prefix=PEFT,
        config=_CONFIG,
    ),
)
