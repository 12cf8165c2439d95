"""One call of a model: its timestep, its rows, and the images and prompts that these rows belong to.

The call's own arguments tell the timestep and the number of rows, so no host has to. A host's clock, and what
`Engine.set_moment` said, tell the rest. Rows of a layer inside the call follow those of the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

from ..compiler import uncompiled
from ..errors import RowsError
from .schedule import Clock, Moment, sigma_of

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
        # the replicas of DataParallel have the hooks of the module, and are called in its place
        if own() is called or getattr(called, "_is_replica", False):
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


class Row(NamedTuple):
    """What a row of a model call is of."""

    image: int
    """Of the batch, from 0."""
    negative: bool = False
    """Of its negative prompt."""
    part: int | None = None
    """Of a positive prompt in several parts, each with rows of its own, such as by AND; from 0."""


class RowsOfCall(NamedTuple):
    """What the rows of a model call are of."""

    variants: tuple[int, ...]
    """Of the stack; see `RowMap`."""
    parts: tuple[int | None, ...]
    """Of the prompt."""


Rows: TypeAlias = Callable[[int], "Sequence[int | Row] | None"]
"""From the number of rows of a model call to what each is of; a number alone is an image. None: what the rule says."""


class RowMap:
    """How hosts lay out the images of a batch, and their positive and negative prompts, in the rows of a model call.

    What has strengths of its own is a variant of the stack: image by image, and the positive half before the negative
    where these differ.
    """

    def __init__(self) -> None:
        self.told: Rows | None = None
        """None for the rule that all known hosts follow: whole batches one after the other."""
        self.chosen = 0
        """The variant that calls are for which tell no rows, such as those of a text encoder."""

    def choose(self, index: int, images: int, *, halved: bool = False) -> None:
        """Say which image the next calls of text encoders are for; a batch of one image has all indexes.

        Raises:
            RowsError: there is no such image.
        """
        if index < 0 or (index >= images > 1):
            raise RowsError(f"there is no image {index}; the stack has {images}")
        self.chosen = (index if images > 1 else 0) * (1 + halved)

    def of(self, call: Call, images: int, *, halved: bool = False) -> RowsOfCall:
        """What each row of a model call is of.

        Args:
            call: of the model.
            images: of the stack.
            halved: whether positive and negative rows have strengths of their own.

        Raises:
            RowsError: rows and images do not fit, or the halves are not told; the text says how many there are.
        """
        if call.rows is None:
            raise RowsError(f"a model call does not tell its rows, and the stack has {images} images")
        found = self._of(call, call.rows, images)
        if images == 1:  # what is the same for all images is, whatever the host counts
            found = [(row._replace(image=0), knows) for row, knows in found]
        strange = next((row.image for row, _ in found if not 0 <= row.image < images), None)
        if strange is not None:
            raise RowsError(f"a row is said to be of image {strange}; the stack has {images}")
        if halved and not all(knows for _, knows in found):
            raise RowsError(
                "a LoRA is for the positive or the negative prompt alone, and nothing tells which of the "
                f"{call.rows} rows of a model call are of which"
            )
        return RowsOfCall(
            tuple(row.image * (1 + halved) + (halved and row.negative) for row, _ in found),
            tuple(row.part for row, _ in found),
        )

    def _of(self, call: Call, rows: int, images: int) -> list[tuple[Row, bool]]:
        """What each row is of, and whether its half is known."""
        halves = call.halves
        told = None if self.told is None else self.told(rows)
        if told is not None:
            if len(told) != rows:
                raise RowsError(f"a model call has {rows} rows, and {len(told)} were told")
            if halves is None:
                return [(one, True) if isinstance(one, Row) else (Row(one), False) for one in told]
            rows_told = [one if isinstance(one, Row) else Row(one) for one in told]
            return [(one._replace(negative=half), True) for one, half in zip(rows_told, halves, strict=True)]
        if rows % images:
            raise RowsError(f"a model call of {rows} rows holds no whole batches of the stack's {images} images")
        return [(Row(row % images, bool(halves and halves[row])), halves is not None) for row in range(rows)]


def parts_per_row(layer: nn.Module, x: Tensor, rows: int, least: int, dim: int = 0) -> int:
    """How many rows of a layer's input make one row of the model's: windows, heads and frames lie behind the image.

    Args:
        layer: for the message.
        x: its input.
        rows: of the model call.
        least: dimensions that a batched input has, or more.
        dim: of the batch.

    Raises:
        RowsError: the input has no batch, or another one.
    """
    if x.ndim < least or x.shape[dim] % rows:
        raise RowsError(
            f"the images of the batch have LoRA of their own, and the input {tuple(x.shape)} of a "
            f"{type(layer).__name__} cannot be divided among {rows} rows"
        )
    return x.shape[dim] // rows


class Timing:
    """Where the moment of a call is known from."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.told = Moment()
        """Without a clock."""

    def at(self, call: Call, *, noise: bool, flow: bool) -> Moment:
        """The moment of a call that begins.

        Args:
            call: of a model.
            noise: whether the timestep and the noise are asked for; reading them off a device waits for it.
            flow: whether the model's timesteps are shares of noise.
        """
        now = self.told if self.clock is None else self.clock(lambda: call.timestep)
        if not noise:
            return now
        if now.timestep is None or self.clock is None:
            own = call.timestep
            now = now if own is None else replace(now, timestep=own, sigma=None)
        if now.sigma is None and now.timestep is not None:
            now = replace(now, sigma=sigma_of(now.timestep, flow=flow))
        return now
