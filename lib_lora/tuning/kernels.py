"""Whether a kernel of our own adds a layer's pair, instead of torch's products: where it was measured to be faster.

It is measured on the layer's own call, once for each shape, and what it gives is held against what torch's products
give, both against double precision. A kernel that fails or is coarser is not asked again. In compiled and traced code,
where there are gradients, and for new shapes while a CUDA graph is captured, torch's products are taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..compiler import compiling, tracing
from ..placement.budget import OUT_OF_MEMORY

logger = logging.getLogger(__name__)

MUST_BE = 0.95
"""Of the time of what it is to replace."""
_COARSER = 1.5  # times the error of torch's products, beside one rounding of the largest change
_CHECKED = 128  # rows at the beginning and at the end that are held against double precision
_RUNS = 20
_DTYPES = (torch.float16, torch.bfloat16)


class PairKernel(Protocol):
    """The interface of `triton_pair`."""

    LARGEST_RANK: int

    def blocks_for(self, rows: int, rank: int) -> Iterable[object]:
        """Yield the tile sizes to try."""

    def add_pair_(self, y: Tensor, x: Tensor, down: Tensor, up: Tensor, strength: Tensor, blocks: object) -> None:
        """Add x down^T diag(strength) up^T onto `y`."""


class _Shape(NamedTuple):
    """The properties by which calls are compared."""

    device: torch.device
    dtype: torch.dtype
    rows: int
    """The next power of two."""
    inputs: int
    outputs: int
    rank: int
    single: bool
    """Whether all rows have the same strengths."""


class _Call(NamedTuple):
    y: Tensor  # (rows, outputs)
    x: Tensor  # (rows, inputs)
    down: Tensor  # (R, inputs)
    up: Tensor  # (outputs, R)
    strength: Tensor  # (groups, R)

    @property
    def shape(self) -> _Shape:
        (rows, outputs), inputs, (groups, rank) = self.y.shape, self.x.shape[1], self.strength.shape
        at_most = 1 << (rows - 1).bit_length()
        return _Shape(self.y.device, self.y.dtype, at_most, inputs, outputs, rank, groups == 1)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The result of a call in double precision, on rows of both ends, and the error allowed to a kernel."""

    at: Tensor  # (n,), the rows
    want: Tensor  # (n, outputs)
    bound: Tensor  # ()

    @classmethod
    def of(cls, call: _Call) -> _Reference | None:
        """Return the result of a call added to zeros: beside a large output a lost change would not be noticed.

        None where it is not finite, which tells nothing.
        """
        rows, per_group = call.y.shape[0], call.y.shape[0] // call.strength.shape[0]
        ends = sorted({*range(min(_CHECKED, rows)), *range(max(rows - _CHECKED, 0), rows)})
        at = torch.tensor(ends, device=call.y.device)
        x, strength = call.x[at].double(), call.strength[at // per_group].double()
        want = ((x @ call.down.double().t()) * strength) @ call.up.double().t()
        if not want.isfinite().all():
            return None
        torchs = call._replace(y=torch.zeros_like(call.y))
        _plain_(torchs)
        off = (torchs.y[at].double() - want).abs().max()
        return cls(at, want, _COARSER * off + torch.finfo(call.y.dtype).eps * want.abs().max())

    def allows(self, kernel: PairKernel, call: _Call, blocks: object) -> bool:
        """Return whether a kernel is as exact as torch's products."""
        ours = call._replace(y=torch.zeros_like(call.y))
        kernel.add_pair_(*ours, blocks)
        return bool((ours.y[self.at].double() - self.want).abs().max() <= self.bound)


class Chooser:
    """The faster of two ways to add a pair, measured once per shape.

    Args:
        kernel: gives the kernel, or None where there is none for a device; Triton's if absent.
        seconds: how long something takes, run again and again; CUDA's clock if absent.
    """

    def __init__(
        self,
        kernel: Callable[[torch.device], PairKernel | None] | None = None,
        seconds: Callable[[Callable[[], None]], float] | None = None,
    ) -> None:
        self._kernel = kernel or _triton
        self._seconds = seconds or cuda_seconds
        self._chosen: dict[_Shape, object] = {}  # how it is cut up; None where torch's products are faster
        self._broken: set[torch.device] = set()  # where nothing of it runs

    def add_pair_(self, y: Tensor, x: Tensor, down: Tensor, up: Tensor, strength: Tensor) -> bool:
        """Add x down^T diag(strength) up^T onto `y`, if a kernel does that faster.

        Args:
            y: (…, outputs), contiguous, in memory of its own; written.
            x: (…, inputs), of the same dtype.
            down: (R, inputs).
            up: (outputs, R).
            strength: (R,), or with ones and the first of the other dimensions of `y` in front.

        Returns:
            Whether it was added; else nothing is changed.
        """
        if compiling() or tracing() or y.dtype not in _DTYPES or not y.numel():
            return False
        kernel = self._kernel(y.device)
        if kernel is None or down.shape[0] > kernel.LARGEST_RANK or y.device in self._broken:
            return False
        groups = _grouped(strength, y.shape[:-1])
        if groups is None or not x.is_contiguous():
            return False
        call = _Call(y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1]), down, up, groups)
        with current(y.device):
            shape = call.shape
            blocks = self._blocks(kernel, call, shape)
            return blocks is not None and self._runs(kernel, call, shape, blocks)

    def _runs(self, kernel: PairKernel, call: _Call, shape: _Shape, blocks: object) -> bool:
        """Run the kernel; return whether it ran."""
        try:
            kernel.add_pair_(*call, blocks)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # noqa: BLE001  # it may have to be compiled once more, as other addresses are aligned
            logger.warning("a kernel for %s cannot be used: %s", shape, _in_short(error))
            self._chosen[shape] = None
            return False
        return True

    def _blocks(self, kernel: PairKernel, call: _Call, shape: _Shape) -> object:
        if shape not in self._chosen:
            if captures(shape.device):
                return None
            try:
                reference = _Reference.of(call)
                if reference is None:
                    return None
                self._chosen[shape] = self._fastest(kernel, call, shape, reference)
            except OUT_OF_MEMORY:
                return None  # for measuring alone; torch's products may still have room
        return self._chosen[shape]

    def _fastest(self, kernel: PairKernel, call: _Call, shape: _Shape, reference: _Reference) -> object:
        best: object = None
        failures = []
        trial = call._replace(y=call.y.clone())
        plain = least = self._seconds(lambda: _plain_(trial))
        every = list(kernel.blocks_for(call.y.shape[0], shape.rank))
        for blocks in every:
            try:
                if not reference.allows(kernel, call, blocks):
                    logger.warning("a kernel for %s is less exact than torch's products, and is not used", shape)
                    continue
                taken = self._seconds(lambda blocks=blocks: kernel.add_pair_(*trial, blocks))  # type: ignore[misc]
            except OUT_OF_MEMORY:
                raise
            except Exception as error:  # noqa: BLE001  # whatever a compiler, a driver or a device says against it
                failures.append(_in_short(error))
                continue
            if taken < min(least, MUST_BE * plain):
                best, least = blocks, taken
        if failures and len(failures) == len(every):
            self._broken.add(shape.device)
            logger.warning("kernels cannot be used on %s, so torch's products are: %s", shape.device, failures[0])
        logger.debug("%s: %.1f us by torch's products, %.1f us by %s", shape, plain * 1e6, least * 1e6, best)
        return best


