"""The transient way: the effective weight is built for one call in a scratch buffer; the base is never written.

For weights that no separate product can follow: nn.MultiheadAttention multiplies by its parameters inside one fused
function, and a grouped convolution has no low-rank pair. The layer's forward then runs on a stand-in that shares
everything with the layer but the parameters in question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import scratch
from .binding import Binding
from .layer import read_base_weight
from .strength import Layout, Strengths
from .tensors import plain_mode

if TYPE_CHECKING:
    from .patch import BaseForward


class Transient:
    """Bindings of one layer that need an effective weight."""

    def __init__(self, bindings: Sequence[Binding], strengths: Strengths) -> None:
        self._bindings = tuple(bindings)
        self._strengths = strengths
        self._layouts: tuple[Layout, ...] = tuple(((binding.cell, 1, 1.0),) for binding in bindings)
        for layout in self._layouts:
            strengths.register(layout)

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward of the layer with effective weights instead of its own."""
        for binding in self._bindings:
            binding.file.verify()
        with plain_mode(next(iter(args or kwargs.values())).device):
            effective = self._effective(layer)
        return base_forward(_stand_in(layer, effective), *args, **kwargs)

    def follow(self, layer: nn.Module, device: torch.device) -> None:
        """Nothing is kept beside the layer."""

    def prefetch(self, layer: nn.Module) -> None:
        """Nothing is kept beside the layer."""

    def release(self) -> None:
        """Nothing is kept beside the layer."""

    def _effective(self, layer: nn.Module) -> dict[str, Tensor]:
        by_param: dict[str, list[tuple[Binding, Layout]]] = {}
        for binding, layout in zip(self._bindings, self._layouts, strict=True):
            by_param.setdefault(binding.target.param, []).append((binding, layout))
        return {param: self._built(layer, param, bound) for param, bound in by_param.items()}

    def _built(self, layer: nn.Module, param: str, bound: Sequence[tuple[Binding, Layout]]) -> Tensor:
        base = read_base_weight(layer, param)
        # summed in fp32 or better and rounded once: the weight a careful bake would give
        dtype = torch.promote_types(base.dtype, torch.float32)
        total = scratch.take(param, base, dtype).copy_(base)
        for binding, layout in bound:
            delta = binding.adapter.delta_weight(dtype, base.device, binding.rank)
            strength = self._strengths.view(layout, base.device, dtype)
            rows = binding.target.rows
            window = total if rows is None else total.narrow(0, rows[0], rows[1] - rows[0])
            window.add_(delta * strength)
        return total if base.dtype == dtype else total.to(base.dtype)


def _stand_in(layer: nn.Module, params: Mapping[str, Tensor]) -> nn.Module:
    """An object that is `layer` in every respect but has `params`; the layer itself is not touched."""
    stand_in: nn.Module = object.__new__(type(layer))
    stand_in.__dict__.update(layer.__dict__)
    own = {name: value for name, value in params.items() if "." not in name}
    stand_in.__dict__["_parameters"] = {**layer._parameters, **own}
    children = dict(layer._modules)
    for name, value in params.items():
        child, dot, param = name.partition(".")
        module = children.get(child)
        if dot and module is not None:
            children[child] = _stand_in(module, {param: value})
    stand_in.__dict__["_modules"] = children
    return stand_in
