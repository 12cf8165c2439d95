"""C3A: a block of circulant matrices, https://arxiv.org/abs/2407.19342.

dW[m b + i, n b + j] = w[m, n, (j - i) mod b] / in, `c3a_kernel` w being (out / b, in / b, b). Source: huggingface/peft
tuners/c3a/layer.py and utils.py, which multiply by it with Fourier transforms.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._product import Built
from ._rows import unfit, within
from .base import Adapter, At, Origin, Params, Rows, Shapes, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class C3A(Built):
    kernel: Tensor  # (out / b, in / b, b)
    rows: Rows
    """The rows of the delta that are meant."""
    shape: tuple[int, ...]

    name = "c3a"
    params = Params(frozenset({"c3a_kernel"}))
    row_fields = ("rows", "shape")
    kinds = frozenset({"linear", "attention"})
    prefers_dense = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        kernel = params["c3a_kernel"]
        out, inside = site.shape[0], site.inside
        size = kernel.shape[-1] if kernel.ndim == 3 else 0
        if size == 0 or (kernel.shape[0] * size, kernel.shape[1] * size) != (out, inside):
            raise unfit(f"c3a_kernel ({out} / b, {inside} / b, b)", kernel)
        return cls(kernel, ((0, out),), (out, inside))

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        shape = shapes["c3a_kernel"]
        return (shape[0] * shape[2], shape[1] * shape[2]) if len(shape) == 3 else None

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        size, chosen = self.kernel.shape[2], self.rows if at.rows is None else within(self.rows, (at.rows,))
        windows = [torch.arange(start, stop, device=at.device) for start, stop in chosen]
        rows = windows[0] if len(windows) == 1 else torch.cat(windows)
        turn = (torch.arange(size, device=at.device) - rows.unsqueeze(1)) % size
        kernel = at.put(self.kernel)[rows // size]  # (rows, in / b, b)
        turned = kernel.gather(2, turn.unsqueeze(1).expand(kernel.shape))
        return turned.flatten(1), at.multiplier / self.shape[1]
