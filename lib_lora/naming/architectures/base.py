"""Architectures: each family of models is a table of names and of tell-tale shapes, free of torch.

Files and models are recognised by the same signs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import cache, lru_cache, reduce
from operator import itemgetter
from typing import Any, Literal

from ...files.components import DENOISER, EXPERTS, role
from ...registry import cached, discover
from ...report import Family
from .. import architectures as folder
from ._arguments import denoised_in as denoised_in
from ._arguments import halves_in as halves_in
from ._arguments import is_of_text as is_of_text
from ._arguments import noise_timestep as noise_timestep
from ._arguments import patch_of as patch_of
from ._arguments import repeats_rows as repeats_rows
from ._arguments import sigma_of as sigma_of
from ._arguments import sizes_in_tokens as sizes_in_tokens
from ._arguments import timestep_in as timestep_in

Size = Literal["in", "rest"]
"""Rows of a part of a fused layer: as many as it has inputs, or an equal share of the rest."""


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
    head: int = 0
    """Rows of a head, for a fused layer of files alone that has its parts by turns, head by head."""
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
        """Return whether it gives layers another name and does nothing else."""
        return isinstance(self.diffusers, str) and not self.swapped and self.times is None

    @property
    def parts(self) -> tuple[str, ...]:
        """Return diffusers' names."""
        return (self.diffusers,) if isinstance(self.diffusers, str) else self.diffusers


Names = Mapping[str, str | tuple[str, ...]]
"""The model's own name of a layer -> diffusers' name, or its parts' names."""


def aliases(component: str, table: Names) -> tuple[Alias, ...]:
    """Make the aliases of one component from a table native -> diffusers."""
    return tuple(Alias(component, native, diffusers) for native, diffusers in table.items())


def within(native: str, diffusers: str, table: Names) -> Names:
    """Return a table of layers as one of layers within a block, which has these two names."""
    return {
        f"{native}.{name}": f"{diffusers}.{own}" if isinstance(own, str) else tuple(f"{diffusers}.{one}" for one in own)
        for name, own in table.items()
    }


def few_keys(fused: str, part: str, *blocks: str) -> tuple[Alias, ...]:
    """Make the aliases of fused projections with fewer keys and values than queries; `part` is such as `attn.to_`."""
    sizes: tuple[Size, ...] = ("in", "rest", "rest")
    parts = {block: tuple(f"{block}.{part}{one}" for one in "qkv") for block in blocks}
    return tuple(Alias(DENOISER, f"{block}.{fused}", names, sizes) for block, names in parts.items())


def linears(native: str, diffusers: str, layers: tuple[str, str] = ("0", "2")) -> Names:
    """Return the names of the two layers of an embedder; `layers` are the native ones."""
    return {f"{native}.{name}": f"{diffusers}.linear_{i}" for i, name in enumerate(layers, 1)}


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


def layers(pattern: str, weight: int = 3) -> Sign:
    """Make a sign of layers of the denoiser: `pattern` is of names and how many inputs they have, `_attn_qkv:768$`."""
    return Sign(rf"^(denoiser|\?):{pattern}", weight)


_META = r"^meta:(ss_base_model_version|modelspec_architecture):"


def named(words: str) -> Sign:
    """Make a sign of a family's name in the metadata of a file.

    It outweighs no layers that are of one family alone, as trainers call families they do not know by others' names.

    Args:
        words: a pattern of how the name begins, capitals aside.
    """
    return Sign(f"{_META}(?i:{words})")


