"""The dense executor: the effective weight is built for one call in scratch memory; the base weight is never written.

It serves adapters that no separate product can compute, or for which the sum is cheaper. nn.MultiheadAttention
multiplies by its parameters inside one fused function, a norm has no product, a grouped convolution has no low-rank
pair, a full difference is as large as the weight. The layer's forward then runs on a stand-in that shares everything
with the layer except these parameters.

Rows of the batch with equal strengths are computed in one pass. Each region of the picture is a pass, too, of which the
places inside the region are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..adapters._operation import Operation
from ..adapters.base import Adapter
from ..compiler import compiling, uncompiled
from ..errors import ComponentError, RegionError
from ..naming.architectures._arguments import is_of_text
from ..naming.places import Target
from ..placement import scratch
from ..placement.resident import Binding, PlacementPolicy, Resident
from ..placement.storage import Placement, store
from ..strengths.model_call import repeats_per_row
from ..strengths.regions import ALL_PLACES, RegionPart, TokenLayout, region_on_row, token_layout
from ..strengths.table import StrengthTable, shaped_by_places
from ..tensors import TensorFields, plain_mode, wide
from ..weights.readers.base import WeightReader, weight_reader
from . import opaque
from .arguments import named_arguments, output_in, place_of_input, with_output
from .dense_products import Part, Sum
from .low_rank_products import TORCHS

if TYPE_CHECKING:
    from .arguments import BaseForward


T = TypeVar("T")

Run = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
"""Runs the pass of a number with arguments that hold only its rows."""


def _in_passes(
    layer: nn.Module,
    passes: Sequence[Sequence[int]],
    least: int,
    run: Run,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a layer once for each group of rows of the model call, and join the results in the order of the rows.

    `least` is the smallest number of dimensions of a batched input.

    Raises:
        RowsError: the input has no batch, or one that is no multiple of the rows.
    """
    named = named_arguments(args, kwargs)
    place, rows = place_of_input(layer, args, kwargs), sum(map(len, passes))
    dims = _dims_of_rows(layer, named, place)
    x, dim = named[place], dims[place]
    step = repeats_per_row(layer, x, rows, least, dim)
    results = []
    for number, own in enumerate(passes):
        cut = _cut(named, dims, own, rows)
        results.append(run(number, tuple(cut[i] for i in range(len(args))), {name: cut[name] for name in kwargs}))
    if isinstance(results[0], Tensor):
        return _joined(results, passes, dim)
    # attention returns its output, and its weights (rows, …) or None; other layers may return more than an output, too
    outputs, *others = zip(*results, strict=True)
    for one in results:
        output_in(layer, one)
    return with_output(results[0], _joined(outputs, passes, dim), [_other(one, passes, step) for one in others])


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
    for names, ndim, dim in _ATTENTION:
        for name in names:
            if isinstance(named.get(name), Tensor) and named[name].ndim == ndim:
                dims[name] = batch if dim is None else dim
    return dims


