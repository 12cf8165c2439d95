"""The dense executor: the effective weight is built for one call in scratch memory; the base weight is never written.

It serves adapters that no separate product can compute, or for which the sum is cheaper. nn.MultiheadAttention
multiplies by its parameters inside one fused function, a norm has no product, a grouped convolution has no low-rank
pair, a full difference is as large as the weight. The layer's forward then runs on a stand-in that shares everything
with the layer except these parameters.

Rows of the batch with equal strengths are computed in one pass. Each region of the picture is a pass, too, of which the
places inside the region are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..adapters._operation import Operation
from ..adapters.base import Adapter, HeadSchedule, at_strength
from ..compiler import compiling, uncompiled
from ..errors import ComponentError, RegionError
from ..naming.architectures._arguments import is_of_text
from ..naming.binding import Binding
from ..naming.places import Target
from ..placement import scratch
from ..placement.resident import PlacementPolicy, Resident, strength_ranges
from ..placement.storage import Placement, store
from ..strengths.model_call import repeats_per_row
from ..strengths.regions import ALL_PLACES, RegionPart, TokenLayout, region_on_row, token_layout
from ..strengths.table import StrengthTable, shaped_by_places
from ..tensors import TensorFields, capturing, plain_mode, wide
from ..weights.readers.base import WeightReader, weight_reader
from . import opaque
from .arguments import BaseForward, named_arguments, output_in, place_of_input, with_output
from .dense_products import SUMMED, Part, Sum
from .low_rank_products import TORCHS


class _Call(NamedTuple):
    """One call of a layer, or one of the passes in which it is computed."""

    layer: nn.Module
    base_forward: BaseForward
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    image: int | None = None
    """The variant of its rows; None is the one that is shown."""
    rows: Sequence[int] = ()
    """The rows of the model call that its arguments hold; none is all."""
    acting: frozenset[int] | None = None
    """The indexes of the bindings that act; None is all."""


def _in_passes(call: _Call, passes: Sequence[Sequence[int]], least: int, run: Callable[[_Call], Any]) -> Any:
    """Run a layer once for each group of rows of the model call, and join the results in the order of the rows.

    `least` is the smallest number of dimensions of a batched input.

    Raises:
        RowsError: the input has no batch, or one that is no multiple of the rows.
    """
    layer, named = call.layer, named_arguments(call.args, call.kwargs)
    place, rows = place_of_input(layer, call.args, call.kwargs), sum(map(len, passes))
    dims = _dims_of_rows(layer, named, place)
    x, dim = named[place], dims[place]
    step = repeats_per_row(layer, x, rows, least, dim)
    results = []
    for own in passes:
        cut = _cut(named, dims, own, rows)
        args, kwargs = tuple(cut[i] for i in range(len(call.args))), {name: cut[name] for name in call.kwargs}
        results.append(run(call._replace(args=args, kwargs=kwargs, rows=own)))
    y = _joined([output_in(layer, one) for one in results], passes, dim)
    # attention returns its weights (rows, …) or None, too; other layers may return more than an output as well
    others = [] if isinstance(results[0], Tensor) else list(zip(*results, strict=True))[1:]
    return with_output(results[0], y, [_other(one, passes, step) for one in others])


def _other(results: Sequence[Any], passes: Sequence[Sequence[int]], step: int) -> Any:
    """Join a second result of a layer by rows; without rows, return that of the first pass."""
    pairs = zip(results, passes, strict=True)
    has_rows = all(isinstance(one, Tensor) and one.shape[:1] == (len(own) * step,) for one, own in pairs)
    return _joined(results, passes, 0) if has_rows else results[0]


def _dims_of_rows(layer: nn.Module, named: Mapping[int | str, Any], place: int | str) -> dict[int | str, int]:
    """Return the dimension of the rows of each argument that has them: torch's attention's, or what is as long as `x`.

    The first dimension of a mask of torch's attention is rows, or rows times heads.
    """
    if not isinstance(layer, nn.MultiheadAttention):
        length = named[place].shape[:1]
        return {name: 0 for name, one in named.items() if isinstance(one, Tensor) and one.shape[:1] == length}
    batch = 0 if layer.batch_first else 1
    dims = {place: batch}
    for name, one in named.items():
        if isinstance(one, Tensor) and one.ndim == _MASKS.get(name, 3):
            dims[name] = 0 if name in _MASKS else batch
    return dims


_MASKS: Mapping[int | str, int] = {3: 2, "key_padding_mask": 2, 5: 3, "attn_mask": 3}
"""The masks of torch's attention, by place or name; their dimensions where they have rows."""


