"""Measures what adapters cost a device: our own code, on layers of its own, in less than two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .cache import NetworkCache
from .families import alias_table
from .layer import LayerIndex
from .plan import make_plan
from .rates import Rates
from .resident import Keeping
from .slot import Way
from .stack import Entry, Mode, Stack
from .tensors import plain_mode

_SMALL, _LARGE = 64, 1024  # width of the layers that are measured
_RANK = 16
_PLACES = 512
_TURNS = 5  # at least; the fastest counts
_ENOUGH = 0.1
"""Seconds of them: what else the machine does for a moment is not to decide for ever."""


def measure(device: torch.device, dtype: torch.dtype) -> Rates:
    """Measure a device.

    Args:
        device: where.
        dtype: of the weights.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, plain_mode(device), torch.no_grad():
        small, large = (_Sample(Path(folder), size, device, dtype) for size in (_SMALL, _LARGE))
        call, touch = small.live(1), small.merged()
        multiply = max(large.live(_PLACES) - call, 0.0) / (large.numbers * _PLACES)
        entries = _LARGE * _LARGE
        summing = multiply * _RANK * entries
        build = max(large.built() - call - summing, 0.0) / entries
        entry = max(large.merged() - touch - summing, 0.0) / entries
    return Rates(call, multiply, build, touch, entry)


class _Sample:
    """A layer of its own with a LoRA."""

    def __init__(self, folder: Path, size: int, device: torch.device, dtype: torch.dtype) -> None:
        self._layer = nn.Linear(size, size, bias=False, device=device, dtype=dtype).requires_grad_(False)
        self._model = nn.Sequential(self._layer)
        self._index = LayerIndex("unet", self._model, alias_table())
        self._size = size
        self._path = folder / f"{size}.safetensors"
        factors = {"down": torch.ones(_RANK, size, device="cpu"), "up": torch.zeros(size, _RANK, device="cpu")}
        save_file({f"lora_unet_0.lora_{name}.weight": one for name, one in factors.items()}, self._path)
        full = {"lora_unet_0.diff": torch.zeros(size, size, device="cpu")}
        self._full = folder / f"{size}.full.safetensors"
        save_file(full, self._full)
        self.numbers = sum(one.numel() for one in factors.values())

    def live(self, places: int) -> float:
        """Seconds of the pair alone, beside a layer that computes nothing."""
        return self._of_call(self._way(self._path, "live"), places)

    def built(self) -> float:
        """Seconds of building a weight."""
        return self._of_call(self._way(self._full, "live"), 1)

    def merged(self) -> float:
        """Seconds of merging and putting back."""
        way = self._way(self._path, "merged")

        def run() -> Tensor:
            way.prefetch(self._layer)
            way.release(self._layer)
            return self._layer.weight

        return _fastest(run)

    def _of_call(self, way: Way, places: int) -> float:
        weight = self._layer.weight
        x = torch.zeros(places, self._size, device=weight.device, dtype=weight.dtype)
        y = torch.zeros_like(x)
        way.prefetch(self._layer)
        return _fastest(lambda: way.run(self._layer, lambda *_, **__: y, (x,), {}))

    def _way(self, path: Path, mode: Mode) -> Way:
        network = NetworkCache(1).resolved(path, [self._index])
        stack = Stack([Entry(path)], mode=mode)
        plan = make_plan(stack, (network,), [self._index], {"unet": self._model}, {}, Keeping())
        return plan.layers[self._layer]


def _fastest(run: Callable[[], Tensor]) -> float:
    run()
    found: list[float] = []
    while len(found) < _TURNS or sum(found) < _ENOUGH:
        began = time.perf_counter()
        run().flatten()[0].item()  # which waits for the device
        found.append(time.perf_counter() - began)
    return min(found)
