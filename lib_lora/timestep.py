"""The timestep of a model call, read off the call itself, so that no host has to tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_NAMES = ("timestep", "timesteps", "t")
"""diffusers', ldm's, and what some wrappers call it."""
_PURE_NOISE = 1000


def listen(component: nn.Module, tell: Callable[[float], None]) -> Callable[[], None]:
    """Call `tell` with the timestep before each call of a UNet or a transformer that has one.

    Returns:
        A function that ends it.
    """

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it reads a number off a tensor
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        timestep = timestep_of(args, kwargs)
        if timestep is not None:
            tell(timestep)

    return component.register_forward_pre_hook(before, with_kwargs=True).remove


def timestep_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The timestep among the arguments of a model call, between 0 and 1000; None where there is none.

    It is the second argument of every UNet, and has a name everywhere else. Flow models call it with a fraction.
    """
    found = next((kwargs[name] for name in _NAMES if name in kwargs), args[1] if len(args) > 1 else None)
    if isinstance(found, Tensor):
        if found.numel() == 0 or found.is_complex():
            return None
        found = found.flatten()[0].item()  # one image's: those of a batch are at one step
        if isinstance(found, float) and 0.0 < found < 1.0:
            found *= _PURE_NOISE
    return float(found) if isinstance(found, int | float) else None
