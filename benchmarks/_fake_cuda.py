"""What CUDA would be asked for, counted on fake tensors: no GPU and no memory is needed, and no figure is a time.

PyTorch's fake tensors have a shape, a dtype and a device, and no data. A build of torch without CUDA needs a device
guard for it before there are any on "cuda"; a guard that does nothing is compiled here, which needs a C++ compiler.
Without one the program says so and counts nothing. Tensors of the computer stay real, so files are read and numbers
computed as always. Numbers that no fake tensor has are taken as 1, so that all are equal, and masks as true throughout.

Kernels are the aten operations below autograd that compute on the device: a linear layer, a convolution or attention is
one, a view or memory that is only allocated none. A device may take more: a copy from the computer into a tensor that
is not contiguous starts a kernel of its own there, which is not counted. A copy between the computer and the device
does not wait if it goes to the device from page-locked memory with `non_blocking` and keeps the dtype; any other waits.
Memory is page-locked if `pin_memory` asked for it. Reads are places where Python needs a number or a shape from the
device, such as `item` and an index by a mask. New memory is the bytes of all results in new memory, freed or not.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
struct Guard : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
};
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new Guard());
}
"""
_NO_KERNELS = ("empty", "new_empty", "detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "sym_", "prim")
_WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "_unique", "unique", "masked_select")
_FREE = 24 << 30
"""Bytes of the card that are free."""
_PAGEABLE = {"pin_memory": False}
OTHERS = "others"
_OURS, _TORCH, _MODULES = "/lib_lora/", "/torch/", "/torch/nn/modules/"


class NoGuardError(Exception):
    """This torch cannot make fake tensors on CUDA."""


