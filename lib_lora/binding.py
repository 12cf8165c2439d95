"""One adapter on one layer, as one entry of the stack wants it."""

from __future__ import annotations

from dataclasses import dataclass

from .adapters.base import Adapter
from .file import AdapterFile
from .places import Target
from .strength import Layout, Share
from .whole import Whole


@dataclass(frozen=True, slots=True)
class Binding:
    """An adapter, where it acts, and which strength it obeys."""

    adapter: Adapter
    target: Target
    file: AdapterFile
    """Checked before each placement: the adapter's tensors are views of it."""
    cell: int
    """Which number of the plan's `Strengths` multiplies it."""
    rank: int | None = None
    """Use only the first so many rank components."""
    whole: Whole | None = None
    """The layers that are one in the file, where the adapter depends on all of them."""

    @property
    def layout(self) -> Layout:
        """The strength alone, as one number."""
        return (Share(self.cell, schedule=self.adapter.ranks_by_timestep),)
