"""The model families that are known: which one a file was made for and which one a model is, by the same tell-tales."""

from __future__ import annotations

from collections.abc import Iterable

from ..registry import cached, discover
from ..report import Family
from . import architectures
from .architectures.base import CLEAR, Architecture, clear, fact, ranked
from .index import LayerIndex
from .places import AliasTable, Target


@cached
def known_architectures() -> tuple[Architecture, ...]:
    """All families, in the order in which they are asked."""
    return tuple(discover(architectures, Architecture).values())


@cached
def alias_table() -> AliasTable:
    """Every name every known family has for its modules."""
    known = known_architectures()
    return AliasTable((alias for architecture in known for alias in architecture.aliases), known)


def input_layers(family: Family | None) -> frozenset[str]:
    """Names of the layers that take the latents, in a model of a family; of all families where it is not known."""
    known = known_architectures()
    return frozenset(name for one in known if family is None or one.name == family.name for name in one.inputs)


def family_of(facts: Iterable[str]) -> Family | None:
    """The family that facts speak for, see `architectures.base.fact`; None where none does."""
    lines = list(facts)
    scores = ranked(known_architectures(), lines)
    if not scores:
        return None
    found, most = scores[0]
    near = clear(scores)[1:]
    also = tuple(Family(one.name, one.title, sure=False) for one in near)
    return Family(found.name, found.title, most >= CLEAR and not also, also, found.is_named(lines))


def is_flow(indexes: Iterable[LayerIndex], component: str) -> bool:
    """Whether the timesteps of a component are shares of noise."""
    family = family_of_model(indexes)
    known = next((one for one in known_architectures() if family is not None and one.name == family.name), None)
    return component.startswith("transformer") and (known is None or known.flow)


def is_image_first(model: object) -> bool:
    """Whether a model puts the prompt's tokens behind the picture's where both are one sequence."""
    names = {name for one in known_architectures() for name in one.image_first}
    return any(cls.__name__ in names for cls in type(model).__mro__)


def family_of_model(indexes: Iterable[LayerIndex]) -> Family | None:
    """The family of a model, by the names and widths of its own layers."""
    return _family_of_layers(tuple((index.component, index.targets) for index in indexes))


@cached
def _family_of_layers(components: tuple[tuple[str, tuple[Target, ...]], ...]) -> Family | None:
    return family_of(
        fact(component, target.name, target.shape[1] if len(target.shape) > 1 else None)
        for component, targets in components
        for target in targets
    )
