"""The user's factor of one entry: a number, or a function of component, block, step, sigma, image and region; pure."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Real
from typing import Literal, TypeAlias, TypeGuard, TypeVar, get_args

from ..errors import FrozenMapping, MomentError, OneLine, StackError, check_choice, check_type, frozen, listed, shown
from ..naming.blocks import BlockWeights, Side
from ..tensors import LARGEST
from .regions import Region

T = TypeVar("T")
NoneType = type(None)
Unit = Literal["step", "sigma", "timestep"]
"""What the positions of a curve are."""
Shape = Literal["linear", "step", "cosine"]
"""How a curve goes from one point to the next."""


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number of the range of float32; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and bool(abs(value) <= LARGEST)  # type: ignore[operator]


@dataclass(frozen=True, slots=True, repr=False)
class Moment(OneLine):
    """The time of a model call; None where it is not known.

    Raises:
        ArgumentError: a time is no number.
    """

    step: int | None = None
    """Of the present pass, from 0; the second call of a second-order sampler is of the same step."""
    steps: int | None = None
    """Of the present pass."""
    sigma: float | None = None
    """Standard deviation of the noise in units of the latents, as in k-diffusion."""
    timestep: float | None = None
    """Between 0 and 1000."""

    def __post_init__(self) -> None:
        for name in ("step", "steps", "sigma", "timestep"):
            check_type(getattr(self, name), (Real, NoneType), name, "a number, or None")


Clock: TypeAlias = Callable[[Callable[[], float | None]], Moment]
"""Returns the moment of a model call that begins.

