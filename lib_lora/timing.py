"""When a model call is: what its host's clock says, what was told, and what the call says of itself."""

from __future__ import annotations

from dataclasses import replace

from .calls import Call
from .schedule import Clock, Moment, sigma_of


class Timing:
    """Where the moment of a call is known from."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.told = Moment()
        """Without a clock."""

    def at(self, call: Call, *, noise: bool, flow: bool) -> Moment:
        """The moment of a call that begins.

        Args:
            call: of a model.
            noise: whether the timestep and the noise are asked for; reading them off a device waits for it.
            flow: whether the model's timesteps are shares of noise.
        """
        now = self.told if self.clock is None else self.clock(lambda: call.timestep)
        if not noise:
            return now
        if now.timestep is None or self.clock is None:
            own = call.timestep
            now = now if own is None else replace(now, timestep=own, sigma=None)
        if now.sigma is None and now.timestep is not None:
            now = replace(now, sigma=sigma_of(now.timestep, flow=flow))
        return now