_ATTENTION: tuple[tuple[tuple[int | str, ...], int, int | None], ...] = (
    ((0, "query", 1, "key", 2, "value"), 3, None),
    ((3, "key_padding_mask"), 2, 0),
    ((5, "attn_mask"), 3, 0),
)
"""Arguments of torch's attention by place or name; their dimensions with rows; the rows' own, if not the layer's."""


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
        self._scheduled = False
        for binding in self._bindings:
            ranges = binding.ranges
            strengths.register(ranges)
            self._scheduled |= ranges[0].schedule is not None
        self._readers: dict[str, tuple[tuple[object, ...], type[WeightReader]]] = {}

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the layer's forward with effective weights in place of its own."""
        if compiling() and opaque.is_for(layer, args, kwargs):
            y = opaque.call(layer, base_forward, args)
            if y is not None:
                return y
        return self._run_now(layer, base_forward, args, kwargs)

    # a graph must not hold scratch memory, which other layers and other graphs use, too
    @uncompiled
    def _run_now(
        self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._budget.contended:
            self._budget.note(self._account)
        try:
            if self._strengths.numbers is not None:  # all rows and places have the same strengths
                return self._run(layer, base_forward, args, kwargs)
            if self._strengths.mixed:
                return self._run_apart(layer, base_forward, args, kwargs)
            return self._run_regions(layer, base_forward, args, kwargs)
        finally:
            if not self._stays:
                self.evict()

    def _run_apart(
        self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make one pass for each group of rows with equal strengths; rows at strength 0 get the base forward."""
        groups: dict[tuple[object, ...], list[int]] = {}
        values = [tuple(own[binding.group] for binding in self._bindings) for own in self._strengths.values]
        for row, image in enumerate(self._strengths.rows):
            groups.setdefault((values[image], self._regions(image)), []).append(row)
        passes = list(groups.values())

        def run(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            image = self._strengths.rows[passes[number][0]]
            if not any(values[image]):
                return base_forward(layer, *args, **kwargs)
            return self._run_regions(layer, base_forward, args, kwargs, image, passes[number])

        if len(passes) == 1:
            return run(0, args, kwargs)
        return _in_passes(layer, passes, self._bindings[0].target.batched_ndim, run, args, kwargs)

    def _regions(self, image: int | None) -> tuple[RegionPart, ...]:
        """Return the region of each binding, with its part of the prompt."""
        strengths = self._strengths
        if strengths.regional_groups.isdisjoint(self._groups):
            return (ALL_PLACES,) * len(self._bindings)
        regions = strengths.stack_strengths.group_regions[strengths.shown if image is None else image]
        return tuple(regions[binding.group] for binding in self._bindings)

    def _run_regions(
        self,
        layer: nn.Module,
        base_forward: BaseForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        image: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> Any:
        """Make one pass with the bindings that act everywhere, and one for each region that adds its bindings."""
        regions = self._regions(image)
        if all(region == ALL_PLACES for region in regions):
            return self._run(layer, base_forward, args, kwargs, image)
        if self._bindings[0].target.kind == "experts":
            text = f"a LoRA for a part of the picture changes the weights of experts in a {type(layer).__name__}"
            raise RegionError(f"{text}, whose tokens have no order; take its region away")

        def run(region: RegionPart) -> Any:
            acting = frozenset(i for i, own in enumerate(regions) if own in (ALL_PLACES, region))
            if not acting:
                return base_forward(layer, *args, **kwargs)
            return self._run(layer, base_forward, args, kwargs, image, acting)

        total = y = run(ALL_PLACES)
        for region in dict.fromkeys(one for one in regions if one != ALL_PLACES):
            total = self._blended(layer, total, y, run(region), region, rows)
        return total

    def _blended(
        self, layer: nn.Module, total: Any, y: Any, other: Any, region: RegionPart, rows: Sequence[int] | None
    ) -> Any:
        """Add the change by a region's pass, at the places of the region."""
        if not isinstance(y, Tensor):  # attention's output and weights; the weights stay the ones without the region
            whole, own, others = (output_in(layer, one) for one in (total, y, other))
            return with_output(total, self._blended(layer, whole, own, others, region, rows))
        strengths = self._strengths
        layout = self._token_layout(y, rows)
        parts = strengths.parts if rows is None or not strengths.parts else [strengths.parts[row] for row in rows]
        which = tuple((region_on_row(region, layout.grid, part),) for part in parts or (None,))
        first = layout.channels_first
        weights = strengths.region_weights(layout.grid, which, y.device, y.dtype, channels_first=first)
        return total + (other - y) * shaped_by_places(weights, layout)

    def _token_layout(self, y: Tensor, rows: Sequence[int] | None) -> TokenLayout:
        target, latents = self._bindings[0].target, self._strengths.latents
        if latents is not None and rows is not None:
            latents = replace(latents, rows=len(rows))
        nowhere = self._of_text or target.kind in ("embedding", "attention")
        maps = target.kind == "conv" or (target.kind == "norm" and y.ndim > 3 and y.shape[1] == target.shape[0])
        return token_layout(y.shape, latents, spatial=y.ndim - 2 if maps else 0, of_text=nowhere)

    def _run(
        self,
        layer: nn.Module,
        base_forward: BaseForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        image: int | None = None,
        acting: frozenset[int] | None = None,
    ) -> Any:
        """Make one pass.

        Args:
            layer: the layer.
            base_forward: its forward.
            args: of its call.
            kwargs: likewise.
            image: the image of the batch, where its images differ.
            acting: the indexes of the bindings that act; None is all.
        """
        place = place_of_input(layer, args, kwargs)
        x: Tensor = args[place] if isinstance(place, int) else kwargs[place]
        readers, packed = [], False
        for param in self._params:
            reader = self._reader(layer, param)
            readers.append(reader)
            packed |= not reader.holds_values
        if packed and not self._acts(image, acting):
            # a product with the decoded weight has other bits than the layer's own product
            return base_forward(layer, *args, **kwargs)
        kept = _is_kept(layer, args, kwargs)
        with plain_mode(x.device):
            placed = self._placed_at(layer, x.device, _ANY)
            effective = self._effective(layer, readers, placed, x, image, acting, kept=kept)
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

    def _acts(self, image: int | None, acting: frozenset[int] | None) -> bool:
        """Tell whether any adapter of a pass has a strength other than 0."""
        values = self._strengths.values[self._strengths.shown if image is None else image]
        return any(values[one.group] for one, _ in self._acting(self._bindings, acting))

    def _product(self, layer: nn.Module, x: Tensor, effective: dict[str, Tensor]) -> Tensor:
        """Compute the product of a linear layer or a convolution with an effective weight.

        Raises:
            ComponentError: the layer is neither.
        """
        if self._bindings[0].target.kind not in ("linear", "conv"):
            text = f"a {type(layer).__name__} computes its {', '.join(effective)} from something else"
            raise ComponentError(f"{text}, so no adapter can change it; take the file off")
        op = Operation(layer, effective["weight"].ndim - 2)
        y = op.apply(x, effective["weight"])
        bias = effective.get("bias", getattr(layer, "bias", None))
        return y if bias is None else y + op.per_channel(bias.to(y))

    def _effective(
        self,
        layer: nn.Module,
        readers: Sequence[type[WeightReader]],
        placed: Placement[Adapters],
        x: Tensor,
        image: int | None,
        acting: frozenset[int] | None,
        *,
        kept: bool,
    ) -> dict[str, Tensor]:
        """Build the effective parameters, in scratch memory unless they are kept after the call."""
        found: dict[str, Tensor] = {}
        bases = [reader.read(layer, param) for reader, param in zip(readers, self._params, strict=True)]
        ready: _Ready | None = self._views
        like = bases[0].device, wide(bases[0].dtype)
        if ready is None or ready.placed is not placed or ready.like != like or image is not None or acting is not None:
            ready = self._make_ready(placed, like, image, acting)
        for param, reader, base in zip(self._params, readers, bases, strict=True):
            dtype = x.dtype if not reader.plain and x.is_floating_point() else base.dtype
            total = torch.empty_like(base, dtype=dtype) if kept else scratch.take(param, base, dtype)
            ready.sums[param].build(total, base)
            found[param] = total
        for binding, adapter in ready.biased:
            self._change_bias(layer, binding, adapter, found, image)
        return found

    def _make_ready(
        self,
        placed: Placement[Adapters],
        like: tuple[torch.device, torch.dtype],
        image: int | None,
        acting: frozenset[int] | None,
    ) -> _Ready:
        """Put together what a pass needs, and keep that for calls in which nothing differs."""
        adapters = placed.get().all
        sums = {
            param: Sum(self._parts(param, adapters, *like, image, acting), in_order=self._in_order)
            for param in self._params
        }
        pairs = self._acting(adapters, acting)
        biased = [(one, own) for one, own in pairs if own.has_bias or own.bias_excess is not None]
        ready = _Ready(placed, like, sums, biased)
        if image is None and acting is None and not (self._scheduled or placed.packed):
            self._views = ready
        return ready

    def _parts(
        self,
        param: str,
        adapters: Sequence[Adapter],
        device: torch.device,
        dtype: torch.dtype,
        image: int | None = None,
        acting: frozenset[int] | None = None,
    ) -> list[Part]:
        return [
            Part(adapter, self._strength(binding, device, dtype, image), self._rank(binding), binding.target.rows)
            for binding, adapter in self._acting(adapters, acting)
            if binding.target.param == param
        ]

    def _acting(self, adapters: Sequence[T], acting: frozenset[int] | None) -> list[tuple[Binding, T]]:
        pairs = zip(self._bindings, adapters, strict=True)
        return [pair for i, pair in enumerate(pairs) if acting is None or i in acting]

    def _rank(self, binding: Binding) -> int | None:
        """Return how many rank components act at the present timestep; None is all."""
        schedule, timestep = binding.adapter.ranks_by_timestep, self._strengths.timestep
        if schedule is None or timestep is None:
            return binding.rank
        first = schedule.first(timestep)
        return first if binding.rank is None else min(first, binding.rank)

    def _strength(self, binding: Binding, device: torch.device, dtype: torch.dtype, image: int | None = None) -> Tensor:
        return self._strengths.for_variant(binding.ranges, device, wide(dtype), image)

    def _change_bias(
        self, layer: nn.Module, binding: Binding, adapter: Adapter, found: dict[str, Tensor], image: int | None
    ) -> None:
        target, weight = binding.target, found[binding.target.param]
        bias, total = bias_of(layer, target), found.get(target.bias)
        rows = slice(None) if target.bias_rows is None else slice(*target.bias_rows)
        own = total if self._in_order and total is not None else bias
        strength = self._strength(binding, weight.device, weight.dtype, image)
        delta = adapter.change_of_bias(None if own is None else own.detach()[rows].to(strength))
        if delta is None:
            return
        if total is None:
            width = 3 * weight.shape[0] if target.bias_rows and target.rows is None else weight.shape[0]
            total = weight.new_zeros(width) if bias is None else bias.detach().to(weight, copy=True)
            found[target.bias] = total
        total[rows].add_(delta.to(strength) * strength)

    def _adapters(self, layer: nn.Module) -> tuple[Adapter, ...]:
        if self._in_order:  # norms are then norms of the weight that the adapters before leave, not of the base weight
            return tuple(
                one.file.private(one.adapter)
                if one.whole is None
                else one.whole.known(one.adapter, one.rank, one.file.private)
                for one in self._bindings
            )
        return super()._adapters(layer)

    def _make(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype
    ) -> Placement[Adapters]:
        adapters = Adapters(tuple(adapter.placed(device) for adapter in self._adapters(layer)))
        return Placement(device, _ANY, _ANY, store(adapters, self._storage), self._storage != "file")


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
