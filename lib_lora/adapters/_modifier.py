"""Adapters around another adapter: modifiers, which have parameters of their own; some of its rows; other inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from ._operation import Operation
from ._rows import taken
from .base import Adapter, At, Factors, Form, Origin, OutputEffect, Rows, Shapes, Site, Tensors


def _of_inner(name: str) -> Callable[..., Any]:
    def call(self: Wrapper, *args: object) -> Any:
        return getattr(self.inner, name)(*args)

    call.__doc__ = getattr(Adapter, name).__doc__
    return call


class Wrapper(Adapter):
    """An adapter around another one, which has everything that the outer one does not override."""

    inner: Adapter

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        raise TypeError(f"{cls.__name__} goes around another adapter")

    if not TYPE_CHECKING:  # as `Adapter` has them
        rank, reads_base, by_rows, prefers_dense, has_bias, bias_excess = (
            property(attrgetter(f"inner.{name}"))
            for name in ("rank", "reads_base", "by_rows", "prefers_dense", "has_bias", "bias_excess")
        )
        delta_weight, delta_bias, form, factors, input_effect, output_effect = (
            _of_inner(name)
            for name in ("delta_weight", "delta_bias", "form", "factors", "input_effect", "output_effect")
        )

    def inner_delta(self, at: At) -> Tensor:
        """Return the inner adapter's change at multiplier 1, in the shape of the base weight."""
        weight = at.weight if self.inner.reads_base else None
        return self.inner.delta_weight(replace(at, multiplier=1.0, weight=weight)).reshape(at.base.shape)

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        assert is_dataclass(self)
        return replace(self, inner=self.inner.on(read, rank))

    def take(self, rows: Rows) -> Adapter | None:
        inner = self.inner.take(rows)
        return None if inner is None else self.around_part(inner, rows)

    def outlined(self, rows: Rows) -> Adapter | None:
        inner = self.inner.outlined(rows)
        return None if inner is None else self.around_part(inner, rows)

    def around_part(self, inner: Adapter, rows: Rows) -> Adapter | None:
        """Wrap `inner`, which is cut to `rows` already; return None if the outer adapter cannot be cut."""
        part = self.cut(rows)
        assert is_dataclass(part)
        return replace(part, inner=inner) if self.row_fields else None

    def form_on_output(self, rank: int | None = None) -> Form | None:
        """Return the form of the inner adapter, with a change of the output."""
        form = self.inner.form(rank)
        return None if form is None else replace(form, on_output=True)

    def output_effect_of_inner(self, device: torch.device, dtype: torch.dtype) -> OutputEffect | None:
        """Return what the inner adapter does to the output; None if it leaves the output alone."""
        form = self.inner.form()
        return self.inner.output_effect(device, dtype) if form is not None and form.on_output else None


class Modifier(Wrapper):
    """Parameters that change what another algorithm's mean: a magnitude, a bias, a residual."""

    @classmethod
    def takes(cls, shapes: Shapes) -> frozenset[str]:
        """Return the parameters of a group that this modifier reads; empty if the group is none of its own."""
        own = cls.params.required
        return own if own <= shapes.keys() else frozenset()

    @classmethod
    @abstractmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Adapter:
        """Build from its own parameters and the adapter made of the others.

        Raises:
            ValueError: the tensors do not fit the site; the text says want and got.
        """


def part_of(adapter: Adapter, rows: Rows) -> Adapter:
    """Return the adapter for some rows of its weight, whether they depend on the others or not."""
    return adapter.take(rows) or PartOf(adapter, rows)


@dataclass(frozen=True, slots=True, eq=False)
class PartOf(Wrapper):
    """Rows of an adapter that are known once the whole base weight is: its norms, its singular vectors, its other rows.

    `on` needs the whole weight of the file's layer, see `reads_whole`.
    """

    inner: Adapter
    rows: Rows
    read: Callable[[], Tensor] | None = None
    """Gives the whole base weight; known where the rows depend on the others' weights themselves."""

    reads_whole = reads_base = True
    by_rows = False

    def delta_bias(self) -> Tensor:
        return taken(self.inner.delta_bias(), self.rows)

    @property
    def bias_excess(self) -> Tensor | None:
        excess = self.inner.bias_excess
        return None if excess is None else taken(excess, self.rows)

    def form(self, rank: int | None = None) -> Form | None:
        outline = self.inner.outlined(self.rows)
        return None if outline is None else outline.form(rank)

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        return self.of(self.inner.on(read, rank), read)

    def of(self, known: Adapter, read: Callable[[], Tensor]) -> Adapter:
        """Return the adapter for these rows, given what the inner adapter's `on` returned; `read` gives the weight."""
        return known.take(self.rows) or replace(self, inner=known, read=read)

    def delta_weight(self, at: At) -> Tensor:
        """Build the whole delta and cut it: expensive, only for fusions that no trainer makes."""
        if self.read is None:
            raise TypeError("a part is known only once `on` has seen the whole base weight")
        whole = self.read().to(at.device, at.dtype)
        delta = self.inner.delta_weight(replace(at, weight=whole, rows=None))
        return taken(delta.reshape(whole.shape), self.rows)


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
class Refitted(Wrapper):
    """Another adapter, on a layer that had other inputs when it was trained. It must not depend on the base weight.

    Inpainting, Fill and control models are ordinary ones whose first layer takes more channels behind the latents': a
    mask, another picture. A LoRA of the ordinary model has no weights for them. Zero for them is what
    huggingface/diffusers does (loaders/peft.py, `_maybe_expand_lora_state_dict`).

    A model may be pruned: the weight there is W P^T, for a basis P of the inputs, and a change of W becomes the change
    of W P^T. MiniMax-H3 keeps its layers of AdaLN so, as the embeddings of all times lie close to a space of few
    dimensions. Source: vladmandic/sdnext pipelines/minimax/minimax_lora.py, `project_pruned_adaln`.
    """

    inner: Adapter
    inputs: int
    """Inputs of the inner adapter."""
    wanted: int
    """Inputs of the layer."""
    basis: Tensor | None = None  # (wanted, inputs); None where the inner adapter's are the first of the layer's

    exact = frozenset({"basis"})

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
        return F.pad(tensor, (*(0, 0) * (tensor.ndim - 2), 0, self.wanted - self.inputs))
