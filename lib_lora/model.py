"""The model that an engine serves: its components, held weakly, and their layers as they are built now."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from torch import nn

from . import residency
from .errors import ComponentError, StackError
from .families import alias_table
from .layer import LayerIndex
from .modules import every
from .multiplier import components_of
from .pristine import Checkpoint
from .stack import Stack

_KNOWN = ("unet", "transformer", "text_encoder", "prior", "llm_adapter")


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
        """Those that are still alive."""
        return {name: module for name, ref in self._refs.items() if (module := ref()) is not None}

    def check_names(self, stack: Stack) -> None:
        """See that all components are known that the multipliers of a stack name.

        Raises:
            StackError: one is not.
        """
        known = {*self._refs, *_KNOWN}
        for i, entry in enumerate(stack):
            for name in dict.fromkeys(name for one in entry.multipliers for name in components_of(one)):
                if name not in known and name.rstrip("0123456789").rstrip("_") not in known:
                    raise StackError(f"{entry.name}: no component {name!r}; there are {', '.join(self._refs)}", i)

    def indexes(self) -> list[LayerIndex]:
        """The layers of each component; the same object for as long as it is built the same.

        Raises:
            ComponentError: a component was unloaded.
        """
        for name, ref in self._refs.items():
            module = ref()
            if module is None:
                raise ComponentError(f"component {name} was unloaded; give the engine the model that is loaded now")
            index = self._indexed.get(name)
            if index is None or not index.holds(module):
                self._indexed[name] = LayerIndex(name, module, alias_table())
        return list(self._indexed.values())

    def resting(self) -> set[nn.Module]:
        """Layers that are not where they compute, so that placing adapters beside them would be in vain."""
        return {
            layer for component in self.components.values() if residency.rests(component) for layer in every(component)
        }

    def checkpoints(self, indexes: Sequence[LayerIndex], merging: Collection[str]) -> Mapping[str, Checkpoint]:
        """Where pristine weights can be read again; opened when something is merged for the first time.

        Args:
            indexes: of the components.
            merging: those into which something is to be merged now.
        """
        for index in indexes:
            name = index.component
            if name in merging and name in self._sources and name not in self._opened:
                self._opened[name] = Checkpoint(self._sources[name], index)
        return self._opened
