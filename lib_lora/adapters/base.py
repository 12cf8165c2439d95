"""The base class of adapters, and the values that they exchange with a layer.

An adapter changes one weight: W' = W + dW(m) at the user's multiplier m. It has up to two definitions, and the tests
compare them:

- dense, always: `delta_weight`;
- beside the layer, where the algebra allows: `form` names the parts, and `factors`, `input_effect` and `output_effect`
  return them. The layer then computes
  y = W (x + changes of the input) + b + pairs (x) + changes of the output.
  Only the layer's own forward reads the base weight, so that it may be quantized.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import MomentError, UnsupportedError
from ..files.reading import USUAL, Reading
from ..tensors import TensorFields
from ._operation import Operation as Operation
from ._rows import Rows as Rows
from ._rows import part_of_field, placed, shape_of, unfit, widened
from ._rows import taken as taken

Kind = Literal["linear", "conv", "embedding", "norm", "attention", "experts"]
"""A kind of layer."""
Tensors = Mapping[str, Tensor]
"""Parameter -> tensor, by the names of kohya and LyCORIS, else by the trainer's own."""
Shapes = Mapping[str, tuple[int, ...]]
"""Parameter -> shape."""


@dataclass(frozen=True, slots=True)
class Params:
    """The parameters an algorithm reads: all of `required`, any of `optional`, none besides."""

    required: frozenset[str]
    optional: frozenset[str] = frozenset()
    layers: frozenset[str] = frozenset()
    """Layers that it has beside the base layer and no checkpoint has: `coral_mixer` of the parameter
    `coral_mixer.weight`. Those that begin with the kind's name and `_` need not be named.
    """

    together: frozenset[str] = frozenset()
    """Optional ones of which a group has all or none."""
    dims: int | None = None
    """How many dimensions a required one has, where that tells it from another algorithm's."""

    def claim(self, shapes: Shapes) -> bool:
        """Return whether a group has all required parameters and no unknown one.

        An unknown parameter may change what the others mean, so a group with one is reported, never half-applied. Where
        none is required, any but `alpha` is enough.
        """
        names = shapes.keys()
        least = self.required or (names - {"alpha"})
        known = bool(least) and least <= names <= self.required | self.optional
        known = known and names & self.together in (frozenset(), self.together)
        return known and (self.dims is None or all(len(shapes[name]) == self.dims for name in self.required))


@dataclass(frozen=True, slots=True)
class Site:
    """The weight that an adapter changes."""

    shape: tuple[int, ...]
    """Logical: (out, in / groups, *kernel), (entries, width) of an embedding, (channels,) of a norm.

    That of experts is the parameter's: (experts, out, in), or (experts, in, out).
    """
    kind: Kind = "linear"
    groups: int = 1
    takes_bias: bool = True
    """False for layers that never add one, such as RMSNorm."""
    transposed: bool = False
    """Whether weights of experts are (experts, in, out), as their module says."""

    @property
    def inside(self) -> int:
        """Return the entries of one output row: in / groups * kernel."""
        return math.prod(self.shape[1:])

    def take(self, rows: Rows) -> Site:
        """Return the site of some rows of the weight."""
        return replace(self, shape=shape_of(self.shape, rows))


@dataclass(frozen=True, slots=True)
class Alpha:
    """The source of a scale: the file's alpha, and whether it is divided by r or by sqrt(r)."""

    value: float | None = None
    """None or 0 means scale 1, as in every trainer."""
    rank_stabilized: bool = False
    """rsLoRA, https://arxiv.org/abs/2312.03732."""
    fixed: float | None = None
    """The scale itself, where the user gives it."""

    def scale(self, rank: int) -> float:
        if self.fixed is not None:
            return self.fixed
        if not self.value:
            return 1.0
        return self.value / (math.sqrt(rank) if self.rank_stabilized else rank)


NO_ALPHA = Alpha()


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts of a file about an adapter beside its own parameters."""

    alpha: Alpha = NO_ALPHA
    spelling: str = ""
    """Name of the key format. Two trainers may mean different things by one parameter's name."""
    config: Mapping[str, object] = field(default_factory=dict)
    """The trainer's configuration of this component (PEFT's `adapter_config.json`)."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The header's."""
    shared: Tensors = field(default_factory=dict)
    """Tensors that all adapters of the file use."""
    module: str = ""
    """The layer, as the file spells it: dotted, or flattened."""
    reading: Reading = USUAL
    """The user's choice for files that trainers and programs read in two ways."""


