"""What a sample is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tests.fakes.files import save

Shape = tuple[int, ...]
Tensors = dict[str, Tensor]

KOHYA = "lora_unet_layer."
PEFT = "base_model.model.layer."


@dataclass(frozen=True)
class Sample:
    """One form of one kind."""

    name: str
    recipe: str
    """Name of the recipe that must read it, such as `lora` or `lora+dora`."""
    make: Callable[[Shape, torch.Generator], Tensors]
    """The parameters, by their names in the file without the prefix, for a weight of a shape (out, in, *kernel)."""
    effective: Callable[[Tensors, Tensor, float], Tensor]
    """W' of the parameters (fp64), W (fp64) and the multiplier."""
    layers: frozenset[str] = frozenset({"linear", "conv", "grouped", "attention"})
    """The kinds of layer it is for, or single layers by their names in `fakes.layers`."""
    bias: Callable[[Tensors, float], Tensor] | None = None
    """The change of the bias of the parameters (fp64) and the multiplier."""
    bias_factor: Callable[[Tensors, float], Tensor] | None = None
    """What a bias that is there is multiplied by."""
    prefix: str = KOHYA
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, object] | None = None
    """The `adapter_config.json` beside the file."""
    additive: bool = True
    """Whether dW does not depend on W, so that the order of a stack makes no difference even as A1111 bakes."""

    def tensors(self, shape: Shape, seed: int = 0) -> Tensors:
        """Return a whole file for the layer `layer`."""
        made = self.make(shape, torch.Generator().manual_seed(seed))
        return {name if name.startswith("base_model.") else self.prefix + name: value for name, value in made.items()}

    def write(self, folder: Path, shape: Shape, seed: int = 0, layer: str = "layer") -> tuple[Path, Tensors]:
        """Return a file for a layer, and its tensors as if the layer were called `layer`."""
        tensors = self.tensors(shape, seed)
        folder = folder / f"{self.name} {seed}"
        folder.mkdir()
        spelled = layer if "." in self.prefix[:-1] else layer.replace(".", "_")
        prefix = self.prefix.replace("layer", spelled)
        renamed = {key.replace(self.prefix, prefix): value for key, value in tensors.items()}
        if self.config is not None:
            (folder / "adapter_config.json").write_text(json.dumps(self.config))
        name = "a" if self.config is None else "adapter_model"  # to which alone a configuration belongs
        return save(folder / f"{name}.safetensors", renamed, self.metadata), tensors

    def weight(self, tensors: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        """W' in fp64 from a file's tensors."""
        own = {name.removeprefix(self.prefix): value.double() for name, value in tensors.items()}
        return self.effective(own, weight.double(), multiplier)

    def bias_delta(self, tensors: Tensors, multiplier: float, bias: Tensor | None) -> Tensor | None:
        """Return the change of the layer's bias in fp64, or None."""
        own = {name.removeprefix(self.prefix): value.double() for name, value in tensors.items()}
        delta = None if self.bias is None else self.bias(own, multiplier)
        if bias is None or self.bias_factor is None:
            return delta
        scaled = bias.double() * (self.bias_factor(own, multiplier) - 1)
        return scaled if delta is None else scaled + delta


FEW = frozenset({"linear", "conv 1x1", "conv 3x3, stride", "conv 3-d", "conv grouped", "attention q"})
"""Layers for a further form of a kind, of which another form is on all of them."""


def randn(generator: torch.Generator, *shape: int, size: float = 0.3) -> Tensor:
    """Return normal numbers of a standard deviation."""
    return torch.randn(*shape, generator=generator) * size
