"""The LoRA of the images of a batch as one stack, each entry with a multiplier per image; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lib_lora import Entry, Halves, Multiplier, PerImage, Stack, Strength, is_off

from ..library.catalog import CatalogFile


@dataclass(frozen=True)
class Wish:
    """One LoRA of one image in this pass."""

    name: str
    """The name in its tag."""
    file: CatalogFile
    rank: int | None
    multiplier: Multiplier | Halves

    @property
    def is_off(self) -> bool:
        """Return whether every multiplier is 0, which equals no LoRA."""
        return is_off(self.multiplier)


@dataclass
class Wanted:
    """One LoRA of a batch."""

    name: str
    """The name in its first tag."""
    file: CatalogFile
    rank: int | None
    multipliers: dict[int, Multiplier | Halves] = field(default_factory=dict)
    """Image -> multiplier; an image that is missing does not use this LoRA."""

    def entry(self, images: int) -> Entry:
        """Return the stack entry for a batch of this many images."""
        every = PerImage(tuple(self.multipliers.get(image, 0.0) for image in range(images)))
        return Entry(self.file.path, every, self.rank)


def wanted(images: Sequence[Sequence[Wish]], *, in_order: bool) -> list[Wanted]:
    """Gather the LoRA of all images; a LoRA that several images share becomes one item.

    Args:
        images: the LoRAs of each image, in order.
        in_order: their order matters, so images share LoRA only if they agree in all of them.
    """
    alike = all(len(image) == len(images[0]) and _keys(image) == _keys(images[0]) for image in images)
    found: dict[object, Wanted] = {}
    for number, image in enumerate(images):
        for key, wish in zip(_keys(image), image, strict=True):
            own: object = (number, key) if in_order and not alike else key
            found.setdefault(own, Wanted(wish.name, wish.file, wish.rank)).multipliers[number] = wish.multiplier
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
        for i, (entry, file) in enumerate(zip(stack, files, strict=True)):
            changed = [name for name in components if hit is None or name in hit[i]]
            strengths = tuple((name, entry.strength(name, image)) for name in changed)
            if any(strength for _, strength in strengths):
                multiplier = entry.of_image(image)
                blocks = multiplier.blocks if isinstance(multiplier, Strength) else None
                own.append((file, entry.rank, strengths, *([] if blocks is None else [blocks])))
        keys.append(tuple(own))
    return tuple(keys)


def _keys(image: Sequence[Wish]) -> list[tuple[Path, int | None, int]]:
    """Return a key per LoRA, equal for the same LoRA in two images; a repeated LoRA gets a different key."""
    seen: Counter[tuple[Path, int | None]] = Counter()
    keys = []
    for wish in image:
        path = wish.file.path
        seen[path, wish.rank] += 1
        keys.append((path, wish.rank, seen[path, wish.rank]))
    return keys
