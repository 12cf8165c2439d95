"""torch.compile, for a library that most hosts use without it: importing the compiler would take a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import wraps
from types import CodeType
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import nn

from .tensors import every

P = ParamSpec("P")
R = TypeVar("R")

compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", bool)
"""Whether the code is being compiled; in torch 2.1, which has no such function, false as `bool()`."""
tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
"""Whether `torch.jit.trace` records the calls of torch's operations; it sees no others."""

_CAN_FORGET_PART = hasattr(getattr(torch._C._dynamo.eval_frame, "_CacheEntry", None), "guard_manager")
"""Whether compiled code shows its guards, as since torch 2.6."""
_REPORTS_NO_ATTRIBUTES = sys.version_info[:3] == (3, 13, 0)
"""Whether who watches the dictionary of an object is not told that an attribute was set (python/cpython#125608)."""


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function out of graphs, as `torch.compiler.disable` does, which imports the compiler."""
    disabled: Callable[P, R] | None = None

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if disabled is None and "torch._dynamo" in sys.modules:  # else nothing is compiled
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return (disabled or function)(*args, **kwargs)

    made, frames = cast("Any", call), cast("Any", torch._C._dynamo.eval_frame)
    made._torchdynamo_disable = True  # the compiler's mark in graphs; outside of graphs, it compiles frames
    if hasattr(frames, "skip_code"):  # to torch 2.6
        frames.skip_code(made.__code__)
    else:
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(made.__code__, skip)
    return call


def misses_changes() -> bool:
    """Tell whether compiled code misses changes of its modules, even `eval()`, as torch 2.9 to 2.11 on Python 3.13.0.

    That Python does not report that an attribute was set, so torch does not watch the dictionaries of modules there.
    These versions take what they do not watch for unchanged, and check no guard of a module.
    """
    config = sys.modules.get("torch._dynamo.config")
    return _REPORTS_NO_ATTRIBUTES and bool(getattr(config, "use_recursive_dict_tags_for_guards", False))


def missed_changes(component: nn.Module) -> str:
    """Return why compiled code of a component may lack its adapters, and what to do; empty where it has none.

    Asked only where `misses_changes`.
    """
    if not may_have_compiled(component):
        return ""
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"compiled code misses every change of its model with torch {torch.__version__} on Python {python}; use"
        " Python 3.13.1 or newer, or set torch._dynamo.config.use_recursive_dict_tags_for_guards to False before"
        " torch.compile"
    )


def forget_compiled(classes: Collection[type[nn.Module]]) -> None:
    """Have the compiler forget the code that calls layers of some classes.

    Compiled code has the forwards that the classes had, and the compiler does not guard these. If a class is patched
    later, compiled models would ignore their adapters.
    """
    if not classes or not has_compiled():
        return
    if not _CAN_FORGET_PART:
        torch.compiler.reset()
        return
    from torch._dynamo.guards import DeletedGuardManagerWrapper as Deleted

    for code, concerned, others in _compiled_with(classes):
        if not others:  # torch counts invalid code, too, and compiles no code more than eight times
            torch._C._dynamo.eval_frame.reset_code(code)
        for guards in concerned if others else ():
            guards.extra_state.invalidate(guards.cache_entry, Deleted("a layer class was patched"))


def is_in_compiled(cls: type[nn.Module]) -> bool:
    """Tell whether there may be compiled code that calls layers of a class."""
    return has_compiled() and (not _CAN_FORGET_PART or any(_compiled_with([cls])))


def _compiled_with(classes: Iterable[type[nn.Module]]) -> Iterator[tuple[CodeType, list[Any], int]]:
    """Yield code that was compiled with layers of some classes, its guards of such layers, and how many others it has.

    Compiled code guards the type of each of its modules.
    """
    from torch._dynamo import convert_frame

    heirs = list(classes)
    for cls in heirs:  # which grows: their forwards may call the forward of a class above
        heirs += cls.__subclasses__()
    types = [f", {id(cls)})" for cls in heirs]
    for code in filter(None, [ref() for ref in list(convert_frame.input_codes.seen)]):
        entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)
        texts = [(entry.guard_manager, str(entry.guard_manager)) for entry in entries]
        concerned = [guards for guards, text in texts if any(number in text for number in types)]
        if concerned:
            valid = [guards for guards, _ in texts if guards.extra_state is not None]
            yield code, concerned, len(valid) - len(concerned)


def has_compiled() -> bool:
    """Tell whether anything was compiled since the process began, or since `torch.compiler.reset`."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames is not None and bool(getattr(frames, "FRAME_COUNTER", 1))


def may_compile() -> bool:
    """Tell whether the compiler is there, so that code may be compiled at any time."""
    return "torch._dynamo" in sys.modules


def is_compiled(component: nn.Module) -> bool:
    """Tell whether torch compiles the component, or a block of it."""
    marks = "_orig_mod", "_compiled_call_impl"
    return any(getattr(module, mark, None) is not None for module in every(component) for mark in marks)


def may_have_compiled(component: nn.Module) -> bool:
    """Tell whether there may be compiled code of a component or of a block of it."""
    return has_compiled() and (is_compiled(component) or is_in_compiled(type(component)))
