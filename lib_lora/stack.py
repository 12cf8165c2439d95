"""The user's ordered stack of entries. Values only; nothing here touches a file or a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from .errors import OneLine, StackError, check_choice, check_count, check_type, printed, shown
from .files.reading import USUAL, Reading
from .strengths.strength import AnyMultiplier, Strength, checked, strengths_by_image
from .tensors import LARGEST

Mode = Literal["live", "merged"]
_EXAMPLE = "write Stack([Entry('lora.safetensors', 0.8)])"  # for errors


@dataclass(frozen=True, slots=True, repr=False)
class Entry(OneLine):
    """One file at one strength.

    A mapping may name a component exactly (`text_encoder_2`) or a family by its first member: `text_encoder` then
    covers every numbered one that is not named itself.

    Raises:
        StackError: the path is none, the multiplier is no finite number, the rank is below 1, or the name is no text.
    """

    path: str | Path
    """Of the file; absolute, whatever it was made from."""
    multiplier: AnyMultiplier = 1.0
    """The strength: a number, a dict by component, a `Strength`, `Halves` or `PerImage`."""
    rank: int | None = None
    """Use only the first so many rank components (`dyn` in prompts)."""
    alpha: float | None = None
    """The alpha of the file, where what its trainer wrote is missing or wrong; None leaves it to the file."""
    scale: float | None = None
    """The scale of the file, alpha / rank, likewise. It beats `alpha`."""
    name: str = ""
    """What errors, reports and an attached engine call the entry; the file's name without its ending, if none is given.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise StackError(f"Entry takes the path of a file, not {shown(self.path)}; {_EXAMPLE}")
        if "\0" in str(self.path):
            raise StackError(f"Entry takes the path of a file, not {str(self.path)!r:.60}, which has a null character")
        path = self.path if isinstance(self.path, Path) else Path(self.path)
        object.__setattr__(self, "path", path.absolute())  # the working directory may change
        check_type(self.name, str, "the name of an entry", "a text, as Entry(path, name='style')")
        if not self.name:
            object.__setattr__(self, "name", path.stem)
        if type(self.multiplier) is not float or not abs(self.multiplier) <= LARGEST:  # as sliders write it
            object.__setattr__(self, "multiplier", checked(self.multiplier, f"{printed(self.name)}: multiplier"))
        if self.rank is not None and (type(self.rank) is not int or self.rank < 1):
            raise StackError(f"{printed(self.name)}: rank must be a whole number from 1 up, not {shown(self.rank)}")
        for name in ("alpha", "scale"):
            value = getattr(self, name)
            if value is not None and (type(value) not in (int, float) or not abs(value) <= LARGEST):
                raise StackError(f"{printed(self.name)}: {name} must be a finite number, not {shown(value)}")

    def reading(self, usual: Reading) -> Reading:
        """Return how to read the file in a stack whose files are read in a `usual` way."""
        check_type(usual, Reading, "usual", "a Reading")
        if self.alpha is None and self.scale is None:
            return usual
        return replace(usual, alpha=self.alpha, scale=self.scale)

    def of_image(self, image: int) -> Strength:
        """Return the strength for one image of the batch, for its positive prompt."""
        check_count(image, "image")
        by_image = strengths_by_image(self.multiplier)
        if image >= len(by_image) > 1:
            raise StackError(f"there is no image {image}; {printed(self.name)} has strengths for {len(by_image)}")
        return by_image[image if len(by_image) > 1 else 0][0]

    def strength(self, component: str, image: int = 0) -> float:
        """Return the strength on a component for one image of the batch, at the beginning and before block weights."""
        return self.of_image(image).at(component, None, None)


@dataclass(frozen=True, slots=True, repr=False)
class Stack(OneLine):
    """Entries in order. Two entries of one file both act.

    Raises:
        StackError: no list of entries, no such mode, or multipliers for different numbers of images.
    """

    entries: Sequence[Entry] = ()
    """A tuple, whatever it was made from."""
    _: KW_ONLY
    mode: Mode = "live"
    """`live` never writes a base weight. `merged` writes the deltas into the weights that can be put back bit for bit,
    which costs nothing per step, and computes the others live.
    """
    in_order: bool = False
    """Let each entry act on the weights that the former ones left, as AUTOMATIC1111 bakes, instead of adding up all
    changes of the base. The results differ for kinds whose change depends on the weight: DoRA, OFT, GLoRA, IA3.
    """
    reading: Reading = USUAL
    """How to read files that other programs read otherwise than they were trained."""
    images: int = field(init=False, compare=False, repr=False)
    """How many images of a batch have strengths of their own; 1 where all have the same."""
    halved: bool = field(init=False, compare=False, repr=False)
    """Whether rows of the positive and of the negative prompt have strengths of their own."""

    def __post_init__(self) -> None:
        check_choice(self.mode, get_args(Mode), "mode")
        check_type(self.in_order, bool, "in_order", "True or False")
        check_type(self.reading, Reading, "reading", "a Reading, as Reading(alpha=8)")
        entries: tuple[object, ...] = (None,)
        with suppress(TypeError):  # it is no list
            entries = tuple(self.entries)
        if not all(isinstance(entry, Entry) for entry in entries):
            raise StackError(f"Stack takes a list of entries, not {shown(self.entries)}; {_EXAMPLE}")
        object.__setattr__(self, "entries", entries)
        images, halved = 1, False
        for i, entry in enumerate(self.entries):
            by_image = strengths_by_image(entry.multiplier)
            if images > 1 and len(by_image) not in (1, images):
                text = f"multipliers for {len(by_image)} images, and an entry before has {images}"
                raise StackError(f"{printed(entry.name)}: {text}", i)
            images, halved = max(images, len(by_image)), halved or max(map(len, by_image)) > 1
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "halved", halved)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)
