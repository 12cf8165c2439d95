"""PEANuT: a small network of the weight itself, dW = m s (B g(W^T A^T))^T, https://arxiv.org/abs/2410.01870.

`peanut_A` (r, out) and `peanut_B` (out, r). Between them are an activation g, `depth` encoders, and as many decoders,
each of which adds what the encoder of its place was given. Each column of the weight is changed by itself.
Source: huggingface/peft tuners/peanut/layer.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from ..errors import UnsupportedError
from ._rows import shape_text
from ._trainer import configured
from .base import Adapter, At, Origin, Params, Site, Tensors

_A, _B = "peanut_A.weight", "peanut_B.weight"
_ENCODERS, _DECODERS = (tuple(f"peanut_{side}coders.{i}.weight" for i in range(16)) for side in ("en", "de"))
# by their names in transformers' `ACT2FN`
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "leaky_relu": F.leaky_relu,
    "linear": torch.clone,
    "mish": F.mish,
    "relu": F.relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, slots=True, eq=False)
class PEANuT(Adapter):
    down: Tensor  # (r, out)
    up: Tensor  # (out, r)
    encoders: tuple[Tensor, ...]  # (r, r) each
    decoders: tuple[Tensor, ...]  # (r, r) each
    activation: str
    scale: float

    name = "peanut"
    params = Params(frozenset({_A, _B}), frozenset({*_ENCODERS, *_DECODERS}))
    kinds = frozenset({"linear", "attention"})
    reads_base = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        first, last, out = params[_A], params[_B], site.shape[0]
        rank, depth = first.shape[0] if first.ndim else 0, (len(params) - 2) // 2
        activation = origin.config.get("act_fn")
        if activation not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise UnsupportedError(f"of PEANuT with act_fn {activation!r} in adapter_config.json: want one of {known}")
        encoders, decoders = ([params.get(name) for name in names[:depth]] for names in (_ENCODERS, _DECODERS))
        inner = [one for one in (*encoders, *decoders) if one is not None and one.shape == (rank, rank)]
        if first.shape != (rank, out) or last.shape != (out, rank) or len(inner) != len(params) - 2:
            got = ", ".join(f"{name} {shape_text(value)}" for name, value in params.items())
            raise ValueError(
                f"want {_A} (r, {out}), {_B} ({out}, r), and as many encoders as decoders (r, r), got {got}"
            )
        return cls(
            first, last, tuple(inner[:depth]), tuple(inner[depth:]), str(activation), configured(origin, "scaling")
        )

    def delta_weight(self, at: At) -> Tensor:
        change = _ACTIVATIONS[self.activation]
        inner = change(at.put(self.down) @ at.base.flatten(1))
        seen: list[Tensor] = []
        for encoder in self.encoders:
            seen.append(inner)
            inner = change(at.put(encoder) @ inner)
        for decoder in self.decoders:
            inner = change(at.put(decoder) @ inner) + seen.pop()
        return (at.put(self.up) @ inner).mul_(self.scale * at.multiplier).reshape(at.base.shape)
