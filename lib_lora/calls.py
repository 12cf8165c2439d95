"""What a call of a model says of itself, so that no host has to tell it: how many rows it has, and which timestep."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from .compiler import uncompiled

_INPUTS = ("sample", "hidden_states", "x", "img")
"""What UNets and transformers of diffusers, ldm and Wan, and of Flux' own code, call what they denoise."""
_TIMESTEPS = ("timestep", "timesteps", "t")
"""diffusers', ldm's, and what some wrappers call it."""
_PURE_NOISE = 1000


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call of a model. Nothing is read before it is asked for: a number off a device waits."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def denoised(self) -> object:
        """What is denoised: the first argument of every model, or one with a name.

        One tensor (rows, …), or a list with a tensor for each image.
        """
        named = next((self.kwargs[name] for name in _INPUTS if name in self.kwargs), None)
        return self.args[0] if self.args else named

    @property
    def rows(self) -> int | None:
        """The rows of the batch; None where the arguments do not tell."""
        found = self.denoised
        if isinstance(found, Tensor):
            return found.shape[0] if found.ndim else None
        return len(found) if isinstance(found, list | tuple) else None

    @property
    def repeats_rows(self) -> bool:
        """Whether an extension's patch of the cross attention may give it other rows than the call has.

        Regions by attention are made so: the rows of some conditions are there once for each region. Source:
        Haoming02/sd-forge-couple lib_couple/attention_couple.py; ComfyUI comfy/ldm/modules/attention.py, `attn2_patch`.
        """
        options = self.kwargs.get("transformer_options")
        patches = options.get("patches") if isinstance(options, dict) else None
        return bool(patches.get("attn2_patch")) if isinstance(patches, dict) else False

    @property
    def halves(self) -> tuple[bool, ...] | None:
        """For each row, whether it is of the negative prompt; None where the call does not tell.

        ComfyUI's and Forge's sampling says it of the chunks of a call, which are of equal size. Source: ComfyUI
        comfy/samplers.py, `_calc_cond_batch`, "cond_or_uncond".
        """
        options, rows = self.kwargs.get("transformer_options"), self.rows
        chunks = options.get("cond_or_uncond") if isinstance(options, dict) else None
        if not chunks or rows is None or rows % len(chunks):
            return None
        return tuple(bool(chunk) for chunk in chunks for _ in range(rows // len(chunks)))

    @property
    def timestep(self) -> float | None:
        """The timestep, between 0 and 1000; None where there is none.

        It is the second argument of every UNet, and has a name everywhere else. Flow models call it with a fraction.
        """
        second = self.args[1] if len(self.args) > 1 else None
        found = next((self.kwargs[name] for name in _TIMESTEPS if name in self.kwargs), second)
        if isinstance(found, Tensor):
            if found.numel() == 0 or found.is_complex():
                return None
            found = found.flatten()[0].item()  # one image's: those of a batch are at one step
            if isinstance(found, float) and 0.0 < found < 1.0:
                found *= _PURE_NOISE
        return float(found) if isinstance(found, int | float) else None


class _Hook(partial[None]):
    """A hook of one module. A copy of the module, be it deep, pickled or saved, has one that does nothing."""

    def __deepcopy__(self, memo: dict[int, object]) -> Callable[..., None]:
        return nullcontext().__exit__  # which takes anything and returns None

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return getattr, (nullcontext(), "__exit__")  # no name of ours: it is read where we are not installed


def hook_of(module: nn.Module, function: Callable[..., None], *, compiled: bool = False) -> Callable[..., None]:
    """Make a hook that calls `function` with what hooks get, where `module` is called and no copy of it.

    Args:
        module: where the hook will be.
        function: called with the module and what else a hook is given.
        compiled: whether the compiler may see it. A hook in front of a compiled model is called outside of the graph;
            one behind it is a part of the graph.
    """
    own = weakref.ref(module)

    def call(called: nn.Module, *args: Any) -> None:
        if own() is called:
            function(called, *args)

    return _Hook(call if compiled else uncompiled(call))


def listen(component: nn.Module, begin: Callable[[Call], None], end: Callable[[], None]) -> Callable[[], None]:
    """Call `begin` before each call of a UNet or a transformer, and `end` after it, also where it fails.

    Returns:
        A function that ends it.
    """

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begin(Call(args, kwargs))

    def after(*_: object) -> None:
        end()

    hooks = (
        component.register_forward_pre_hook(hook_of(component, before), with_kwargs=True),
        component.register_forward_hook(hook_of(component, after), always_call=True),
    )

    def stop() -> None:
        for hook in hooks:
            hook.remove()

    return stop
