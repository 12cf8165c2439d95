"""One LoRA tag of a prompt, and its multiplier in a pass of a picture; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from lib_lora import Amount, Curve, Halves, Multiplier, Side, Strength, Window, is_off

from .block_weights import LARGEST, NO_BLOCKS, TagBlocks
from .regions import NO_MASK, Mask
from .steps import amount_by_host, window_by_host

Pass: TypeAlias = Literal["base", "hires", "refiner", "detailer"]
"""The passes of a picture in a web UI, in order; each has its own steps."""
PASSES: tuple[Pass, ...] = ("base", "hires", "refiner", "detailer")
LIMIT = 10.0
"""Largest strength, unless the user removes the limit: beyond it there are no pictures."""
Where: TypeAlias = Literal["prompt", "negative", "always"]
"""What a tag is written in: the prompt, the negative prompt, or the always-on stack."""
SIDES: tuple[Side, ...] = ("in", "mid", "out")
PRUNING = ("ties", "dare_linear", "dare_ties", "magnitude_prune")
"""The rules that keep a share of the numbers."""
RULES = ("orthogonal", "svd", "linear", *PRUNING, *(f"{rule}_svd" for rule in PRUNING))
"""The rules of `lib_lora.saving.combine_files` that do more than add up."""
EXPERTS = {"high": "transformer", "low": "transformer_2"}
_DENOISERS = ("unet", "transformer", "transformer_ref", "prior", "decoder", "llm_adapter", "connectors")
ALWAYS = Window()
_EVERYTHING = ("text_encoder", *_DENOISERS)


@dataclass(frozen=True)
class Place:
    """The place where a tag is written; a tag keeps it from the prompt to the report."""

    where: Where
    number: int
    """Of the tag in its prompt, from 0; or of the entry in the stack."""
    written: str
    """The text between `<lora:` and `>`."""
    note: str = field(default="", compare=False)
    """One sentence on what the place in the prompt does not do; empty if nothing is amiss."""


@dataclass(frozen=True)
class Rule:
    """How the LoRA are combined whose tags have it; see `lib_lora.saving.combine_files`."""

    how: str
    density: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Tag:
    """One LoRA tag of a prompt."""

    name: str
    te: Amount = 1.0
    unet: Amount = 1.0
    rank: int | None = None
    noise: frozenset[str] = frozenset()
    """`high` or `low`: limit it to the transformer for that noise."""
    hires_te: Amount | None = None
    """In the second pass; None as in the first."""
    hires_unet: Amount | None = None
    sides: Mapping[Side, Amount] = field(default_factory=dict)
    """In place of `unet`, for the UNet's blocks before, in or after the middle."""
    module: str = ""
    """Limit it to this component."""
    blocks: TagBlocks = NO_BLOCKS
    during: Window = ALWAYS
    passes: frozenset[str] = frozenset()
    """Limit it to these passes; empty is all."""
    half: str = ""
    """`pos` or `neg`: limit it to the rows of that prompt in a model call."""
    rows: frozenset[int] = frozenset()
    """Limit it to these images of the batch, from 1; empty is all."""
    mask: Mask = NO_MASK
    alpha: float | None = None
    """In the place of the alpha that the file has."""
    scale: float | None = None
    """In the place of the file's alpha / rank."""
    rule: Rule | None = None
    """By which it is combined with other LoRA; None adds it."""
    part: int | None = None
    """Of a prompt whose parts are joined by AND, the part whose rows it is limited to, from 1; None is all."""
    place: Place | None = field(default=None, compare=False)
    """Where it is written; None if it comes from no prompt."""

    @property
    def multiplier(self) -> Multiplier | Halves:
        """Return the multiplier for the first image in the first pass, without drawn block weights."""
        return self.multiplier_in()

    def multiplier_in(self, at: str = "base", seed: int | None = None, image: int = 0) -> Multiplier | Halves:
        """Return the multiplier in a pass.

        Args:
            at: the pass.
            seed: of the picture, for drawn block weights.
            image: of the batch, from 0.
        """
        if self.rows and image + 1 not in self.rows:
            return 0.0
        multiplier = self._multiplier(at, seed)
        if not self.half or is_off(multiplier):
            return multiplier
        # a text encoder cannot tell the prompts apart, so `neg` does not change it
        texts = self if self.half == "pos" else replace(self, te=0.0, hires_te=0.0)
        without = replace(texts, unet=0.0, hires_unet=0.0, sides={})._multiplier(at, seed)
        halves = (texts._multiplier(at, seed), without)
        return Halves(*(halves if self.half == "pos" else halves[::-1]))

    def _multiplier(self, at: str, seed: int | None) -> Multiplier:
        if self.passes and at not in self.passes:
            return 0.0
        te, unet = self.te, self.unet
        if at == "hires":
            te = te if self.hires_te is None else self.hires_te
            unet = unet if self.hires_unet is None else self.hires_unet
        of = self._of(amount_by_host(te), amount_by_host(unet))
        blocks, region = self.blocks.weights(seed), self.mask.region
        number = self.mask.part or self.part
        part = None if number is None else number - 1
        if blocks is None and region is None and part is None and not self.sides and self.during == ALWAYS:
            plain = _numbers(of)
            if plain is not None:
                return plain
        sides = {} if self.module else {side: amount_by_host(one) for side, one in self.sides.items()}
        return Strength(of, sides, window_by_host(self.during), blocks, region, part, self.mask.outside)

    def _of(self, te: Amount, unet: Amount) -> Amount | Mapping[str, Amount]:
        """Return the amount of each component; a single one if all are equal."""
        if self.module:
            own = te if self.module.startswith("text_encoder") else unet
            return {**dict.fromkeys(_EVERYTHING, 0.0), self.module: own}
        if te == unet and not self.noise:
            return unet
        model = dict.fromkeys(_DENOISERS, unet)
        if self.noise:
            model |= {expert: unet if noise in self.noise else 0.0 for noise, expert in EXPERTS.items()}
        return {"text_encoder": te, **model}

    @property
    def alone(self) -> Tag:
        """Return the tag as if it acted everywhere and always: its strengths, for a file that is made of them."""
        return replace(self, during=ALWAYS, passes=frozenset(), half="", rows=frozenset(), mask=NO_MASK, part=None)

    @property
    def limits(self) -> Tag:
        """Return a tag at strength 1 that acts where and when this one does."""
        own = replace(Tag(""), during=self.during, passes=self.passes, half=self.half, rows=self.rows)
        return replace(own, mask=self.mask, part=self.part)

    def without(self, components: Collection[str]) -> Tag:
        """Return the tag with amount 0 for text encoders, or for the unet and transformer."""
        if any(name.startswith("text_encoder") for name in components):
            hires = None if self.hires_te is None else 0.0
            # keep the unet's amount
            return replace(self, te=0.0, hires_te=hires).without([one for one in components if one in _DENOISERS])
        if {"unet", "transformer"} & set(components):
            return replace(self, unet=0.0, hires_unet=None if self.hires_unet is None else 0.0, sides={})
        return self

    @property
    def is_off(self) -> bool:
        """Return whether every multiplier is 0 in every pass, which equals no tag."""
        return not self.acts_in

    @property
    def acts_in(self) -> tuple[Pass, ...]:
        """Return the passes in which a multiplier of some image is not 0."""
        every = replace(self, rows=frozenset())
        return tuple(one for one in PASSES if not is_off(every.multiplier_in(one)))

    @property
    def _amounts(self) -> tuple[Amount, ...]:
        every = (self.te, self.unet, self.hires_te, self.hires_unet, *self.sides.values())
        return tuple(one for one in every if one is not None)

    @property
    def largest(self) -> float:
        """Return the largest absolute value of its strengths."""
        points = [one.points if isinstance(one, Curve) else ((0.0, one),) for one in self._amounts]
        return max(abs(value) for own in points for _, value in own)

    @property
    def limited(self) -> Tag:
        """Return the tag with strengths clamped to `LIMIT`."""
        return self._with_amounts(_within)

    def scaled(self, factor: float) -> Tag:
        """Return the tag with its strengths times a factor, rounded to how they would be written."""
        if factor == 1.0:
            return self
        return self._with_amounts(lambda value: max(-LARGEST, min(LARGEST, float(f"{value * factor:.12g}"))))

    def _with_amounts(self, change: Callable[[float], float]) -> Tag:
        hires = [None if one is None else _changed(one, change) for one in (self.hires_te, self.hires_unet)]
        sides = {side: _changed(one, change) for side, one in self.sides.items()}
        te, unet = _changed(self.te, change), _changed(self.unet, change)
        return replace(self, te=te, unet=unet, hires_te=hires[0], hires_unet=hires[1], sides=sides)

    def unreached(self, steps: int) -> str:
        """Return what of its schedule lies beyond the last step of a first pass of so many; empty if nothing does."""
        if (self.passes and "base" not in self.passes) or self.during.why_empty:  # which the engine tells
            return ""
        windows = [self.during]
        while (outer := windows[-1].within) is not None:
            windows.append(outer)
        starts, stops = ([getattr(one, name) for one in windows] for name in ("start", "stop"))
        start = max((_in_steps(one, steps) for one in starts if one is not None), default=0.0)
        stop = min((_in_steps(one, steps) for one in stops if one is not None), default=0.0)
        curves = [one for one in (self.te, self.unet, *self.sides.values()) if isinstance(one, Curve)]
        last = max((one.points[-1][0] for one in curves if one.unit == "step"), default=0.0)
        has = f"the picture has {steps} step{'' if steps == 1 else 's'}"
        if start > 1 and start >= steps:
            return f"acts in no step: it begins after step {start:g}, and {has}"
        if 0 < stop <= start:  # windows within each other of which none is in the other
            return ""
        if stop > max(steps, 1):
            return f"acts until the end: it is to stop at step {stop:g}, and {has}"
        if last > max(steps, 1):
            return f"has a schedule up to step {last:g}, and {has}"
        return ""

    @property
    def curve(self) -> Curve | None:
        """Return one of its schedules; all have the same unit and shape."""
        return next((amount for amount in self._amounts if isinstance(amount, Curve)), None)


def _changed(amount: Amount, change: Callable[[float], float]) -> Amount:
    if isinstance(amount, Curve):
        return replace(amount, points=tuple((place, change(value)) for place, value in amount.points))
    return change(amount)


def _within(value: float) -> float:
    return max(-LIMIT, min(LIMIT, value))


def _numbers(of: Amount | Mapping[str, Amount]) -> float | Mapping[str, float] | None:
    """Return a multiplier without functions, or None."""
    if isinstance(of, Curve):
        return None
    if isinstance(of, Mapping):
        numbers = {name: amount for name, amount in of.items() if not isinstance(amount, Curve)}
        return numbers if len(numbers) == len(of) else None
    return of


def _in_steps(place: float, steps: int) -> float:
    """Return a place of a schedule, which between 0 and 1 is a part of the steps, as a number of steps."""
    return place * steps if 0 < place < 1 else place
