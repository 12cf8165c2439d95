"""What an architecture is. No torch here: a family is a table of names and of tell-tale shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...files.components import DENOISER, role

Size = Literal["in", "rest"]
"""Rows of a part of a fused layer: as many as it has inputs, or an equal share of what is left."""


@dataclass(frozen=True, slots=True)
class Alias:
    """Two names of one module, or of everything below it; or a fused layer and its parts.

    `{}` in a name stands for a number; both names have equally many, in the same order.

    Raises:
        ValueError: one prefix begins the other.
    """

    component: str
    """Of diffusers, or a role, see `components.py`."""
    native: str
    """Dotted path prefix in the other tree (the model's own code, ldm, open_clip, flattened transformers)."""
    diffusers: str | tuple[str, ...]
    """Dotted path prefix in the tree adapters are usually named after.

    Several are the parts of a fused layer, in the order of its outputs. Those are whole layers, no prefixes; a tuple of
    one is a whole layer as well. Parts also have the fused layer's name with their number: `qkv.0` is q (OMI).
    """
    sizes: tuple[Size, ...] = ()
    """Rows of each part, for a model that is fused; all equal where none are given."""
    swapped: bool = False
    """Whether one layer has the two halves of its outputs the other way round, as adaLN's shift and scale."""
    times: int | None = None
    """How many times as many outputs as inputs a layer must have to be meant, where names alone do not tell."""

    def __post_init__(self) -> None:
        if not isinstance(self.diffusers, str) or "" in (self.native, self.diffusers):
            return  # whole layers; and what stands before all of a model's own names is put there once
        short, long = sorted((f"{self.native}.", f"{self.diffusers}."), key=len)
        if short != long and long.startswith(short):
            raise ValueError(f"{short!r} begins {long!r}: give one layer as a tuple, or the name would grow for ever")

    @property
    def only_names(self) -> bool:
        """Whether it gives layers another name and does nothing else."""
        return isinstance(self.diffusers, str) and not self.swapped and self.times is None

    @property
    def parts(self) -> tuple[str, ...]:
        """diffusers' names."""
        return (self.diffusers,) if isinstance(self.diffusers, str) else self.diffusers


def aliases(component: str, table: Mapping[str, str | tuple[str, ...]]) -> tuple[Alias, ...]:
    """Aliases of one component from a table native -> diffusers."""
    return tuple(Alias(component, native, diffusers) for native, diffusers in table.items())


@dataclass(frozen=True, slots=True)
class Sign:
    """A tell-tale of a family: a pattern searched in a file's facts (see `fact`), and how much it says.

    What several families have is a sign of each of them, of one weight: then it decides nothing between them.
    """

    pattern: str
    """Begins with `^`, as a fact is one line."""
    weight: int = 3

    def __post_init__(self) -> None:
        if not self.pattern.startswith("^"):
            raise ValueError(f"{self.pattern!r} must begin with ^")

    def seen(self, text: str) -> bool:
        """Whether a line of `text` has it; each line begins with a line feed."""
        # not with ^ itself: it would be tried at every character instead of once for a line
        return re.search(f"\n{self.pattern[1:]}", text, re.MULTILINE) is not None


_META = r"^meta:(ss_base_model_version|modelspec_architecture):"


def named(words: str) -> Sign:
    """What trainers call the family in the metadata of a file, capitals aside: the beginning of it, as a pattern.

    It outweighs no layers that are of one family alone, as trainers call families they do not know by others' names.
    """
    return Sign(f"{_META}(?i:{words})")


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model family."""

    name: str
    title: str
    """For people, as in `Stable Diffusion XL`."""
    signs: tuple[Sign, ...]
    aliases: tuple[Alias, ...] = ()
    inputs: tuple[str, ...] = ()
    """Layers of the denoiser that take the latents, by diffusers' names; inpainting and control models have more inputs
    there, behind those of the latents.
    """
    before: tuple[str, ...] = ()
    image_first: tuple[str, ...] = ()
    """Classes of models that put the prompt's tokens behind the picture's where both are one sequence, and not before.
    """
    never: Sign | None = None
    """Layers of other models, which have some of this family's layers by the same names and widths."""
    flow: bool = True
    """Whether the timesteps of its transformer are shares of noise; those of UNets never are."""

    def score(self, facts: Iterable[str]) -> int:
        """Weigh the facts; 0 means nothing speaks for this family."""
        return self._score(_lines(facts))

    def is_named(self, facts: Iterable[str]) -> bool:
        """Whether the metadata among the facts names it."""
        text = _lines(facts)
        return any(sign.seen(text) for sign in self.signs if sign.pattern.startswith(_META))

    def _score(self, text: str) -> int:
        if self.never is not None and self.never.seen(text):
            return 0
        return sum(sign.weight for sign in self.signs if sign.seen(text))


def fact(component: str | None, module: str, width: int | None) -> str:
    """One line about one layer and how many inputs it has: `denoiser:down_blocks_1_…_attn2_to_k:768`.

    `?` where something is not known; whatever denoises has its role for a name.
    """
    named = DENOISER if component and role(component) == DENOISER else component
    return f"{named or '?'}:{module.replace('.', '_')}:{'?' if width is None else width}"


def ranked(architectures: Iterable[Architecture], facts: Iterable[str]) -> list[tuple[Architecture, int]]:
    """The families that facts speak for and their scores, the best first; of those that are level the earlier first."""
    text = _lines(facts)
    scores = [(architecture, architecture._score(text)) for architecture in architectures]
    return sorted((one for one in scores if one[1]), key=lambda one: -one[1])


def recognise(architectures: Iterable[Architecture], facts: Iterable[str]) -> Architecture | None:
    """The family most facts speak for; the earlier one when two are level; None when nothing speaks."""
    return next((architecture for architecture, _ in ranked(architectures, facts)), None)


CLEAR = 2
"""What the signs must weigh, and more than those of any other family. One of weight 1 is no more than a hint."""


def clear(scores: Sequence[tuple[Architecture, int]]) -> tuple[Architecture, ...]:
    """Return the families that facts clearly speak for: the best of `ranked`, and those as good but for a hint."""
    most = scores[0][1] if scores else 0
    return tuple(one for one, score in scores if score > most - CLEAR) if most >= CLEAR else ()


def _lines(facts: Iterable[str]) -> str:
    return "".join(f"\n{one}" for one in facts)
