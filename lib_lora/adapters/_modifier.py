"""Adapters around another adapter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .base import Adapter, At, Factors, Form, InputEffect, Origin, OutputEffect, Rows, Shapes, Site, Tensors


class Modifier(Adapter):
    """Parameters that change what another algorithm's mean: a magnitude, a bias, a residual.

    Everything that a modifier does not override comes from the inner adapter.
    """

    inner: Adapter

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

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        raise TypeError(f"{cls.name} goes around another adapter")

    if not TYPE_CHECKING:  # as `Adapter` has them
        rank, reads_base, by_rows, by_columns, prefers_dense, has_bias, bias_excess = (
            property(attrgetter(f"inner.{name}"))
            for name in ("rank", "reads_base", "by_rows", "by_columns", "prefers_dense", "has_bias", "bias_excess")
        )

    def delta_weight(self, at: At) -> Tensor:
        return self.inner.delta_weight(at)

    def inner_delta(self, at: At) -> Tensor:
        """Return the inner adapter's change at multiplier 1, in the shape of the base weight."""
        weight = at.weight if self.inner.reads_base else None
        return self.inner.delta_weight(replace(at, multiplier=1.0, weight=weight)).reshape(at.base.shape)

    def delta_bias(self) -> Tensor:
        return self.inner.delta_bias()

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
        """Wrap `inner`, which is cut to `rows` already; return None if the modifier's own part cannot be cut."""
        part = self.cut(rows)
        assert is_dataclass(part)
        return replace(part, inner=inner) if self.row_fields else None

    def form(self, rank: int | None = None) -> Form | None:
        return self.inner.form(rank)

    def factors(self, rank: int | None = None) -> Factors:
        return self.inner.factors(rank)

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        return self.inner.input_effect(device, dtype)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return self.inner.output_effect(device, dtype)

    def form_on_output(self, rank: int | None = None) -> Form | None:
        """Return the form of the inner adapter, with a change of the output."""
        form = self.inner.form(rank)
        return None if form is None else replace(form, on_output=True)

    def output_effect_of_inner(self, device: torch.device, dtype: torch.dtype) -> OutputEffect | None:
        """Return what the inner adapter does to the output; None if it leaves the output alone."""
        form = self.inner.form()
        return self.inner.output_effect(device, dtype) if form is not None and form.on_output else None
