"""Some rows of an adapter that is for several layers at once, where these rows depend on the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from .base import Adapter, At, Form, Origin, Params, Rows, Site, taken


def part_of(adapter: Adapter, rows: Rows) -> Adapter:
    """The adapter for some rows of its weight, whether they depend on the others or not."""
    return adapter.take(rows) or PartOf(adapter, rows)


@dataclass(frozen=True, slots=True, eq=False)
class PartOf(Adapter):
    """Rows that are known once the whole base weight is: its norms, its singular vectors, its other rows.

    `on` is to be given the whole weight that the file's layer is for, see `reads_whole`.
    """

    inner: Adapter
    rows: Rows
    read: Callable[[], Tensor] | None = None
    """Gives the whole base weight; known where the rows depend on the others' weights themselves."""

    name: ClassVar[str] = "part"
    params: ClassVar[Params] = Params(frozenset())
    reads_whole: ClassVar[bool] = True
    reads_base: ClassVar[bool] = True

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        raise TypeError("a part is made of another adapter")

    @property
    def rank(self) -> int | None:
        return self.inner.rank

    @property
    def has_bias(self) -> bool:
        return self.inner.has_bias

    def delta_bias(self) -> Tensor:
        return taken(self.inner.delta_bias(), self.rows)

    @property
    def bias_excess(self) -> Tensor | None:
        excess = self.inner.bias_excess
        return None if excess is None else taken(excess, self.rows)

    def form(self, rank: int | None = None) -> Form | None:
        """As the inner adapter's if `on` will find an adapter for these rows alone."""
        return self.inner.form(rank) if self.inner.apart_once_known else None

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        known = self.inner.on(read, rank)
        return known.take(self.rows) or replace(self, inner=known, read=read)

    def delta_weight(self, at: At) -> Tensor:
        """As by definition, of the whole weight: dear, and only for shapes that no trainer makes by itself."""
        if self.read is None:
            raise TypeError("a part is known only once `on` has seen the whole base weight")
        whole = self.read().to(at.device, at.dtype)
        delta = self.inner.delta_weight(replace(at, weight=whole, rows=None, columns=None))
        return taken(delta.reshape(whole.shape), self.rows)
