"""What is done when a call of a model begins and ends: strengths are set to its moment, its rows and its places."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import CO_GENERATOR

import torch
from torch import nn

from ..errors import RegionError, RowsError
from ..files.components import is_denoiser
from ..naming.families import is_image_first
from ..tensors import plain_mode
from .model_call import Call, RowMap, RowsOfCall, Timing, listen
from .table import Strengths
from .token_grid import Picture, patch_of

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")


class Layout:
    """How the tokens of a model lie in the picture; knows the model no longer than it takes to find that out."""

    def __init__(self, model: nn.Module, *, unet: bool) -> None:
        self._patch = 0 if unet else patch_of(model)
        self._image_first = is_image_first(model)
        self.name = type(model).__name__
        """Of the model's class."""

    def picture(self, call: Call) -> Picture:
        """What a call computes.

        Raises:
            RegionError: it does not tell.
        """
        found = Picture.of(call, self._patch, image_first=self._image_first)
        if found is None:
            raise RegionError(
                f"a LoRA is for a part of the picture, and a call of this {self.name} does not tell which of its "
                "tokens are where; take the region off"
            )
        return found


_CALLING = {function.__code__ for function in (nn.Module._call_impl, nn.Module._wrapped_call_impl)}
_PATIENCE = 0.5  # seconds until a thread that waits looks whether the other one still computes


class Turn:
    """The right to call a model, for one thread at a time: strengths that are set for a call are set for all threads.

    A call that ends by an exception that is no `Exception` runs no hook. Its thread is found out not to compute.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: int | None = None
        self._inside: set[str] = set()

    def begin(self, model: str) -> None:
        """Wait until no other thread calls the model."""
        with self._changed:
            while self._thread not in (None, threading.get_ident()) and self._computes():
                self._changed.wait(_PATIENCE)
            if self._thread != threading.get_ident():
                self._thread, self._inside = threading.get_ident(), set()
            self._inside.add(model)

    def end(self, model: str) -> None:
        """Let other threads call it."""
        with self._changed:
            if self._thread == threading.get_ident():
                self._inside.discard(model)
                if not self._inside:
                    self._thread = None
                    self._changed.notify()

    def _computes(self) -> bool:
        frame = outermost = sys._current_frames().get(self._thread or 0)
        while frame is not None and frame.f_code not in _CALLING:
            outermost, frame = frame, frame.f_back
        # the thread goes on meanwhile: a generator that has just yielded shows no frame behind it
        return frame is not None or (outermost is not None and bool(outermost.f_code.co_flags & CO_GENERATOR))


@dataclass
class Hearing:
    """Holds no engine and no model: the model keeps it alive."""

    strengths: Strengths
    rows: RowMap
    timing: Timing
    images: int
    """Of the stack."""
    halved: bool
    """Whether its positive and negative rows differ."""
    flow: bool
    """Whether the model's timesteps are shares of noise."""
    layout: Layout
    turn: Turn
    """Of the model's calls: what they set is the same for all threads."""
    _told: bool = False

    def begin(self, call: Call) -> None:
        """Make the strengths those of a call.

        Raises:
            MomentError: they depend on what the call does not tell.
            RowsError: its rows do not fit the stack.
            RegionError: nothing tells what of it is where in the picture.
        """
        self.turn.begin(self.layout.name)
        with plain_mode(_CPU):
            if self.strengths.regional:
                self.strengths.set_picture(self.layout.picture(call))
            if self.strengths.varying:
                moment = self.timing.at(call, noise=self.strengths.by_noise, flow=self.flow)
                self.strengths.set_moment(moment)
            if self.images > 1 or self.halved or self.strengths.in_parts:
                found = self._rows_of(call)
                self.strengths.set_rows(found.variants)
                self.strengths.set_parts(found.parts)

    def end(self) -> None:
        """Make them those of calls that tell nothing."""
        with plain_mode(_CPU):
            self.strengths.show(self.rows.chosen)
            if self.strengths.picture is not None and not self.strengths.masks.placed and not self._told:
                self._told = True
                logger.warning(
                    "no layer of this %s has tokens that lie in the picture as expected; "
                    "LoRA for a part of it act everywhere, by its share",
                    self.layout.name,
                )
            self.strengths.set_picture(None)
            self.strengths.set_parts(())
        self.turn.end(self.layout.name)

    def _rows_of(self, call: Call) -> RowsOfCall:
        found = self.rows.of(call, self.images, halved=self.halved)
        if call.repeats_rows and len(set(found.variants)) > 1:
            text = "regions by attention repeat the rows of a call, and its images have LoRA of their own"
            raise RowsError(f"{text}; make them in batches of one")
        return found


def hear(
    components: Mapping[str, nn.Module],
    strengths: Strengths,
    rows: RowMap,
    timing: Timing,
    flow: Callable[[str], bool],
    *,
    images: int = 1,
    halved: bool = False,
) -> Iterator[Callable[[], None]]:
    """Hear of model calls, if anything depends on their moment, their rows or what is where in them.

    Args:
        components: of the model, by name.
        strengths: of the plan in force.
        rows: how rows belong to images.
        timing: when calls are.
        flow: whether the timesteps of a component are shares of noise.
        images: of the batch that have strengths of their own.
        halved: whether positive and negative rows have strengths of their own.

    Yields:
        What ends it, for each component that is heard.
    """
    if not (strengths.varying or strengths.regional or images > 1 or halved):
        return
    turn = Turn()
    for name, component in components.items():
        if is_denoiser(name):
            hearing = Hearing(
                strengths,
                rows,
                timing,
                images=images,
                halved=halved,
                flow=strengths.by_noise and flow(name),
                layout=Layout(component, unet=not name.startswith("transformer")),
                turn=turn,
            )
            yield listen(component, hearing.begin, hearing.end)
