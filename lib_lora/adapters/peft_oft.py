"""OFT as PEFT and OneTrainer train it, https://arxiv.org/abs/2506.19847: block rotations of the input.

`oft_R.weight` (k, b (b - 1) / 2) holds the upper triangles of skew Q; one row is for every block. x' = x R as a row,
W' = W R^T, with R by default no rotation but the series I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4, otherwise the Cayley transform
(I - Q)(I + Q)^-1, the same series for -Q: PEFT's two branches are each other's transpose. `use_cayley_neumann`,
`num_cayley_neumann_terms`, `coft` and `eps` are in PEFT's configuration.

OneTrainer always takes the series of 5 terms. Its `scaled_oft` says that Q is to be divided by 2 sqrt(b - 1), and on
convolutions its forward makes W' = W R, not transposed. A convolution's blocks are of in * kernel entries. PEFT's own
forward there adds up the overlapping patches of its input, so that not even Q = 0 leaves the layer as it is; its
merged weight is the definition here. Neither trainer has a multiplier: it lerps R to I.

Sources: huggingface/peft tuners/oft/layer.py; Nerogar/OneTrainer modules/module/oft_utils.py, LoRAModule.py.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ._rotation import InputRotation, Turn, cayley
from ._rows import unfit
from .base import Adapter, Origin, Params, Site, Tensors


class PeftOFT(InputRotation):
    """Block rotation of the input."""

    name = "peft_oft"
    params = Params(frozenset({"oft_R.weight"}), frozenset({"oft_R.scaled_oft"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        triangles = params["oft_R.weight"]
        size = _block_size(triangles, site.inside)
        scaled = "oft_R.scaled_oft" in params and bool(params["oft_R.scaled_oft"].any())
        onetrainer = scaled or origin.spelling != "peft" or any(name.startswith("ot_") for name in origin.metadata)
        solve = partial(
            _solve,
            size=size,
            scale=1 / (2 * math.sqrt(size - 1)) if scaled else 1.0,
            terms=5 if onetrainer else _terms(origin.config),
            bound=None if onetrainer else _bound(origin.config),
            transposed=onetrainer and site.kind == "conv",
        )
        return cls(Turn(triangles, solve), site.shape)


def _block_size(triangles: Tensor, width: int) -> int:
    entries = triangles.shape[1] if triangles.ndim == 2 else 0
    size = (1 + math.isqrt(1 + 8 * entries)) // 2
    fits = entries > 0 and size * (size - 1) // 2 == entries and width % size == 0
    if not fits or triangles.shape[0] not in (1, width // size):
        raise unfit(f"oft_R (k or 1, b (b - 1) / 2) with k * b = {width}", triangles)
    return size


def _terms(config: Mapping[str, object]) -> int | None:
    """Return the number of terms of the series; None for the exact transform."""
    if not config.get("use_cayley_neumann", True):
        return None
    terms = config.get("num_cayley_neumann_terms", 5)
    return terms if isinstance(terms, int) else 5


def _bound(config: Mapping[str, object]) -> float | None:
    """Return the largest norm of each block's Q times the square root of the number of blocks; None if it has none."""
    eps = config.get("eps", 6e-5)
    return float(eps) if config.get("coft", False) and isinstance(eps, int | float) else None


def _solve(
    triangles: Tensor, *, size: int, scale: float, terms: int | None, bound: float | None, transposed: bool
) -> Tensor:
    """Return the matrix that acts on x as a column, less I: R^T - I, or R - I if `transposed`."""
    rows, columns = torch.triu_indices(size, size, 1, device=triangles.device)
    q = triangles.new_zeros(triangles.shape[0], size, size)
    q[:, rows, columns] = triangles * scale
    q = q - q.transpose(1, 2)
    if bound is not None:
        norms = torch.linalg.vector_norm(q, dim=(1, 2), keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        q = q * (bound / math.sqrt(q.shape[0]) / norms).clamp_max(1.0)
    turned = cayley(q) if terms is None else _series(-q, terms)
    return turned.transpose(1, 2).contiguous() if transposed else turned


def _series(q: Tensor, terms: int) -> Tensor:
    """Return 2 Q + 2 Q^2 + ... + Q^last, the Cayley series as PEFT cuts it: never after the square."""
    if terms < 2:
        return torch.zeros_like(q)
    total, power = 2 * q, q
    last = max(terms - 1, 3) if terms > 2 else 1
    for exponent in range(2, last + 1):
        power = power @ q
        total = total + (power if exponent == last else 2 * power)
    return total
