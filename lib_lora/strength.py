"""Where strengths live: a few numbers on the host, and one vector per device that never moves.

Every rank component of every fused pair is multiplied by `multiplier * scale` in the forward. All those factors of
a plan lie in one flat vector per (device, dtype); a layer's part is a view into it. Changing a strength rewrites
the vector: one gather, one product and one copy per device, however many layers there are, and no layer is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .adapters.base import RankSchedule


@dataclass(frozen=True, slots=True)
class Share:
    """One binding's part of a layer's factors."""

    cell: int
    """Which strength multiplies it."""
    count: int = 1
    """Number of rank components."""
    scale: float = 1.0
    schedule: RankSchedule | None = None
    """Which of its ranks act at a timestep."""
    per_rank: int = 1
    """Components that make one rank of the schedule; they lie together."""


Layout = tuple[Share, ...]


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
        self._scheduled: list[tuple[int, Share, RankSchedule]] = []
        self.timestep: float | None = None
        """Of the model call that is next; None where nobody said, and all ranks act."""

    def register(self, layout: Layout) -> None:
        """Reserve room for a layer's factors; layers of the same layout share it. Before the first `view` only."""
        if layout in self._offsets:
            return
        assert not self._mirrors, "views must never move"
        self._offsets[layout] = self._length
        self._length += sum(share.count for share in layout)

    def seal(self) -> None:
        """Lay out what was registered."""
        shares = [share for layout in self._offsets for share in layout]
        cells = [share.cell for share in shares for _ in range(share.count)]
        scales = [share.scale for share in shares for _ in range(share.count)]
        self._owner = torch.tensor(cells, dtype=torch.int64, device="cpu")
        self._scale = torch.tensor(scales, dtype=torch.float64, device="cpu")
        start = 0
        for share in shares:
            if share.schedule is not None:
                self._scheduled.append((start, share, share.schedule))
            start += share.count

    @property
    def scheduled(self) -> bool:
        """Whether anything depends on the timestep."""
        return bool(self._scheduled)

    def view(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The live factors of one layer, (sum of ranks,); later writes show through."""
        mirror = self._mirrors.get((device, dtype))
        if mirror is None:
            mirror = self._mirrors[device, dtype] = self._factors().to(device=device, dtype=dtype, copy=True)
        return mirror.narrow(0, self._offsets[layout], sum(share.count for share in layout))

    @property
    def values(self) -> tuple[float, ...]:
        """The strength of every cell."""
        return tuple(self._values.tolist())

    def write(self, values: Sequence[float]) -> None:
        """Set every cell; shows at once in every view."""
        self._values.copy_(torch.tensor(values, dtype=torch.float64, device="cpu"))
        self._refresh()

    def set_timestep(self, timestep: float | None) -> None:
        """Say which timestep the next model call is for; shows at once in every view."""
        if timestep != self.timestep:
            self.timestep = timestep
            if self._scheduled:
                self._refresh()

    def _refresh(self) -> None:
        if self._mirrors:
            factors = self._factors()
            for mirror in self._mirrors.values():
                mirror.copy_(factors)

    def _factors(self) -> Tensor:
        factors = self._values[self._owner] * self._scale
        if self.timestep is not None:
            for start, share, schedule in self._scheduled:
                factors[start + share.per_rank * schedule.first(self.timestep) : start + share.count] = 0.0
        return factors
