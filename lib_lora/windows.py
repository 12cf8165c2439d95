"""Where a layer reads its strengths: its part of the factors that all layers of a plan have on a device."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

from .picture import Grid
from .steady import Steady

if TYPE_CHECKING:
    from .spread import Grouped
    from .strength import Strengths


class Mirror:
    """All factors of a plan on one device, in one dtype."""

    __slots__ = ("_steady", "factors", "rows", "windows")

    def __init__(self, factors: Tensor, steady: Steady | None = None) -> None:
        self._steady = steady
        self.factors = factors if steady is None else steady.vector("factors", factors)  # (n,), of the image shown
        self.rows: Tensor | None = None  # those of all rows of a call, layout by layout; see `Strengths._by_layout`
        self.windows: weakref.WeakSet[Window] = weakref.WeakSet()

    def write_rows(self, rows: Tensor) -> None:
        """Show the factors of the rows of a call: in place as long as there are as many, as compiled code has them."""
        if self.rows is not None and self.rows.shape == rows.shape:
            self.rows.copy_(rows)
            return
        own = rows.to(self.factors.device, self.factors.dtype, copy=True)
        self.rows = own if self._steady is None else self._steady.vector("rows", own)
        for window in list(self.windows):
            window.look(self.rows)


class Window:
    """The live factors of one layer."""

    __slots__ = ("__weakref__", "_of", "_rows", "_start", "factors")

    def __init__(self, factors: Tensor, start: int, of: Strengths) -> None:
        self.factors = factors
        """(sum of ranks,), of the image that is shown; later writes show through."""
        self._start = start
        self._of = of
        self._rows: Tensor | None = None  # an own tensor: graphs know it by its shape, and not by where it begins

    def look(self, rows: Tensor) -> None:
        """See one's own part of the factors of rows."""
        self._rows = rows_of(rows, self._start, self.factors.shape[0], self._of.length)

    def of_rows(self) -> Tensor:
        """(rows, sum of ranks), each row's own. Only while the call is `mixed`."""
        assert self._rows is not None
        return self._rows

    def of_places(self, grid: Grid | None, *, channels_first: bool = False) -> Tensor:
        """Each place's own, (rows, places, sum of ranks), or (rows, sum of ranks, places) where channels are first.

        One row is for all of them alike.

        Args:
            grid: the places; None is a single one that is none of the picture.
            channels_first: see above.
        """
        weights: Tensor = self._of.weights(self._start, self.factors, grid, channels_first=channels_first)
        factors = self.of_rows() if self._of.mixed else self.factors.unsqueeze(0)
        return weights * factors.unsqueeze(2 if channels_first else 1)

    def grouped(self, grid: Grid, rows: int, large: int) -> Grouped | None:
        """The places by how far the factors act there; None while rows differ. See `Masks.grouped`."""
        return None if self._of.mixed else self._of.grouped(self._start, self.factors, grid, rows, large)


def rows_of(rows: Tensor, start: int, count: int, length: int) -> Tensor:
    """The matrix (rows, count) of one layout among those of all, of which the vectors are `length` long."""
    number = rows.shape[0] // length
    return rows.narrow(0, number * start, number * count).view(number, count)
