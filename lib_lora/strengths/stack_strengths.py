"""The strengths that a stack means for the layers of a plan, in groups that one number multiplies.

A strength group is the layers that one number multiplies: the layers of one entry, component and block that no rule of
its block weights tells apart. A variant of the stack is one image of the batch, or one half of it where positive and
negative prompts have strengths of their own. The table has a number for each variant and group.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, mul
from typing import NamedTuple, TypeAlias

from ..errors import MomentError, StackError
from ..files.components import DENOISER, role
from ..naming.blocks import BlockNames, Element, Side, block_of, side_of
from .regions import ALL_PLACES, Region, RegionPart
from .strength import AnyMultiplier, Moment, Strength, all_strengths, largest_of, strengths_by_image

Values: TypeAlias = tuple[tuple[float, ...], ...]
"""For each variant, the strength of every group."""
_NOWHERE = "its region has no place in the picture"
_PLACE = attrgetter("entry", "component", "side")


def block_rules(multiplier: AnyMultiplier) -> tuple[Element, ...]:
    """Return the rules for some layers in the block weights of all images, without their weights."""
    blocks = [one.blocks for one in all_strengths(multiplier) if one.blocks is not None]
    return tuple(dict.fromkeys([element.unweighted for one in blocks for element in one.elements]))


class StrengthGroup(NamedTuple):
    """Layers that one number multiplies, whatever the strength is a function of."""

    entry: int
    component: str
    block: str
    side: Side | None
    """Of the denoiser; None for layers that are not called at each step."""
    rules: tuple[Element, ...]
    """The entry's `block_rules` that match these layers."""


class Confined(NamedTuple):
    """Entries that keep to one region."""

    region: Region
    outside: float
    """How much of their effect stays outside of it."""
    entries: tuple[int, ...]


def _confined(strengths: Sequence[Strength], regional: Collection[int]) -> tuple[Confined, ...]:
    """Return the entries that keep to their regions, grouped by region."""
    found = dict[tuple[Region, float], list[int]]()
    for entry, one in enumerate(strengths):
        if entry in regional and one.region is not None and one.outside < 1:
            found.setdefault((one.region, one.outside), []).append(entry)
    return tuple([Confined(region, outside, tuple(entries)) for (region, outside), entries in found.items()])


@lru_cache(maxsize=16384)
def block_and_side(component: str, path: str) -> tuple[str, Side | None]:
    """Return the block of a layer, and its side of the denoiser; None where it is not called at each step."""
    block = block_of(component, path)
    return block, side_of(block) if role(component) == DENOISER else None


