"""The tags of a web UI's prompts, positive and negative, with what brackets around them mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from ..text.grammar import Grammar, read
from ..text.placed import PlacedTag
from ..text.spelling import KINDS, plain

Images = tuple[tuple[str, ...], ...]
"""For each image, the texts between `<lora:` and `>` in its prompts."""

_MASK = re.compile(r":\s*mask\s*=")
_PART = re.compile(r":\s*part\s*=")


class PromptTags:
    """Reads tags as the host does, and finds their places.

    Args:
        module: the host's `modules.extra_networks`.
        is_ours: tells whether Remora applies tags of a kind.
        grammar: returns whether brackets around tags mean something; None while Remora applies no tags.
        has_parts: whether each part of a prompt that AND divides has its own rows in a model call.
    """

    def __init__(
        self,
        module: ModuleType,
        is_ours: Callable[[str], bool],
        grammar: Callable[[], bool | None],
        *,
        has_parts: bool,
    ) -> None:
        self._module = module
        self._is_ours = is_ours
        self._grammar = grammar
        self._has_parts = has_parts

    def of(self, prompt: str) -> tuple[str, ...]:
        """Return the texts between `<lora:` and `>` in a prompt; in a prompt of parts, a region tag gets its part."""
        told = self.told(self._module.parse_prompt(plain(prompt))[1])
        found = self._placed(read(prompt, on=bool(self._grammar()), parts=True))
        opened = tuple(one for one in found if one.is_open)
        closed = [one for one in found if not one.is_open]
        if sorted(closed) != sorted(told):  # the host sees others
            return (*told, *opened)
        return (*(_in_part(one, has_rows=self._has_parts) for one in closed), *opened)

    def without_negative(self, prompts: Sequence[str]) -> list[str]:
        """Return negative prompts without their tags, if these mean something."""
        return without_negative(prompts, on=bool(self._grammar()))

    def _placed(self, found: Grammar) -> tuple[PlacedTag, ...]:
        """Return the tags that Remora applies, in the order of their parts and kinds."""
        own = [(one.limits.part or 0, KINDS.index(kind), one) for kind, one in found.tags if self._is_ours(kind)]
        return tuple(one for *_, one in sorted(own, key=lambda placed: placed[:2]))

    def with_negatives(self, p: Any, images: Images) -> Images:
        """Add the tags of the negative prompts to the ones of each image."""
        on, prompts = self._grammar(), _negatives(p)
        if on is None or not any("lora" in one.lower() or "lyco" in one.lower() for one in prompts):
            return images
        found = [self._placed(read(one, on=on, negative=True)) for one in prompts]
        if len(images) == 1 and len({tuple((str(one), one.limits) for one in own) for own in found}) > 1:
            images = images * len(found)
        return tuple((*own, *(found[i] if i < len(found) else ())) for i, own in enumerate(images))

    def for_host(self, prompts: Any) -> Any:
        """Return prompts whose tags the host sees, without the brackets that they leave empty."""
        on = self._grammar()
        if on is None:
            return prompts
        found = [read(one, on=on, parts=True).with_tags if isinstance(one, str) else one for one in prompts]
        return prompts if found == list(prompts) else found

    def told(self, tags: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
        """Return the texts of the tags that the host found in one prompt."""
        kinds = [kind for kind in KINDS if self._is_ours(kind)]
        return tuple(":".join(map(str, params.items)) for kind in kinds for params in tags.get(kind, ()))


def without_negative(prompts: Sequence[str], *, on: bool) -> list[str]:
    """Return negative prompts without their tags, if these mean something.

    Args:
        prompts: the prompts.
        on: see `grammar.read`.
    """
    return [read(one, on=on, negative=True).text for one in prompts]


def _in_part(tag: PlacedTag, *, has_rows: bool) -> PlacedTag:
    """Return a tag with its part of the prompt as a field if it has a region; without a part if parts have no rows."""
    part, has_region = tag.limits.part, _MASK.search(tag) is not None
    if part is not None and has_region and _PART.search(tag) is None:
        tag = tag.changed(f":part={part}")
    if part is None or (has_rows and not has_region):
        return tag
    return tag.changed(limits=replace(tag.limits, part=None))


def _negatives(p: Any) -> Sequence[str]:
    """Return the negative prompts of the present pass."""
    own: Any = None
    if getattr(p, "is_hr_pass", False):
        ahead = getattr(p, "refiner_negative", "")  # of SD.Next, for all images
        own = getattr(p, "hr_negative_prompts", None) or ([ahead] if ahead else None)
    found = own or getattr(p, "negative_prompts", None)
    return found if isinstance(found, list) else ()
