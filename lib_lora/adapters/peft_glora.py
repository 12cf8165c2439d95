"""GLoRA as PEFT has it, https://arxiv.org/abs/2306.07967: dW = m (W * A + B), db = m (b * D + E + W C).

A and B (out, in) are a pair each, a vector over the outputs or a number, C (in, 1) a pair or a vector, D and E vectors
over the outputs or numbers; what is none is not in the file, or zeros. The product by A is one of entries, unlike the
one of LyCORIS' `glora`. Source: huggingface/peft tuners/glora/layer.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import TensorFields, wide
from ._rows import shape_text, taken
from .base import Adapter, At, Origin, Params, Rows, Shapes, Site, Tensors

_PARTS = ("Xd", "Xu", "X", "zeros")
_NAMES = {letter: {part: f"glora_{letter}.{part}" for part in _PARTS} for letter in "ABCDE"}


@dataclass(frozen=True, slots=True, eq=False)
class _Path(TensorFields):
    """A matrix as a pair, or as a vector or a number for all its columns."""

    left: Tensor  # (rows, r) or (rows, 1)
    right: Tensor | None  # (r, columns)

    @classmethod
    def of(cls, params: Tensors, letter: str, rows: int, columns: int) -> Self | None:
        """Read a path; None where there is none. Raise ValueError if it is of another shape than (rows, columns)."""
        names = _NAMES[letter]
        left, right, value = (params.get(names[part]) for part in _PARTS[:3])
        if value is not None and value.numel() in (1, rows):
            return cls(value.reshape(-1, 1).expand(rows, 1), None)
        if (
            left is not None
            and right is not None
            and (*left.shape, *right.shape) == (rows, *right.shape[:1] * 2, columns)
        ):
            return cls(left, right)
        own = [f"{name} {shape_text(params[name])}" for name in names.values() if name in params]
        if all(name.startswith(names["zeros"]) for name in own):
            return None
        raise ValueError(f"want glora_{letter} ({rows}, {columns}), got {', '.join(own)}")

    def take(self, rows: Rows) -> Self:
        return replace(self, left=taken(self.left, rows))

    def matrix(self, at: At) -> Tensor:
        """Return what broadcasts to the wanted rows and columns."""
        left = at.cut(self.left)
        return left if self.right is None else left @ at.put(self.right)

    def vector(self) -> Tensor:
        """Return the only column, (rows,), in fp32 or better."""
        left = self.left.to(wide(self.left.dtype))
        return (left if self.right is None else left @ self.right.to(left)).flatten()


@dataclass(frozen=True, slots=True, eq=False)
class PeftGLoRA(Adapter):
    factor: _Path | None  # A
    summand: _Path | None  # B
    of_inputs: _Path | None  # C
    bias_factor: _Path | None  # D
    bias: _Path | None  # E
    from_weight: Tensor | None = None  # (out,), W C, once the weight is known

    name = "peft_glora"
    params = Params(frozenset(), frozenset(name for names in _NAMES.values() for name in names.values()))
    row_fields = ("factor", "summand", "bias_factor", "bias", "from_weight")
    kinds = frozenset({"linear"})
    reads_base = by_rows = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        out, inside = site.shape[0], site.inside
        a, b, d, e = (_Path.of(params, one, out, inside if one in "AB" else 1) for one in "ABDE")
        return cls(a, b, _Path.of(params, "C", inside, 1), d, e)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        for names in (_NAMES["A"], _NAMES["B"]):
            if names["Xd"] in shapes and names["Xu"] in shapes:
                return (*shapes[names["Xd"]][:1], *shapes[names["Xu"]][1:])
        return None

    @property
    def has_bias(self) -> bool:
        return self.bias is not None or self.of_inputs is not None

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        if self.of_inputs is None:
            return self
        vector = self.of_inputs.vector()
        weight = read()
        return replace(self, from_weight=weight.flatten(1).to(vector.dtype) @ vector.to(weight.device))

    def delta_bias(self) -> Tensor:
        own = None if self.bias is None else self.bias.vector()
        found = own if self.of_inputs is None else self.from_weight
        assert found is not None  # once `on` has seen the base weight
        return found if own is None or own is found else own.to(found) + found

    @property
    def bias_excess(self) -> Tensor | None:
        return None if self.bias_factor is None else self.bias_factor.vector()

    def delta_weight(self, at: At) -> Tensor:
        weight = at.base.flatten(1)
        delta = torch.zeros_like(weight) if self.factor is None else weight * self.factor.matrix(at)
        if self.summand is not None:
            delta += self.summand.matrix(at)
        return delta.mul_(at.multiplier).reshape(at.base.shape)
