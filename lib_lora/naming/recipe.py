"""Which algorithm reads a layer's parameters, and which modifiers go around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .. import adapters
from ..adapters._modifier import Modifier
from ..adapters.base import Adapter, Kind, Origin, Site
from ..registry import cached, discover_classes

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recipe:
    """One algorithm and, from the inside out, what changes its meaning."""

    kind: type[Adapter]
    modifiers: tuple[type[Modifier], ...] = ()

    @cached_property
    def name(self) -> str:
        """Return the name, such as `lora` or `lora+dora`."""
        return "+".join((self.kind.name, *(modifier.name for modifier in self.modifiers)))

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """Return the kinds of layer it is defined for."""
        return self.kind.kinds.intersection(*(modifier.kinds for modifier in self.modifiers))

    def own_site(self, shapes: Shapes) -> Site | None:
        """The weight that parameters of these shapes were made for; None where they do not tell."""
        shape = self.kind.own_shape(shapes)
        if shape is None:
            return None
        if len(shape) == 1:
            return Site(shape, "norm")
        return Site(shape, "conv" if len(shape) > 2 else "linear")

    def build(self, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Adapter:
        """Make the adapter for the weight at `site`.

        Raises:
            ValueError: the tensors do not fit each other or the site; the text says want and got.
        """
        least = 1 if site.kind == "norm" and "norm" in self.kinds else 2
        if len(site.shape) < least or 0 in site.shape:  # a file may make itself out to be for such a weight
            raise ValueError(f"want the parameters of a weight, got those of one of the shape {site.shape}")
        adapter: Adapter = self.kind.from_params(params, site, origin)
        for modifier in self.modifiers:
            adapter = modifier.around(adapter, params, site, origin)
        return adapter


def recipe_of(shapes: Shapes) -> Recipe | None:
    """Return the recipe for parameters of these names and shapes; None if no adapter reads all of them."""
    return _recipe_of(frozenset(shapes.items()))


@cached
def _recipe_of(shapes: frozenset[tuple[str, tuple[int, ...]]]) -> Recipe | None:
    """Look up the recipe once for all layers with parameters of the same names and shapes."""
    return _recipe(dict(shapes), _modifiers())


def _recipe(shapes: Shapes, modifiers: Sequence[type[Modifier]]) -> Recipe | None:
    for kind in _kinds():
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
def _kinds() -> tuple[type[Adapter], ...]:
    found = discover_classes(adapters, Adapter)  # type: ignore[type-abstract]
    return tuple(kind for kind in found if not issubclass(kind, Modifier))


def _modifiers() -> tuple[type[Modifier], ...]:
    """The outermost first."""
    return discover_classes(adapters, Modifier)  # type: ignore[type-abstract]
