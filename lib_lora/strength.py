"""Where strengths live: a few numbers on the host, and one vector per device that never moves.

Every rank component of every fused pair is multiplied by `multiplier * scale` in the forward. All those factors of
a plan lie in one flat vector per (device, dtype); a layer's part is a view into it. Changing a strength rewrites
the vector: one gather, one product and one copy per device, however many layers there are, and no layer is touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Layout = tuple[tuple[int, int, float], ...]
"""Per binding: (cell of the strength, number of rank components, scale)."""


class Strengths:
    """The strengths of one plan.

    A cell is one number that may differ from others: here, one per (entry, component).
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._values = torch.tensor(values, dtype=torch.float64, device="cpu")
        self._offsets: dict[Layout, int] = {}
        self._length = 0
        self._owner = torch.empty(0, dtype=torch.int64, device="cpu")
        self._scale = torch.empty(0, dtype=torch.float64, device="cpu")
        self._mirrors: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def register(self, layout: Layout) -> None:
        """Reserve room for a layer's factors; layers of the same layout share it. Before the first `view` only."""
        if layout in self._offsets:
            return
        assert not self._mirrors, "views must never move"
        self._offsets[layout] = self._length
        self._length += sum(count for _, count, _ in layout)

    def seal(self) -> None:
        """Lay out what was registered."""
        cells = [cell for layout in self._offsets for cell, count, _ in layout for _ in range(count)]
        scales = [scale for layout in self._offsets for _, count, scale in layout for _ in range(count)]
        self._owner = torch.tensor(cells, dtype=torch.int64, device="cpu")
        self._scale = torch.tensor(scales, dtype=torch.float64, device="cpu")

    def view(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The live factors of one layer, (sum of ranks,); later writes show through."""
        mirror = self._mirrors.get((device, dtype))
        if mirror is None:
            mirror = self._mirrors[device, dtype] = self._factors().to(device=device, dtype=dtype, copy=True)
        return mirror.narrow(0, self._offsets[layout], sum(count for _, count, _ in layout))

    @property
    def values(self) -> tuple[float, ...]:
        """The strength of every cell."""
        return tuple(self._values.tolist())

    def write(self, values: Sequence[float]) -> None:
        """Set every cell; shows at once in every view."""
        self._values.copy_(torch.tensor(values, dtype=torch.float64, device="cpu"))
        if self._mirrors:
            factors = self._factors()
            for mirror in self._mirrors.values():
                mirror.copy_(factors)

    def _factors(self) -> Tensor:
        return self._values[self._owner] * self._scale
