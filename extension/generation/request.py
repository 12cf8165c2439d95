"""What is asked for, for the pictures of one batch: their tags, and how LoRA are to act; values only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeAlias

from lib_lora import Reading

from ..text.tag import LIMIT, PASSES, Tag, Wished

Mode: TypeAlias = Literal["live", "merged", "auto"]
"""As in `lib_lora.Stack`."""
Storage: TypeAlias = Literal["file", "bfloat16", "float8"]
"""As in `lib_lora.Engine`."""


@dataclass(frozen=True)
class Memory:
    """How the engine keeps LoRA."""

    storage: Storage = "file"
    """How they are stored on a device: in the dtype they are computed in, or in fewer bytes."""
    device_budget: int | None = None
    """Bytes they may take of a device; None is no limit."""
    cache_bytes: int | None = None
    """Bytes that files kept open after use may have together; None is no limit."""
    round_up: bool = False
    """Whether ranks are rounded up, for compiled models."""
    own_kernels: bool = False
    """Whether kernels of our own are used where they are measured to be faster."""
    ready_bytes: int = 1 << 30
    """Bytes of the computer's memory for LoRA that were used before, so that they are there at once."""


@dataclass(frozen=True)
class Settings:
    """What the user's settings mean for a generation."""

    skip_bad: bool = False
    """A name or file that fails is left out, logged and reported."""
    mode: Mode = "live"
    in_order: bool = False
    memory: Memory = Memory()
    reading: Reading = field(default_factory=Reading)
    limited: bool = True
    """Strengths beyond `tag.LIMIT` are taken as that."""


USUAL = Settings()
_UNLIMITED = "a setting of Remora takes strengths as they are"


@dataclass(frozen=True)
class Request:
    """What a host asks for, for the pictures of one batch."""

    images: tuple[tuple[Tag, ...], ...]
    settings: Settings
    calls: int | None
    always: tuple[Tag, ...] = ()
    seeds: tuple[int, ...] = ()
    at: str = "base"

    def of_image(self, image: int) -> list[Wished]:
        """What one image wishes for in this pass."""
        tags = self.images[image if len(self.images) > 1 else 0] if self.images else ()
        return [tag.wished(self.at, self._seed(image), image) for tag in tags]

    @property
    def count(self) -> int:
        """How many images may have LoRA of their own, where a tag names images."""
        named = self.at != "detailer" and any(tag.rows for tags in (*self.images, self.always) for tag in tags)
        return len(self.seeds) if named and len(self.images) == 1 and self.seeds else len(self.images)

    def limited(self) -> tuple[Request, tuple[str, ...]]:
        """Return the same with strengths that are limited, and a sentence for each tag of which one was."""
        notes: dict[str, None] = {}

        def limited(tag: Tag) -> Tag:
            if tag.largest > LIMIT:
                notes[f"{tag.name}: a strength of {tag.largest:g} is taken as {LIMIT:g}; {_UNLIMITED}"] = None
                return tag.limited
            return tag

        images = tuple(tuple(map(limited, tags)) for tags in self.images)
        return replace(self, images=images, always=tuple(map(limited, self.always))), tuple(notes)

    def strays(self) -> dict[str, Tag]:
        """Return why a tag has no effect -> the tag, for each that is for images which the batch does not have."""
        if self.at == "detailer":  # its calls are not those of the batch
            return {}
        has = "1 image" if self.count == 1 else f"{self.count} images"
        return {
            f"{tag.name} has no effect: it is for rows={','.join(map(str, sorted(tag.rows)))}, the batch has {has}": tag
            for tag in (*self.always, *chain.from_iterable(self.images))
            if tag.rows and min(tag.rows) > self.count
        }

    def waiting(self, made: Collection[str]) -> tuple[str, ...]:
        """Return a sentence for each tag that is for passes alone of which none was made for the picture yet."""
        found: dict[str, None] = {}
        for tag in (*self.always, *chain.from_iterable(self.images)):
            if tag.passes and tag.passes.isdisjoint(made) and not tag.is_off:
                passes = ",".join(one for one in PASSES if one in tag.passes)
                found[f"{tag.name} has had no effect: it is for pass={passes}, and no such pass was made"] = None
        return tuple(found)

    def of_all(self) -> list[Wished]:
        """What every image has besides."""
        return [tag.wished(self.at, self._seed(0)) for tag in self.always]

    def _seed(self, image: int) -> int | None:
        return self.seeds[image] if image < len(self.seeds) else None
