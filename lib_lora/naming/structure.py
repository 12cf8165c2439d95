"""What the names and shapes of a component's layers depend on, compared with what it was when it was indexed.

A model call compares it, so the loops over all modules are C code, or comprehensions without a call in them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import cast

from torch import Tensor, nn

from ..tensors import every
from .architectures._names import PARTS

_CHILDREN: Callable[[nn.Module], dict[str, nn.Module | None]] = attrgetter("_modules")


def are_fused(attention: nn.Module) -> bool:
    """Return whether a module calls its fused projections now."""
    if attention.__dict__.get("fused_projections") is not True:
        return False
    if hasattr(attention, "unfuse_projections"):
        return True
    # the attention of UNets stays marked when it is taken back: its processor tells
    return type(getattr(attention, "processor", None)).__name__.startswith("Fused")


class Structure:
    """The modules of a component as they are, held weakly.

    Args:
        root: the component.
        weights: layer -> the parameters that adapters can change.
    """

    def __init__(self, root: nn.Module, weights: Mapping[nn.Module, Iterable[str]]) -> None:
        modules = every(root)
        self._gone = list[object]()
        """Weak references to modules that are gone, whose ids others may have."""
        self._references = {id(module): weakref.ref(module, self._gone.append) for module in modules}
        self._inner = [self._references[id(module)] for module in modules if module._modules]
        self._names, self._children = _below([module for module in modules if module._modules])
        own = [(layer, name) for layer, names in weights.items() for name in names if "." not in name]
        self._layers, self._params = [self._references[id(layer)] for layer, _ in own], [name for _, name in own]
        self.classes, found = [type(layer) for layer, _ in own], [layer._parameters.get(name) for layer, name in own]
        self._weights, self._shapes = [*map(id, found)], [*map(_shape, found)]
        self._embeddings = [i for i, (layer, _) in enumerate(own) if hasattr(layer, "num_embeddings")]
        fusing = [module for module in modules if not PARTS.keys().isdisjoint(module._modules)]
        self._fusing = [(self._references[id(module)], are_fused(module)) for module in fusing]

    def holds(self, *, quick: bool = False) -> bool:
        """Tell whether the same modules are there, of the same classes, and their weights have the same shapes.

        Where `quick`, notice only embeddings among the weights that were resized in place: calls of the others fail.
        """
        if self._gone:
            return False
        inner, layers = [it() for it in self._inner], cast("list[nn.Module]", [it() for it in self._layers])
        if _below(cast("list[nn.Module]", inner)) != (self._names, self._children):
            return False
        fusing = [are_fused(cast(nn.Module, it())) for it, _ in self._fusing]
        if [*map(type, layers)] != self.classes or fusing != [fused for _, fused in self._fusing]:
            return False
        weights = [layer._parameters.get(name) for layer, name in zip(layers, self._params, strict=True)]
        if quick and [*map(id, weights)] == self._weights:
            return all(_shape(weights[i]) in (self._shapes[i], None) for i in self._embeddings)
        for weight, shape in zip(weights, self._shapes, strict=True):
            # an offloader leaves no weight, or an empty one, for a while
            if type(weight) is nn.Parameter and weight.shape == shape:
                continue
            if _shape(weight) not in (shape, None):
                return False
        self._weights = [*map(id, weights)]
        return True


def _below(modules: Sequence[nn.Module]) -> tuple[list[str], list[int]]:
    """Return the names of the children of modules, and their ids."""
    tables = [*map(_CHILDREN, modules)]
    return [*chain.from_iterable(tables)], [*map(id, chain.from_iterable(map(dict.values, tables)))]


def _shape(weight: Tensor | None) -> object:
    """Return the shape of a plain weight, the class of a packed one, and None where there is none."""
    if weight is None or type(weight) not in (nn.Parameter, Tensor):  # `functional_call` puts tensors there
        return None if weight is None else type(weight)
    return weight.shape if weight.numel() else None
