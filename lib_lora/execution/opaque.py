"""A layer of a compiled model that is computed eagerly: a single operation in the graph.

It hides how weights are built, and regions that differ from call to call. The graph stays in one piece, so that models
compiled with `fullgraph=True` take every kind of adapter. The number of the layer is an input of the operation, so that
blocks of one kind share their code. It needs torch 2.4; before, and for layers of several inputs, the graph is broken.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..compiler import compiling
from .arguments import BaseForward

_numbers = itertools.count()
_slots: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_CAN = hasattr(torch.library, "custom_op")


def key_for(slot: object) -> Tensor:
    """Return the number, (), of a slot, which is held weakly."""
    number = next(_numbers)
    _slots[number] = slot
    return torch.tensor(number, device="cpu")


def call(layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the operation's output, of a call that is being compiled.

    None where it cannot be such an operation: it takes or returns more than a tensor, or autograd records it.
    """
    if not (_CAN and compiling()) or torch.is_grad_enabled() or isinstance(layer, nn.MultiheadAttention):
        return None
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
        return None
    y = base_forward(layer, *args)  # tells the graph shape, layout and dtype, and is not computed
    if not isinstance(y, Tensor):
        return None
    slot: Any = layer._remora_slot
    made: Tensor = _operation(args[0], slot.key, list(y.shape), list(y.stride()), y.dtype)
    return made


def _compute(x: Tensor, key: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    slot = _slots[int(key)]
    layer = slot.layer()
    assert layer is not None  # it is being called
    y: Tensor = slot.patch.forward(layer, x)
    if y.dtype == dtype and y.stride() == tuple(stride):
        return y
    return torch.empty_strided(shape, stride, dtype=dtype, device=y.device).copy_(y)


if _CAN:
    # its weights are not among its inputs, so it must not be in a CUDA graph; older inductors leave out every operation
    # with an input on the CPU, as the key is
    _tag: Any = getattr(torch.Tag, "cudagraph_unsafe", None)
    _operation: Any = torch.library.custom_op(
        f"{__name__.replace('.', '_')}::served",  # a library may be loaded twice, under two names
        _compute,
        mutates_args=(),
        schema="(Tensor x, Tensor key, SymInt[] shape, SymInt[] stride, ScalarType dtype) -> Tensor",
        **({} if _tag is None else {"tags": (_tag,)}),
    )
    _operation.register_fake(lambda x, key, shape, stride, dtype: x.new_empty_strided(shape, stride, dtype=dtype))
