"""The model that an engine serves: its components, held weakly, and their present layers."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from traceback import walk_stack

from torch import nn

from ..errors import ComponentError, StackError
from ..files.components import DENOISER, TEXT_ENCODER, role
from ..naming.architectures.base import is_flow
from ..naming.index import LayerIndex, family_of_model, modules_of, parameter_of, targets_of
from ..placement import schemes
from ..stack import Stack
from ..strengths.strength import all_strengths
from ..tensors import every
from ..weights.originals import Checkpoint
from . import hooks

_KNOWN = (DENOISER, TEXT_ENCODER, "llm_adapter", "connectors")
"""Roles, and names of components beside these, that a strength may name though the model lacks them."""

_CALL = nn.Module._call_impl.__code__


class Model:
    """The components of one model.

    Args:
        components: diffusers' component name -> module.
        sources: component -> the safetensors files it was loaded from, where known.
        pipeline: returns the one that has the components; None where there is none, or not any more.
    """

    def __init__(
        self,
        components: Mapping[str, nn.Module],
        sources: Mapping[str, Sequence[Path]],
        pipeline: Callable[[], object] = lambda: None,
    ) -> None:
        self._refs = {name: weakref.ref(module) for name, module in components.items()}
        self._sources, self.pipeline = sources, pipeline
        self._indexed: dict[str, LayerIndex] = {}
        self._opened: dict[str, Checkpoint] = {}

    @property
    def components(self) -> dict[str, nn.Module]:
        """Return the components that are still alive."""
        return {name: module for name, ref in self._refs.items() if (module := ref()) is not None}

    def is_called(self) -> bool:
        """Tell whether this thread is in a call of a component, by its frames."""
        called = {id(module) for module in self.components.values()}
        frames = (frame for frame, _ in walk_stack(sys._getframe(1)) if frame.f_code is _CALL)
        return any(id(frame.f_locals.get("self")) in called for frame in frames)

    def layer_classes(self) -> set[type[nn.Module]]:
        """Return the classes whose forward runs for layers that adapters can change."""
        samples = {type(layer): layer for component in self.components.values() for layer in every(component)}
        return {hooks.defining_class(cls) for cls, layer in samples.items() if targets_of("", layer)}

    def check_names(self, stack: Stack) -> None:
        """Raise StackError if a multiplier of a stack names an unknown component."""
        known = {*self._refs, *_KNOWN}
        for i, entry in enumerate(stack.entries):
            strengths = all_strengths(entry.multiplier)
            for name in [name for one in strengths if isinstance(one.of, Mapping) for name in one.of]:
                if role(name) not in known:
                    raise StackError(f"{entry.name}: no component {name!r}; there are {', '.join(self._refs)}", i)

    def indexes(self) -> list[LayerIndex]:
        """Return the layers of each component; the same object until the component changes.

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
                now = LayerIndex(name, module)
                if index is None or not index.serves(now):
                    self._indexed[name] = now
        return list(self._indexed.values())

    @property
    def present(self) -> dict[str, nn.Module]:
        """Return the modules that the pipeline has now; without a pipeline, the components."""
        pipeline = self.pipeline()
        try:
            return self.components if pipeline is None else modules_of(pipeline)
        except ComponentError:  # it has given all of them away
            return self.components

    def new_modules(self) -> list[str]:
        """Return the modules that the pipeline has and that are no components; others may have left it."""
        pipeline = self.pipeline()
        # reading all that it has takes longer
        if pipeline is None or all(getattr(pipeline, name, self) is module() for name, module in self._refs.items()):
            return []
        served = self.components
        return [name for name, module in self.present.items() if served.get(name) is not module]

    def has_changed(self, name: str) -> bool:
        """Return whether a component is built otherwise than when it was indexed; see `Structure.holds`."""
        index, module = self._indexed.get(name), self._refs[name]()
        return index is not None and module is not None and not index.holds(module, quick=True)

    def has_flow(self, name: str) -> bool:
        """Tell whether the timesteps of a component are fractions of noise."""
        return is_flow(family_of_model(self.indexes()), name)

    def resting(self) -> set[nn.Module]:
        """Return the layers of offloaded components; their adapters are placed at the first call."""
        offloaded = [component for component in self.components.values() if schemes.rests(component)]
        return {layer for component in offloaded for layer in every(component)}

    def checkpoints(self, indexes: Sequence[LayerIndex], merging: Collection[str]) -> Mapping[str, Checkpoint]:
        """Return the checkpoint of each component, to read original weights from; open the ones of `merging`."""
        for index in indexes:
            name = index.component
            if name in merging and name in self._sources and name not in self._opened:
                self._opened[name] = Checkpoint(self._sources[name], partial(parameter_of, index))
        return self._opened
