"""The strengths that a stack means for the layers of a plan, in groups that one number multiplies.

A strength group is the layers that one number multiplies: the layers of one entry, component and block that no rule of
its block weights tells apart. A variant of the stack is one image of the batch, or one half of it where positive and
negative prompts have strengths of their own. The table has a number for each variant and group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple, TypeAlias

from ..errors import MomentError, StackError
from ..files.components import DENOISER, role
from ..naming.architectures._block import Side, block_of, side_of
from ..naming.blocks import BlockNames, Element
from .regions import ALL_PLACES, Region, RegionPart, RowRegions
from .strength import (
    AnyMultiplier,
    Moment,
    Strength,
    all_multipliers,
    as_strength,
    image_multiplier,
    is_off,
    largest_of,
)

Values: TypeAlias = tuple[tuple[float, ...], ...]
"""For each variant, the strength of every group."""
_NOWHERE = "its region has no place in the picture"


def block_rules(multiplier: AnyMultiplier) -> tuple[Element, ...]:
    """Return the rules for some layers in the block weights of all images, without their weights."""
    if isinstance(multiplier, float | int):
        return ()
    blocks = [one.blocks for one in all_multipliers(multiplier) if isinstance(one, Strength)]
    return tuple(dict.fromkeys(element.unweighted for one in blocks if one is not None for element in one.elements))


class StrengthGroup(NamedTuple):
    """Layers that one number multiplies, whatever the strength is a function of."""

    entry: int
    component: str
    block: str
    side: Side | None
    """Of the denoiser; None for layers that are not called at each step."""
    rules: tuple[Element, ...]
    """The entry's `block_rules` that match these layers."""


@lru_cache(maxsize=16384)
def block_and_side(component: str, path: str) -> tuple[str, Side | None]:
    """Return the block of a layer, and its side of the denoiser; None where it is not called at each step."""
    block = block_of(component, path)
    return block, side_of(block) if role(component) == DENOISER else None