def _cut(
    named: Mapping[int | str, Any], dims: Mapping[int | str, int], own: Sequence[int], rows: int
) -> dict[int | str, Any]:
    """Cut the arguments to some rows; equal tensors stay one tensor, as attention checks for that."""
    cut: dict[int, Tensor] = {}
    for name, dim in dims.items():
        whole: Tensor = named[name]
        if id(whole) not in cut:
            step = whole.shape[dim] // rows
            cut[id(whole)] = torch.cat([whole.narrow(dim, row * step, step) for row in own], dim)
    return {name: cut[id(value)] if name in dims else value for name, value in named.items()}


def _joined(results: Sequence[Tensor], passes: Sequence[Sequence[int]], dim: int) -> Tensor:
    """Put the rows of the passes into the order of the batch."""
    found: dict[int, Tensor] = {}
    for result, own in zip(results, passes, strict=True):
        found.update(zip(own, result.chunk(len(own), dim), strict=True))
    return torch.cat([found[row] for row in sorted(found)], dim)


@dataclass(frozen=True, slots=True, eq=False)
class Adapters(TensorFields):
    """A layer's adapters, in the dtypes of their files; weights are built from them in fp32."""

    all: tuple[Adapter, ...]


class _Ready(NamedTuple):
    """What calls need of placed adapters, while rows and places have the same strengths and all ranks act."""

    placed: object
    """The placement that it is made from."""
    like: tuple[torch.device, torch.dtype]
    """The device and the dtype of the base weights."""
    numbers: object
    """The strengths of all groups that it is made for."""
    sums: dict[str, Sum]
    """By parameter."""
    biased: list[tuple[Binding, Adapter]]
    """The adapters that change the bias."""


