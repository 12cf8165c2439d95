"""Which step a model call belongs to, from the scheduler of a diffusers pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .strength import Moment


class SchedulerClock:
    """The clock from the scheduler of a diffusers pipeline.

    Args:
        scheduler: returns the present one, or None.
    """

    def __init__(self, scheduler: Callable[[], Any]) -> None:
        self._scheduler = scheduler
        self._timesteps: Any = None  # the latest one; each pass has its own object
        self._values: Sequence[float] = ()
        self._first = 0

    def __call__(self, timestep: Callable[[], float | None]) -> Moment:
        scheduler = self._scheduler()
        timesteps = getattr(scheduler, "timesteps", None)
        if timesteps is None or len(timesteps) == 0:
            return Moment()
        index = getattr(scheduler, "step_index", None)
        if timesteps is not self._timesteps:
            self._timesteps, self._values = timesteps, [float(one) for one in timesteps.tolist()]
            begin = getattr(scheduler, "begin_index", None)  # img2img leaves out the first timesteps
            known = begin if isinstance(begin, int) else index
            self._first = self._place(timestep) if known is None else known
        if index is None:
            index = self._first if hasattr(scheduler, "step_index") else self._place(timestep)
        order = max(int(getattr(scheduler, "order", 1)), 1)
        steps = -(-(len(self._values) - self._first) // order)
        sigmas: Any = getattr(scheduler, "sigmas", None)
        known = sigmas is not None and 0 <= index < len(sigmas)
        readable = known and not getattr(sigmas, "is_cuda", False)  # reading waits for the device
        return Moment((index - self._first) // order, steps, float(sigmas[index]) if readable else None)

    def _place(self, timestep: Callable[[], float | None]) -> int:
        """Return the index of the call's timestep; of the first one if the call tells none."""
        now = timestep()
        if now is None:
            return self._first
        return min(range(len(self._values)), key=lambda i: abs(self._values[i] - now))
