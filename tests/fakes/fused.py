"""Layers that are one in a file and several in a model, the reverse, and swapped halves, under the names of Flux."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.fakes.files import save
from tests.fakes.kinds.base import Sample, Shape, Tensors

IN = 24
Make = Callable[[int], nn.Module]
"""A layer of so many outputs."""
Segment = tuple[str, int, int]
"""Layer of the model, first row, one past the last."""
Files = Mapping[str, tuple[Segment, ...]]
"""Layer of the file -> what it is made of."""


@dataclass(frozen=True)
class Scenario:
    """One tree in the model, the other in the file."""

    name: str
    model: Mapping[str, int]
    """Layer -> outputs."""
    file: Files


def _whole(sizes: Mapping[str, int]) -> tuple[Segment, ...]:
    return tuple((name, 0, size) for name, size in sizes.items())


def fused(native: str, sizes: Mapping[str, int]) -> tuple[Scenario, Scenario]:
    """Yield a fused layer's file on a model that has the layers apart, and the reverse."""
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = ((native, start, start + size),)
        start += size
    name = native.rpartition(".")[2]
    return (
        Scenario(f"{name} on parts", sizes, {native: _whole(sizes)}),
        Scenario(f"parts on {name}", {native: start}, parts),
    )


_ATTENTION = {f"transformer_blocks.0.attn.to_{part}": IN for part in "qkv"}
_SINGLE = {f"single_transformer_blocks.0.attn.to_{part}": IN for part in "qkv"}
_MLP = "single_transformer_blocks.0.proj_mlp"
_NORMS = ("final_layer.adaLN_modulation.1", "norm_out.linear")

QKV, PARTS = fused("double_blocks.0.img_attn.qkv", _ATTENTION)
UNEVEN, UNEVEN_PARTS = fused("single_blocks.0.linear1", {**_SINGLE, _MLP: 2 * IN})
EVEN, EVEN_PARTS = fused("single_blocks.0.linear1", {**_SINGLE, _MLP: IN})
SWAPPED, SWAPPED_BACK = (
    Scenario(f"{theirs} on {own}", {own: 2 * IN}, {theirs: ((own, IN, 2 * IN), (own, 0, IN))})
    for theirs, own in (_NORMS, _NORMS[::-1])
)
SCENARIOS = (QKV, PARTS, UNEVEN, UNEVEN_PARTS, SWAPPED, SWAPPED_BACK)


def linear(out: int) -> nn.Module:
    return nn.Linear(IN, out)


def plain(out: int) -> nn.Module:
    return nn.Linear(IN, out, bias=False)


def conv(out: int) -> nn.Module:
    return nn.Conv2d(IN, out, 3, padding=1)


class Blocks(nn.Module):
    """Layers under dotted names, all called with one input; their outputs one after the other."""

    def __init__(self, sizes: Mapping[str, int], make: Make = linear, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.names = tuple(sizes)
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            for name, size in sizes.items():
                self._put(name, make(size))
        self.to(dtype).requires_grad_(False).eval()

    def forward(self, sample: Tensor) -> Tensor:
        outputs = [self.get_submodule(name)(sample) for name in self.names]
        return torch.cat(outputs, 1 if sample.ndim == 4 else -1)

    def _put(self, name: str, layer: nn.Module) -> None:
        *parents, leaf = name.split(".")
        owner: nn.Module = self
        for parent in parents:
            if parent not in owner._modules:
                owner.add_module(parent, nn.Module())
            owner = owner.get_submodule(parent)
        owner.add_module(leaf, layer)


def joined(weights: Mapping[str, Tensor], segments: Sequence[Segment]) -> Tensor:
    """Rows of the model's layers as the file has them."""
    return torch.cat([weights[name][start:stop] for name, start, stop in segments])


def parameters(model: Blocks, kind: str) -> dict[str, Tensor]:
    """Layer -> a copy of its `weight` or `bias` in fp64; zeros for a bias it has not."""
    found = {}
    for name in model.names:
        layer = model.get_submodule(name)
        value = getattr(layer, kind)
        found[name] = (layer.weight.new_zeros(layer.weight.shape[0]) if value is None else value).double().clone()
    return found


@dataclass(frozen=True)
class Written:
    """A file, and what its layers hold as if each were called `layer`."""

    path: Path
    sample: Sample
    file: Files
    tensors: Mapping[str, Tensors]

    def add(self, model: Blocks, weights: dict[str, Tensor], biases: dict[str, Tensor], multiplier: float) -> None:
        """Add what the file does to the model's layers, by the definition on the weight as the file has it."""
        base, offsets = parameters(model, "weight"), parameters(model, "bias")
        for name, segments in self.file.items():
            whole, offset = joined(base, segments), joined(offsets, segments)
            change = self.sample.weight(self.tensors[name], whole, multiplier).reshape(whole.shape) - whole
            of_bias = self.sample.bias_delta(self.tensors[name], multiplier, offset)
            row = 0
            for layer, start, stop in segments:
                weights[layer][start:stop] += change[row : row + stop - start]
                if of_bias is not None:
                    biases[layer][start:stop] += of_bias[row : row + stop - start]
                row += stop - start


def shapes(scenario: Scenario, kernel: Shape = (), inside: int = IN) -> dict[str, Shape]:
    """Layer of the file -> shape of its weight."""
    return {
        name: (sum(stop - start for _, start, stop in segments), inside, *kernel)
        for name, segments in scenario.file.items()
    }


def write(
    folder: Path, sample: Sample, scenario: Scenario, seed: int = 0, kernel: Shape = (), inside: int = IN
) -> Written:
    """Return a file of one kind for all layers of the scenario's file."""
    own = {
        name: sample.tensors(shape, seed + i)
        for i, (name, shape) in enumerate(shapes(scenario, kernel, inside).items())
    }
    largest = max(own, key=lambda name: shapes(scenario)[name][0])
    for tensors in own.values():  # what all layers share is as large as the largest needs it
        tensors |= {key: value for key, value in own[largest].items() if not key.startswith(sample.prefix)}
    return Written(save_all(folder / f"{sample.name} {seed}", sample, own), sample, scenario.file, own)


def save_all(folder: Path, sample: Sample, tensors: Mapping[str, Tensors]) -> Path:
    """Save {layer: its parameters as if it were called `layer`} as one file."""
    folder.mkdir()
    if sample.config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(sample.config))
    renamed = {}
    for name, own in tensors.items():
        spelled = name if "." in sample.prefix[:-1] else name.replace(".", "_")
        renamed |= {key.replace(sample.prefix, sample.prefix.replace("layer", spelled)): own[key] for key in own}
    return save(folder / "adapter_model.safetensors", renamed, sample.metadata)


def defined(model: Blocks, x: Tensor, files: Sequence[tuple[Written, float]]) -> Tensor:
    """Return the outputs by the definitions of all files in fp64, each against the base weight."""
    weights, biases = parameters(model, "weight"), parameters(model, "bias")
    for written, multiplier in files:
        written.add(model, weights, biases, multiplier)
    outputs = []
    for name in model.names:
        if x.ndim == 4:
            outputs.append(nn.functional.conv2d(x.double(), weights[name], biases[name], padding=1))
        else:
            outputs.append(nn.functional.linear(x.double(), weights[name], biases[name]))
    return torch.cat(outputs, 1 if x.ndim == 4 else -1)
