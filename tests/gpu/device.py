"""The device under test: which one, what it is, its memory."""

from __future__ import annotations

import gc
import importlib.util
import platform
import subprocess
from importlib import metadata
from types import ModuleType

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .check import SkipError

ACCELERATORS = ("cuda", "xpu", "mps", "vulkan")
PACKAGES = ("diffusers", "peft", "accelerate", "bitsandbytes", "torchao", "optimum-quanto", "triton", "torchvulkan")


class NoDeviceError(Exception):
    """There is no such device; the text says what to do."""


def find(name: str | None) -> torch.device:
    """Return a device by its name, or the accelerator of this machine.

    Raises:
        NoDeviceError: it is not there.
    """
    if importlib.util.find_spec("torchvulkan") is not None and (name or "vulkan").startswith("vulkan"):
        import torchvulkan  # noqa: F401  # it registers the device
    if name is None:
        name = next((one for one in ACCELERATORS if _is_there(one)), None)
        if name is None:
            text = f"torch {torch.__version__} has no device but the CPU; install torch for your card into .venv"
            raise NoDeviceError(f"{text} (pytorch.org says how), or try --device cpu --small")
    kind, _, index = name.partition(":")
    if kind != "cpu" and not (_is_there(kind) and int(index or 0) < _count(kind)):
        raise NoDeviceError(f"torch {torch.__version__} has no device {name!r}")
    found = torch.device(name)
    if found.type in ("cuda", "xpu"):
        found = torch.device(found.type, found.index or 0)
        _module(found).set_device(found)
    return found


def _is_there(kind: str) -> bool:
    if kind == "mps":
        return torch.backends.mps.is_available()
    module = getattr(torch, kind, None)
    return module is not None and bool(module.is_available())


def _count(kind: str) -> int:
    return int(getattr(torch, kind).device_count())


def _module(device: torch.device) -> ModuleType:
    found: ModuleType = getattr(torch, device.type)
    return found


def synchronize(device: torch.device) -> None:
    """Wait for all that was queued."""
    if device.type != "cpu":
        _module(device).synchronize()


def dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Return what the device computes in without help of the CPU: fp32 first, the dtype of most models last."""
    found = [torch.float32]
    for dtype in (torch.float16, torch.bfloat16):
        if dtype == torch.bfloat16 and not _has_bfloat16(device):
            continue
        try:
            x = torch.ones(1, 8, 4, 4, device=device, dtype=dtype)
            F.linear(F.conv2d(x, x[:, :, :1, :1]), x[0, 0]).cpu()
        except (RuntimeError, TypeError):  # what torch says where a device has no such dtype
            continue
        found.append(dtype)
    return tuple(found)


def _has_bfloat16(device: torch.device) -> bool:
    """Tell whether the device says no to bfloat16; old cards of NVIDIA emulate it, and an old backend uses the CPU."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asked = getattr(getattr(torch, device.type), "is_bf16_supported", None)
    return asked is None or bool(asked())


def allocated(device: torch.device) -> int:
    """Return the bytes of all tensors on the device."""
    synchronize(device)
    gc.collect()
    if device.type == "mps":
        return int(torch.mps.current_allocated_memory())
    if device.type == "cpu":
        raise SkipError("torch does not count the tensors of a CPU")
    return int(_module(device).memory_allocated())


class Peak:
    """The most bytes of tensors since this was made.

    Raises:
        SkipError: torch does not count them.
    """

    def __init__(self, device: torch.device) -> None:
        if not hasattr(getattr(torch, device.type), "max_memory_allocated"):
            raise SkipError(f"torch does not tell the peak of memory on {device.type}")
        self._device = device
        synchronize(device)
        _module(device).reset_peak_memory_stats()

    def bytes(self) -> int:
        """Return it now."""
        synchronize(self._device)
        return int(_module(self._device).max_memory_allocated())


def free(device: torch.device) -> int:
    """Return the bytes that are free on the device, as far as it tells."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    if not hasattr(getattr(torch, device.type), "mem_get_info"):
        return 0
    return int(_module(device).mem_get_info()[0])


def give_back(device: torch.device) -> None:
    """Return memory that nothing uses to the system."""
    gc.collect()
    if device.type != "cpu":
        _module(device).empty_cache()


def works(device: torch.device) -> bool:
    """Tell whether the device still computes; an illegal address, for one, ends that for the process."""
    try:
        return bool(torch.ones(2, device=device).add_(1).sum().item() == 4)
    except RuntimeError:
        return False


def machine(device: torch.device) -> dict[str, object]:
    """Return what a report says of the machine: neither its user nor a path."""
    found: dict[str, object] = {"device": str(device), "torch": torch.__version__, "python": platform.python_version()}
    found |= {"system": f"{platform.system()} {platform.release()}", "cuda": torch.version.cuda}
    found |= {"hip": torch.version.hip, "dtypes": [str(one) for one in dtypes(device)]}
    if hasattr(getattr(torch, device.type), "get_device_properties"):
        properties = _module(device).get_device_properties(device.index or 0)
        found |= {"name": properties.name, "memory": properties.total_memory}
        found["driver"] = _driver(device) or getattr(properties, "driver_version", None)
        found["capability"] = [getattr(properties, part, None) for part in ("major", "minor")]
    else:
        found |= {"name": platform.processor() or platform.machine(), "memory": free(device) or None}
    return found | {"packages": {name: _version(name) for name in PACKAGES}}


def _driver(device: torch.device) -> str | None:
    """Return the driver's version of a card of NVIDIA; torch does not tell it."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip() or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def has_float8(device: torch.device) -> bool:
    """Tell whether tensors of float8 can be on the device, and be converted there."""
    try:
        stored: Tensor = torch.ones(2).to(torch.float8_e4m3fn).to(device)
        return bool(stored.float().sum().item() == 2)
    except (RuntimeError, TypeError):
        return False
