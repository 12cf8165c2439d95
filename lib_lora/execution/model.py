"""The model that an engine serves: its components, held weakly, and their layers as they are built now."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import nn

from ..errors import ComponentError, StackError
from ..naming.index import LayerIndex, alias_table, check_named, parameter_of, targets_of
from ..placement import schemes
from ..stack import Stack
from ..strengths.strength import named_components
from ..tensors import every
from ..weights.originals import Checkpoint
from . import hooks

_KNOWN = ("unet", "transformer", "text_encoder", "prior", "llm_adapter")


def check_components(components: object) -> None:
    """Refuse components that are no mapping of names to modules.

    Raises:
        ComponentError: see `naming.index.check_named`.
    """
    check_named(components, "Engine({})")


class Model:
    """The components of one model.

    Args:
        components: diffusers' component name -> module.
        sources: component -> the safetensors files it was loaded from, as far as known.
    """

    def __init__(self, components: Mapping[str, nn.Module], sources: Mapping[str, Sequence[Path]]) -> None:
        self._refs = {name: weakref.ref(module) for name, module in components.items()}
        self._sources = sources
        self._indexed: dict[str, LayerIndex] = {}
        self._opened: dict[str, Checkpoint] = {}

    @property
    def components(self) -> dict[str, nn.Module]:
        """Return the components that are still alive."""
        return {name: module for name, ref in self._refs.items() if (module := ref()) is not None}

    def layer_classes(self) -> set[type[nn.Module]]:
        """Return the classes whose forward runs for layers that adapters can change.

        Patched when the engine gets the model, they need no patch when the first adapter comes, at which the compiler
        would have to forget what it has compiled, of other models too.
        """
        one_of_each = {type(one): one for component in self.components.values() for one in every(component)}
        return {hooks.owner(cls) for cls, one in one_of_each.items() if targets_of("", one)}

    def check_names(self, stack: Stack) -> None:
        """See that all components are known that the multipliers of a stack name.

        Raises:
            StackError: one is not.
        """
        known = {*self._refs, *_KNOWN}
        for i, entry in enumerate(stack):
            for name in dict.fromkeys(named_components(entry.multiplier)):
                if name not in known and name.rstrip("0123456789").rstrip("_") not in known:
                    raise StackError(f"{entry.name}: no component {name!r}; there are {', '.join(self._refs)}", i)

    def indexes(self) -> list[LayerIndex]:
        """Return the layers of each component; the same object for as long as it is built the same.

        Raises:
            ComponentError: a component was unloaded.
        """
        for name, ref in self._refs.items():
            module = ref()
            if module is None:
                text = f"component {name} was unloaded, as an engine does not keep its model"
                raise ComponentError(f"{text}; give the engine the model that is loaded now, and keep it")
            index = self._indexed.get(name)
            if index is None or not index.holds(module):
                self._indexed[name] = LayerIndex(name, module, alias_table())
        return list(self._indexed.values())

    def resting(self) -> set[nn.Module]:
        """Return the layers that are not where they compute; adapters are placed beside them later."""
        return {
            layer for component in self.components.values() if schemes.rests(component) for layer in every(component)
        }

    def checkpoints(self, indexes: Sequence[LayerIndex], merging: Collection[str]) -> Mapping[str, Checkpoint]:
        """Return where pristine weights can be read again; opened when something is merged for the first time.

        Args:
            indexes: of the components.
            merging: those into which something is to be merged now.
        """
        for index in indexes:
            name = index.component
            if name in merging and name in self._sources and name not in self._opened:
                self._opened[name] = Checkpoint(self._sources[name], partial(parameter_of, index))
        return self._opened