@dataclass(frozen=True, slots=True)
class At:
    """The device, dtype, multiplier and part of a dense delta."""

    device: torch.device
    dtype: torch.dtype
    multiplier: Tensor | float = 1.0
    """A number, or a tensor of one; for a bank of heads, of one for each head."""
    rank: int | None = None
    """Use only the first so many rank components."""
    rows: tuple[int, int] | None = None
    """Only these rows of the delta. Given to adapters that say `by_rows`."""
    weight: Tensor | None = None
    """The base weight (its `rows`) in `dtype`, not to be written to.

    Given to adapters that say `reads_base`; in the layer's own dtype if they say `widens_base`, too.
    """

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a parameter to the device and dtype of the delta."""
        return tensor.to(self.device, self.dtype)

    def cut(self, tensor: Tensor) -> Tensor:
        """Copy the wanted rows of a parameter with one row per output to the device and dtype of the delta."""
        return (tensor if self.rows is None else tensor[slice(*self.rows)]).to(self.device, self.dtype)

    @property
    def base(self) -> Tensor:
        """Return the base weight; raise TypeError if an adapter asks for it that did not say so."""
        if self.weight is None:
            raise TypeError("the base weight is given only to adapters that say reads_base")
        return self.weight


class CallTime(Protocol):
    """The time of a model call, see `strengths.strength.Moment`."""

    @property
    def step(self) -> int | None: ...

    @property
    def steps(self) -> int | None: ...

    @property
    def timestep(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class RankSchedule:
    """How many ranks act at a timestep: few in noise, all at the end. T-LoRA, https://arxiv.org/abs/2507.05964."""

    numbers: ClassVar[int] = 1
    """How many numbers an adapter with it takes as its strength, where it is no pair."""
    max_rank: int
    min_rank: int = 1
    power: float = 1.0
    steps: int = 1000
    """The timestep of pure noise."""

    def first(self, timestep: float) -> int:
        """Return how many ranks act, counted from the first; `timestep` is between 0 and `steps`."""
        done = min(max((self.steps - timestep) / self.steps, 0.0), 1.0)
        return min(int(done**self.power * (self.max_rank - self.min_rank)) + self.min_rank, self.max_rank)

    def ranks(self, limit: int | None, now: CallTime) -> int | None:
        """Return how many ranks act, of the first `limit`; None is all."""
        if now.timestep is None:
            return limit
        first = self.first(now.timestep)
        return first if limit is None else min(first, limit)

    def check(self, now: CallTime) -> None:
        """Take any time: without a timestep, all ranks act."""

    def write(self, factors: Tensor, now: CallTime, per_rank: int) -> None:
        """Take away the strength of the ranks that do not act.

        Args:
            factors: of all ranks, (variants, ranks * per_rank), written to.
            now: the time of the call.
            per_rank: adjacent factors that make one rank.
        """
        if now.timestep is not None:
            factors[:, per_rank * self.first(now.timestep) :] = 0.0


@dataclass(frozen=True, slots=True)
class HeadSchedule:
    """How much each head of a bank acts in a step of the sampler.

    A head predicts one interval of a grid of noise. A step spans several intervals, and uses the mean of their heads,
    weighted by the lengths. The steps divide the grid as evenly as whole intervals can.
    """

    intervals: tuple[float, ...]
    """The length of each, from noise to the picture."""

    @property
    def numbers(self) -> int:
        """Return how many numbers an adapter with it takes as its strength."""
        return len(self.intervals)

    def weights(self, step: int, steps: int) -> list[float]:
        """Return the weight of each head in a step, counted from 0; their sum is 1."""
        count = len(self.intervals)
        start = min(round(step * count / steps), count - 1)
        stop = max(round((step + 1) * count / steps), start + 1)
        span = sum(self.intervals[start:stop])
        return [one / span if start <= i < stop else 0.0 for i, one in enumerate(self.intervals)]

    def ranks(self, limit: int | None, now: CallTime) -> int | None:
        """Return the limit: a bank of heads has no ranks."""
        return limit

    def check(self, now: CallTime) -> None:
        """Check that the time tells the step; raise MomentError if it does not."""
        if now.step is None or not now.steps:
            raise MomentError("the heads in a file depend on the step, but the step of a model call is unknown")

    def write(self, factors: Tensor, now: CallTime, per_rank: int) -> None:
        """Multiply the strength of each head by its weight; before the first call, which no layer reads, do nothing."""
        if now.step is not None and now.steps:
            factors *= torch.tensor(self.weights(now.step, now.steps)).to(factors)


