"""What the pictures of one batch ask for: their tags and the settings; plain values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeAlias

from lib_lora import Halves, Multiplier, Reading

from ..hosts.base import uninterrupted
from ..text.tag import EXPERTS, LIMIT, Place, Tag, Where
from .outcomes import TagOutcome

Mode: TypeAlias = Literal["live", "merged"]
"""See `lib_lora.Stack`."""
Storage: TypeAlias = Literal["file", "bfloat16", "float8"]
"""See `lib_lora.Engine`."""


@dataclass(frozen=True)
class Memory:
    """How the engine stores LoRA."""

    storage: Storage = "file"
    """Dtype on a device: the compute dtype, or a smaller one."""
    device_budget: int | None = None
    """Bytes of a device that LoRA may use; None is no limit."""
    cache_bytes: int | None = None
    """Total bytes of the files that stay open after use; None is no limit."""
    round_up: bool = False
    """Round ranks up, for compiled models."""
    ready_bytes: int = 1 << 30
    """Bytes of main memory for LoRA used before, so that switching back is instant."""


@dataclass(frozen=True)
class Settings:
    """The user's settings for one generation."""

    skip_bad: bool = False
    """Leave out, log and report a name or file that fails."""
    mode: Mode = "live"
    in_order: bool = False
    memory: Memory = Memory()
    reading: Reading = field(default_factory=Reading)
    limited: bool = True
    """Limit strengths to `tag.LIMIT`."""


USUAL = Settings()
_UNLIMITED = "to apply it as written, turn off the limit in Remora's settings"


@dataclass(frozen=True)
class Request:
    """What a host asks for, for the pictures of one batch."""

    images: tuple[tuple[Tag, ...], ...]
    settings: Settings
    always: tuple[Tag, ...] = ()
    seeds: tuple[int, ...] = ()
    at: str = "base"
    apart: tuple[TagOutcome, ...] = ()
    """The outcomes of tags that cannot be parsed, or that are words."""
    steps: int | None = None
    """Of the first pass; None if unknown."""
    goes_on: Callable[[str], bool] = uninterrupted
    """As `hosts.Batch.goes_on`."""

    def of_image(self, image: int) -> tuple[Tag, ...]:
        """Return one image's own tags."""
        return self.images[image if len(self.images) > 1 else 0] if self.images else ()

    def multiplier(self, tag: Tag, image: int = 0) -> Multiplier | Halves:
        """Return the multiplier of a tag in this pass of one image."""
        return tag.multiplier_in(self.at, self.seeds[image] if image < len(self.seeds) else None, image)

    @property
    def count(self) -> int:
        """Return how many images may have LoRA of their own."""
        named = self.at != "detailer" and any(tag.rows for tags in (*self.images, self.always) for tag in tags)
        return len(self.seeds) if named and len(self.images) == 1 and self.seeds else len(self.images)

    def limited(self) -> tuple[Request, tuple[str, ...]]:
        """Return the same request with limited strengths, and a sentence per tag that was limited."""
        notes: dict[str, None] = {}

        def limited(tag: Tag) -> Tag:
            if tag.largest > LIMIT:
                notes[f"{tag.name}: a strength of {tag.largest:g} is taken as {LIMIT:g}; {_UNLIMITED}"] = None
                return tag.limited
            return tag

        images = tuple(tuple(map(limited, tags)) for tags in self.images)
        return replace(self, images=images, always=tuple(map(limited, self.always))), tuple(notes)

    @property
    def every(self) -> dict[Place, Tag]:
        """Return all tags, each once, by their places."""
        return {place_of(tag): tag for tag in (*self.always, *chain.from_iterable(self.images))}

    def strays(self) -> tuple[TagOutcome, ...]:
        """Return the outcome of each tag that names only images outside the batch."""
        if self.at == "detailer":  # it makes calls of its own
            return ()
        has = "1 image" if self.count == 1 else f"{self.count} images"
        return tuple(
            _stray(place, tag, has) for place, tag in self.every.items() if min(tag.rows, default=0) > self.count
        )

    def unreached(self) -> tuple[str, ...]:
        """Return a sentence for each tag whose schedule goes on beyond the last step."""
        if self.steps is None or self.at != "base":
            return ()
        said = ((tag.name, tag.unreached(self.steps)) for tag in self.every.values() if not tag.is_off)
        return tuple(dict.fromkeys(f"{name} {why}" for name, why in said if why))

    def of_all_noise(self, components: Collection[str]) -> tuple[str, ...]:
        """Return a sentence for each tag that names a part of the noise, where one denoiser takes all of it."""
        if set(EXPERTS.values()) <= set(components):
            return ()
        found: dict[str, None] = {}
        for tag in (*self.always, *chain.from_iterable(self.images)):
            acts = "unet" in components or any(EXPERTS[noise] in components for noise in tag.noise)
            if tag.noise and acts and not tag.is_off:
                why = f"{' and '.join(sorted(tag.noise))} is for models with two denoisers, such as Wan 2.2"
                found[f"{tag.name}: {why}; it acts in all noise"] = None
        return tuple(found)


def place_of(tag: Tag) -> Place:
    """Return where a tag of a request is written."""
    assert tag.place is not None, "`Session.begin_batch` gives each tag its place"
    return tag.place


def placed(tags: Iterable[Tag], where: Where) -> tuple[Tag, ...]:
    """Return tags of which each has its place; one without gets its number among them."""
    return tuple(
        tag if tag.place is not None else replace(tag, place=Place(where, number, tag.name))
        for number, tag in enumerate(tags)
    )


def _stray(place: Place, tag: Tag, has: str) -> TagOutcome:
    reason = f"it is for rows={','.join(map(str, sorted(tag.rows)))}, the batch has {has}"
    advice = "make a batch of as many images, or change rows= in the tag"
    return TagOutcome(place, tag.name, "none", reason, advice, f"{tag.name} has no effect: {reason}")
