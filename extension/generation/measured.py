"""Inputs of the model's layers in one picture, by which the error of a saved file is told, too."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from lib_lora import InputSamples


class LayerInputs:
    """Takes inputs of layers while the next picture is made, if the user wants it; some of each layer are kept."""

    def __init__(self) -> None:
        self.wanted = False
        self._samples: InputSamples | None = None
        self._takes = False
        self._model: Mapping[str, weakref.ref[nn.Module]] = {}

    def begin(self, model: Mapping[str, nn.Module]) -> None:
        """Begin to take them if they are wanted."""
        if not self.wanted or not model:
            return
        from lib_lora import InputSamples  # the room that saves is not read at every start

        self.end()
        self._samples = InputSamples(model).__enter__()
        self._model = {name: weakref.ref(part) for name, part in model.items()}
        self._takes, self.wanted = True, False

    def end(self) -> None:
        """Take no more of them: the picture is made."""
        if self._takes and self._samples is not None:
            self._samples.__exit__()
        self._takes = False

    def of(self, model: Mapping[str, nn.Module]) -> InputSamples | None:
        """Return the inputs if they are of this model, and complete."""
        is_same = bool(model) and self._model == {name: weakref.ref(part) for name, part in model.items()}
        return self._samples if is_same and not self._takes else None