class StackStrengths:
    """The numbers that a stack means for the strength groups of a plan, at any moment.

    Args:
        wishes: the name and the multiplier of each entry.
        images: how many images of a batch have strengths of their own.
        halved: whether positive and negative prompts have.
        groups: of the plan, in the order of their numbers.
        model: its blocks.
        former: of another stack of the plan, of which all that the two have in common is taken over.

    Raises:
        StackError: the model takes no list of block weights as long as an entry's.
    """

    def __init__(
        self,
        wishes: Sequence[tuple[str, AnyMultiplier]],
        images: int,
        halved: bool,
        groups: Sequence[StrengthGroup],
        model: BlockNames,
        former: StackStrengths | None = None,
    ) -> None:
        self._wishes, self.model, self.groups = wishes, model, groups
        self.images, self.halved = images, halved
        self._variants = [
            [as_strength(image_multiplier(multiplier, image, negative=negative)) for _, multiplier in wishes]
            for image in range(images)
            for negative in ((False, True) if halved else (False,))
        ]
        self._shared: dict[tuple[int, str, Side | None], int] = {} if former is None else former._shared
        """(entry, component, side) of each number before blocks are weighed."""
        self._shared_of: list[int] = [] if former is None else former._shared_of
        """The position in `_shared` of each group."""
        if former is None:
            for group in groups:
                place = group.entry, group.component, group.side
                self._shared_of.append(self._shared.setdefault(place, len(self._shared)))
        every = [(entry, one) for variant in self._variants for entry, one in enumerate(variant)]
        denoising = {entry for entry, _, side in self._shared if side is not None}
        self._acted, self._moments = set[int](), 0  # groups that were other than 0 at one of so many moments
        self.varying = {entry for entry, one in every if one.varies}
        """The entries whose strength differs from moment to moment."""
        self.varies = not self.varying.isdisjoint(denoising)
        """Whether the moment makes a difference."""
        self.by_noise = self.varies and any(one.by_noise for _, one in every)
        """Whether the timestep or the noise makes a difference."""
        self._block_weights = self._weigh() if [one for _, one in every if one.blocks is not None] else None
        self.regions: dict[Region, int] = {} if former is None else former.regions
        """The regions of all stacks of the plan -> their numbers from 1."""
        self.group_regions: tuple[tuple[RegionPart, ...], ...] = ()
        """For each variant, the region of each group and the part of the prompt that describes it; or nothing."""
        if any(one.region is not None and entry in denoising for entry, one in every):
            self.group_regions = tuple(map(self._regions_of, self._variants))
        self.row_regions: dict[tuple[object, ...], RowRegions] = {}
        """The regions of factors, see `StrengthTable.weights`."""
        if former is not None and former.group_regions == self.group_regions:
            self.row_regions = former.row_regions

    def values(self, moment: Moment | None) -> Values:
        """Return the strength of every group for each variant; without a moment, at the beginning.

        Raises:
            MomentError: the moment lacks what an entry's strength depends on.
        """
        found = list[tuple[float, ...]]()
        for variant, strengths in enumerate(self._variants):
            shared = []
            for entry, component, side in self._shared:
                now = moment if side is not None and entry in self.varying else None  # only denoisers are at steps
                try:
                    shared.append(strengths[entry].at(component, side, now))
                except MomentError as error:
                    raise MomentError(f"{self._wishes[entry][0]}: {error}") from error
            own = [shared[i] for i in self._shared_of]
            if self._block_weights is not None:
                own = list(map(mul, own, self._block_weights[variant]))
            found.append(tuple(own))
        if moment is not None:
            self._moments += 1
            self._acted |= {i for own in found for i, value in enumerate(own) if value}
        return tuple(found)

    def idle(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the entries without effect so far -> why, and the ones without effect on some parts -> which, why."""
        static, idle, partly = self.values(None), dict[int, str](), dict[int, str]()
        for entry, (_, multiplier) in enumerate(self._wishes):
            own = [strengths[entry] for strengths in self._variants]
            groups = [i for i, group in enumerate(self.groups) if group.entry == entry]
            denoising = [i for i in groups if self.groups[i].side is not None]
            is_outside = all(one.region is not None and not one.region.share for one in own)
            varies = entry in self.varying and bool(denoising)
            doubtful = denoising if varies or is_outside else []
            wanted = [i for i in doubtful if self._is_wanted(i)]
            never, reason = [one.during.why_empty for one in own], ""
            if is_outside:
                reason = _NOWHERE
            elif all(never):
                reason = never[0]
            elif self._moments and self._acted.isdisjoint(doubtful):
                reason = f"its strength was 0 at all {self._moments} calls of the model"
            if any(values[i] for values in static for i in groups if i not in doubtful):
                if wanted and reason:
                    partly[entry] = f"on the {self._components(wanted)}: {reason}"
            elif wanted or varies:
                if reason:
                    idle[entry] = reason
            elif not is_off(multiplier):
                layers = self._components(groups)
                idle[entry] = f"its strength is 0 for all layers that it changes, which are in {layers}"
        return idle, partly

    def unlimited(self) -> dict[int, str]:
        """Return the entries whose region or schedule limits nothing, as they change no denoiser -> which, and why."""
        found = dict[int, str]()
        for entry in range(len(self._wishes)):
            groups = [i for i, group in enumerate(self.groups) if group.entry == entry]
            if not any(self.groups[i].side is not None for i in groups):
                has_region = any(strengths[entry].region is not None for strengths in self._variants)
                limits = ["region"] * has_region + ["schedule"] * (entry in self.varying)
                if limits:
                    which, layers = " and ".join(limits), self._components(groups)
                    found[entry] = f"no {which} limits it: all its layers are in {layers}, which runs before the steps"
        return found

    def _components(self, groups: Sequence[int]) -> str:
        return ", ".join(dict.fromkeys([self.groups[i].component for i in groups]))

    def _is_wanted(self, i: int) -> bool:
        """Tell whether a group has a strength at a moment that may come: the user may leave a component alone."""
        group = self.groups[i]
        for variant, strengths in enumerate(self._variants):
            wanted = largest_of(strengths[group.entry].amount(group.component, group.side))
            if wanted and (self._block_weights is None or self._block_weights[variant][i]):
                return True
        return False

    def _weigh(self) -> list[list[float]]:
        """Return the block weight of each group, for each variant."""
        found = []
        for strengths in self._variants:
            weights = []
            for group in self.groups:
                blocks = strengths[group.entry].blocks
                try:
                    weights.append(1.0 if blocks is None else blocks.weight(group.block, group.rules, self.model))
                except StackError as error:
                    raise StackError(f"{self._wishes[group.entry][0]}: {error}", group.entry) from error
            found.append(weights)
        return found

    def _regions_of(self, strengths: Sequence[Strength]) -> tuple[RegionPart, ...]:
        entries = [
            ALL_PLACES if one.region is None else (self.regions.setdefault(one.region, len(self.regions) + 1), one.part)
            for one in strengths
        ]
        return tuple([ALL_PLACES if group.side is None else entries[group.entry] for group in self.groups])
