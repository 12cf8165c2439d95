"""The user's factor of one entry: a number, one for each component, or a function of block and moment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from ..errors import StackError
from ..naming.blocks import BlockWeights, Side
from .regions import Region
from .schedule import ALWAYS, MOST, Curve, Moment, Window

Amount: TypeAlias = float | Curve
"""One number, or one that depends on the moment."""


@dataclass(frozen=True, slots=True)
class Strength:
    """A multiplier as a function: amount of the component, at the moment, inside the window, times the block's weight.

    Text encoders run before the first step: they have the amount of the beginning, and no window keeps them off.

    Raises:
        StackError: a number is not finite.
    """

    of: Amount | Mapping[str, Amount] = 1.0
    """For everything, or for each component as in a mapping of numbers."""
    sides: Mapping[Side, Amount] = field(default_factory=dict)
    """In place of that, for the blocks of the denoiser on one side of its middle, or for the middle."""
    during: Window = ALWAYS
    blocks: BlockWeights | None = None
    region: Region | None = None
    """The part of the picture it is for; None is all of it. For text encoders it makes no difference."""
    part: int | None = None
    """Of a prompt in several parts, each with rows of its own, the one that tells of the region; from 0.

    Layers that are given the prompt have the whole strength on the rows of that part, and none on those of others.
    """

    def __post_init__(self) -> None:
        if isinstance(self.of, Mapping):
            object.__setattr__(self, "of", MappingProxyType(dict(self.of)))
        object.__setattr__(self, "sides", MappingProxyType(dict(self.sides)))
        for amount in self.amounts:
            if not isinstance(amount, Curve):
                _finite(amount, "a multiplier")

    @property
    def amounts(self) -> tuple[Amount, ...]:
        """All of them."""
        own = tuple(self.of.values()) if isinstance(self.of, Mapping) else (self.of,)
        return (*own, *self.sides.values())

    def amount(self, component: str, side: Side | None = None) -> Amount:
        """That of a component, or of a side of the denoiser."""
        own = self.sides.get(side) if side is not None else None
        return _named(self.of, component) if own is None else own

    def at(self, component: str, side: Side | None, moment: Moment | None) -> float:
        """The factor but for the block's weight; at the beginning, and for what is called before it, without a moment.

        Raises:
            MomentError: it depends on what nothing tells.
        """
        amount = self.amount(component, side)
        if moment is None:
            return amount.at_start if isinstance(amount, Curve) else amount
        if not self.during.holds(moment):
            return 0.0
        return amount.at(moment) if isinstance(amount, Curve) else amount

    @property
    def varies(self) -> bool:
        """Whether it differs from moment to moment."""
        return not self.during.always or any(isinstance(amount, Curve) for amount in self.amounts)


Multiplier: TypeAlias = float | Mapping[str, float] | Strength
"""One strength for everything; one per component, where one that is not named is left alone; or a function."""


@dataclass(frozen=True, slots=True)
class Halves:
    """A multiplier for the rows of a call that are of the positive prompt, and one for those of the negative.

    Text encoders have the first.
    """

    positive: Multiplier
    negative: Multiplier


@dataclass(frozen=True, slots=True)
class PerImage:
    """A multiplier for each image of a batch; 0 for an image that does not have the entry.

    Raises:
        StackError: there is none.
    """

    multipliers: tuple[Multiplier | Halves, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "multipliers", tuple(self.multipliers))
        if not self.multipliers:
            raise StackError("a multiplier per image of no image at all")


AnyMultiplier: TypeAlias = Multiplier | Halves | PerImage


def multipliers_of(multiplier: AnyMultiplier) -> tuple[Multiplier | Halves, ...]:
    """Return one multiplier for each image of the batch, or a single one that all images have."""
    return multiplier.multipliers if isinstance(multiplier, PerImage) else (multiplier,)


def of_image(multiplier: AnyMultiplier, image: int, *, negative: bool = False) -> Multiplier:
    """Return the multiplier of one image of the batch, for its positive prompt or for its negative one."""
    own = multipliers_of(multiplier)
    return of_half(own[image] if len(own) > 1 else own[0], negative)


def every_of(multiplier: AnyMultiplier) -> tuple[Multiplier, ...]:
    """Return the multipliers of all images, and of both halves."""
    if not isinstance(multiplier, PerImage | Halves):
        return (multiplier,)
    return tuple(of_half(one, negative) for one in multipliers_of(multiplier) for negative in (False, True))


def is_off(multiplier: Multiplier | Halves) -> bool:
    """Whether it is 0 for everything and at any moment, which equals no entry."""
    if isinstance(multiplier, Halves):
        return is_off(multiplier.positive) and is_off(multiplier.negative)
    if isinstance(multiplier, Strength):
        return all(amount.is_zero if isinstance(amount, Curve) else amount == 0 for amount in multiplier.amounts)
    return not any(multiplier.values()) if isinstance(multiplier, Mapping) else multiplier == 0


def largest(multiplier: Multiplier | Halves) -> float:
    """Return the largest strength that it has anywhere at any moment, without its sign."""
    if isinstance(multiplier, Halves):
        return max(largest(multiplier.positive), largest(multiplier.negative))
    if isinstance(multiplier, Strength):
        points = [p for one in multiplier.amounts for p in (one.values if isinstance(one, Curve) else (one,))]
        blocks = 1.0 if multiplier.blocks is None else multiplier.blocks.largest
        return max(map(abs, points), default=0.0) * blocks
    return max(map(abs, multiplier.values()), default=0.0) if isinstance(multiplier, Mapping) else abs(multiplier)


def strength(multiplier: Multiplier, component: str) -> float:
    """What a multiplier means for one component, at the beginning, where no block has a weight of its own."""
    return at(multiplier, component, None, None)


def at(multiplier: Multiplier, component: str, side: Side | None, moment: Moment | None) -> float:
    """What a multiplier means at a moment, but for the weights of blocks.

    Raises:
        MomentError: it depends on what nothing tells.
    """
    if isinstance(multiplier, Strength):
        return multiplier.at(component, side, moment)
    found = _named(multiplier, component)
    assert not isinstance(found, Curve)
    return found


def blocks_of(multiplier: Multiplier) -> BlockWeights | None:
    """The weights of blocks, where it has some."""
    return multiplier.blocks if isinstance(multiplier, Strength) else None


def part_of(multiplier: Multiplier) -> int | None:
    """The part of the prompt that tells of its region; None where none does."""
    return multiplier.part if isinstance(multiplier, Strength) and multiplier.region is not None else None


def region_of(multiplier: Multiplier) -> Region | None:
    """The part of the picture it is for; None where it is all."""
    return multiplier.region if isinstance(multiplier, Strength) else None


def varies(multiplier: Multiplier) -> bool:
    """Whether it differs from moment to moment."""
    return isinstance(multiplier, Strength) and multiplier.varies


def by_noise(multiplier: Multiplier) -> bool:
    """Whether the timestep or the noise makes a difference."""
    if not isinstance(multiplier, Strength):
        return False
    window = multiplier.during
    curves = [amount for amount in multiplier.amounts if isinstance(amount, Curve)]
    return (window.high, window.low) != (None, None) or any(curve.unit != "step" for curve in curves)


def components_of(multiplier: Multiplier | Halves) -> tuple[str, ...]:
    """The components it names."""
    if isinstance(multiplier, Halves):
        return (*components_of(multiplier.positive), *components_of(multiplier.negative))
    of = multiplier.of if isinstance(multiplier, Strength) else multiplier
    return tuple(of) if isinstance(of, Mapping) else ()


def of_half(multiplier: Multiplier | Halves, negative: bool) -> Multiplier:
    """That of one half."""
    if not isinstance(multiplier, Halves):
        return multiplier
    return multiplier.negative if negative else multiplier.positive


def checked(multiplier: AnyMultiplier, name: str) -> AnyMultiplier:
    """The multiplier, frozen, with every number finite; a plain one if it is the same for all images and both halves.

    Raises:
        StackError: some number is not.
    """
    if isinstance(multiplier, PerImage):
        frozen = tuple(_checked(one, f"{name}, image {i}") for i, one in enumerate(multiplier.multipliers))
        return PerImage(frozen) if any(one != frozen[0] for one in frozen) else frozen[0]
    return _checked(multiplier, name)


def _checked(multiplier: Multiplier | Halves, name: str) -> Multiplier | Halves:
    if isinstance(multiplier, Halves):
        positive, negative = (_plain(half, name) for half in (multiplier.positive, multiplier.negative))
        return positive if positive == negative else Halves(positive, negative)
    return _plain(multiplier, name)


def _plain(multiplier: Multiplier, name: str) -> Multiplier:
    if isinstance(multiplier, Strength):
        return multiplier
    if isinstance(multiplier, Mapping):
        return MappingProxyType(
            {part: _finite(value, f"{name}: multiplier of {part}") for part, value in multiplier.items()}
        )
    return _finite(multiplier, f"{name}: multiplier")


def _named(of: Amount | Mapping[str, Amount], component: str) -> Amount:
    if not isinstance(of, Mapping):
        return of
    family = re.sub(r"_\d+$", "", component)
    return of.get(component, of.get(family, 0.0))


def _finite(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST:
        raise StackError(f"{what} must be a finite number, of the range of float32, not {value!r}")
    return float(value)
