"""Some rows of an adapter whose layer is several layers in the model, if it cannot cut itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ._modifier import Modifier
from ._rows import taken
from .base import Adapter, At, Form, Origin, Params, Rows, Site, Tensors


def part_of(adapter: Adapter, rows: Rows) -> Adapter:
    """Return the adapter for some rows of its weight, whether they depend on the others or not."""
    return adapter.take(rows) or PartOf(adapter, rows)


@dataclass(frozen=True, slots=True, eq=False)
class PartOf(Modifier):
    """Rows that are known once the whole base weight is: its norms, its singular vectors, its other rows.

    `on` needs the whole weight of the file's layer, see `reads_whole`.
    """

    inner: Adapter
    rows: Rows
    read: Callable[[], Tensor] | None = None
    """Gives the whole base weight; known where the rows depend on the others' weights themselves."""

    name = "part"
    params = Params(frozenset())
    reads_whole = reads_base = True
    by_rows = by_columns = False

    @classmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Adapter:
        raise TypeError("it has no parameters of its own")

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
        delta = self.inner.delta_weight(replace(at, weight=whole, rows=None, columns=None))
        return taken(delta.reshape(whole.shape), self.rows)
