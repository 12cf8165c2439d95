"""Which algorithm reads the parameters of a layer, and the modifiers around it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import UnsupportedError
from ..registry import cached, discover_classes
from ._experts import ExpertsLoRA
from ._modifier import Modifier
from .base import Adapter, Kind, Origin, Shapes, Site, Tensors

folder = sys.modules[__name__.rpartition(".")[0]]  # which imports this module


@dataclass(frozen=True)
class Recipe:
    """One algorithm and, from the inside out, the modifiers around it."""

    kind: type[Adapter]
    modifiers: tuple[type[Modifier], ...] = ()

    @cached_property
    def name(self) -> str:
        """Return the name, such as `lora` or `lora+dora`."""
        return "+".join((self.kind.name, *(modifier.name for modifier in self.modifiers)))

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        return self.kind.kinds.intersection(*(modifier.kinds for modifier in self.modifiers))

    def own_site(self, shapes: Shapes) -> Site | None:
        """Return the weight that parameters of these shapes were made for; None where they do not tell."""
        shape = self.kind.own_shape(shapes)
        if shape is None:
            return None
        return Site(shape, "norm" if len(shape) == 1 else "conv" if len(shape) > 2 else "linear")

    def build(self, params: Tensors, site: Site, origin: Origin) -> Adapter:
        """Make the adapter for the weight at `site`.

        Raises:
            ValueError: the tensors do not fit each other or the site; the text says want and got.
        """
        own = params
        if self.modifiers:
            shapes = {name: tuple(value.shape) for name, value in params.items()}
            theirs = {name for modifier in self.modifiers for name in modifier.takes(shapes)}
            own = {name: value for name, value in params.items() if name not in theirs}
        names = self.kind.params.required | self.kind.params.optional
        for name, value in own.items():
            if not value.numel() and name in names:  # a scale is divided by it
                raise UnsupportedError("of rank 0, which changes nothing")
        least = 1 if site.kind == "norm" and "norm" in self.kinds else 2
        if len(site.shape) < least or 0 in site.shape:  # a file may make itself out to be for such a weight
            raise ValueError(f"want the parameters of a weight, got parameters of the shape {site.shape}")
        kind = ExpertsLoRA if site.kind == "experts" else self.kind
        adapter: Adapter = kind.from_params(own, site, origin)
        for modifier in self.modifiers:
            adapter = modifier.around(adapter, params, site, origin)
        return adapter


def recipe_of(shapes: Shapes) -> Recipe | None:
    """Return the recipe for parameters of these names and shapes; None where no algorithm reads all of them."""
    return _recipe(shapes, known_modifiers())


def _recipe(shapes: Shapes, modifiers: Sequence[type[Modifier]]) -> Recipe | None:
    for kind in known_kinds():
        if kind.claims(shapes):
            return Recipe(kind)
    for i, modifier in enumerate(modifiers):
        own = modifier.takes(shapes)
        if own:
            rest = {name: shape for name, shape in shapes.items() if name not in own}
            inner = _recipe(rest, modifiers[i + 1 :])
            if inner is not None:
                return Recipe(inner.kind, (*inner.modifiers, modifier))
    return None


@cached
def known_kinds() -> tuple[type[Adapter], ...]:
    """Return the algorithms that stand for themselves, in the order in which they are tried."""
    found = discover_classes(folder, Adapter)  # type: ignore[type-abstract]
    return tuple(kind for kind in found if not issubclass(kind, Modifier))


def known_modifiers() -> tuple[type[Modifier], ...]:
    """Return the modifiers, the outermost first."""
    return discover_classes(folder, Modifier)  # type: ignore[type-abstract]
