"""Householder reflections of the input, https://arxiv.org/abs/2405.17484.

W' = W H, H = (I - 2 u_1 u_1^T) ... (I - 2 u_r u_r^T), u being the columns of `hra_u` (in * kernel, r) at length 1; with
`apply_GS` in PEFT's configuration they are made orthogonal first, and H = I - 2 sum u u^T. H - I has rank r:

    H - I = -U T U^T,  T^-1 = upper triangle of U^T U with its diagonal halved  (Joffrain et al., 2006)
          = B K B^T,   U = B S with orthonormal B, K = -S T S^T

The second form is the one to multiply with. HRA begins with equal pairs of u, whose reflections cancel; in B and K that
has happened before anything is rounded to half precision.

PEFT has no multiplier: it scales the complete effect, W' = W + m (W H - W). On a pointwise layer H acts on the input;
a convolution's is the low-rank pair (W B K, B^T), made once from the base weight. Source: huggingface/peft
tuners/hra/layer.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._product import LowRankInput
from ._rotation import pointwise
from ._rows import placed, unfit
from .base import Adapter, At, Factors, Form, InputEffect, Origin, Pair, Params, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class HRA(Adapter):
    """A chain of reflections of the input, H - I = B K B^T: as the vectors of the file, or solved as B and K."""

    vectors: Tensor  # u, or B (in, r)
    orthogonal: bool
    shape: tuple[int, ...]
    core: Tensor | None = None  # K (r, r)
    products: Tensor | None = None  # W B K (out, r), of a convolution once the weight is known

    name = "hra"
    params = Params(frozenset({"hra_u"}))
    row_fields = ("shape",)
    reads_base = by_rows = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        vectors = params["hra_u"]
        if vectors.ndim != 2 or vectors.shape[0] != site.inside or not 0 < vectors.shape[1] <= site.inside:
            raise unfit(f"hra_u ({site.inside}, r)", vectors)
        return cls(vectors, bool(origin.config.get("apply_GS", False)), site.shape)

    def _solved(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return B and K on `device`, in fp32 or in `dtype` if that is better; never write to them."""
        exact = wide(self.vectors.dtype, dtype)
        vectors = self.vectors.to(device, exact)
        if self.core is not None:
            return vectors, self.core.to(device, exact)
        eye = torch.eye(vectors.shape[1], device=device, dtype=exact)
        length = torch.linalg.vector_norm(vectors, dim=0).clamp_min(torch.finfo(exact).tiny)
        basis, upper = torch.linalg.qr(vectors / length)
        if self.orthogonal:
            return basis, -2 * eye
        products = (upper.T @ upper).triu(1) + eye / 2
        return basis, -upper @ torch.linalg.solve_triangular(products, upper.T, upper=True)

    def placed(self, device: torch.device) -> Self:
        """Copy it to `device` and solve it, so that a dense delta can be built at every call."""
        basis, core = self._solved(device, torch.float32)
        return super(HRA, replace(self, vectors=basis, core=core)).placed(device)

    def delta_weight(self, at: At) -> Tensor:
        basis, core = (at.put(one) for one in self._solved(at.device, at.dtype))
        delta = at.base.flatten(1) @ basis @ core @ basis.T
        return delta.mul_(at.multiplier).reshape(at.base.shape)

    def form(self, rank: int | None = None) -> Form:
        return Form(on_input=True) if pointwise(self.shape) else Form(Pair(self.vectors.shape[1], 1.0))

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        if pointwise(self.shape):
            return self
        weight = read()
        basis, core = self._solved(weight.device, weight.dtype)
        products = weight.flatten(1).to(basis.dtype) @ basis @ core
        return replace(self, vectors=basis, core=core, products=products)

    def factors(self, rank: int | None = None) -> Factors:
        assert self.products is not None  # once `on` has seen the base weight
        return Factors(self.vectors.T.reshape(-1, *self.shape[1:]), self.products)

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        basis, core = self._solved(device, dtype)
        return LowRankInput(placed(basis.T, device, dtype), placed(basis @ core, device, dtype))
