"""An adapter of a layer whose model was pruned: the weight there is W P^T, for a basis P of the inputs.

A pruned MiniMax-H3 keeps its layers of AdaLN so, as the embeddings of all times lie close to a space of few dimensions.
A change of W becomes the change of W P^T. Source: vladmandic/sdnext pipelines/minimax/minimax_lora.py,
`project_pruned_adaln`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from ._modifier import Modifier
from .base import Adapter, At, Factors, Form, Origin, Rows, Site


@dataclass(frozen=True, slots=True, eq=False)
class Refitted(Modifier):
    """Another adapter, on the basis of its inputs. That one must not depend on the base weight."""

    inner: Adapter
    basis: Tensor  # (inputs of the layer, inputs of the inner adapter)

    name: ClassVar[str] = "refitted"
    by_columns: ClassVar[bool] = False
    exact: ClassVar[frozenset[str]] = frozenset({"basis"})

    @classmethod
    def around(cls, inner: Adapter, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        raise TypeError("it has no parameters of its own")

    def cut(self, inner: Adapter, rows: Rows) -> Adapter:
        return replace(self, inner=inner)

    def delta_weight(self, at: At) -> Tensor:
        return self.inner.delta_weight(at) @ at.put(self.basis).T

    def form(self, rank: int | None = None) -> Form | None:
        form = self.inner.form(rank)
        return None if form is None or form.on_input or form.on_output else form

    def factors(self, rank: int | None = None) -> Factors:
        factors = self.inner.factors(rank)
        return Factors(factors.down.to(self.basis) @ self.basis.T, factors.up)
