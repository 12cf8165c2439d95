"""From the tags of a batch to the files they name: the LoRA of each image, always-on ones included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lib_lora import LoraError, is_off

from ..library.catalog import Catalog, Lookup
from ..text.tag import Tag
from .batch import Wish
from .outcomes import TagOutcome
from .request import Request, place_of


@dataclass(frozen=True)
class Wishes:
    """The LoRA that the images of a batch have in this pass."""

    images: list[list[Wish]]
    """The LoRA of each image, the always-on ones first."""
    always: Mapping[int, Wish]
    """Position -> the always-on LoRA that some image has."""
    failed: dict[TagOutcome, LoraError] = field(default_factory=dict)
    """The tags that name no file."""


def find_wishes(batch: Request, catalog: Catalog) -> Wishes:
    """Find the files that the tags of a batch name."""
    lookup = Lookup(catalog, waits=True)
    failed: dict[TagOutcome, LoraError] = {}
    always = {
        position: wish
        for position, tag in enumerate(batch.always)
        if (wish := _find(lookup, batch, tag, 0, failed)) is not None and not wish.is_off
    }
    # a LoRA at 0 removes the same always-on LoRA from its image, and has no other effect
    named = [_of_image(lookup, batch, image, failed, off_too=bool(always)) for image in range(max(1, batch.count))]
    besides = [_besides(always, image) for image in named]
    images = [
        [*(always[position] for position in sorted(front)), *(wish for wish in image if not wish.is_off)]
        for front, image in zip(besides, named, strict=True)
    ]
    used = sorted(set().union(*besides))
    return Wishes(images, {position: always[position] for position in used}, failed)


def _of_image(
    lookup: Lookup, batch: Request, image: int, failed: dict[TagOutcome, LoraError], *, off_too: bool
) -> list[Wish]:
    """Find the LoRA that the prompt of one image names; those at 0 only with `off_too`."""
    tags = [tag for tag in batch.of_image(image) if off_too or not is_off(batch.multiplier(tag, image))]
    found = [_find(lookup, batch, tag, image, failed) for tag in tags]
    return [wish for wish in found if wish is not None]


def _find(lookup: Lookup, batch: Request, tag: Tag, image: int, failed: dict[TagOutcome, LoraError]) -> Wish | None:
    """Find the file of a tag; a tag of a prompt that is at 0 never fails."""
    multiplier, place = batch.multiplier(tag, image), place_of(tag)
    try:
        return Wish(tag.name, place, lookup.find(tag.name), tag.rank, multiplier, tag.alpha, tag.scale)
    except LoraError as error:
        if place.where == "always" or not is_off(multiplier):
            failed[TagOutcome.of_error(place, tag.name, error)] = error
        return None


def _besides(always: Mapping[int, Wish], image: Sequence[Wish]) -> set[int]:
    """Return the positions of the always-on LoRA that an image has: all that its prompt does not name."""
    named = {wish.file for wish in image}
    return {position for position, wish in always.items() if wish.file not in named}