Schedule: TypeAlias = RankSchedule | HeadSchedule
"""What of an adapter acts at which time."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The rank and scale of a low-rank pair."""

    rank: int
    scale: float
    schedule: Schedule | None = None
    """Which ranks or heads act when; without a timestep all ranks do."""
    per_rank: int = 1
    """How many components of the pair make one rank of the schedule; they are adjacent."""


@dataclass(frozen=True, slots=True, eq=False)
class Factors(TensorFields):
    """A weight delta as a product, `up @ down`, without the scale."""

    down: Tensor
    """(rank, in, *kernel)."""
    up: Tensor
    """(out, rank)."""


@dataclass(frozen=True, slots=True)
class Form:
    """The parts of an adapter beside its layer. Its effect is their sum."""

    pair: Pair | None = None
    on_input: bool = False
    on_output: bool = False


class InputEffect(TensorFields, ABC):
    """A change dx of a layer's input on the layer's device: the delta is W dx."""

    @abstractmethod
    def delta(self, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        """Return the change of `x`, in its dtype.

        Args:
            x: the layer's input.
            multiplier: of one element, or one for each row of the batch, (rows, 1, …) with the dimensions of `x`. So it
                broadcasts to what has the rows of `x`, and to `op.per_channel`'s shape; see `at_multiplier`.
            op: the layer's product.
        """

    def added(self, total: Tensor, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        """Return `total`, in which other changes of `x` may be, with this one in new memory."""
        return total + self.delta(x, multiplier, op)


class OutputEffect(TensorFields, ABC):
    """A change of a layer's output on the layer's device."""

    if TYPE_CHECKING:  # at run time these are plain attributes, as of an adapter

        @property
        def reads_output(self) -> bool:
            """Return False if `delta` reads `x` alone, which spares a layer with input effects a second base call."""

        @property
        def reads_bias(self) -> bool:
            """Return True if the `y` of `delta` has the layer's bias."""

    else:
        reads_output, reads_bias = True, False

    @abstractmethod
    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        """Return the change of the output at a multiplier.

        Args:
            x: the layer's input.
            y: the base output, not to be written to, only where `reads_output`: W x, without the bias, or with it where
                `reads_bias`.
            multiplier: of one element, or one for each row of the batch, as with an input effect.
            op: the layer's product.
        """

    def added(self, total: Tensor, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        """Return `total`, in which other changes of the output may be, with this one in new memory."""
        return total + self.delta(x, y, multiplier, op)

    def delta_of_product(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        """Return `delta` for an output without the bias."""
        return self.delta(x, op.with_bias(y) if self.reads_bias else y, multiplier, op)


class ProductEffect(OutputEffect):
    """A change of a layer's output that is a product of its input, times the multiplier."""

    __slots__ = ()
    reads_output: ClassVar[bool] = False

    @abstractmethod
    def product(self, x: Tensor, op: Operation) -> Tensor:
        """Return the change at multiplier 1."""

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return self.product(x, op) * multiplier

    def added(self, total: Tensor, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return torch.addcmul(total, self.product(x, op), multiplier)


class Adapter(TensorFields, ABC):
    """One algorithm's tensors for one layer.

    Tensors stay as in the file: on the CPU, mapped, in the file's dtype. Executors copy them to the layer's device.
    """

    name: ClassVar[str]
    """Unique among all kinds; reports show it."""
    before: ClassVar[tuple[str, ...]] = ()
    """Kinds that are tried after this one."""
    params: ClassVar[Params]
    """The parameters it reads."""
    shared: ClassVar[frozenset[str]] = frozenset()
    """Parameters it reads that all layers of a file share."""
    scaled: ClassVar[bool] = False
    """Whether the change is multiplied by alpha / rank. Then a report says what tells the scale."""
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "conv", "attention"})
    """The kinds of layer it is defined for."""

    shaped_by: ClassVar[tuple[str, ...]] = ()
    """The parameters whose shapes tell the weight's: one that has a row per output, and one that has the inputs."""
    row_fields: ClassVar[tuple[str, ...]] = ()
    """What `take` cuts: fields with a row per output, `shape`, and `rows`, the windows of the delta that are meant."""

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        """Return whether parameters of these names (and shapes, if names do not tell) are exactly this algorithm's."""
        return cls.params.claim(shapes)

    @classmethod
    @abstractmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        """Build from canonical parameters for the weight at `site`.

        Raises:
            ValueError: the tensors do not fit each other or the site; the text says want and got.
        """

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        """Return the shape of the weight that these parameters were made for; None if their shapes do not tell."""
        if not cls.shaped_by or not shapes.keys() >= {*cls.shaped_by}:
            return None
        return (*shapes[cls.shaped_by[0]][:1], *shapes[cls.shaped_by[-1]][1:])

    if TYPE_CHECKING:  # at run time these are plain attributes, which cost no call; a subclass may have properties

        @property
        def reads_base(self) -> bool:
            """Return whether `delta_weight` needs the base weight, so that stacking in order differs from adding up."""

        @property
        def widens_base(self) -> bool:
            """Return whether `delta_weight` only adds and multiplies entries of the base weight, which widens them."""

        @property
        def reads_whole(self) -> bool:
            """Return whether `on` needs the whole weight of the file's layer, not only some rows of it."""

        @property
        def by_rows(self) -> bool:
            """Return whether `delta_weight` can give some rows alone."""

        @property
        def prefers_dense(self) -> bool:
            """Return whether an effective weight is cheaper than `form`, with a plain base weight."""

    else:
        reads_base = widens_base = reads_whole = by_rows = prefers_dense = False

    @property
    def rank(self) -> int | None:
        """Return the rank, if the algorithm has one: the last size of a field `up`."""
        up: Tensor | None = getattr(self, "up", None)
        return None if up is None else up.shape[-1]

    @abstractmethod
    def delta_weight(self, at: At) -> Tensor:
        """Return the dense change of the weight at `at.multiplier`, in new memory; zero at multiplier 0."""

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        """Return the dense change of the weight without a factor, and that factor, which a sum takes as it adds up.

        The tensor may be the adapter's own, and is not to be written to.
        """
        return self.delta_weight(at), 1.0

    @property
    def has_bias(self) -> bool:
        """Return whether it changes the layer's bias, too: one that does has a field `bias`."""
        return getattr(self, "bias", None) is not None

    def delta_bias(self) -> Tensor:
        """Return the change of the bias at multiplier 1, (out,); only with `has_bias`."""
        bias: Tensor = self.bias  # type: ignore[attr-defined]
        return bias

    @property
    def bias_excess(self) -> Tensor | None:
        """Return the factor on the layer's own bias less 1, (out,), at multiplier 1; None if the bias does not change.

        Proportional to the multiplier. Dense executors read it; an output effect finds the bias in `op`.
        """
        return None

    def change_of_bias(self, bias: Tensor | None) -> Tensor | None:
        """Return the whole change of a layer's bias at multiplier 1, for dense executors; None if there is none.

        Of a bank of heads it is (heads, out).

        Args:
            bias: the layer's own (out,), where the change is computed, in any floating dtype; None if it has none.
        """
        excess = None if bias is None else self.bias_excess
        scaled = None if bias is None or excess is None else bias * widened(excess, bias)
        if not self.has_bias:
            return scaled
        delta = self.delta_bias()
        return delta if scaled is None else delta.to(scaled) + scaled

    def form(self, rank: int | None = None) -> Form | None:
        """Return the parts it has beside the layer, without reading any data; None if it has only the dense delta.

        An adapter that is an effect itself acts as that.
        """
        on_input, on_output = isinstance(self, InputEffect), isinstance(self, OutputEffect)
        return Form(on_input=on_input, on_output=on_output) if on_input or on_output else None

    @property
    def schedule_of_parts(self) -> Schedule | None:
        """Return which of its ranks or heads act when; None if all always do."""
        form = self.form()
        return None if form is None or form.pair is None else form.pair.schedule

    def take(self, rows: Rows) -> Adapter | None:
        """Return the adapter for some rows of its weight, in this order, as views where possible.

        For a layer that is one in the file and several in the model. None where the change of these rows depends on the
        other rows of the weight. Where it does only through what `on` finds out (norms, singular vectors), the adapter
        that `on` returns gives its rows.
        """
        return self.cut(rows) if self.row_fields else None

    def cut(self, rows: Rows) -> Self:
        """Return a copy whose `row_fields` are cut."""
        assert is_dataclass(self)
        return replace(self, **{name: part_of_field(getattr(self, name), rows) for name in self.row_fields})

    def outlined(self, rows: Rows) -> Adapter | None:
        """Return an adapter with the `form` that `take` gives after `on`; None if `take` then gives none."""
        return self.take(rows)

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        """Return the adapter for one base weight: itself, unless it needs norms or singular vectors of W.

        Called once for each placement that the weight outlives, before `factors` and the effects.

        Args:
            read: gives the base weight, in any floating dtype; may be slow, so it is called at most once.
            rank: how many rank components are used, if not all.
        """
        return self

    def factors(self, rank: int | None = None) -> Factors:
        """Return the pair, cut to the first `rank` components; only if `form` has one.

        The scale is not changed by a cut: DyLoRA trains every prefix of the ranks at the full scale.
        """
        raise TypeError(f"{self.name} has no low-rank form")

    def as_factors(self, read: Callable[[], Tensor], rank: int | None = None) -> Factors | None:
        """Return the whole change at multiplier 1 as a pair in fp64, with the scale in `up`; None where it is no pair.

        Files are made of it. Called after `on`; the change is in proportion to the multiplier.

        Args:
            read: gives the base weight.
            rank: how many rank components are used, if not all.
        """
        form = self.form(rank)
        if form is None or form.pair is None or form.on_input or form.on_output:
            return None
        factors = self.factors(rank)
        return Factors(factors.down.double(), factors.up.double() * form.pair.scale)

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        """Return the change of the input on a device; only if `form` has one."""
        if isinstance(self, InputEffect):
            return self.mapped(lambda tensor: placed(tensor, device, dtype))
        raise TypeError(f"{self.name} does not change the input")

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        """Return the change of the output on a device; only if `form` has one."""
        if isinstance(self, OutputEffect):
            return self.mapped(lambda tensor: placed(tensor, device, dtype))
        raise TypeError(f"{self.name} does not change the output")


class LowRank(Adapter):
    """An adapter that is a pair: fields `up` (out, r) and `down` (r, in, *kernel), and a `scale` if it is not 1.

    One whose pair is not in these fields overrides `factors`.
    """

    up: Tensor
    down: Tensor
    by_rows = True

    if TYPE_CHECKING:

        @property
        def rank(self) -> int: ...

    def factors(self, rank: int | None = None) -> Factors:
        return Factors(self.down[:rank], self.up[:, :rank])

    def form(self, rank: int | None = None) -> Form:
        return Form(Pair(min(self.rank, rank or self.rank), getattr(self, "scale", 1.0)))

    def delta_weight(self, at: At) -> Tensor:
        factors = self.factors(at.rank)
        delta = at.cut(factors.up) @ at.put(factors.down.flatten(1))
        return delta.mul_(getattr(self, "scale", 1.0) * at.multiplier).reshape(-1, *factors.down.shape[1:])


class Proportional(Adapter):
    """An adapter whose change of the weight is a tensor at all multipliers, times a factor."""

    @abstractmethod
    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        """Return the tensor, which may be the adapter's own, and the factor."""

    def delta_weight(self, at: At) -> Tensor:
        delta, factor = self.delta_and_factor(at)
        return delta * factor


class Refused(Adapter):
    """A kind that is refused; one of its parameters is enough to be of it."""

    reason: ClassVar[str]

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return bool(cls.params.optional & shapes.keys())

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        raise UnsupportedError(cls.reason)

    def delta_weight(self, at: At) -> Tensor:
        raise UnsupportedError(self.reason)


def at_strength(change: Tensor, strength: Tensor | float) -> Tensor:
    """Return a change of a bias, (out,) or (heads, out), at its strength: a number or (1,), or (heads,)."""
    if change.ndim == 1 or not isinstance(strength, Tensor):
        return change * strength
    return (change * strength.unsqueeze(1)).sum(0)


def bias_for(site: Site, name: str, bias: Tensor | None) -> Tensor | None:
    """Check a change of the bias, (out,), against the layer.

    Raises:
        ValueError: it has another length, or the layer never adds a bias.
    """
    if bias is None:
        return None
    if not site.takes_bias:
        raise ValueError(f"{name} is for a layer with a bias, and this one has none")
    if bias.numel() != site.shape[0]:
        raise unfit(f"{name} of {site.shape[0]}", bias)
    return bias.reshape(-1)
