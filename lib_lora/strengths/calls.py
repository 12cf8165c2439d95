"""The strengths in one model call, and the calls that run: one thread at a time, as all threads share the strengths."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .regions import LatentGrid
from .stack_strengths import StackStrengths, Values
from .strength import Moment

_PATIENCE = 0.5  # seconds until a thread that waits looks whether the other one still lives


@dataclass(eq=False)  # not frozen: the compiler would guard all fields
class CallStrengths:
    """The strengths in a model call. It is replaced as a whole: a thread that reads it has the parts of one call."""

    stack: StackStrengths
    values: Values
    """The strength of every group; 0 if a prediction lacks it."""
    moment: Moment = field(default_factory=Moment)
    """Where its timestep is not known, all ranks act."""
    shown: int = 0
    """The variant of calls whose rows are alike."""
    mixed: bool = False
    """Whether the rows are of more than one variant."""
    rows: tuple[int, ...] = ()
    """The variant of each row of the latest call whose rows were `mixed`."""
    parts: tuple[int | None, ...] = ()
    """The part of the prompt of each row; none where that makes no difference."""
    latents: LatentGrid | None = None
    """None where they are not known."""
    is_unknown: bool = False
    """Whether no call is set, and images have strengths of their own."""
    numbers: Sequence[float] | None = field(init=False)
    """The strength of every group; None where rows or places may differ."""

    def __post_init__(self) -> None:
        may_differ = self.mixed or self.is_unknown or self.stack.has_regions
        self.numbers = None if may_differ else self.values[self.shown]

    def of(self, variant: int | None) -> tuple[float, ...]:
        """Return the strength of every group for a variant; None is the one that is shown."""
        return self.values[self.shown if variant is None else variant]


class CallArguments(dict[str, Any]):
    """The keyword arguments of a call of a model. Only torch's frame of the call holds them, so they go with it."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False, slots=True)
class OpenCall:
    """One call of a model that runs."""

    arguments: weakref.ref[CallArguments]
    component: str
    is_inner: bool
    """Whether another model calls this one in its own call."""
    stack: StackStrengths | None = None
    in_force: object | None = None  # as the table's
    outer: CallStrengths | None = None
    """The strengths of the call around it."""
    setting: dict[str, Any] = field(default_factory=dict)
    """What it set in the table."""
    again: tuple[Any, Any] | None = None
    """Arguments for further predictions; None where there are none."""


class CallLock:
    """Lets one thread at a time call a model, as strengths that are set for a call are set for all threads.

    A model may call others: the thread holds the lock until the outermost call is over. A call is over when its hook
    says so, when its arguments are gone, as after an exception without hooks, when its thread calls the same model
    again, which no model does in its own call, or when its thread has ended.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._calls: list[OpenCall] = []

    def begin(self, arguments: CallArguments, component: str) -> OpenCall:
        """Wait until no other thread calls a model, and note a call."""
        thread = threading.current_thread()
        with self._changed:
            while self.is_held() and self._thread is not thread:
                self._changed.wait(_PATIENCE)
            if self._thread is not thread:
                self._calls.clear()
            again = next((i for i, call in enumerate(self._calls) if call.component == component), len(self._calls))
            del self._calls[again:]
            is_inner = any(call.arguments() is not arguments for call in self._calls)
            call = OpenCall(weakref.ref(arguments, self._forget), component, is_inner)
            self._thread = thread
            self._calls.append(call)
            return call

    def present(self, component: str) -> OpenCall | None:
        """Return the call of the component that this thread has begun; None where it has not."""
        with self._changed:
            calls = self._calls if self._thread is threading.current_thread() else ()
            return next((call for call in calls if call.component == component), None)

    def end(self, call: OpenCall) -> None:
        """Forget a call and the ones inside it; behind the outermost, let other threads call a model."""
        with self._changed:
            if call in self._calls:
                i, arguments = self._calls.index(call), call.arguments()
                inside = self._calls[i + 1 :]
                self._calls[i:] = [one for one in inside if one.arguments() is arguments]  # of other hooks
                self._let_others()

    def is_held(self) -> bool:
        """Tell whether a call runs, in any thread."""
        with self._changed:
            return bool(self._calls) and self._thread is not None and self._thread.is_alive()

    def _forget(self, arguments: weakref.ref[CallArguments]) -> None:
        with self._changed:
            self._calls = [call for call in self._calls if call.arguments is not arguments]
            self._let_others()

    def _let_others(self) -> None:
        if not self._calls:
            self._thread = None
            self._changed.notify()
