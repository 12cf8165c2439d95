"""A strength over the course of a picture: by step, fraction of the steps, sigma or timestep; pure.

Steps are counted as the first extensions for AUTOMATIC1111's web UI saw them, so that prompts saved for them mean what
they meant. They looked at a counter that is written at the end of a step: it says 0 in the first step and in the
second, and n - 1 in step n (all from 0). Sources: cheald/sd-webui-loractl loractl/lib/utils.py, `calculate_weight`;
hako-mikan/sd-webui-lora-block-weight scripts/lora_block_weight.py, `denoiser_callback`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ..errors import MomentError, StackError

MOST = (2 - 2**-23) * 2.0**127
"""The largest number that float32 has; strengths are kept in it."""

Unit = Literal["step", "sigma", "timestep"]
Shape = Literal["linear", "step", "cosine"]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a call of the model is. What nobody knows is None."""

    step: int | None = None
    """Of the present pass, from 0; the second call of a second-order sampler is of the same step."""
    steps: int | None = None
    """Of the present pass."""
    sigma: float | None = None
    """Standard deviation of the noise in units of the latents, as in k-diffusion."""
    timestep: float | None = None
    """Between 0 and 1000."""


Clock: TypeAlias = Callable[[Callable[[], float | None]], Moment]
"""Tells when a model call is that begins.

It is given a function that reads the timestep off the call, or None; that waits for the device, so it is for clocks
that need it.
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """A number that depends on the moment: given at some points, and in between by the shape.

    Before the first point it is that of the first, behind the last that of the last.

    Raises:
        StackError: no point, a number that is not finite, or no such unit or shape.
    """

    points: tuple[tuple[float, float], ...]
    """(position, value). By step, positions up to 1 throughout are fractions of the pass; else they are steps."""
    unit: Unit = "step"
    shape: Shape = "linear"
    """`step` keeps a value until the next position."""

    def __post_init__(self) -> None:
        # sorted by position alone, as in the original: of two points at one place the later one follows
        object.__setattr__(self, "points", tuple(sorted(map(_pair, self.points), key=lambda point: point[0])))
        if not self.points:
            raise StackError("a schedule without a point")
        if self.unit not in get_args(Unit) or self.shape not in get_args(Shape):
            raise StackError(f"a schedule by {self.unit!r} and of the shape {self.shape!r}; there is no such")

    @property
    def by_fraction(self) -> bool:
        """Whether positions are fractions of the pass."""
        return self.unit == "step" and self.points[-1][0] <= 1.0

    @property
    def at_start(self) -> float:
        """The value before the first step; that of text encoders, which run then."""
        return self.value(0.0 if self.unit == "step" else self.points[-1][0])

    @property
    def values(self) -> tuple[float, ...]:
        """Those of its points."""
        return tuple(value for _, value in self.points)

    @property
    def is_zero(self) -> bool:
        """Whether it is 0 throughout."""
        return not any(self.values)

    def at(self, moment: Moment) -> float:
        """The value at a moment.

        Raises:
            MomentError: nothing tells what it depends on.
        """
        return self.value(self._position(moment))

    def value(self, position: float) -> float:
        """The value at a position."""
        i = bisect_right(self.points, position, key=lambda point: point[0])
        if i in (0, len(self.points)):
            return self.points[max(i - 1, 0)][1]
        (before, low), (behind, high) = self.points[i - 1], self.points[i]
        share = (position - before) / (behind - before)
        if self.shape == "step":
            return low
        if self.shape == "cosine":
            share = 0.5 - 0.5 * math.cos(math.pi * share)
        return low + (high - low) * share

    def _position(self, moment: Moment) -> float:
        if self.unit != "step":
            found = moment.sigma if self.unit == "sigma" else moment.timestep
            return known(found, self.unit)
        return fraction(moment) if self.by_fraction else float(counted(moment))


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the steps, or of the noise, in which something acts.

    Args:
        start: it begins after so many steps; between 0 and 1, after this part of the steps.
        stop: it acts in the first so many steps; likewise.
        high: it begins when sigma is at most this.
        low: it ends when sigma is below this.

    Raises:
        StackError: a number is below 0 or not finite.
    """

    start: float | None = None
    stop: float | None = None
    high: float | None = None
    low: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            number = getattr(self, name)
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise StackError(f"{name} {number!r} of a window must be a number from 0 up")

    @property
    def always(self) -> bool:
        """Whether it leaves out nothing."""
        return self == ALWAYS

    def holds(self, moment: Moment) -> bool:
        """Whether a moment is in it.

        Raises:
            MomentError: nothing tells what it depends on.
        """
        if self._reached(self.start, moment) is False or self._reached(self.stop, moment):
            return False
        if self.high is not None or self.low is not None:
            sigma = known(moment.sigma, "sigma")
            return (self.high is None or sigma <= self.high) and (self.low is None or sigma >= self.low)
        return True

    @staticmethod
    def _reached(place: float | None, moment: Moment) -> bool | None:
        """Whether so many steps are done; None for no place."""
        if place is None:
            return None
        done = known(moment.step, "step")
        if 0 < place < 1:
            return done >= place * known(moment.steps, "number of steps")
        return place <= 1 or done >= place  # by a counter that says 0 twice, one step is as good as none


ALWAYS = Window()


def counted(moment: Moment) -> int:
    """The steps done, as the counter of AUTOMATIC1111's web UI says.

    Raises:
        MomentError: nothing tells the step.
    """
    return max(int(known(moment.step, "step")) - 1, 0)


def fraction(moment: Moment) -> float:
    """How far the pass is: 0 in its first two steps, 1 in the last.

    Raises:
        MomentError: nothing tells the step, or how many there are.
    """
    steps = int(known(moment.steps, "number of steps"))
    if steps <= 2:
        return min(known(moment.step, "step") / max(steps - 1, 1), 1.0)
    return min(counted(moment) / (steps - 2), 1.0)


def known(value: float | None, what: str) -> float:
    """The value.

    Raises:
        MomentError: there is none.
    """
    if value is None:
        raise MomentError(f"a strength depends on the {what}, and nothing tells the {what} of a model call")
    return value


def sigma_of(timestep: float, *, flow: bool) -> float:
    """The noise at a timestep between 0 and 1000, for hosts that do not tell it.

    Flow models have a share of noise. For all others it is worked out from the schedule that Stable Diffusion is
    trained with, betas of 0.00085 to 0.012, linear in their roots. Source: CompVis/stable-diffusion
    ldm/modules/diffusionmodules/util.py, `make_beta_schedule`.
    """
    if flow:
        return timestep / 1000.0
    low = min(max(math.floor(timestep), 0), 999)
    high = min(low + 1, 999)
    share = min(max(timestep - low, 0.0), 1.0)
    return math.exp((1 - share) * math.log(_SIGMAS[low]) + share * math.log(_SIGMAS[high]))


def _sigmas() -> tuple[float, ...]:
    kept, found = 1.0, []
    for i in range(1000):
        root = 0.00085**0.5 + (0.012**0.5 - 0.00085**0.5) * i / 999
        kept *= 1 - root * root
        found.append(((1 - kept) / kept) ** 0.5)
    return tuple(found)


_SIGMAS = _sigmas()


def _pair(point: tuple[float, float]) -> tuple[float, float]:
    if len(point) != 2 or not all(abs(number) <= MOST for number in point):
        text = "a position and a value, both finite numbers, of the range of float32"
        raise StackError(f"a point of a schedule is {text}, not {point!r}")
    return float(point[0]), float(point[1])
