"""The pictures of this session: which LoRA each of them used, and what became of these."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from .outcomes import state_at
from .request import place_of

if TYPE_CHECKING:
    from lib_lora import Curve

    from ..library.catalog import CatalogFile
    from ..text.tag import Tag
    from .activation import Activation
    from .outcomes import State
    from .request import Request

MOST = 200
"""Pictures that a record keeps; the oldest go first."""
_SIDE = 192  # pixels, of the longer side of a thumbnail
_QUALITY = 75


@dataclass(frozen=True)
class LoraUse:
    """One LoRA of one picture."""

    name: str
    """As in its tag."""
    file: CatalogFile | None
    """None if no file has this name, or if the tag cannot be read."""
    strength: str
    """As in its tag, such as `0.8`; empty if the tag cannot be read."""
    state: State
    reason: str = ""
    """One sentence if it was left out."""
    always_on: bool = False


@dataclass(frozen=True)
class Picture:
    """One picture of this session."""

    number: int
    """Counted from 1, and never used again."""
    at: float
    """Seconds since 1970."""
    seed: int
    loras: tuple[LoraUse, ...]
    thumbnail: bytes | None
    """WebP; None if it is no still picture."""


@dataclass
class _Begun:
    """One batch that is being made."""

    seeds: tuple[int, ...]
    images: tuple[tuple[LoraUse, ...], ...]
    """The LoRA of each image; one item for all if they are equal."""

    def of(self, place: int) -> tuple[LoraUse, ...]:
        """Return the LoRA of one image of the batch."""
        return self.images[place] if place < len(self.images) else self.images[0]


class Record:
    """The latest pictures of a session; may be read while pictures are made."""

    def __init__(self, most: int = MOST) -> None:
        self._lock = threading.Lock()
        self._begun: deque[_Begun] = deque(maxlen=most)  # since the latest generation
        self._pictures: deque[Picture] = deque(maxlen=most)
        self._count = 0

    @property
    def count(self) -> int:
        """Return how many pictures were made in this session."""
        return self._count

    def begin(self, seeds: Sequence[int], images: Sequence[tuple[LoraUse, ...]]) -> None:
        """Note that a batch begins, with the LoRA of each image."""
        self._begun.append(_Begun(tuple(seeds), tuple(images) or ((),)))

    def tell(self, images: Sequence[tuple[LoraUse, ...]]) -> None:
        """Replace the LoRA of the latest batch: the model has shown more of their effect."""
        if self._begun and images:
            self._begun[-1].images = tuple(images)

    def made(self, pictures: Iterable[tuple[int, Any]]) -> None:
        """Record the pictures of a generation that ended, by seed and image; without any it made none."""
        for place, (seed, image) in enumerate(pictures):
            loras, thumbnail = self._loras(seed, place), _thumbnail(image)
            with self._lock:
                self._count += 1
                self._pictures.appendleft(Picture(self._count, time.time(), seed, loras, thumbnail))
        self._begun.clear()

    def pictures(self, file: CatalogFile | None = None, seed: int | None = None) -> list[Picture]:
        """Return the pictures, the latest first: all, or those with this LoRA, or with this seed."""
        with self._lock:
            known = list(self._pictures)
        return [
            one
            for one in known
            if (seed is None or one.seed == seed) and (file is None or any(lora.file == file for lora in one.loras))
        ]

    def picture(self, number: int) -> Picture | None:
        """Return the picture with this number; None if there is none, or if it is too old."""
        return next((one for one in self.pictures() if one.number == number), None)

    def _loras(self, seed: int, place: int) -> tuple[LoraUse, ...]:
        """Return the LoRA of a picture by its seed; a host may tell the seeds of a first batch only.

        A pass over a part of the picture, as detailers make, may have the same seed; it comes later.
        """
        for batch in self._begun:
            if seed in batch.seeds:
                return batch.of(batch.seeds.index(seed))
        if not self._begun:
            return ()
        latest = self._begun[-1]
        return latest.of(place % max(len(latest.seeds), len(latest.images)))


def used_loras(activation: Activation, request: Request) -> list[tuple[LoraUse, ...]]:
    """Return the LoRA of each image of a batch; one item for all if they are equal."""
    always = set(activation.always.values())
    left_out = tuple(
        LoraUse(one.name or one.asked, None, "", one.state, one.reason, one.always_on) for one in activation.left_out
    )
    images = []
    for image in range(activation.images):
        tags = (*request.of_image(image), *request.always)
        own = [
            LoraUse(
                one.name,
                one.file,
                _strength([tag for tag in tags if place_of(tag) in one.places]),
                state_at(activation.report, index),
                always_on=one.file in always,
            )
            for index, of_entry in enumerate(activation.active)
            for one in of_entry.parts
            if activation.images == 1 or image in one.images
        ]
        images.append((*own, *left_out))
    return images


def _strength(tags: Sequence[Tag]) -> str:
    """Write the strengths of the tags of one LoRA."""
    return " + ".join(_strength_of(_amount(tag.te), _amount(tag.unet)) for tag in tags)


def _strength_of(te: str, unet: str) -> str:
    if te == unet:
        return unet
    return ", ".join(f"{half} {amount}" for half, amount in (("text", te), ("UNet", unet)) if amount != "0")


def _amount(amount: float | Curve) -> str:
    return f"{amount:g}" if isinstance(amount, int | float) else "schedule"


def _thumbnail(image: object) -> bytes | None:
    if not isinstance(image, Image.Image):
        return None
    scale = min(1.0, _SIDE / max(image.size))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    stream = io.BytesIO()
    image.convert("RGB").resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0).save(
        stream, "WEBP", quality=_QUALITY
    )
    return stream.getvalue()
