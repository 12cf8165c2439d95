"""Models whose layers nunchaku computes: which of them Remora can change.

Its `SVDQW4A4Linear` is a layer as any other where it is called, as in its SDXL. Its FLUX is one object of C++. Its
other transformers hand several layers to a fused function, which does not call them.

Source: nunchaku-tech/nunchaku nunchaku/models/ at 3a3cc3d; backend/nn/svdq.py of Forge Neo 2.26.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def is_of_nunchaku(denoiser: nn.Module) -> bool:
    """Return whether nunchaku computes any of a model's layers."""
    return any(type(layer).__module__.partition(".")[0] == "nunchaku" for layer in denoiser.modules())


def why_not(denoiser: nn.Module) -> str:
    """Return why Remora cannot change a model that nunchaku computes, or nothing where each layer is called."""
    if not any(hasattr(layer, "proj_down") and hasattr(layer, "smooth_factor") for layer in denoiser.modules()):
        return "computed by nunchaku in C++"
    fused = sorted({name for module in denoiser.modules() for name in _fused(module)})
    return f"computed by nunchaku, several layers at once ({', '.join(fused)})" if fused else ""


def _fused(module: nn.Module) -> Iterator[str]:
    """Yield the names of the fused functions that a module, or its attention processor, calls."""
    processor = vars(type(getattr(module, "processor", None))).get("__call__")
    for function in (type(module).forward, processor):
        names = getattr(getattr(function, "__code__", None), "co_names", ())
        yield from (name for name in names if name.startswith("fused_"))