Its argument reads the timestep off the call, or returns None; that waits for the device, so only clocks that need the
timestep call it.
"""


@dataclass(frozen=True, slots=True, repr=False)
class Curve(OneLine):
    """A number that depends on the moment: given at some points, and in between by the shape.

    It is constant before the first point and behind the last.

    Raises:
        StackError: no point, a number that is not finite, or no such unit or shape.
    """

    points: tuple[tuple[float, float], ...]
    """(position, value). By step, positions up to 1 throughout are fractions of the pass; else steps, from 0."""
    unit: Unit = "step"
    """What the positions are: steps, standard deviations of the noise, or timesteps from 0 to 1000."""
    shape: Shape = "linear"
    """`step` keeps a value until the next position."""

    def __post_init__(self) -> None:
        given = listed(self.points, "points", "a list of positions and values, as [(0, 1.0), (10, 0.0)]")
        # sorted by position alone, as in the original: of two points at one place the later one follows
        object.__setattr__(self, "points", tuple(sorted(map(_point, given), key=lambda point: point[0])))
        if not self.points:
            raise StackError("a schedule without a point; write Curve([(0, 1.0), (10, 0.0)])")
        check_choice(self.unit, get_args(Unit), "unit of a schedule")
        check_choice(self.shape, get_args(Shape), "shape of a schedule")

    def at(self, moment: Moment | None) -> float:
        """Return the value at a moment; without one, before the first step, which text encoders have.

        Raises:
            MomentError: the moment lacks what the curve depends on.
        """
        check_type(moment, (Moment, NoneType), "moment", "a Moment, or None")
        if moment is None:
            return self.value(0.0 if self.unit == "step" else self.points[-1][0])
        if self.unit != "step":
            return self.value(_known(moment.sigma if self.unit == "sigma" else moment.timestep, self.unit))
        step = _known(moment.step, "step")
        if self.points[-1][0] > 1.0:
            return self.value(step)
        return self.value(min(step / max(_known(moment.steps, "number of steps") - 1, 1), 1.0))

    def value(self, position: float) -> float:
        """Return the value at a position."""
        check_type(position, Real, "position", "a number")
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


def _point(point: tuple[float, float]) -> tuple[float, float]:
    """Return a position and a value of a schedule, or raise StackError."""
    if not (isinstance(point, Sequence) and len(point) == 2 and all(map(is_number, point))):
        text = "a position and a value, both finite numbers, of the range of float32"
        raise StackError(f"a point of a schedule is {text}, not {shown(point)}")
    return float(point[0]), float(point[1])


@dataclass(frozen=True, slots=True, repr=False)
class Window(OneLine):
    """The part of the steps, or of the noise, in which something acts.

    Args:
        start: it begins after so many steps; between 0 and 1, after this part of the steps.
        stop: it acts in the first so many steps; likewise.
        high: it begins when sigma is at most this.
        low: it ends when sigma is below this.
        turn: (0, 2) is the first of every two steps in turn, as the steps of a curve are counted.
        within: a window around it; it acts in both.

    Raises:
        StackError: a number is below 0 or not finite, or there is no such turn.
    """

    start: float | None = None
    stop: float | None = None
    high: float | None = None
    low: float | None = None
    turn: tuple[int, int] | None = None
    within: Window | None = None

    def __post_init__(self) -> None:
        for name in ("start", "stop", "high", "low"):
            number = getattr(self, name)
            if number is not None and not (is_number(number) and number >= 0):
                raise StackError(f"{name} of a window must be a number from 0 up, not {shown(number)}")
        check_type(self.within, (Window, NoneType), "within", "a Window, or None")
        if self.turn is not None:
            pair = self.turn if isinstance(self.turn, Sequence) else ()
            if not (len(pair) == 2 and all(type(place) is int for place in pair) and 0 <= pair[0] < pair[1]):
                raise StackError(f"turn of a window must be one of so many steps, as (0, 2), not {shown(self.turn)}")
            object.__setattr__(self, "turn", tuple(pair))

    def holds(self, moment: Moment) -> bool:
        """Tell whether a moment is in it.

        Raises:
            MomentError: the moment lacks what the window depends on.
        """
        check_type(moment, Moment, "moment", "a Moment, as Moment(step=0, steps=20)")
        if self.within is not None and not self.within.holds(moment):
            return False
        if self.turn is not None and int(_known(moment.step, "step")) % self.turn[1] != self.turn[0]:
            return False
        if self.start is not None and not _reached(self.start, moment):
            return False
        if self.stop is not None and _reached(self.stop, moment):
            return False
        if self.high is None and self.low is None:
            return True
        return (self.low or 0.0) <= _known(moment.sigma, "sigma") <= (math.inf if self.high is None else self.high)

    @property
    def why_empty(self) -> str:
        """Return why no moment can be in it; empty where one can."""
        start, stop, high, low = self.start, self.stop, self.high, self.low
        if start is not None and stop is not None and (start < 1) == (stop < 1) and start >= stop:
            return f"it stops at step {stop:g} and starts at step {start:g} only"
        if high is not None and low is not None and low > high:
            return f"it stops below sigma {low:g} and starts at sigma {high:g} only"
        return "" if self.within is None else self.within.why_empty

    @property
    def by_noise(self) -> bool:
        """Return whether the noise makes a difference."""
        return (self.high, self.low) != (None, None) or (self.within is not None and self.within.by_noise)


ALWAYS = Window()


def _reached(place: float, moment: Moment) -> bool:
    """Tell whether so many steps are done, or between 0 and 1 this part of the steps."""
    steps = _known(moment.steps, "number of steps") if 0 < place < 1 else 1
    return _known(moment.step, "step") >= place * steps


def _known(value: float | None, what: str) -> float:
    if value is None:
        raise MomentError(f"a strength depends on the {what}, but the {what} of a model call is unknown")
    return value


Amount: TypeAlias = float | Curve
"""One number, or one that depends on the moment."""


def largest_of(amount: Amount) -> float:
    """Return the largest absolute value that an amount has at any moment."""
    return max(abs(value) for _, value in amount.points) if isinstance(amount, Curve) else abs(amount)


@dataclass(frozen=True, slots=True, repr=False)
class Strength(OneLine):
    """A multiplier as a function: amount of the component, at the moment, inside the window, times the block's weight.

    Text encoders run before the first step: they have the amount of the beginning, whatever the window.

    Raises:
        StackError: a number is not finite.
    """

    of: Amount | Mapping[str, Amount] = 1.0
    """For everything, or for each component as in a mapping of numbers."""
    sides: Mapping[Side, Amount] = field(default_factory=dict)
    """In place of that, for the blocks of the denoiser on one side of its middle, or for the middle."""
    during: Window = ALWAYS
    """Outside of it the strength is 0."""
    blocks: BlockWeights | None = None
    """Factors of the blocks of the denoiser and of the text encoders."""
    region: Region | None = None
    """The part of the picture in which it acts; None is all of it. Text encoders ignore it."""
    part: int | None = None
    """Of a prompt in several parts, each with rows of its own, the one that describes the region; from 0.

    Layers that are given the prompt have the whole strength on the rows of that part, and none on other rows. Without a
    region, so have all layers of the denoiser.
    """
    outside: float = 1.0
    """How much of its effect stays outside of its region, from 0 to 1. Attention carries the effect of a region to the
    rest of the picture. Below 1, each call of the denoiser becomes two, one of them without it, which are joined."""

    def __post_init__(self) -> None:
        if isinstance(self.of, Mapping):
            object.__setattr__(self, "of", _by_component(self.of))
        object.__setattr__(self, "sides", frozen(self.sides, "sides"))
        for side in self.sides:
            check_choice(side, get_args(Side), "a side of the model")
        check_type(self.during, Window, "during", "a Window, as Window(start=0.2)")
        check_type(self.blocks, (BlockWeights, NoneType), "blocks", "BlockWeights, or None")
        check_type(self.region, (Region, NoneType), "region", "a Region, as Region.rectangle(0, 0, 0.5, 1), or None")
        if self.part is not None and (type(self.part) is not int or self.part < 0):
            raise StackError(f"part must be a whole number from 0 up, or None, not {shown(self.part)}")
        if not (is_number(self.outside) and 0 <= self.outside <= 1):
            raise StackError(f"outside must be a number from 0 to 1, not {shown(self.outside)}")
        if self.outside < 1 and self.region is None:
            raise StackError(f"outside={self.outside:g} needs a region, as Strength(1.0, region=region, outside=0)")
        named = self.of if isinstance(self.of, Mapping) else {"": self.of}
        for name, amount in (*named.items(), *self.sides.items()):
            if not isinstance(amount, Curve):
                _finite(amount, f"a multiplier of {name}" if name else "a multiplier")

    @property
    def varies(self) -> bool:
        """Return whether it differs from moment to moment."""
        return self.during != ALWAYS or bool([amount for amount in self.amounts if isinstance(amount, Curve)])

    @property
    def amounts(self) -> tuple[Amount, ...]:
        """Return the amounts of all components and sides."""
        return (*(self.of.values() if isinstance(self.of, Mapping) else (self.of,)), *self.sides.values())

    def amount(self, component: str, side: Side | None = None) -> Amount:
        """Return the amount of a component, or of a side of the denoiser; 0 for a component that is not named."""
        check_type(component, str, "component", "the name of a component, as 'unet'")
        check_type(side, (str, NoneType), "side", f"one of {', '.join(get_args(Side))}, or None")
        if side is not None and side in self.sides:
            return self.sides[side]
        if not isinstance(self.of, Mapping):
            return self.of
        return self.of.get(component, self.of.get(re.sub(r"_\d+$", "", component), 0.0))

    def at(self, component: str, side: Side | None, moment: Moment | None) -> float:
        """Return the factor before block weights; without a moment, the factor at the beginning.

        Raises:
            MomentError: the moment lacks what the strength depends on.
        """
        amount = self.amount(component, side)
        if moment is not None and not self.during.holds(moment):
            return 0.0
        return amount.at(moment) if isinstance(amount, Curve) else amount

    @property
    def by_noise(self) -> bool:
        """Return whether the timestep or the noise makes a difference."""
        units = {amount.unit for amount in self.amounts if isinstance(amount, Curve)}
        return self.during.by_noise or bool(units - {"step"})

    @property
    def largest_amount(self) -> float:
        """Return the largest absolute value that it has anywhere at any moment, before block weights."""
        return max(map(largest_of, self.amounts), default=0.0)


Multiplier: TypeAlias = float | Mapping[str, float] | Strength
"""One strength for everything; one per component, where one that is not named is left alone; or a function."""


@dataclass(frozen=True, slots=True, repr=False)
class Halves(OneLine):
    """Multipliers for the rows of the positive and of the negative prompt; text encoders have the first.

    Raises:
        StackError: a number is not finite.
    """

    positive: Multiplier
    negative: Multiplier

    def __post_init__(self) -> None:
        for name in ("positive", "negative"):
            object.__setattr__(self, name, _plain(getattr(self, name), f"{name}: multiplier"))


@dataclass(frozen=True, slots=True, repr=False)
class PerImage(OneLine):
    """A multiplier for each image of a batch; 0 for an image that does not have the entry.

    Raises:
        ArgumentError: they are no list.
        StackError: there is none, or a number is not finite.
    """

    multipliers: tuple[Multiplier | Halves, ...]

    def __post_init__(self) -> None:
        check_type(self.multipliers, Sequence, "multipliers", "a list with one for each image, as PerImage([1.0, 0.5])")
        each = enumerate(self.multipliers)
        images = [checked(one) if isinstance(one, Halves) else _plain(one, f"image {i}: multiplier") for i, one in each]
        object.__setattr__(self, "multipliers", tuple(images))
        if not images:
            raise StackError("a multiplier per image of no image at all; write PerImage([1.0, 0.5])")


AnyMultiplier: TypeAlias = Multiplier | Halves | PerImage


def checked(multiplier: AnyMultiplier, what: str = "multiplier") -> AnyMultiplier:
    """Return a multiplier that nothing changes; a plain one if it is the same for all images and both halves.

    Raises:
        StackError: a number is not finite.
    """
    if isinstance(multiplier, PerImage):
        first = multiplier.multipliers[0]
        return multiplier if any(one != first for one in multiplier.multipliers) else first
    if isinstance(multiplier, Halves):
        return multiplier if multiplier.positive != multiplier.negative else multiplier.positive
    return _plain(multiplier, what)


def _plain(multiplier: Multiplier, what: str) -> Multiplier:
    if isinstance(multiplier, Strength):
        return multiplier
    if isinstance(multiplier, Mapping):
        return frozen({name: _finite(x, f"{what} of {name}") for name, x in _by_component(multiplier).items()}, what)
    return _finite(multiplier, what)


_constant = lru_cache(maxsize=1024)(Strength)


def strengths_by_image(multiplier: AnyMultiplier) -> list[list[Strength]]:
    """Return the strength of the positive prompt, and of the negative one where that differs, for each image.

    A single image stands for all that have the same.
    """
    if isinstance(multiplier, float):  # most are
        return [[_constant(multiplier)]]
    images = multiplier.multipliers if isinstance(multiplier, PerImage) else (multiplier,)
    halves = [(one.positive, one.negative) if isinstance(one, Halves) else (one,) for one in images]
    return [[_strength(one) for one in image] for image in halves]


def _strength(multiplier: Multiplier) -> Strength:
    if isinstance(multiplier, Strength):
        return multiplier
    return _constant(multiplier) if isinstance(multiplier, float) else Strength(multiplier)


def all_strengths(multiplier: AnyMultiplier) -> list[Strength]:
    """Return the strengths of all images, and of both halves."""
    return [one for image in strengths_by_image(multiplier) for one in image]


def is_off(multiplier: AnyMultiplier) -> bool:
    """Tell whether it is 0 for everything and at any moment, which equals no entry."""
    return not any(one.largest_amount for one in all_strengths(multiplier))


def largest(multiplier: AnyMultiplier) -> float:
    """Return the largest absolute strength that it has anywhere at any moment."""
    strengths = all_strengths(multiplier)
    return max(one.largest_amount * (1.0 if one.blocks is None else one.blocks.largest) for one in strengths)


def _finite(value: object, what: str) -> float:
    if isinstance(value, Curve | Strength | Halves | PerImage):
        how = "write one Strength of all components, as Strength({'unet': 0.8, 'text_encoder': 0.5}, during=window)"
        raise StackError(f"{what} must be a number, not a {type(value).__name__}; {how}")
    if not is_number(value):
        raise StackError(f"{what} must be a finite number, of the range of float32, not {shown(value)}")
    return float(value)


def _by_component(mapping: Mapping[str, T]) -> FrozenMapping[str, T]:
    for name in mapping:
        check_type(name, str, "the name of a component", "a text, as 'unet'")
    return frozen(mapping, "a multiplier")
