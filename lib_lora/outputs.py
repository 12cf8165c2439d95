"""How often denoisers were called while adapters are in force, and when their output was first not finite.

A strength that is too high makes the numbers of a half precision dtype overflow, and the picture black. The output of
each call is looked at where it is: nothing waits for the device until somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .calls import hook_of
from .compiler import compiling, has_compiled, tracing
from .components import is_denoiser

_NEVER = 1 << 40  # no call has this number


class Outputs:
    """Looks at what the denoisers of a model compute.

    Code that is compiled has the hooks of its model, and is compiled anew where these come or go. So once something
    was compiled, none comes or goes.
    """

    def __init__(self) -> None:
        self.stops: list[Callable[[], None]] = []
        """Each takes a hook off."""
        self._of: dict[str, _Output] = {}

    def begin(self, components: Mapping[str, nn.Module]) -> None:
        """Look at the calls from now on, and forget those before."""
        if not self.stops and not has_compiled():
            self._of = {name: _Output() for name in components if is_denoiser(name)}
            for name, output in self._of.items():
                hook = components[name].register_forward_hook(hook_of(components[name], output.look, compiled=True))
                self.stops.append(hook.remove)
        for output in self._of.values():
            output.begin()

    def end(self) -> None:
        """Look no more."""
        if not has_compiled():
            self.stop()
        for output in self._of.values():
            output.wanted = False

    def stop(self) -> None:
        """Take the hooks off, and forget what was seen."""
        self._of = {}
        while self.stops:
            self.stops.pop()()

    @property
    def called(self) -> frozenset[str]:
        """The components that were called."""
        return frozenset(name for name, output in self._of.items() if output.calls)

    def not_finite(self) -> dict[str, int]:
        """Component -> number of the first call with an output that is not finite, from 1; waits for the device."""
        found = {name: output.first() for name, output in self._of.items()}
        return {name: first for name, first in found.items() if first is not None}


class _Output:
    """What was seen of the output of one component."""

    def __init__(self) -> None:
        self.wanted = False
        self.calls = 0
        self._first: Tensor | None = None

    def begin(self) -> None:
        self.wanted, self.calls, self._first = True, 0, None

    def look(self, _: nn.Module, __: tuple[Any, ...], output: object) -> None:
        """Be the hook."""
        if compiling() or tracing() or not self.wanted:
            return
        self.calls += 1
        found = _tensor(output)
        if found is None or found.is_meta or not found.is_floating_point() or _captured(found):
            return
        with torch.no_grad():
            now = torch.where(torch.isfinite(found).all(), _NEVER, self.calls)
            known = self._first
            self._first = now if known is None or known.device != now.device else torch.minimum(known, now)

    def first(self) -> int | None:
        found = _NEVER if self._first is None else int(self._first)
        return None if found == _NEVER else found


def _tensor(output: object) -> Tensor | None:
    """What a denoiser returns: a tensor, the first of several, or diffusers' output with a name for it."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        output = output[0] if output else None
    return output if isinstance(output, Tensor) else None


def _captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph is recorded, which would replay what is computed with the number of this call."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