class StackStrengths:
    """The numbers that a stack means for the strength groups of a plan, at any moment.

    `wishes` has the name and the multiplier of each entry. Raise StackError where `model` takes no list of block
    weights as long as an entry's.
    """

    def __init__(
        self,
        wishes: Sequence[tuple[str, AnyMultiplier]],
        images: int,
        halved: bool,
        groups: Sequence[StrengthGroup],
        model: BlockNames,
    ) -> None:
        self._names, self.model, self.groups = [name for name, _ in wishes], model, groups
        self.images, self.halved = images, halved
        entries = [strengths_by_image(multiplier) for _, multiplier in wishes]
        halves = [[own[image % len(own)] for own in entries] for image in range(images)]  # one stands for all
        self._variants = [[one[half % len(one)] for one in own] for own in halves for half in range(1 + halved)]
        every = [(entry, one) for variant in self._variants for entry, one in enumerate(variant)]
        denoising = {group.entry for group in groups if group.side is not None}
        self._acted, self._moments = set[int](), 0  # groups that were other than 0 at one of so many moments
        self._varying = {entry for entry, one in every if entry in denoising and one.varies}
        self.varies = bool(self._varying)
        """Whether the moment makes a difference."""
        self.by_noise = self.varies and any(one.by_noise for _, one in every)
        """Whether the timestep or the noise makes a difference."""
        self._block_weights = self._weigh() if [one for _, one in every if one.blocks is not None] else None
        self._find_regions({entry for entry, one in every if (one.region, one.part) != ALL_PLACES} & denoising)

    def _find_regions(self, regional: set[int]) -> None:
        """Note the regions of entries that act in one, and their parts of the prompt."""
        variants = self._variants if regional else ()
        self.regions = tuple([tuple([(one.region, one.part) for one in own]) for own in variants])
        """For each variant, the region of each entry and the part of the prompt that describes it; or nothing."""
        numbered = enumerate(self.groups) if regional else ()
        self.regional_groups = frozenset([i for i, group in numbered if group.side and group.entry in regional])
        """The groups that have a region, in any variant."""
        self.has_regions = bool(regional)
        """Whether there are any; a graph knows nothing else of regions."""
        self.has_places = bool([own for own in self.regions for place, _ in own if place is not None])
        """Whether the place in the picture makes a difference."""
        self.confined = tuple([_confined(own, regional) for own in variants])
        """For each variant, the entries that keep to their regions; or nothing."""
        self.predictions = 1 + max(map(len, self.confined), default=0)
        """How often a call of the denoiser computes it."""
        self.has_parts = bool([part for own in self.regions for _, part in own if part is not None])
        """Whether the part of the prompt that a row is of makes a difference."""

    def values(self, moment: Moment | None) -> Values:
        """Return the strength of every group for each variant; without a moment, at the beginning."""
        found = list[tuple[float, ...]]()
        for variant, strengths in enumerate(self._variants):
            known, numbers = dict[tuple[int, str, Side | None], float](), list[float]()
            for place, groups in groupby(self.groups, _PLACE):  # layers of one kind follow each other
                entry, component, side = place
                if place not in known:
                    now = None if side is None else moment  # only denoisers are at steps
                    try:
                        known[place] = strengths[entry].at(component, side, now)
                    except MomentError as error:
                        raise MomentError(f"{self._names[entry]}: {error}") from error
                value = known[place]
                numbers += [value for _ in groups]
            weights = self._block_weights
            found.append(tuple(numbers if weights is None else map(mul, numbers, weights[variant])))
        if moment is not None:
            self._moments += 1
            self._acted |= {i for numbers in found for i, value in enumerate(numbers) if value}
        return tuple(found)

    def of_prediction(self, values: Values, number: int) -> Values:
        """Return values for one prediction: without the entries that keep to regions, but the group of that number."""
        found = []
        for own, confined in zip(values, self.confined, strict=True):
            absent = {entry for i, one in enumerate(confined, 1) if i != number for entry in one.entries}
            numbers = [
                0.0 if group.side and group.entry in absent else one
                for group, one in zip(self.groups, own, strict=True)
            ]
            found.append(tuple(numbers))
        return tuple(found)

    def confined_rows(self, number: int, variants: Sequence[int]) -> list[Confined | None]:
        """Return what keeps to its region in a prediction, for rows of these variants; None where nothing does."""
        own = [self.confined[variant] for variant in variants]
        return [one[number - 1] if number <= len(one) else None for one in own]

    def effects(self) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
        """Return why entries had no effect so far, on which of their parts and why, and what does not limit them."""
        beginning = self.values(None)
        texts = [self._effect_of(entry, beginning) for entry in range(len(self._names))]
        idle, partly, unlimited = ({i: text for i, text in enumerate(own) if text} for own in zip(*texts, strict=True))
        return idle, partly, unlimited

    def _effect_of(self, entry: int, beginning: Values) -> tuple[str, str, str]:
        strengths = [variant[entry] for variant in self._variants]
        groups = [i for i, group in enumerate(self.groups) if group.entry == entry]
        denoising = [i for i in groups if self.groups[i].side is not None]
        is_outside = all(one.region is not None and not one.region.share for one in strengths)
        doubtful = denoising if is_outside or entry in self._varying else []
        acts = bool([i for i in groups if i not in doubtful for values in beginning if values[i]])
        wanted = [i for i in doubtful if self._is_wanted(i)]
        never, reason = [one.during.why_empty for one in strengths], ""
        if is_outside:
            reason = _NOWHERE
        elif all(never):
            reason = never[0]
        elif self._moments and self._acted.isdisjoint(doubtful):
            reason = f"its strength was 0 at all {self._moments} calls of the model"
        if not acts and not wanted and entry not in self._varying:
            layers = f"its strength is 0 for all layers that it changes, which are in {self._components(groups)}"
            reason = layers if any(one.largest_amount for one in strengths) else ""
        limits = ["region"] * any(one.region is not None for one in strengths)
        limits += ["schedule"] * any(one.varies for one in strengths)
        unlimited = ""
        if limits and not denoising and (acts or not reason):
            unlimited = f"no {' and '.join(limits)} limits it: all its layers are in {self._components(groups)}"
            unlimited += ", which runs before the steps"
        partly = f"on the {self._components(wanted)}: {reason}" if acts and wanted and reason else ""
        return "" if acts else reason, partly, unlimited

    def _components(self, groups: Sequence[int]) -> str:
        return ", ".join(dict.fromkeys([self.groups[i].component for i in groups]))

    def _is_wanted(self, i: int) -> bool:
        """Tell whether a group has a strength at a moment that may come: the user may leave a component alone."""
        group, weights = self.groups[i], self._block_weights
        return any(
            largest_of(strengths[group.entry].amount(group.component, group.side))
            and (weights is None or weights[variant][i])
            for variant, strengths in enumerate(self._variants)
        )

    def _weigh(self) -> list[list[float]]:
        found = []
        for strengths in self._variants:
            weights = []
            for group in self.groups:
                blocks = strengths[group.entry].blocks
                try:
                    weights.append(1.0 if blocks is None else blocks.weight(group.block, group.rules, self.model))
                except StackError as error:
                    raise StackError(f"{self._names[group.entry]}: {error}", group.entry) from error
            found.append(weights)
        return found

    def region(self, group: int, variant: int) -> RegionPart:
        """Return the region of a group, and the part of the prompt that describes it."""
        return self.regions[variant][self.groups[group].entry] if group in self.regional_groups else ALL_PLACES
