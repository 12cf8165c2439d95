"""A1111's built-in Lora extension: suspended while Remora applies LoRA, and resumed unchanged.

It replaces the forward of torch's layer classes, and at a layer's first call with a LoRA copies the weight of every
layer and merges into it. Its page, its list of files and its API are not changed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lib_lora import install, uninstall

logger = logging.getLogger(__name__)

_NEEDED = ("originals", "loaded_networks", "networks_in_memory", "load_networks", "network_restore_weights_from_backup")


class BuiltinLora:
    """The extension's module `networks`, if it is installed."""

    def __init__(self) -> None:
        self._quiet: ModuleType | None = None  # the module that was made quiet
        self._pasted: list[tuple[int, Any]] = []  # its callbacks, and their positions

    def quiet(self) -> None:
        """Remove its LoRA from the model, undo its patches, and stop it from reading parameters; idempotent.

        Postponed while a model is loading: the loader restores the patches that it finds.
        """
        networks = _networks()
        if networks is None or networks is self._quiet:
            return
        with _not_loading() as free:
            if not free:
                return
            self._quiet = networks  # first: `wake` undoes whatever part of this was done
            networks.load_networks([])
            networks.networks_in_memory.clear()
            for model in _models():
                _restore(networks, model.modules())
            _undo_patches(networks)
            self._take_callbacks(networks)

    def wake(self) -> None:
        """Let it work as without Remora; idempotent."""
        networks: Any
        networks, self._quiet = self._quiet, None
        if networks is None:
            return
        self._give_callbacks()
        if not any(vars(networks.originals).values()):
            uninstall()  # so that Remora's patches are on top of its own again
            try:
                networks.originals = type(networks.originals)()
            finally:
                install()

    def _take_callbacks(self, networks: ModuleType) -> None:
        """Remove its reader of pasted parameters, which replaces names by hashes, even by the hash of no content."""
        callbacks = _pasted_callbacks()
        for place, callback in reversed(list(enumerate(callbacks))):
            function = callback.callback
            if getattr(function, "__globals__", {}).get("networks") is networks:
                self._pasted.insert(0, (place, callback))
                del callbacks[place]

    def _give_callbacks(self) -> None:
        callbacks = _pasted_callbacks()
        for place, callback in self._pasted:
            if callback not in callbacks:
                callbacks.insert(place, callback)
        self._pasted.clear()


def _networks() -> ModuleType | None:
    networks = sys.modules.get("networks")
    return networks if all(hasattr(networks, name) for name in _NEEDED) else None


def _models() -> Iterator[nn.Module]:
    """Return the model in use, and the models kept in memory."""
    data: Any = sys.modules["modules.sd_models"].model_data
    every = [data.sd_model, *getattr(data, "loaded_sd_models", ())]
    yield from {id(model): model for model in every if model is not None}.values()


@contextmanager
def _not_loading() -> Iterator[bool]:
    """Hold the host's lock on loading; yield False if another thread has it."""
    lock = getattr(sys.modules["modules.sd_models"].model_data, "lock", None)
    free = lock is None or lock.acquire(blocking=False)
    try:
        yield free
    finally:
        if free and lock is not None:
            lock.release()


@torch.no_grad()
def _restore(networks: ModuleType, layers: Iterable[nn.Module]) -> None:
    """Restore the weights it merged into from its copies, and free these."""
    for layer in layers:
        state = vars(layer)
        if state.get("network_weights_backup") is None and state.get("network_bias_backup") is None:
            continue
        if state.get("network_current_names", ()) != ():
            networks.network_restore_weights_from_backup(layer)
        layer.network_weights_backup = layer.network_bias_backup = None  # type: ignore[assignment]  # its marks
        layer.network_current_names = ()  # type: ignore[assignment]


def _undo_patches(networks: ModuleType) -> None:
    """Undo its patches of torch classes, unless that would undo patches on top of them."""
    patches = sys.modules["modules.patches"].originals[type(networks.originals).__module__]
    uninstall()
    try:
        if all(getattr(getattr(cls, name), "__globals__", None) is vars(networks) for cls, name in patches):
            networks.originals.undo()
        else:
            logger.info("remora: the patches of the built-in Lora stay, idle, under those of another extension")
    finally:
        install()


def _pasted_callbacks() -> list[Any]:
    found: list[Any] = sys.modules["modules.script_callbacks"].callback_map["callbacks_infotext_pasted"]
    return found