@dataclass(frozen=True, slots=True)
class Variant:
    """A model of a family that others' files do not fit, by what tells it from them."""

    title: str
    """For people, as in `FLUX.1 Fill`."""
    inputs: int = 0
    """Of the layers that take the latents, see `Architecture.inputs`."""
    width: int = 0
    """Inputs or outputs of most layers."""
    layers: str = ""
    """A pattern of names of layers that it alone has, in all spellings."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model family."""

    name: str
    title: str
    """For people, as in `Stable Diffusion XL`."""
    signs: tuple[Sign, ...]
    aliases: tuple[Alias, ...] = ()
    """All names, `comfy` among them. Files are written with the first of a layer's names."""
    names: InitVar[Names | None] = None
    """The denoiser's own names -> diffusers': more `aliases`, before the others."""
    swapped: InitVar[Mapping[str, str] | None] = None
    """Likewise, of layers that have the two halves of their outputs the other way round, as adaLN's shift and scale."""
    comfy: tuple[Alias, ...] = ()
    """The names that ComfyUI has for layers which kohya's scripts call otherwise."""
    inputs: tuple[str, ...] = ()
    """Layers of the denoiser that take the latents, by diffusers' names; inpainting and control models have more inputs
    there, behind the latents.
    """
    variants: tuple[Variant, ...] = ()
    """Named to people whose file is for another one than the loaded model."""
    basis: tuple[str, str] | None = None
    """Where a pruned model has the basis P of some layers' inputs, and a pattern of their names: there the weight is
    W P^T.
    """
    before: tuple[str, ...] = ()
    image_first: tuple[str, ...] = ()
    """Classes of models that put the prompt's tokens behind the picture's where both are one sequence, and not before.
    """
    width: int = 0
    """The width of its blocks that its signs speak of; 0 where nobody trains it at another."""
    never: Sign | None = None
    """Layers of other models, which have some of this family's layers by the same names and widths."""
    flow: bool = True
    """Whether the timesteps of its transformer are shares of noise; a UNet's never are."""
    experts_named: Callable[[str], tuple[str, ...]] | None = None
    """Returns the `EXPERTS` that the name of a file speaks of; none or both where it leaves the choice."""

    def __post_init__(self, names: Names | None, swapped: Mapping[str, str] | None) -> None:
        turned = [Alias(DENOISER, native, own, swapped=True) for native, own in (swapped or {}).items()]
        object.__setattr__(self, "aliases", (*aliases(DENOISER, names or {}), *turned, *self.aliases, *self.comfy))

    def score(self, facts: Iterable[str]) -> int:
        """Weigh the facts; 0 means nothing speaks for this family."""
        return next((score for _, score in ranked((self,), facts)), 0)

    def seen(self, facts: Iterable[str]) -> list[Sign]:
        """Return the signs that the facts have."""
        text = _lines(facts)
        return [sign for sign in self.signs if _searched(sign.pattern)(text)]

    def is_named(self, facts: Iterable[str]) -> bool:
        """Return whether the metadata among the facts names it."""
        return any(sign.pattern.startswith(_META) for sign in self.seen(facts))


def fact(component: str | None, module: str, width: int | None) -> str:
    """Make one line about one layer and how many inputs it has: `denoiser:down_blocks_1_…_attn2_to_k:768`.

    `?` stands for an unknown; the name of a denoiser is its role.
    """
    named = DENOISER if component and role(component) == DENOISER else component
    return f"{named or '?'}:{module.replace('.', '_')}:{'?' if width is None else width}"


CLEAR = 2
"""The weight that signs must have, above any other family's, to speak clearly. A sign of weight 1 is only a hint."""


def ranked(architectures: Iterable[Architecture], facts: Iterable[str]) -> list[tuple[Architecture, int]]:
    """Return the families that facts speak for with their scores, the best first; the earlier first where level."""
    by_layer, told = list[str](), list[str]()
    for line in facts:
        (told if line.startswith("meta:") else by_layer).append(line)
    texts = [(text, _known_signs(text)) for text in (_lines(by_layer), _lines(told))]  # files have the same layers
    scores = list[tuple[Architecture, int]]()
    for architecture in architectures:
        score, never = 0, architecture.never
        for sign in architecture.signs if never is None else (never, *architecture.signs):
            is_there = False
            for text, known in texts:  # a call for each sign would take several times as long
                if sign.pattern not in known:
                    known[sign.pattern] = _searched(sign.pattern)(text) is not None
                is_there |= known[sign.pattern]
            if is_there and sign is never:
                score = 0
                break
            score += sign.weight * is_there
        if score:
            scores.append((architecture, score))
    return sorted(scores, key=itemgetter(1), reverse=True)