@cache
def register_guard() -> None:
    """Compile and load the guard; do nothing where torch is built with CUDA.

    Raises:
        NoGuardError: there is no C++ compiler, or it fails.
    """
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise NoGuardError('this torch has no CUDA, and there is no C++ compiler to make fake tensors on "cuda"')
    root = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    flags = ("-std=c++20", "-shared", "-fPIC", abi, f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(_GUARD, encoding="utf-8")
        made = subprocess.run([compiler, str(source), *flags, "-o", str(library)], capture_output=True, text=True)
        if made.returncode:
            raise NoGuardError(f"{compiler} makes no device guard for a torch without CUDA: {made.stderr}")
        ctypes.CDLL(str(library))


@dataclass(slots=True)
class Figures:
    """What one phase asked the device for."""

    operations: Counter[str] = field(default_factory=Counter)
    """Kernels by the name of their operation."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Copies that wait, by the lines of lib_lora that made them, the innermost first."""
    passing: Counter[str] = field(default_factory=Counter)
    """Copies that do not wait, likewise."""
    waits: Counter[str] = field(default_factory=Counter)
    """Reads of the device by the host, likewise."""
    copied: Counter[str] = field(default_factory=Counter)
    """Bytes of the copies, likewise."""
    allocated: int = 0
    """Bytes of new memory on the device, whether it is freed again or not."""

    @property
    def kernels(self) -> int:
        """Return their number."""
        return self.operations.total()

    def totals(self) -> dict[str, int]:
        """Return the numbers of a row."""
        return {
            "kernels": self.kernels,
            "copies_waiting": self.waiting.total(),
            "copies_passing": self.passing.total(),
            "waits": self.waits.total(),
            "bytes_copied": self.copied.total(),
            "bytes_new": self.allocated,
        }


class FakeCuda(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts below autograd, in front of the mode that makes tensors on "cuda" fake."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.figures = Figures()
        self.pins: list[int] = []
        """Bytes of each piece of page-locked memory that was asked for."""
        self.refuses_pins = False
        """Whether there is no page-locked memory, as in some containers."""
        self._pinned: dict[int, StorageWeakRef] = {}

    def counted(self, run: Callable[[], object]) -> Figures:
        """Count one run."""
        before, self.figures = self.figures, Figures()
        try:
            run()
            return self.figures
        finally:
            self.figures = before

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:  # asked for more often than anything else
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        kwargs, name = kwargs or {}, func._schema.name.rpartition("::")[2]
        tensors = _tensors(args) + _tensors(kwargs.values())
        if name == "is_pinned":
            return self._is_pinned(tensors[0])
        if name == "_pin_memory" or kwargs.get("pin_memory"):
            return self._pinned_like(func, tensors, args, kwargs)
        if not any(isinstance(one, FakeTensor) for one in tensors) and not _asks_for_cuda(args, kwargs):
            with unset_fake_temporarily():  # the computer's own tensors
                return func(*args, **kwargs)
        if func.is_view:
            return func(*args, **kwargs)
        if name in _WAITS and any(one.is_cuda for one in tensors):
            self.figures.waits[_lines()] += 1
        if name == "_local_scalar_dense":
            return 1  # a fake tensor has no number
        if name == "equal":
            return True
        if name == "nonzero":
            return fake((tensors[0].numel(), tensors[0].ndim), torch.int64, tensors[0].device)
        if name == "index" and any(one is not None and one.dtype is torch.bool for one in args[1]):
            self.figures.waits[_lines()] += 1
            args = (args[0], [each for one in args[1] for each in _without_mask(one)])
        # a real tensor need not become fake for a copy
        result = args[0] if name == "copy_" else func(*args, **kwargs)
        self._note(name, args, kwargs, tensors, _tensors(result if isinstance(result, list | tuple) else (result,)))
        return result

    def _note(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], results: list[Tensor]
    ) -> None:
        here = [one for one in results if one.is_cuda]
        if not here and not any(one.is_cuda for one in tensors):
            return
        known = {_memory(one) for one in tensors if one.layout is torch.strided}
        new = {_memory(one): one.untyped_storage().nbytes() for one in here if one.layout is torch.strided}
        self.figures.allocated += sum(nbytes for memory, nbytes in new.items() if memory not in known)
        if name in ("copy_", "_to_copy") and len({one.device.type for one in (*tensors[:2], *results)}) > 1:
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], results[0])
            late = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            passes = late and target.is_cuda and source.dtype == target.dtype and self._is_pinned(source)
            lines = _lines()
            (self.figures.passing if passes else self.figures.waiting)[lines] += 1
            self.figures.copied[lines] += source.numel() * source.element_size()
        elif not name.startswith(_NO_KERNELS):
            self.figures.operations[name] += 1

    def _pinned_like(self, func: Any, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return fake memory of the computer that counts as page-locked."""
        if self.refuses_pins:
            raise RuntimeError("CUDA error: out of memory")
        made: Tensor = fake(tensors[0].shape, tensors[0].dtype, "cpu") if tensors else func(*args, **kwargs | _PAGEABLE)
        self.pins.append(made.untyped_storage().nbytes())
        self._pinned[_memory(made)] = StorageWeakRef(made.untyped_storage())  # type: ignore[no-untyped-call]
        return made

    def _is_pinned(self, tensor: Tensor) -> bool:
        found = self._pinned.get(_memory(tensor))
        return found is not None and not found.expired()  # type: ignore[no-untyped-call]


def _without_mask(index: Tensor | None) -> list[Tensor | None]:
    """Return the indexes that a mask stands for, as if it was true throughout."""
    if index is None or index.dtype is not torch.bool:
        return [index]
    return [fake((index.numel(),), torch.int64, index.device) for _ in range(index.ndim)]


def _memory(tensor: Tensor) -> int:
    return cast(int, tensor.untyped_storage()._cdata)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among values, and in lists of them."""
    found = list[Tensor]()
    for one in values:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += [each for each in one if isinstance(each, Tensor)]
    return found


def _asks_for_cuda(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    asked = kwargs.get("device") or next((one for one in args if isinstance(one, torch.device)), None)
    return asked is not None and torch.device(asked).type == "cuda"


def _lines() -> str:
    """Return the lines of lib_lora that lead here, at most three, the innermost first; else the word OTHERS."""
    frame: FrameType | None = sys._getframe(2)
    found = list[str]()
    while frame is not None and len(found) < 3:
        name = frame.f_code.co_filename
        if _OURS in name:
            found.append(f"{name.rpartition(_OURS)[2]}:{frame.f_lineno}")
        elif found or _MODULES in name or not (_TORCH in name or name == __file__):
            break  # a layer's own forward, or its own way to a device, which ours may have called
        frame = frame.f_back
    return " < ".join(found) or OTHERS


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Compute attention as one kernel, as a GPU does; torch without CUDA would compute it in many."""
    found: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[0]
    return found


_DATA: Any = Tensor.data
_made = FakeTensor.__new__


def _set_data(tensor: FakeTensor, value: FakeTensor) -> None:
    _DATA.__set__(tensor, value)
    tensor.fake_device = value.fake_device  # which torch leaves as it was


def _new(cls: type[FakeTensor], *args: Any, **kwargs: Any) -> Tensor:
    """Make a fake tensor; or a parameter, as accelerate calls the class of one."""
    if "requires_grad" in kwargs and len(args) == 1:
        return nn.Parameter(args[0], **kwargs)
    return _made(cls, *args, **kwargs)


def _swap(one: Tensor, other: Tensor) -> None:
    """Exchange two fake tensors, as `Module.to` does it; torch's own refuses what the mode refers to weakly."""
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


@contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    """Turn on autocast for CUDA, which `torch.autocast` does not do where there is no GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Pretend that the machine has CUDA, with fake tensors.

    Raises:
        NoGuardError: see `register_guard`.
    """
    from lib_lora.execution import low_rank_products  # only now: forwards are replaced before it is imported

    register_guard()
    count = FakeCuda()
    capturing = patch.object(torch.cuda, "is_current_stream_capturing", bool)
    memory = patch.object(torch.cuda, "mem_get_info", lambda device=None: (_FREE, _FREE))
    attention = patch.object(nn.functional, "scaled_dot_product_attention", _attention)
    moving = patch.object(torch.utils, "swap_tensors", _swap)
    making = patch.object(FakeTensor, "__new__", _new)
    data = patch.object(FakeTensor, "data", property(_DATA.__get__, _set_data), create=True)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with capturing, memory, attention, moving, making, data, mode, count, torch.no_grad():
        # the base of a fake view is referred to once more than a device's, which shows whether others hold an output
        uses = low_rank_products._uses_of_base(fake((1,), torch.float32).view(1))
        with patch.object(low_rank_products, "_USES_OF_BASE", uses):
            yield count


def replace_forwards() -> None:
    """Replace the forwards of torch's layers, as A1111's built-in LoRA does before it loads extensions."""
    for cls in (nn.Linear, nn.Conv2d):

        def forward(self: nn.Module, x: Tensor, original: Callable[..., Tensor] = cls.forward) -> Tensor:
            return original(self, x)

        cls.forward = forward  # type: ignore[method-assign, assignment]


def fake(shape: Iterable[int], dtype: torch.dtype, device: str | torch.device = CUDA) -> Tensor:
    """Return a tensor without data, on the computer's side too."""
    made = torch.empty(tuple(shape), dtype=dtype, device=CUDA)
    return made.to(device)


def to_fake(model: nn.Module, device: str | torch.device = CUDA, dtype: torch.dtype | None = None) -> nn.Module:
    """Replace all parameters and buffers by fake ones on a device, and give floating-point ones `dtype`."""

    def like(one: Tensor) -> Tensor:
        return fake(one.shape, dtype if dtype is not None and one.is_floating_point() else one.dtype, device)

    for module in model.modules():
        for name, one in module._parameters.items():
            if one is not None:
                module._parameters[name] = nn.Parameter(like(one), requires_grad=False)
        for kept in (module._buffers, module.__dict__):
            for name, tensor in kept.items():
                if isinstance(tensor, Tensor):
                    kept[name] = like(tensor)
    return model.eval()
