"""What an adapter is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import TensorFields


@dataclass(frozen=True, slots=True)
class Params:
    """The parameters an algorithm reads: all of `required`, any of `optional`, none besides."""

    required: frozenset[str]
    optional: frozenset[str] = frozenset()

    def claim(self, names: Collection[str]) -> bool:
        """Whether a group of parameters is exactly this algorithm's.

        A parameter nobody understands changes what the others mean (`dora_scale` beside a LoRA), so a group
        that has one is not claimed: it is reported, never half-applied.
        """
        return self.required <= set(names) <= self.required | self.optional


@dataclass(frozen=True, slots=True)
class Alpha:
    """Where the scale comes from: the file's alpha, and whether it is divided by r or by sqrt(r)."""

    value: float | None = None
    """None or 0 means scale 1, as in every trainer."""
    rank_stabilized: bool = False
    """rsLoRA, https://arxiv.org/abs/2312.03732."""

    def scale(self, rank: int) -> float:
        """alpha / rank."""
        if not self.value:
            return 1.0
        return self.value / (math.sqrt(rank) if self.rank_stabilized else rank)


@dataclass(frozen=True, slots=True)
class Pair:
    """The measures of a low-rank pair."""

    rank: int
    scale: float
    has_bias: bool = False


@dataclass(frozen=True, slots=True)
class Factors:
    """A weight delta as a product, `up @ down`, without the scale."""

    down: Tensor  # (rank, in, *kernel)
    up: Tensor  # (out, rank)
    bias: Tensor | None = None  # (out,), added to the output


class Adapter(TensorFields, ABC):
    """One algorithm's tensors for one layer.

    Tensors stay as the file has them: on the CPU, mapped, in the file's dtype. A copy is made where the layer is.
    """

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()
    params: ClassVar[Params]

    @classmethod
    @abstractmethod
    def from_params(cls, params: Mapping[str, Tensor], shape: tuple[int, ...], alpha: Alpha) -> Self:
        """Build from canonical parameters for a weight of logical `shape` (out, in, *kernel).

        Raises:
            ValueError: the tensors do not fit each other or the shape; the text says want and got.
        """

    @classmethod
    @abstractmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        """The shape of the weight that parameters of these shapes were made for; None where they do not tell."""

    @property
    @abstractmethod
    def rank(self) -> int | None:
        """The rank, where the algorithm has one."""

    @abstractmethod
    def delta_weight(self, dtype: torch.dtype, device: torch.device, rank: int | None = None) -> Tensor:
        """The dense change of the weight at multiplier 1, of the target's logical shape; `rank` cuts as `factors`."""

    def pair(self, rank: int | None = None) -> Pair | None:
        """What `factors` would give, told without touching any data; None where the algebra has no low-rank form."""
        return None

    def factors(self, rank: int | None = None) -> Factors:
        """The delta as one low-rank pair, cut to the first `rank` components. Only where `pair` is not None.

        The scale is not changed by a cut: DyLoRA trains every prefix of the ranks at the full scale.
        """
        raise TypeError(f"{self.name} has no low-rank form")