def clear(scores: Sequence[tuple[Architecture, int]]) -> tuple[Architecture, ...]:
    """Return the families that facts clearly speak for: the best of `ranked`, and those as good but for a hint."""
    most = scores[0][1] if scores else 0
    return tuple([one for one, score in scores if score > most - CLEAR]) if most >= CLEAR else ()


@cached
def known_architectures() -> tuple[Architecture, ...]:
    """Return all families, in the order in which they are tried."""
    return tuple(discover(folder, Architecture).values())


def family_of(facts: Iterable[str]) -> Family | None:
    """Return the family that facts speak for, see `fact`; None where nothing speaks."""
    lines = list(facts)
    scores = ranked(known_architectures(), lines)
    if not scores:
        return None
    found, most = scores[0]
    painting = [line for line in lines if not line.startswith("text_encoder")]
    if most < CLEAR and painting:
        hinted = [one for one, _ in ranked(known_architectures(), painting)]
        if found not in hinted or not {one.name for one in hinted if one is not found} <= {*found.before}:
            # many families have CLIP, which says nothing of a denoiser that is none of this family's; nor does a hint
            # at several that are as likely
            return None
    also = tuple([Family(one.name, one.title, sure=False) for one in clear(scores)[1:]])
    return Family(found.name, found.title, most >= CLEAR and not also, also, found.is_named(lines))


def architecture_of(family: Family | None) -> Architecture | None:
    """Return the architecture of a family; None without one."""
    return next((one for one in known_architectures() if family is not None and one.name == family.name), None)


def input_layers(family: Family | None) -> frozenset[str]:
    """Return the names of layers that take the latents, in a model of a family; None stands for all families."""
    own = architecture_of(family)
    return frozenset([name for one in ((own,) if own else known_architectures()) for name in one.inputs])


def input_basis(model: object, layer: str = "") -> Any:
    """Return the basis (inputs, inputs before) of a layer, or of any, in a pruned model; None where it has none."""
    for one in known_architectures():
        if one.basis is not None and (not layer or re.fullmatch(one.basis[1], layer)):
            found = reduce(lambda part, name: getattr(part, name, None), one.basis[0].split("."), model)
            if found is not None and not getattr(found, "is_meta", False):
                return found
    return None


def experts_named(*names: str) -> tuple[str, ...]:
    """Return the `EXPERTS` that the first of a file's names speaks of that speaks of any; both where none does."""
    rules = [one.experts_named for one in known_architectures() if one.experts_named is not None]
    return next((found for name in names for rule in rules if (found := rule(name))), EXPERTS)


def is_flow(family: Family | None, component: str) -> bool:
    """Return whether the timesteps of a component are shares of noise, in a model of a family."""
    own = architecture_of(family)
    return "transformer" in component and (own is None or own.flow)


def is_image_first(model: object) -> bool:
    """Return whether a model puts the prompt's tokens behind the picture's where both are one sequence."""
    names = {name for one in known_architectures() for name in one.image_first}
    return any(cls.__name__ in names for cls in type(model).__mro__)


@cache
def _searched(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """Return a search for a sign in text of which each line begins with a line feed."""
    # not with ^ itself: it would be tried at every character instead of once for a line
    return re.compile(f"\n{pattern[1:]}", re.MULTILINE).search


@lru_cache(maxsize=16)
def _known_signs(text: str) -> dict[str, bool]:
    """Return a table that belongs to a text, of the signs that were searched in it."""
    return {}


def _lines(facts: Iterable[str]) -> str:
    return "\n".join(["", *facts])
