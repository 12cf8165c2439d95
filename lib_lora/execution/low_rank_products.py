"""The low-rank pairs of a layer as one product: added to the layer's output, or for many tokens to its weight.

Adding a pair to the weight costs R * in * out once per call; the pair beside the layer costs R * tokens * (in + out).
The sum is in new memory: the base weight is read, never written. Half precision always has the pair beside the
layer, as W + dW would round a small delta away; so have rows and places with strengths of their own.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from ..adapters import balanced
from ..adapters.base import Factors
from ..compiler import compiling
from ..placement.storage import Packed, pack
from ..tensors import autocasts, copied, wide
from .arguments import BaseForward

EXACT = frozenset({torch.float32, torch.float64})
"""Dtypes in which a small change of a weight is not rounded away."""
TORCHS = frozenset(
    cls.forward
    for cls in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if cls.forward.__globals__ is vars(sys.modules[cls.__module__])
)
"""torch's own forwards, unless other code had replaced them; a wrapper may have their names and their module."""
USUAL = 4.0
"""Rank components with no larger entry are placed in float16 as they are; of others `down x` may pass its range."""
MARGIN = 1.5
"""How much cheaper the sum must be, as it is written to memory and read again; measured on a CPU, 320 to 2560 wide."""


def pays(layer: nn.Module, base_forward: BaseForward, x: Tensor) -> bool:
    """Tell whether an effective weight is cheaper for a linear layer, and its forward is a plain product."""
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if weight is None or weight.ndim != 2 or weight.dtype not in EXACT:
        return False
    if hasattr(weight, "__tensor_flatten__"):  # torchao's and quanto's: packed, though their dtype is a plain one
        return False
    out, inside = weight.shape
    if x.numel() * (out + inside) <= MARGIN * inside * inside * out:  # both sides times `in`
        return False
    if x.dtype != weight.dtype or x.device != weight.device or base_forward not in TORCHS:
        return False
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return False
    # a transform may have a batch of weights; the compiler follows no such call
    if not compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return not autocasts(x.device.type)


def effective_linear(layer: nn.Module, x: Tensor, pair: Factors, strength: Tensor | float) -> Tensor:
    """Compute x (W + up diag(strength) down)^T + b; strength is (R,), or one number for all."""
    weight, up = layer._parameters["weight"], pair.up
    assert weight is not None  # `pays` said so
    if isinstance(strength, Tensor):
        up, strength = up * strength, 1.0
    total = torch.addmm(weight, up, pair.down, alpha=strength)
    return F.linear(x, total, layer._parameters.get("bias"))


@dataclass(frozen=True, slots=True, eq=False)
class PackedPair(Packed):
    """A pair in float8, (R, in * kernel + out), which one kernel widens: a rank component has one scale."""

    shape: tuple[int, ...]
    """Of `down`."""

    @classmethod
    def of(cls, pair: Factors) -> PackedPair:
        """Pack a pair, whose components it spreads evenly over both factors first."""
        even = spread(pair)
        packed = pack(torch.cat((even.down.flatten(1), even.up.t()), 1).to(pair.up.dtype), "float8")
        assert isinstance(packed, Packed)
        return cls(packed.data, packed.scale, packed.dtype, tuple(pair.down.shape))

    def get(self) -> Factors:
        """Return the pair, in new memory."""
        both, inside = Packed.get(self), math.prod(self.shape[1:])
        assert isinstance(both, Tensor)
        return Factors(both[:, :inside].reshape(self.shape), both[:, inside:].t())


Plain: TypeAlias = "tuple[Factors, tuple[Tensor, Tensor] | None, float]"
"""A pair; of a linear layer both factors transposed; for inputs of more entries than how many `pays` is to be asked."""


