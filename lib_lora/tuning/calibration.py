"""Measures what adapters cost a device: our own code, on layers of its own, in less than two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..execution.hooks import Executor
from ..naming.index import LayerIndex, alias_table
from ..naming.network import NetworkCache
from ..placement.resident import PlacementPolicy
from ..plan import PlanKey, make_plan
from ..stack import Entry, Mode, Stack
from ..tensors import plain_mode
from .rates import Rates

_SMALL, _LARGE = 64, 1024  # width of the layers that are measured
_WIDTH, _FEW = 4096, 16  # of one between them, and its places
_RANK = 16
_PLACES = 512
_TURNS = 5  # at least
_ENOUGH = 0.1
"""Seconds of turns: what else the machine does for a moment is not to decide for ever."""
_CACHES = 1 << 26
"""Bytes that are used between two turns. A model's layers come one after the other, so that none finds its numbers, nor
the interpreter its objects, in a cache; from there adapters of few tokens are ten times as quick."""


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
        self._layer = nn.Linear(size, size, bias=False, device="meta", dtype=dtype).requires_grad_(False)
        self._layer.weight = nn.Parameter(torch.ones(size, size, device=device, dtype=dtype), requires_grad=False)
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
        """Measure the seconds of the pair alone, beside a layer that computes nothing."""
        return self._of_call(self._executor(self._path, "live"), places)

    def built(self) -> float:
        """Measure the seconds of building a weight."""
        return self._of_call(self._executor(self._full, "live"), 1)

    def merged(self) -> float:
        """Measure the seconds of merging and restoring."""
        executor = self._executor(self._path, "merged")

        def run() -> Tensor:
            executor.move(self._layer, self._layer.weight.device, now=True)
            executor.release(self._layer)
            return self._layer.weight

        others = torch.zeros(_CACHES, dtype=torch.uint8, device=self._layer.weight.device)
        return _seconds(run, lambda: others.add_(1))

    def _of_call(self, executor: Executor, places: int) -> float:
        weight = self._layer.weight
        x = torch.zeros(places, self._size, device=weight.device, dtype=weight.dtype)
        y = torch.zeros_like(x)
        others = weight.new_zeros(_CACHES // weight.element_size() // _WIDTH, _WIDTH)
        states = weight.new_zeros(_FEW, _WIDTH)
        executor.move(self._layer, self._layer.weight.device, now=True)

        def before() -> Tensor:
            nn.functional.linear(states, others)  # another layer; then what this one is given, and has made of it
            return x.zero_() + y.zero_()

        return _seconds(lambda: executor.run(self._layer, lambda *_, **__: y, (x,), {}), before)

    def _executor(self, path: Path, mode: Mode) -> Executor:
        network = NetworkCache(1).resolved(path, [self._index])
        stack = Stack([Entry(path)], mode=mode)
        key = PlanKey.of(stack, [network], [self._index])
        plan = make_plan(stack, key, {"unet": self._model}, {}, PlacementPolicy())
        return plan.executors[self._layer]


def _seconds(run: Callable[[], Tensor], before: Callable[[], Tensor]) -> float:
    """Return the seconds of a call, by the quicker ones of several.

    Args:
        run: it.
        before: called before each.
    """
    run()
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < _TURNS or time.perf_counter() - began < _ENOUGH:
        _wait_for(before())
        start = time.perf_counter()
        _wait_for(run())
        found.append(time.perf_counter() - start)
    return sorted(found)[len(found) // 4]


def _wait_for(tensor: Tensor) -> None:
    tensor[(0,) * tensor.ndim].item()
