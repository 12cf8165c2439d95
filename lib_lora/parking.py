"""Plans that were in force before, with what lies ready beside no layer: going back to one of them makes nothing anew.

What lies on another device than the CPU is dropped, and so is what was worked out of base weights, which others may
write to meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .network import Network
from .plan import Plan
from .stack import Stack

_PLANS = 16
"""Even one without tensors has some objects for each layer."""


class Parking:
    """Room for plans.

    Args:
        limit: bytes of the computer's memory that they may take together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: list[tuple[Plan, int]] = []  # with their bytes; the latest last

    def room_for(self, plan: Plan | None) -> int | None:
        """How many bytes a plan would keep here; None where it may not come."""
        if plan is None or not plan.parks:
            return None
        nbytes = plan.parked_bytes
        return nbytes if nbytes <= self._limit else None

    def put(self, plan: Plan, nbytes: int) -> None:
        """Keep a plan that is in force no more; others go as far as it needs their room.

        Args:
            plan: its ways are parked.
            nbytes: what they keep.
        """
        self._plans.append((plan, nbytes))
        while len(self._plans) > _PLANS or sum(nbytes for _, nbytes in self._plans) > self._limit:
            self._forget(0)

    def take(self, stack: Stack, networks: Sequence[Network], components: Iterable[str]) -> Plan | None:
        """The plan that a stack needs, but for its strengths; it is not kept any more."""
        names = tuple(components)
        for i in reversed(range(len(self._plans))):
            if self._plans[i][0].serves(stack, networks, names):
                return self._plans.pop(i)[0]
        return None

    def keep(self, known: Callable[[Network], bool]) -> None:
        """Forget the plans of files that are not known any more."""
        for i in reversed(range(len(self._plans))):
            if not all(map(known, self._plans[i][0].networks)):
                self._forget(i)

    def clear(self) -> None:
        """Forget all."""
        while self._plans:
            self._forget(-1)

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(plan.parked_bytes for plan, _ in self._plans)

    def _forget(self, i: int) -> None:
        self._plans.pop(i)[0].release()
