"""Single layers of every kind, in a model that has them under the name `layer`."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


class Model(nn.Module):
    """One layer under a name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output; of attention, the first output."""
        if isinstance(self.layer, nn.MultiheadAttention):
            attended: Tensor = self.layer(x, x, x, need_weights=False)[0]
            return attended
        result: Tensor = self.layer(x)
        return result


LAYERS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": ("linear", lambda: nn.Linear(24, 48), (3, 7, 24)),
    "linear without bias, one row": ("linear", lambda: nn.Linear(24, 48, bias=False), (24,)),
    "linear, many tokens": ("linear", lambda: nn.Linear(48, 24), (2, 90, 48)),
    "square linear, 4-d": ("linear", lambda: nn.Linear(24, 24), (2, 3, 5, 24)),
    "conv 1x1": ("conv", lambda: nn.Conv2d(24, 48, 1), (2, 24, 5, 7)),
    "conv 3x3, stride": ("conv", lambda: nn.Conv2d(24, 48, 3, stride=2, padding=1), (2, 24, 9, 7)),
    "conv 3x5, same, dilation, no bias": (
        "conv",
        lambda: nn.Conv2d(24, 24, (3, 5), padding="same", dilation=2, bias=False),
        (1, 24, 9, 7),
    ),
    "conv 3x3, circular, unbatched": (
        "conv",
        lambda: nn.Conv2d(24, 24, 3, padding=1, padding_mode="circular"),
        (24, 5, 7),
    ),
    "conv 1-d": ("conv", lambda: nn.Conv1d(24, 48, 5, padding=2), (2, 24, 9)),
    "conv 3-d": ("conv", lambda: nn.Conv3d(24, 24, 3, padding=1), (1, 24, 3, 5, 4)),
    "conv grouped": ("grouped", lambda: nn.Conv2d(24, 48, 3, padding=1, groups=4), (2, 24, 5, 7)),
    "embedding": ("embedding", lambda: nn.Embedding(50, 24), (2, 9)),
    "layer norm": ("norm", lambda: _randomized(nn.LayerNorm(24)), (3, 7, 24)),
    "group norm": ("norm", lambda: _randomized(nn.GroupNorm(4, 24)), (2, 24, 5, 7)),
    "rms norm": ("norm without bias", lambda: _randomized(_rms_norm(24)), (3, 7, 24)),
    "attention out": ("attention", lambda: _randomized(nn.MultiheadAttention(24, 4)), (5, 2, 24)),
    "attention q": ("attention", lambda: _randomized(nn.MultiheadAttention(24, 4)), (5, 2, 24)),
}

WEIGHTS = {"attention out": ("out_proj.weight", None), "attention q": ("in_proj_weight", (0, 24))}
"""Parameter and window of rows, where it is not the whole of `weight`."""
NAMES = {"attention out": "layer.out_proj", "attention q": "layer.q_proj"}
"""What adapters call it, where that is not `layer`."""


def make(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Model, Tensor]:
    """Return a model of one layer, and an input for it."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        kind, build, size = LAYERS[name]
        model = Model(build()).to(dtype).requires_grad_(False).eval()
        x = torch.randint(0, 50, size) if kind == "embedding" else torch.randn(size, dtype=dtype)
    return model, x


def weight_of(model: Model, name: str) -> Tensor:
    """Return the weight that adapters for the layer change, or a window of it, as a view."""
    path, rows = WEIGHTS.get(name, ("weight", None))
    weight = model.layer.get_parameter(path).data
    return weight if rows is None else weight[slice(*rows)]


def bias_of(model: Model, name: str) -> Tensor | None:
    """Return the bias beside that weight as a view."""
    path, rows = {"attention out": ("out_proj.bias", None), "attention q": ("in_proj_bias", (0, 24))}.get(
        name, ("bias", None)
    )
    owner, _, leaf = path.rpartition(".")
    bias = getattr(model.layer.get_submodule(owner), leaf, None)
    return None if bias is None else bias.data if rows is None else bias.data[slice(*rows)]


def exact(model: Model) -> Model:
    """Return a copy in fp64, without adapters."""
    return copy.deepcopy(model).double()


def _rms_norm(width: int) -> nn.Module:
    if not hasattr(nn, "RMSNorm"):
        pytest.skip("nn.RMSNorm came with torch 2.4")
    return nn.RMSNorm(width)


def _randomized(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.5 if parameter.ndim == 1 else 0.0, 0.3)
    return layer
