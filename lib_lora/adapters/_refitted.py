"""An adapter of a layer that had other inputs when it was trained.

Inpainting, Fill and control models are ordinary ones whose first layer takes more channels behind the latents': a mask,
another picture. A LoRA of the ordinary model has no weights for them. Zero for them is what huggingface/diffusers does
(loaders/peft.py, `_maybe_expand_lora_state_dict`).

A model may be pruned: the weight there is W P^T, for a basis P of the inputs, and a change of W becomes the change of
W P^T. MiniMax-H3 keeps its layers of AdaLN so, as the embeddings of all times lie close to a space of few dimensions.
Source: vladmandic/sdnext pipelines/minimax/minimax_lora.py, `project_pruned_adaln`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from ._modifier import Modifier
from ._operation import Operation
from .base import Adapter, At, Factors, Form, Origin, OutputEffect, Rows, Site, Tensors


@dataclass(frozen=True, slots=True)
class _OfFirst(OutputEffect):
    """An effect of the first channels of the input."""

    inner: OutputEffect
    inputs: int

    @property
    def reads_output(self) -> bool:
        return self.inner.reads_output

    @property
    def reads_bias(self) -> bool:
        return self.inner.reads_bias

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return self.inner.delta(x.narrow(op.channels, 0, self.inputs), y, multiplier, op)


@dataclass(frozen=True, slots=True, eq=False)
class Refitted(Modifier):
    """Another adapter, on a layer with other inputs. That one must not depend on the base weight."""

    inner: Adapter
    inputs: int
    """Inputs of the inner adapter."""
    wanted: int
    """Inputs of the layer."""
    basis: Tensor | None = None  # (wanted, inputs); None where the inner adapter's are the first of the layer's

    name = "refitted"
    by_columns = False
    exact = frozenset({"basis"})

    @classmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Adapter:
        raise TypeError("it has no parameters of its own")

    def around_part(self, inner: Adapter, rows: Rows) -> Adapter:
        return replace(self, inner=inner)

    def delta_weight(self, at: At) -> Tensor:
        return self._refit(self.inner.delta_weight(at))

    def form(self, rank: int | None = None) -> Form | None:
        form = self.inner.form(rank)
        return None if form is None or form.on_input or (form.on_output and self.basis is not None) else form

    def factors(self, rank: int | None = None) -> Factors:
        factors = self.inner.factors(rank)
        return Factors(self._refit(factors.down if self.basis is None else factors.down.to(self.basis)), factors.up)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return _OfFirst(self.inner.output_effect(device, dtype), self.inputs)

    def _refit(self, tensor: Tensor) -> Tensor:
        """Return (rows, wanted, *kernel) for (rows, inputs, *kernel)."""
        if self.basis is not None:
            return tensor @ self.basis.to(tensor).T
        behind = (0, 0) * (tensor.ndim - 2)
        return F.pad(tensor, (*behind, 0, self.wanted - self.inputs))