def _grouped(strength: Tensor, lead: torch.Size) -> Tensor | None:
    """Return strengths as (groups, R), each of equally many adjacent rows; None if the rows do not form such groups."""
    sizes = tuple(strength.shape[:-1])
    if not sizes:
        return strength.unsqueeze(0).contiguous()
    if len(sizes) != len(lead):
        return None
    own = next((i for i, size in enumerate(sizes) if size != lead[i]), len(sizes))
    if any(size != 1 for size in sizes[own:]):
        return None
    return strength.reshape(-1, strength.shape[-1]).contiguous()


def _plain_(call: _Call) -> None:
    rows, (groups, rank) = call.x.shape[0], call.strength.shape
    h = (call.x @ call.down.t()).view(groups, rows // groups, rank) * call.strength.unsqueeze(1)
    call.y.addmm_(h.view(rows, rank), call.up.t())


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make the tensor's device current: Triton and CUDA's clock use the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def captures(device: torch.device) -> bool:
    """Return whether a CUDA graph is captured, so that nothing may wait for the device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def cuda_seconds(run: Callable[[], object]) -> float:
    """Return the least time of several turns, each of many runs, host time included."""
    found: list[float] = []
    run()
    for _ in range(3):
        began: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        ended: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        began.record()
        for _ in range(_RUNS):
            run()
        ended.record()
        ended.synchronize()
        found.append(began.elapsed_time(ended) / _RUNS / 1000)
    return min(found)


@lru_cache(maxsize=64)
def _triton(device: torch.device) -> ModuleType | None:
    """Return the kernel on devices whose tensor cores have both half precisions, once per device."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        return import_module(f"{__package__}.triton_pair")
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:  # or it does not fit this torch
        logger.warning("Triton cannot be used, so torch's products are: %s", error)
        return None
