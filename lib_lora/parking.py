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
        self._plans: list[Plan] = []  # the latest last

    def takes(self, plan: Plan, nbytes: int) -> bool:
        """Whether a plan may come here that has so many bytes in the computer's memory."""
        return plan.parks and nbytes <= self._limit

    def put(self, plan: Plan) -> None:
        """Keep a plan that is in force no more, and whose ways are parked; others go as far as it needs their room."""
        self._plans.append(plan)
        self._trim()

    def take(self, stack: Stack, networks: Sequence[Network], components: Iterable[str]) -> Plan | None:
        """The plan that a stack needs, but for its strengths; it is not kept any more."""
        names = tuple(components)
        for plan in reversed(self._plans):
            if plan.serves(stack, networks, names):
                self._plans.remove(plan)
                return plan
        return None

    def keep(self, known: Callable[[Network], bool]) -> None:
        """Forget the plans of files that are not known any more."""
        for plan in [one for one in self._plans if not all(map(known, one.networks))]:
            self._forget(plan)

    def clear(self) -> None:
        """Forget all."""
        while self._plans:
            self._forget(self._plans[-1])

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(plan.parked_bytes for plan in self._plans)

    def _trim(self) -> None:
        total = self.nbytes
        while self._plans and (len(self._plans) > _PLANS or total > self._limit):
            total -= self._plans[0].parked_bytes
            self._forget(self._plans[0])

    def _forget(self, plan: Plan) -> None:
        self._plans.remove(plan)
        plan.release()
