"""What an adapter is.

An adapter changes one weight: W' = W + dW(m), m being the user's multiplier. It says so in up to two ways, which the
tests hold against each other:

- dense, always: `delta_weight`, the definition;
- beside the layer, where the algebra allows: `form` tells which parts there are, and `factors`, `input_effect` and
  `output_effect` give them. The layer then computes
  y = W (x + sum of changes of the input) + b + sum of pairs (x) + sum of changes of the output,
  in which the base weight only ever appears in the layer's own forward, so that it may be stored in any way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from ..files.reading import USUAL, Alpha, Reading
from ..tensors import TensorFields
from ..weights.operation import Operation

Kind = Literal["linear", "conv", "embedding", "norm", "attention"]
Rows = tuple[tuple[int, int], ...]
"""Windows of output rows, one after the other."""


@dataclass(frozen=True, slots=True)
class Params:
    """The parameters an algorithm reads: all of `required`, any of `optional`, none besides."""

    required: frozenset[str]
    optional: frozenset[str] = frozenset()

    def claim(self, names: Mapping[str, object]) -> bool:
        """Whether a group of parameters is exactly this algorithm's.

        A parameter nobody understands changes what the others mean, so a group that has one is not claimed: it is
        reported, never half-applied.
        """
        return self.required <= set(names) <= self.required | self.optional


@dataclass(frozen=True, slots=True)
class Site:
    """The weight an adapter is for."""

    shape: tuple[int, ...]
    """Logical: (out, in / groups, *kernel), (entries, width) of an embedding, (channels,) of a norm."""
    kind: Kind = "linear"
    groups: int = 1
    takes_bias: bool = True
    """False for layers that never add one, such as RMSNorm."""

    @property
    def inside(self) -> int:
        """Entries of one output row: in / groups * kernel."""
        return math.prod(self.shape[1:])

    def take(self, rows: Rows) -> Site:
        """The same with some of its rows alone."""
        return replace(self, shape=shape_of(self.shape, rows))


_NO_ALPHA = Alpha()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a file says about an adapter beside the adapter's own parameters."""

    alpha: Alpha = _NO_ALPHA
    spelling: str = ""
    """Name of the key format. Two trainers may mean different things by one parameter's name."""
    config: Mapping[str, object] = field(default_factory=dict)
    """The trainer's configuration of this component (PEFT's `adapter_config.json`)."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The header's."""
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that all adapters of the file use."""
    module: str = ""
    """The layer, as the file spells it: dotted, or flattened."""
    reading: Reading = USUAL
    """What the user makes of files that trainers and programs read in two ways."""


@dataclass(frozen=True, slots=True)
class At:
    """Where a dense delta is computed, in what dtype, and how much of it."""

    device: torch.device
    dtype: torch.dtype
    multiplier: Tensor | float = 1.0
    """A number, or a tensor of one."""
    rank: int | None = None
    """Use only the first so many rank components."""
    rows: tuple[int, int] | None = None
    """Only these rows of the delta. Given to adapters that say `by_rows`."""
    columns: tuple[int, int] | None = None
    """Only these columns of the delta as (out, in * kernel). Given to adapters that say `by_columns`."""
    weight: Tensor | None = None
    """The base weight (its `rows`, or its `columns` as a matrix) in `dtype`, not to be written to.

    Given to adapters that say `reads_base`.
    """

    def put(self, tensor: Tensor) -> Tensor:
        """A parameter where the delta is computed."""
        return tensor.to(self.device, self.dtype)

    def cut(self, tensor: Tensor) -> Tensor:
        """The wanted rows of a parameter that has one row per output, where the delta is computed."""
        return self.put(tensor if self.rows is None else tensor[slice(*self.rows)])

    def across(self, tensor: Tensor) -> Tensor:
        """The wanted columns of a parameter that has one per input and place of the kernel, as a matrix, likewise."""
        matrix = tensor.flatten(1)
        return self.put(matrix if self.columns is None else matrix[:, slice(*self.columns)])

    def shaped(self, delta: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A delta that was computed as a matrix, in the shape of the weight; a matrix still if of `columns`."""
        return delta if self.columns is not None else delta.reshape(-1, *shape[1:])

    @property
    def base(self) -> Tensor:
        """The base weight.

        Raises:
            TypeError: an adapter asks for it that did not say so.
        """
        if self.weight is None:
            raise TypeError("the base weight is given only to adapters that say reads_base")
        return self.weight

    def fully(self) -> At:
        """The same at multiplier 1."""
        return replace(self, multiplier=1.0)


