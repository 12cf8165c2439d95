"""The mode `auto`: the first call of a model is live and counts the places of each layer; then each layer is decided.

A layer is merged if, by the device's measured rates (`rates.py`), merging and restoring it cost less than the remaining
calls beside it. Each activation begins live again, so that a picture does not depend on the ones before it.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from ..errors import LoraError
from ..execution.dense import DenseExecutor
from ..execution.hooks import Executor
from ..execution.low_rank_products import EXACT
from ..placement.resident import device_of
from ..plan import Choice
from ..strengths.model_call import ModelCall, hook_calls, hook_of
from .rates import RateBook, Work

logger = logging.getLogger(__name__)

Exchange = Callable[[Mapping[nn.Module, Executor]], None]
"""Exchanges the executors of these layers."""


class Auto:
    """A watch on the first call of each component, which decides at the beginning of the second.

    Args:
        book: of the rates.
    """

    def __init__(self, book: RateBook) -> None:
        self._book = book
        self._left = 0  # calls that are still to come
        self.stops = ExitStack()
        """Removers of the hooks."""

    def begin(
        self,
        choices: Mapping[nn.Module, Choice],
        components: Mapping[str, nn.Module],
        calls: int,
        exchange: Callable[[], Exchange | None],
    ) -> None:
        """Watch the calls that come.

        Args:
            choices: by layer.
            components: of the model.
            calls: how many there will be.
            exchange: returns the function that exchanges executors, or None if the engine is gone.
        """
        self.end()
        self._left = calls
        for name in {choice.component for choice in choices.values()}:
            own = {layer: choice for layer, choice in choices.items() if choice.component == name}
            self.stops.callback(_Watch(self, components[name], own, exchange).stop)

    def end(self) -> None:
        """Stop watching; decisions stay."""
        self.stops.close()

    def count(self) -> int:
        """Count a call that begins, and return how many calls are left."""
        self._left -= 1
        return self._left + 1

    def pays(
        self, choices: Mapping[nn.Module, Choice], places: Mapping[nn.Module, int], calls: int
    ) -> dict[nn.Module, Executor]:
        """Return the layers for which merging saves more time than it costs, and log it."""
        chosen: dict[nn.Module, Executor] = {}
        saved = taken = 0.0
        for layer, choice in choices.items():
            device, weight = device_of(layer), next(layer.parameters(), None)
            if device is None or device.type == "meta" or weight is None or not places.get(layer):
                continue
            rates = self._book.of(device, weight.dtype)
            work = _work_of(layer, choice)
            live = calls * rates.live(work, places[layer], exact=weight.dtype in EXACT)
            merging = rates.merging(work)
            if live > merging:
                chosen[layer] = choice.merged
                saved, taken = saved + live, taken + merging
        text = "auto: %d of %d layers are merged: %.2g s to do and undo, and %.2g s less for %d calls"
        logger.info(text, len(chosen), len(choices), taken, saved, calls)
        return chosen


def _outputs_of(choice: Choice) -> int:
    """Return the channels of a layer's output."""
    target = choice.bindings[0].target
    return target.outputs or target.shape[0]


def _work_of(layer: nn.Module, choice: Choice) -> Work:
    entries = layer.get_parameter(choice.bindings[0].target.param).numel()
    numbers = sum(tensor.numel() for one in choice.bindings for _, tensor in one.adapter.tensors())
    outputs = _outputs_of(choice)
    return Work(numbers, entries, outputs + entries // outputs, isinstance(choice.live, DenseExecutor))


class _Watch:
    """The calls of one component until the decision."""

    def __init__(
        self,
        auto: Auto,
        component: nn.Module,
        choices: Mapping[nn.Module, Choice],
        exchange: Callable[[], Exchange | None],
    ) -> None:
        self._auto = weakref.ref(auto)
        self._exchange = exchange
        self._choices = weakref.WeakKeyDictionary(choices)
        self._places: Counter[int] = Counter()  # by id, for as long as the layers are held above
        self._began = False
        self._hooks = [layer.register_forward_hook(hook_of(layer, self._count)) for layer in choices]
        self._unhook = hook_calls(component, self._begin, _nothing)

    def stop(self) -> None:
        """Remove the hooks."""
        self._unhook()
        for hook in self._hooks:
            hook.remove()

    def _begin(self, _: ModelCall) -> None:
        auto, exchange = self._auto(), self._exchange()
        calls = 0 if auto is None else auto.count()
        if not self._began:
            self._began = True
            return
        self.stop()
        if auto is None or exchange is None:
            return
        choices = dict(self._choices)
        places = {layer: self._places[id(layer)] for layer in choices}
        try:
            chosen = auto.pays(choices, places, calls)
        except (LoraError, OSError, RuntimeError, MemoryError) as error:  # measuring takes memory and a file
            logger.warning("auto: nothing is merged, as the device could not be measured: %s", error)
            chosen = {}
        exchange(chosen)

    def _count(self, layer: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            self._places[id(layer)] += output.numel() // _outputs_of(self._choices[layer])


def _nothing() -> None:
    """Ignore the end of a call."""