def add_pair(
    layer: nn.Module,
    x: Tensor,
    y: Tensor,
    pair: Factors,
    strength: Tensor | float,
    *,
    fresh: bool,
    flat: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute y + up (strength * (down x)) of a linear layer or a convolution, in place if `y` is `fresh`.

    `x` is in the dtype of `y`, and `flat` as in `Plain`. `strength` is a number, which the second product takes as its
    factor; (R, *ones); or it has the rows and places of `y` in front, see `LayerStrengths`. The last two cost a kernel.
    """
    if x.requires_grad and isinstance(strength, Tensor):  # which may change before the gradient is computed
        strength = strength.clone()
    if pair.down.ndim > 2:
        # the layer's own stride, padding and padding mode, read now: A1111's tiling switches the mode between calls
        h: Tensor = layer._conv_forward(x, pair.down, None)  # type: ignore[operator]
        if isinstance(strength, Tensor):
            h, strength = h * strength, 1.0
        return _add_conv(h, y, pair.up, strength, pair.down.ndim - 2, fresh=fresh)
    if (not isinstance(strength, Tensor) or strength.ndim == 1) and x.is_contiguous():
        down = pair.down.t() if flat is None else flat[0]
        h = torch.mm(x if x.ndim == 2 else x.view(-1, down.shape[0]), down)
    else:  # as the layer's own product takes it
        h = F.linear(x, pair.down)
    if isinstance(strength, Tensor):
        h, strength = h * strength, 1.0
    if h.ndim > 2:
        h = h.reshape(-1, h.shape[-1])
    up = pair.up.t() if flat is None else flat[1]
    out = up.shape[1]
    if fresh and y.is_contiguous():
        (y if y.ndim == 2 else y.view(-1, out)).addmm_(h, up, alpha=strength)
        return y
    return torch.addmm(y.reshape(-1, out), h, up, alpha=strength).view(y.shape)


def add_pair_by_row(x: Tensor, y: Tensor, pair: Factors, strengths: Tensor, ranks: Tensor, *, fresh: bool) -> Tensor:
    """Compute y + up (strengths * (down x)) of a linear layer, each row with its own ranks, in place if `y` is `fresh`.

    A batch of n pictures with a LoRA each costs every picture one LoRA, not n. `strengths` is (rows, all ranks) and
    `ranks` (rows, R); `x` and `y` have a multiple of these rows.
    """
    rows, rank = ranks.shape
    flat, (out, inside) = ranks.flatten(), (pair.up.shape[0], pair.down.shape[1])
    down = pair.down.index_select(0, flat).view(rows, rank, inside)
    up = pair.up.index_select(1, flat).view(out, rows, rank)
    h = torch.bmm(x.reshape(rows, -1, inside), down.transpose(1, 2)) * strengths.gather(1, ranks).unsqueeze(1)
    if fresh and y.is_contiguous():
        y.view(rows, -1, out).baddbmm_(h, up.permute(1, 2, 0))
        return y
    return torch.baddbmm(y.reshape(rows, -1, out), h, up.permute(1, 2, 0)).view(y.shape)


_casts = threading.local()


def shared_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an input in another dtype; layers that are called with one input one after the other share its cast."""
    if x.dtype is dtype:
        return x
    if compiling() or x.requires_grad or x.is_inference():  # the last one does not tell whether it was written to
        return x.to(dtype)
    known = getattr(_casts, "latest", None)
    if known is not None and known[0]() is x and known[1:3] == (x._version, dtype):
        cast: Tensor = known[3]
        return cast
    cast = x.to(dtype)
    _casts.latest = weakref.ref(x, lambda _: vars(_casts).clear()), x._version, dtype, cast
    return cast


def is_fresh(layer: nn.Module, y: Tensor, base_forward: BaseForward, held: int = 1) -> bool:
    """Tell whether nothing but the caller holds an output or its memory, and no gradient needs it.

    An output that torch's own forward has just made is. Any other is judged by the references to it, of
    which `held` are the caller's own, such as its local variable.
    """
    if y.requires_grad:
        return False
    # a convolution may have a product of its own, whose output other code may hold
    if base_forward in TORCHS and "_conv_forward" not in layer.__dict__:
        return True
    if compiling():
        return False
    try:
        # one reference to the memory is the output's, the other one that of the object that is asked here
        return sys.getrefcount(y) <= _REFERENCES + held and _memory_uses(y.untyped_storage()._cdata) <= 2 + _by_base(y)
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own, as wrappers are
        return False


_memory_uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", lambda _: 1 << 30)


def _by_base(y: Tensor) -> int:
    """Return 1 where an output is a view that alone keeps its base, whose memory is counted twice then.

    torch before 2.2 does not count who refers to a base, so it may not be this view alone.
    """
    return 0 if y._base is None or _USES_OF_BASE is None else int(_uses_of_base(y) == _USES_OF_BASE)


def _uses_of_base(y: Tensor) -> tuple[int, int] | None:
    """Return how often objects and torch refer to the base of a view, this look at it included."""
    base: Any = y._base
    count = getattr(base, "_use_count", None)
    return None if count is None else (sys.getrefcount(base), count())


_REFERENCES = (lambda y: sys.getrefcount(y))(torch.empty(0, device="cpu"))
"""Of a tensor that is a parameter of a function and nothing else."""
with torch.inference_mode(False):  # a web UI's first picture imports this in that mode, in which a view has no base
    _USES_OF_BASE = _uses_of_base(torch.empty(0, device="cpu").view(0))


def _add_conv(h: Tensor, y: Tensor, up: Tensor, strength: float, spatial: int, *, fresh: bool) -> Tensor:
    """Add the second product of a convolution: h (rows, R, places), up (out, R)."""
    out, rank = up.shape
    if y.ndim == spatial + 2 and y.is_contiguous() and h.is_contiguous():
        rows, flat, h = y.shape[0], y.flatten(2), h.flatten(2)
        if not fresh:
            return torch.baddbmm(flat, up.expand(rows, out, rank), h, alpha=strength).view(y.shape)
        if rows == 1:
            flat[0].addmm_(up, h[0], alpha=strength)
        else:
            flat.baddbmm_(up.expand(rows, out, rank), h, alpha=strength)
        return y
    if fresh and y.ndim == 4 and y.is_contiguous(memory_format=torch.channels_last):
        flat = y.permute(0, 2, 3, 1).view(-1, out)
        flat.addmm_(h.permute(0, 2, 3, 1).reshape(-1, rank), up.t(), alpha=strength)
        return y
    convolve = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    return torch.add(y, convolve(h, up.view(out, rank, *(1,) * spatial)), alpha=strength)


def spread(factors: Factors, above: float = 0.0) -> Factors:
    """Spread components with larger entries than `above` evenly over the factors, in fp32 or better; see `balanced`."""
    up, down = factors.up, factors.down.flatten(1)
    exact = wide(up.dtype, down.dtype)
    return balanced(up.to(exact), down.to(exact), factors.down.shape, above=above)


def stacked(
    parts: Sequence[Tensor],
    dim: int,
    device: torch.device,
    dtype: torch.dtype,
    rows: Sequence[tuple[int, int] | None] = (),
    outputs: int = 0,
    *,
    length: int = 0,
) -> Tensor:
    """Stack tensors along `dim` in new memory, as the file that they are views of may be replaced.

    The result has at least `length` entries along `dim`. If one of `rows` is not None, it has `outputs` rows, of which
    each part fills its own. Other entries are zero.
    """
    windows, filled = any(rows), 0
    for part in parts:
        filled += part.shape[dim]
    shape = list(parts[0].shape)
    shape[dim] = max(filled, length)
    if windows:
        shape[0] = outputs
    stacked = torch.empty(shape, device=device, dtype=dtype)
    if windows or length > filled:
        stacked.zero_()
    elif len(parts) == 1:
        return copied(parts[0], stacked)
    start = 0
    for i, part in enumerate(parts):
        place = stacked.narrow(dim, start, part.shape[dim])
        window = rows[i] if windows else None
        (place if window is None else place[slice(*window)]).copy_(part)
        start += part.shape[dim]
    return stacked