@dataclass(frozen=True, slots=True)
class RankSchedule:
    """How many ranks act at a timestep: few in noise, all at the end. T-LoRA, https://arxiv.org/abs/2507.05964."""

    max_rank: int
    min_rank: int = 1
    power: float = 1.0
    steps: int = 1000
    """The timestep of pure noise."""

    def first(self, timestep: float) -> int:
        """The number of ranks that act, from the first; `timestep` is between 0 and `steps`."""
        done = min(max((self.steps - timestep) / self.steps, 0.0), 1.0)
        return min(int(done**self.power * (self.max_rank - self.min_rank)) + self.min_rank, self.max_rank)


@dataclass(frozen=True, slots=True)
class Pair:
    """The measures of a low-rank pair."""

    rank: int
    scale: float
    schedule: RankSchedule | None = None
    """Which ranks act when; without a timestep all do."""
    per_rank: int = 1
    """How many components of the pair make one rank of the schedule; they lie together."""


@dataclass(frozen=True, slots=True)
class Factors:
    """A weight delta as a product, `up @ down`, without the scale."""

    down: Tensor  # (rank, in, *kernel)
    up: Tensor  # (out, rank)


@dataclass(frozen=True, slots=True)
class Form:
    """The parts an adapter has beside its layer. Its effect is their sum."""

    pair: Pair | None = None
    on_input: bool = False
    on_output: bool = False


