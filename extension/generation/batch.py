"""The LoRA of the images of a batch as one stack, each entry with a multiplier per image; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lib_lora import Entry, Halves, Multiplier, PerImage, Stack, is_off

from ..library.catalog import CatalogFile
from ..text.tag import Place


@dataclass(frozen=True)
class Wish:
    """One LoRA of one image in this pass."""

    name: str
    """The name in its tag."""
    place: Place
    file: CatalogFile
    rank: int | None
    multiplier: Multiplier | Halves
    alpha: float | None = None
    scale: float | None = None
    combined: tuple[Wish, ...] = ()
    """The LoRA that a rule combines to this one."""

    @property
    def parts(self) -> tuple[Wish, ...]:
        """Return the LoRA that tags name: the combined ones, or itself."""
        return self.combined or (self,)

    @property
    def is_off(self) -> bool:
        """Return whether every multiplier is 0, which equals no LoRA."""
        return is_off(self.multiplier)


Shared: TypeAlias = Mapping[int, Wish]
"""One LoRA of a batch: image -> its wish; an image that is missing does not use it."""


def first(shared: Shared) -> Wish:
    """Return the wish of the first image that has a LoRA."""
    return next(iter(shared.values()))


def places(shared: Shared) -> Mapping[Place, tuple[int, ...]]:
    """Return where the tags of a LoRA are written, and the images of the tags that are not off."""
    found: dict[Place, tuple[int, ...]] = {}
    for image, wish in shared.items():
        for one in wish.parts:
            found[one.place] = (*found.get(one.place, ()), *([] if wish.is_off else [image]))
    return found


def combined(shared: Shared) -> Mapping[Place, tuple[str, CatalogFile]]:
    """Return the name and the file of each tag that a rule combines to a LoRA; empty if it is a file by itself."""
    return {one.place: (one.name, one.file) for wish in shared.values() for one in wish.combined}


def entry_of(shared: Shared, images: int) -> Entry:
    """Return the stack entry of a LoRA, for a batch of this many images."""
    every = PerImage(tuple(shared[image].multiplier if image in shared else 0.0 for image in range(images)))
    wish = first(shared)
    return Entry(wish.file.source, every, wish.rank, wish.alpha, wish.scale)


def gather(images: Sequence[Sequence[Wish]], *, in_order: bool) -> list[Shared]:
    """Gather the LoRA of all images; a LoRA that several images share becomes one item.

    Args:
        images: the LoRAs of each image, in order.
        in_order: their order matters, so images share LoRA only if they agree in all of them.
    """
    alike = all(len(image) == len(images[0]) and _keys(image) == _keys(images[0]) for image in images)
    found: dict[object, dict[int, Wish]] = {}
    for number, image in enumerate(images):
        for key, wish in zip(_keys(image), image, strict=True):
            own: object = (number, key) if in_order and not alike else key
            found.setdefault(own, {})[number] = wish
    return list(found.values())


def text_keys(
    stack: Stack,
    files: Sequence[CatalogFile],
    components: Sequence[str],
    hit: Sequence[Collection[str]] | None = None,
) -> tuple[tuple[object, ...], ...]:
    """Return for each image a key of what changes these text encoders' output: files and strengths.

    Args:
        stack: the active stack.
        files: of its entries.
        components: the text encoders.
        hit: the components that each file changes; None means all.
    """
    keys = []
    for image in range(stack.images):
        own: list[object] = []
        for i, (one, file) in enumerate(zip(stack, files, strict=True)):
            changed = [name for name in components if hit is None or name in hit[i]]
            strengths = tuple((name, one.strength(name, image)) for name in changed)
            if any(strength for _, strength in strengths):
                blocks = one.of_image(image).blocks
                own.append((file, one.rank, one.alpha, one.scale, strengths, *([] if blocks is None else [blocks])))
        keys.append(tuple(own))
    return tuple(keys)


def _keys(image: Sequence[Wish]) -> list[tuple[object, ...]]:
    """Return a key per LoRA, equal for the same LoRA in two images; a repeated LoRA gets a different key."""
    seen: Counter[tuple[object, ...]] = Counter()
    keys: list[tuple[object, ...]] = []
    for wish in image:
        own = wish.file.path, wish.rank, wish.alpha, wish.scale
        seen[own] += 1
        keys.append((*own, seen[own]))
    return keys