class DenseExecutor(Resident[Placement[Adapters]]):
    """Bindings of one layer that need an effective weight.

    Args:
        bindings: the adapters, in the order of the stack.
        strengths: the strength table of the plan.
        policy: how tensors are placed.
        in_order: let each adapter act on the weight that the adapters before it left.
    """

    name = "dense"

    def __init__(
        self,
        bindings: Sequence[Binding],
        strengths: StrengthTable,
        policy: PlacementPolicy | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        super().__init__(bindings, strengths, policy or PlacementPolicy())
        self._in_order = in_order
        self._of_text = is_of_text(bindings[0].target.path)
        self._params = tuple(dict.fromkeys(binding.target.param for binding in self._bindings))
        ranges = [strength_ranges(binding) for binding in self._bindings]
        strengths.register(*ranges)
        self._scheduled = any(own[0].schedule is not None for own in ranges)
        self._readers: dict[str, tuple[tuple[object, ...], type[WeightReader]]] = {}

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the layer's forward with effective weights in place of its own."""
        if compiling() and (y := opaque.call(layer, base_forward, args, kwargs)) is not None:
            return y
        return self._run_now(_Call(layer, base_forward, args, kwargs))

    # a graph must not hold scratch memory, which other layers and other graphs use, too
    @uncompiled
    def _run_now(self, call: _Call) -> Any:
        if self._budget.contended:
            self._budget.note(self._account)
        try:
            if self._strengths.numbers is not None:  # all rows and places have the same strengths
                return self._run(call)
            return self._run_apart(call) if self._strengths.mixed else self._run_regions(call)
        finally:
            if not self._stays:
                self.evict()

    def _run_apart(self, call: _Call) -> Any:
        """Make one pass for each group of rows with equal strengths; rows at strength 0 get the base forward."""
        groups: dict[tuple[object, ...], list[int]] = {}
        values = [tuple(own[binding.group] for binding in self._bindings) for own in self._strengths.values]
        for row, image in enumerate(self._strengths.rows):
            groups.setdefault((values[image], self._regions(image)), []).append(row)
        passes = list(groups.values())

        def run(own: _Call) -> Any:
            image = self._strengths.rows[own.rows[0]]
            if not any(values[image]):
                return own.base_forward(own.layer, *own.args, **own.kwargs)
            return self._run_regions(own._replace(image=image))

        if len(passes) == 1:
            return run(call._replace(rows=passes[0]))
        return _in_passes(call, passes, self._bindings[0].target.batched_ndim, run)

    def _regions(self, image: int | None) -> tuple[RegionPart, ...]:
        """Return the region of each binding, with its part of the prompt."""
        strengths = self._strengths
        if strengths.regional_groups.isdisjoint(self._groups):
            return (ALL_PLACES,) * len(self._bindings)
        regions = strengths.stack_strengths.group_regions[strengths.shown if image is None else image]
        return tuple(regions[binding.group] for binding in self._bindings)

    def _run_regions(self, call: _Call) -> Any:
        """Make one pass with the bindings that act everywhere, and one for each region that adds its bindings."""
        regions = self._regions(call.image)
        if all(region == ALL_PLACES for region in regions):
            return self._run(call)
        if self._bindings[0].target.kind == "experts":
            text = f"a LoRA for a part of the picture changes the weights of experts in a {type(call.layer).__name__}"
            raise RegionError(f"{text}, whose tokens have no order; remove its region")

        def run(region: RegionPart) -> Any:
            acting = frozenset(i for i, own in enumerate(regions) if own in (ALL_PLACES, region))
            if not acting:
                return call.base_forward(call.layer, *call.args, **call.kwargs)
            return self._run(call._replace(acting=acting))

        total = y = run(ALL_PLACES)
        for region in dict.fromkeys(one for one in regions if one != ALL_PLACES):
            total = self._blended(call, total, y, run(region), region)
        return total

    def _blended(self, call: _Call, total: Any, y: Any, other: Any, region: RegionPart) -> Any:
        """Add the change by a region's pass, at the places of the region."""
        if not isinstance(y, Tensor):  # attention's output and weights; the weights stay the ones without the region
            whole, own, others = (output_in(call.layer, one) for one in (total, y, other))
            return with_output(total, self._blended(call, whole, own, others, region))
        strengths = self._strengths
        layout = self._token_layout(y, call.rows)
        parts = [strengths.parts[row] for row in call.rows] if strengths.parts and call.rows else strengths.parts
        which = tuple((region_on_row(region, layout.grid, part),) for part in parts or (None,))
        weights = strengths.region_weights(layout.grid, which, y, channels_first=layout.channels_first)
        return total + (other - y) * shaped_by_places(weights, layout)

    def _token_layout(self, y: Tensor, rows: Sequence[int]) -> TokenLayout:
        target, latents = self._bindings[0].target, self._strengths.latents
        if latents is not None and rows:
            latents = replace(latents, rows=len(rows))
        nowhere = self._of_text or target.kind in ("embedding", "attention")
        maps = target.kind == "conv" or (target.kind == "norm" and y.ndim > 3 and y.shape[1] == target.shape[0])
        return token_layout(y.shape, latents, spatial=y.ndim - 2 if maps else 0, of_text=nowhere)

    def _run(self, call: _Call) -> Any:
        """Make one pass."""
        layer, base_forward, args, kwargs, *_ = call
        place = place_of_input(layer, args, kwargs)
        x: Tensor = args[place] if isinstance(place, int) else kwargs[place]
        readers, packed = [], False
        for param in self._params:
            reader = self._reader(layer, param)
            readers.append(reader)
            packed |= not reader.holds_values
        if packed:
            values = self._strengths.values[self._strengths.shown if call.image is None else call.image]
            acting = range(len(self._bindings)) if call.acting is None else call.acting
            if not any(values[self._bindings[i].group] for i in acting):
                # a product with the decoded weight has other bits than the layer's own product
                return base_forward(layer, *args, **kwargs)
        kept = _is_kept(layer, args, kwargs)
        with plain_mode(x.device):
            placed = self._placed_at(layer, x.device, _ANY)
            effective = self._effective(call, readers, placed, x, kept=kept)
        if not packed and type(layer) is nn.Linear and base_forward in TORCHS:  # as its forward has it
            return F.linear(x, effective["weight"], effective.get("bias", layer.bias))
        stand_in = None if packed else _stand_in(layer, effective)
        if stand_in is None:  # a forward that unpacks its weight cannot take an unpacked one
            return self._product(layer, x, effective)
        return base_forward(stand_in, *args, **kwargs)

    def _reader(self, layer: nn.Module, param: str) -> type[WeightReader]:
        """Return the reader of a parameter, which is looked for again where its signs have changed."""
        weight = layer._parameters.get(param)
        if weight is None or weight.__dict__:
            return weight_reader(layer, param)
        sizes = len(layer.__dict__), len(layer._parameters), len(layer._buffers), len(layer._modules)
        signs = type(layer), type(weight), weight.dtype, weight.layout, *sizes
        known = self._readers.get(param)
        if known is not None and known[0] == signs:
            return known[1]
        reader = weight_reader(layer, param)
        if reader.plain:
            self._readers[param] = signs, reader
        return reader

    def _product(self, layer: nn.Module, x: Tensor, effective: dict[str, Tensor]) -> Tensor:
        """Compute the product of a linear layer or a convolution with an effective weight.

        Raises:
            ComponentError: the layer is neither.
        """
        if self._bindings[0].target.kind not in ("linear", "conv"):
            text = f"a {type(layer).__name__} computes its {', '.join(effective)} from something else"
            raise ComponentError(f"{text}, so no adapter can change it; remove the file")
        op = Operation(layer, effective["weight"].ndim - 2)
        y = op.apply(x, effective["weight"])
        bias = effective.get("bias", getattr(layer, "bias", None))
        return y if bias is None else y + op.per_channel(bias.to(y))

    def _effective(
        self, call: _Call, readers: Sequence[type[WeightReader]], placed: Placement[Adapters], x: Tensor, *, kept: bool
    ) -> dict[str, Tensor]:
        """Build the effective parameters, in scratch memory unless they are kept after the call."""
        found: dict[str, Tensor] = {}
        bases = [reader.read(call.layer, param) for reader, param in zip(readers, self._params, strict=True)]
        ready: _Ready | None = self._views if call.image is None and call.acting is None else None
        like, numbers = (bases[0].device, wide(bases[0].dtype)), self._strengths.numbers
        if ready is None or ready.placed is not placed or ready.like != like or ready.numbers is not numbers:
            ready = self._make_ready(call, placed, like)
        for param, reader, base in zip(self._params, readers, bases, strict=True):
            dtype = x.dtype if not reader.plain and x.is_floating_point() else base.dtype
            total = torch.empty_like(base, dtype=dtype) if kept else scratch.take(param, base, dtype)
            ready.sums[param].build(total, base)
            found[param] = total
        for binding, adapter in ready.biased:
            self._change_bias(call, binding, adapter, found)
        return found

    def _make_ready(self, call: _Call, placed: Placement[Adapters], like: tuple[torch.device, torch.dtype]) -> _Ready:
        """Put together what a pass needs, and keep that for calls in which nothing differs."""
        bound = list(zip(self._bindings, placed.get().all, strict=True))
        pairs = bound if call.acting is None else [bound[i] for i in sorted(call.acting)]
        sums = {param: self._sum_of(param, pairs, like, call.image) for param in self._params}
        biased = [(one, own) for one, own in pairs if own.has_bias or own.bias_excess is not None]
        ready = _Ready(placed, like, self._strengths.numbers, sums, biased)
        plain = call.image is None and call.acting is None and ready.numbers is not None
        if plain and not (self._scheduled or placed.packed or capturing(like[0])):
            self._views = ready
        return ready

    def _sum_of(
        self,
        param: str,
        pairs: Iterable[tuple[Binding, Adapter]],
        like: tuple[torch.device, torch.dtype],
        image: int | None = None,
    ) -> Sum:
        """Return the deltas of one parameter by these bindings with their adapters, at the present strengths."""
        parts = [
            Part(adapter, self._strength(binding, *like, image), self._rank(binding), binding.target.rows)
            for binding, adapter in pairs
            if binding.target.param == param
        ]
        return Sum(parts, in_order=self._in_order)

    def _rank(self, binding: Binding) -> int | None:
        """Return how many rank components act at the present timestep; None is all."""
        schedule = binding.adapter.schedule_of_parts
        return binding.rank if schedule is None else schedule.ranks(binding.rank, self._strengths.moment)

    def _strength(
        self, binding: Binding, device: torch.device, dtype: torch.dtype, image: int | None = None
    ) -> Tensor | float:
        """Return the strength of a binding; a tensor where it is several numbers, or a captured graph reads it."""
        strengths = self._strengths
        if capturing(device) or isinstance(binding.adapter.schedule_of_parts, HeadSchedule):
            return strengths.for_variant(strength_ranges(binding), device, wide(dtype), image)
        return strengths.values[strengths.shown if image is None else image][binding.group]

    def _change_bias(self, call: _Call, binding: Binding, adapter: Adapter, found: dict[str, Tensor]) -> None:
        target, weight = binding.target, found[binding.target.param]
        bias, total = bias_of(call.layer, target), found.get(target.bias)
        rows = slice(None) if target.bias_rows is None else slice(*target.bias_rows)
        own = total if self._in_order and total is not None else bias
        strength = self._strength(binding, weight.device, weight.dtype, call.image)
        exact = wide(weight.dtype)
        if own is not None:
            own = own.detach()[rows].to(weight.device, own.dtype if own.dtype in SUMMED else exact)
        delta = adapter.change_of_bias(own)
        if delta is None:
            return
        if total is None:
            width = 3 * weight.shape[0] if target.bias_rows and target.rows is None else weight.shape[0]
            total = weight.new_zeros(width) if bias is None else bias.detach().to(weight, copy=True)
            found[target.bias] = total
        delta = delta.to(weight.device, exact)
        if delta.ndim > 1 or isinstance(strength, Tensor):
            delta, strength = at_strength(delta, strength), 1.0
        total[rows].add_(delta, alpha=strength)

    def _content(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype
    ) -> tuple[Adapters, bool]:
        return store(Adapters(tuple(adapter.placed(device) for adapter in self._adapters(layer))), self._storage)

    def _placement(
        self, content: Adapters, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype, *, packed: bool
    ) -> Placement[Adapters]:
        return Placement(device, _ANY, _ANY, content, packed)


_ANY = torch.float32
"""Adapters are placed in the dtypes of their files, so the dtype of a placement makes no difference."""


def bias_of(layer: nn.Module, target: Target) -> Tensor | None:
    """Return the bias beside a weight; None where the layer has none."""
    owner, _, leaf = target.bias.rpartition(".")
    bias: Tensor | None = getattr(layer.get_submodule(owner), leaf, None)
    return bias


def _is_kept(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether autograd or a function transform keeps a call's parameters, so that they must not change."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if not torch.is_grad_enabled():
        return False
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return any(tensor.requires_grad for tensor in (*tensors, *layer.parameters()))


def _stand_in(layer: nn.Module, params: Mapping[str, Tensor]) -> nn.Module | None:
    """Make a copy of `layer` that shares everything with it except `params`; None where its class overrides these."""
    own = {name: value for name, value in params.items() if "." not in name}
    stand_in: nn.Module = object.__new__(type(layer))
    stand_in.__dict__.update(layer.__dict__)
    if parametrize.is_parametrized(layer):  # the class has a property for each tensor that is computed from others
        stand_in.__class__ = parametrize.type_before_parametrizations(layer)
        computed: Any = layer.parametrizations
        own = {name: getattr(layer, name) for name in computed} | own
    for name in own:
        stand_in.__dict__.pop(name, None)  # weight_norm's hook writes its result there
    stand_in.__dict__["_parameters"] = {**layer._parameters, **own}
    children = dict(layer._modules)
    for name, value in params.items():
        child, dot, param = name.partition(".")
        module = children.get(child)
        if dot and module is not None:
            below = _stand_in(module, {param: value})
            if below is None:
                return None
            children[child] = below
    stand_in.__dict__["_modules"] = children
    return stand_in if all(getattr(stand_in, name) is value for name, value in own.items()) else None