class InputEffect(TensorFields, ABC):
    """A change of a layer's input, placed where the layer computes; dx so that the delta is W dx."""

    @abstractmethod
    def delta(self, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        """The change of `x`, in its dtype.

        Args:
            x: the layer's input.
            multiplier: of one element, or one for each row of the batch, (rows, 1, …) with the dimensions of `x`. So it
                broadcasts to what has the rows of `x`, and to `op.per_channel`'s shape; see `at_multiplier`.
            op: the layer's product.
        """


class OutputEffect(TensorFields, ABC):
    """A change of a layer's output, placed where the layer computes."""

    @property
    def reads_output(self) -> bool:
        """False where `delta` looks at `x` alone, which spares a layer with input effects a second base call."""
        return True

    @abstractmethod
    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        """The change of the output at a multiplier.

        Args:
            x: the layer's input.
            y: the base output without the bias, W x, not to be written to; only where `reads_output`.
            multiplier: of one element, or one for each row of the batch, as with an input effect.
            op: the layer's product.
        """


class Adapter(TensorFields, ABC):
    """One algorithm's tensors for one layer.

    Tensors stay as the file has them: on the CPU, mapped, in the file's dtype. A copy is made where the layer is.
    """

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()
    params: ClassVar[Params]
    shared: ClassVar[frozenset[str]] = frozenset()
    """Parameters it reads that all layers of a file share."""
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "conv", "attention"})
    """The kinds of layer it is defined for."""

    @classmethod
    def claims(cls, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether parameters of these names (and, where names do not tell, shapes) are exactly this algorithm's."""
        return cls.params.claim(shapes)

    @classmethod
    @abstractmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        """Build from canonical parameters for the weight at `site`.

        Raises:
            ValueError: the tensors do not fit each other or the site; the text says want and got.
        """

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        """The shape of the weight that parameters of these shapes were made for; None where they do not tell."""
        return None

    @property
    def rank(self) -> int | None:
        """The rank, where the algorithm has one."""
        return None

    @property
    def reads_base(self) -> bool:
        """Whether `delta_weight` needs the base weight, so that stacking in order differs from adding up."""
        return False

    @property
    def reads_whole(self) -> bool:
        """Whether `on` is to be given the whole weight that the file's layer is for, not only the layer's own."""
        return False

    @property
    def by_rows(self) -> bool:
        """Whether `delta_weight` can give some rows alone."""
        return False

    @property
    def by_columns(self) -> bool:
        """Whether `delta_weight` can give some columns alone, of no more of the base weight than these."""
        return False

    @property
    def dense_for_many(self) -> bool:
        """Whether an effective weight is cheaper than `form` for more tokens than a linear layer has inputs."""
        return False

    @property
    def prefers_dense(self) -> bool:
        """Whether an effective weight is cheaper than the parts beside the layer, where the base weight is at hand."""
        return False

    @property
    def has_bias(self) -> bool:
        """Whether it changes the layer's bias too."""
        return False

    @abstractmethod
    def delta_weight(self, at: At) -> Tensor:
        """The dense change of the weight at `at.multiplier`, of the site's shape, new memory. Zero at multiplier 0."""

    def delta_bias(self) -> Tensor:
        """The change of the bias at multiplier 1, (out,); proportional to the multiplier. Only where `has_bias`."""
        raise TypeError(f"{self.name} changes no bias")

    @property
    def bias_excess(self) -> Tensor | None:
        """What the layer's own bias is multiplied by, less 1, (out,), at multiplier 1; None where it is left alone.

        Proportional to the multiplier. For the dense ways: an output effect has the bias at hand, in `op`.
        """
        return None

    def change_of_bias(self, bias: Tensor | None) -> Tensor | None:
        """The whole change of a layer's bias at multiplier 1, for the dense ways; None where there is none.

        Args:
            bias: the layer's own (out,), where the change is computed and in the dtype for that; None if it has none.
        """
        excess = None if bias is None else self.bias_excess
        scaled = None if bias is None or excess is None else bias * excess.to(bias)
        if not self.has_bias:
            return scaled
        delta = self.delta_bias()
        return delta if scaled is None else delta.to(scaled) + scaled

    def form(self, rank: int | None = None) -> Form | None:
        """Which parts it has beside the layer, told without touching any data; None where only dense."""
        return None

    @property
    def ranks_by_timestep(self) -> RankSchedule | None:
        """Which ranks act when; None where all always do."""
        form = self.form()
        return None if form is None or form.pair is None else form.pair.schedule

    def take(self, rows: Rows) -> Adapter | None:
        """The adapter for some rows of its weight alone, in this order, as if these were all; views where it can.

        For a layer that is one in the file and several in the model.

        Returns:
            None where the change of these rows depends on the other rows of the weight. Where it does only through
            what `on` finds out (norms, singular vectors), the adapter that `on` returns is not None here.
        """
        return None

    def outlined(self, rows: Rows) -> Adapter | None:
        """What `take` will give once `on` has seen the whole weight, as far as `form` tells; None where it will not."""
        return self.take(rows)

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        """The adapter for one particular base weight: itself, unless norms or singular vectors of W are part of it.

        Called once per layer and activation, before `factors` and the effects.

        Args:
            read: gives the base weight, in any floating dtype; may be slow, so it is called at most once.
            rank: how many rank components are used, if not all.
        """
        return self

    def factors(self, rank: int | None = None) -> Factors:
        """The pair, cut to the first `rank` components. Only where `form` has one.

        The scale is not changed by a cut: DyLoRA trains every prefix of the ranks at the full scale.
        """
        raise TypeError(f"{self.name} has no low-rank form")

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        """The change of the input, placed. Only where `form` has one."""
        raise TypeError(f"{self.name} does not change the input")

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        """The change of the output, placed. Only where `form` has one."""
        raise TypeError(f"{self.name} does not change the output")


@dataclass(frozen=True, slots=True)
class DenseEffect(OutputEffect):
    """A dense delta as a product of its own, for layers whose weight cannot be added to."""

    delta_weight: Tensor  # (out, in, *kernel)
    reads_output: ClassVar[bool] = False

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return op.apply(x, self.delta_weight) * multiplier


def bias_for(site: Site, name: str, bias: Tensor | None) -> Tensor | None:
    """A change of the bias, (out,), checked against the layer.

    Raises:
        ValueError: it has another length, or the layer never adds a bias.
    """
    if bias is None:
        return None
    if not site.takes_bias:
        raise ValueError(f"{name} is for a layer with a bias, and this one has none")
    if bias.numel() != site.shape[0]:
        raise ValueError(f"want {name} of {site.shape[0]}, got {shape_text(bias)}")
    return bias.reshape(-1)


def shape_text(tensor: Tensor) -> str:
    """The shape of a tensor for a message."""
    return f"({', '.join(map(str, tensor.shape))})"


def taken(tensor: Tensor, rows: Rows, dim: int = 0) -> Tensor:
    """The windows of a parameter that has one row per output, or of an output; a view of a single one."""
    windows = [tensor.narrow(dim, start, stop - start) for start, stop in rows]
    return torch.cat(windows, dim) if len(windows) > 1 else windows[0]


def shape_of(shape: tuple[int, ...], rows: Rows) -> tuple[int, ...]:
    """The shape that is left of a weight of this one."""
    return (sum(stop - start for start, stop in rows), *shape[1:])


def within(windows: Rows, rows: Rows) -> Rows:
    """Some of the rows that lie in windows, as windows of what those are windows of."""
    found = []
    for start, stop in rows:
        offset = 0
        for first, last in windows:
            low, high = max(start - offset, 0), min(stop - offset, last - first)
            if low < high:
                found.append((first + low, first + high))
            offset += last - first
    return tuple(found)


def placed(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A copy that owns its memory, never a view of the mapped file: that file may be replaced while we compute."""
    return tensor.to(device=device, dtype=dtype, copy=True).contiguous()
