"""How web UIs apply a LoRA: its dense product is written into the weights. Re-created from what the hosts do.

SD.Next's native method walks every layer when the wish changes, before the model runs. It computes the delta in the
dtype of the weight and puts a new Parameter on the device it takes the component to be on. In its default mode, fuse,
it keeps no backup: to remove a network it computes the delta again and subtracts it. The other mode keeps a copy of
each weight on the CPU. A1111 does the same lazily, inside each layer's forward, in place, always with backups.

Both serve here as they are, mistakes included, for comparison with adapters that write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

CPU = torch.device("cpu")

Layer = nn.Linear | nn.Conv2d


@dataclass
class LoadedNetwork:
    """A file in the host's cache. The multiplier belongs to it, so all who hold the network see it change."""

    modules: Mapping[str, tuple[Tensor, Tensor, float]]
    """Layer name in the file -> up, down, scale."""
    multiplier: float = 1.0

    @classmethod
    def load(cls, path: Path) -> LoadedNetwork:
        tensors = load_file(path)
        names = {key.removesuffix(".alpha") for key in tensors if key.endswith(".alpha")}
        modules = {}
        for name in sorted(names):
            up, down = tensors[f"{name}.lora_up.weight"], tensors[f"{name}.lora_down.weight"]
            modules[name] = (up, down, float(tensors[f"{name}.alpha"]) / down.shape[0])
        return cls(modules)

    def delta(self, name: str, weight: Tensor, where: torch.device) -> Tensor:
        """Compute the change of one weight on `where`, in the dtype the weight has."""
        up, down, scale = self.modules[name]
        up, down = up.to(where, weight.dtype), down.to(where, weight.dtype)
        return (up.flatten(1) @ down.flatten(1)).reshape(weight.shape) * (scale * self.multiplier)


def layers_of(component: nn.Module, prefix: str = "lora_unet") -> Iterator[tuple[str, Layer]]:
    """Yield (name in files, layer), as the hosts stamp them on the modules."""
    for path, layer in component.named_modules():
        if isinstance(layer, Layer):
            yield f"{prefix}_{path.replace('.', '_')}", layer


def first_parameter(component: nn.Module) -> torch.device:
    """Where diffusers says that a component is: a component is asked as a whole."""
    return next(component.parameters()).device


class SDNextNative:
    """SD.Next's native method for one component.

    Args:
        component: what is baked into.
        compute: the host's compute device.
        fuse: the default mode, without backups.
        where: what the host takes for the component's device when it writes a weight.
        limit: `lora_in_memory_limit`; 0 loads a file anew each time, so that nobody shares a network.
    """

    def __init__(
        self,
        component: nn.Module,
        compute: torch.device = CPU,
        *,
        fuse: bool = True,
        where: Callable[[nn.Module], torch.device] = first_parameter,
        limit: int = 1,
    ) -> None:
        self.component = component
        self.compute = compute
        self.fuse = fuse
        self.where = where
        self.limit = limit
        self.backups: dict[str, Tensor] = {}
        self._cache: dict[Path, LoadedNetwork] = {}
        self._previous: list[LoadedNetwork] = []

    def activate(self, wishes: Mapping[Path, float]) -> None:
        """Make the weights be those of the wished files; an empty wish removes all."""
        loaded = [self._load(path, multiplier) for path, multiplier in wishes.items()]
        where = self.where(self.component)
        for name, layer in layers_of(self.component):
            if any(name in network.modules for network in (*self._previous, *loaded)):
                self._deactivate(name, layer, where)
                self._apply(name, layer, loaded, where)
        self._previous = loaded

    def _load(self, path: Path, multiplier: float) -> LoadedNetwork:
        network = self._cache.get(path) or LoadedNetwork.load(path)
        if self.limit:
            self._cache[path] = network
        network.multiplier = multiplier  # of the cached object, which may be among the previous ones
        return network

    def _deactivate(self, name: str, layer: Layer, where: torch.device) -> None:
        if not self.fuse:
            if name in self.backups:
                _replace(layer, self.backups[name], where)
            return
        for network in self._previous:
            if name in network.modules:
                weight = layer.weight.to(self.compute)
                _replace(layer, weight - network.delta(name, weight, self.compute), where)

    def _apply(self, name: str, layer: Layer, loaded: list[LoadedNetwork], where: torch.device) -> None:
        wanted = [network for network in loaded if name in network.modules]
        if wanted and not self.fuse and name not in self.backups:
            self.backups[name] = layer.weight.detach().to(CPU, copy=True)
        for network in wanted:
            weight = layer.weight.to(self.compute)
            _replace(layer, weight + network.delta(name, weight, self.compute), where)


def _replace(layer: Layer, weight: Tensor, where: torch.device) -> None:
    layer.weight = nn.Parameter(weight.to(where, copy=True), requires_grad=False)


class A1111Lazy:
    """A1111's built-in extension: class forwards compare what is wanted with what is baked, and bake."""

    def __init__(self, component: nn.Module) -> None:
        self.wanted: tuple[tuple[str, float], ...] = ()
        self.backups: dict[str, tuple[Tensor, Tensor | None]] = {}
        self._names = {layer: name for name, layer in layers_of(component)}
        self._baked: dict[str, tuple[tuple[str, float], ...]] = {}
        self._networks: dict[str, LoadedNetwork] = {}

    def activate(self, wishes: Mapping[Path, float]) -> None:
        """Note what is wanted; each layer bakes when it is called."""
        for path, multiplier in wishes.items():
            network = self._networks.setdefault(str(path), LoadedNetwork.load(path))
            network.multiplier = multiplier
        self.wanted = tuple((str(path), multiplier) for path, multiplier in wishes.items())

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Patch the classes, as its start does; the end of it puts back what it found."""
        found = {cls: cls.forward for cls in (nn.Linear, nn.Conv2d)}

        def baking(cls: type[nn.Module]) -> Callable[..., Tensor]:
            def forward(layer: Layer, x: Tensor) -> Tensor:
                self._apply(layer)
                y: Tensor = found[cls](layer, x)
                return y

            return forward

        for cls in found:
            cls.forward = baking(cls)
        try:
            yield
        finally:
            for cls, forward in found.items():
                cls.forward = forward

    def _apply(self, layer: Layer) -> None:
        name = self._names.get(layer)
        if name is None or self._baked.get(name, ()) == self.wanted:
            return
        if name not in self.backups:  # of every layer, whether a network changes it or not
            bias = None if layer.bias is None else layer.bias.detach().to(CPU, copy=True)
            self.backups[name] = (layer.weight.detach().to(CPU, copy=True), bias)
        weight, bias = self.backups[name]
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
        for path, _ in self.wanted:
            network = self._networks[path]
            if name in network.modules:
                wide = layer.weight.float()
                layer.weight.copy_(wide + network.delta(name, wide, wide.device))  # in the dtype of storage again
        self._baked[name] = self.wanted


def glora_delta(weight: Tensor, factors: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Compute GLoRA's change, which contains the base weight itself: b2 b1 + W a2 a1, as the file has its factors."""
    a1, a2, b1, b2 = (factor.to(weight.device) for factor in factors)
    return b2 @ b1 + weight @ a2 @ a1
