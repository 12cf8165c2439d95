"""torch.compile, for a library that most hosts use without it: importing the compiler would take a second."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import nn

from .tensors import every

P = ParamSpec("P")
R = TypeVar("R")

compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", bool)
"""Whether the code is being compiled; torch 2.1 does not tell, and `bool()` is false."""
tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
"""Whether `torch.jit.trace` records what is called, of which it knows torch's own operations alone."""


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
    made._torchdynamo_disable = True  # what the compiler looks for in a graph; outside of graphs, it compiles frames
    if hasattr(frames, "skip_code"):  # to torch 2.6
        frames.skip_code(made.__code__)
    else:
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(made.__code__, skip)
    return call


def forget_compiled() -> None:
    """Have the compiler forget everything that it compiled.

    Code has the forwards of classes that it found, which the compiler does not guard: where one is patched afterwards,
    compiled models would ignore their adapters.
    """
    if "torch._dynamo" in sys.modules:  # else nothing was compiled yet
        torch.compiler.reset()


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
    return any(getattr(one, mark, None) is not None for one in every(component) for mark in marks)
