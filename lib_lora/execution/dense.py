"""The dense executor: the effective weight is built for one call; the base weight is never written.

It serves adapters that no separate product can compute, or for which the sum is cheaper. nn.MultiheadAttention
multiplies by its parameters inside one fused function, a norm has no product, a grouped convolution has no low-rank
pair, a full difference is as large as the weight. The layer's forward then runs on a stand-in that shares everything
with the layer except these parameters.

Rows of the batch with equal strengths are computed in one pass. Each region of the picture is a pass, too, of which the
places inside the region are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..adapters.base import Adapter, HeadSchedule, Operation, at_strength
from ..compiler import compiling, uncompiled
from ..errors import ComponentError, RegionError
from ..naming.architectures.base import is_of_text
from ..naming.binding import Binding
from ..placement.arena import Dtypes
from ..placement.resident import Adapters, PlacementPolicy, Resident, is_trained, strength_ranges
from ..placement.storage import Placement, is_packed, store
from ..strengths.calls import CallStrengths
from ..strengths.model_call import repeats_per_row
from ..strengths.regions import ALL_PLACES, RegionPart, region_on_row, token_layout
from ..strengths.table import StrengthTable, shaped_by_places
from ..tensors import COMPUTING, capturing, plain_mode, wide
from ..weights.readers.base import WeightReader, stored, weight_reader
from . import opaque
from .arguments import BaseForward, output_in, place_of_input, with_output
from .dense_products import Part, Sum
from .low_rank_products import TORCHS


class _Call(NamedTuple):
    """One call of a layer, or one of the passes in which it is computed."""

    layer: nn.Module
    base_forward: BaseForward
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    now: CallStrengths
    image: int | None = None
    """The variant of its rows; None is the one that is shown."""
    rows: Sequence[int] = ()
    """The rows of the model call that its arguments hold; none is all."""
    acting: Sequence[int] | None = None
    """The indexes of the bindings that act; None is all."""


def _in_passes(call: _Call, passes: Sequence[Sequence[int]], least: int, run: Callable[[_Call], Any]) -> Any:
    """Run a layer once for each group of rows of the model call, and join the results in the order of the rows.

    `least` is the smallest number of dimensions of a batched input.

    Raises:
        RowsError: the input has no batch, or one that is no multiple of the rows.
    """
    layer, named = call.layer, dict[int | str, Any](enumerate(call.args)) | call.kwargs
    place, rows = place_of_input(call.args, call.kwargs), sum(map(len, passes))
    dims = _dims_of_rows(layer, named, place)
    dim = dims[place]
    step = repeats_per_row(layer, named[place], rows, least, dim)
    results = []
    for of_pass in passes:
        cut = _cut(named, dims, of_pass, rows)
        args, kwargs = tuple(cut[i] for i in range(len(call.args))), {name: cut[name] for name in call.kwargs}
        results.append(run(call._replace(args=args, kwargs=kwargs, rows=of_pass)))
    y = _joined([output_in(layer, result) for result in results], passes, dim, step)
    # attention returns its weights (rows, …) or None, too; other layers may return more than an output as well
    others = [] if isinstance(results[0], Tensor) else list(zip(*results, strict=True))[1:]
    return with_output(results[0], y, [_joined(other, passes, 0, step) for other in others])


def _dims_of_rows(layer: nn.Module, named: Mapping[int | str, Any], place: int | str) -> dict[int | str, int]:
    """Return the dimension of the rows of each argument that has them: torch's attention's, or what is as long as `x`.

    The first dimension of a mask of torch's attention is rows, or rows times heads.
    """
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    if not isinstance(layer, nn.MultiheadAttention):
        length = tensors[place].shape[:1]
        return {name: 0 for name, tensor in tensors.items() if tensor.shape[:1] == length}
    batch = 0 if layer.batch_first else 1
    dims = {name: 0 if name in _MASKS else batch for name in tensors if tensors[name].ndim == _MASKS.get(name, 3)}
    return {place: batch} | dims


_MASKS: Mapping[int | str, int] = {3: 2, "key_padding_mask": 2, 5: 3, "attn_mask": 3}
"""The masks of torch's attention, by place or name; their dimensions where they have rows."""


def _cut(
    named: Mapping[int | str, Any], dims: Mapping[int | str, int], of_pass: Sequence[int], rows: int
) -> dict[int | str, Any]:
    """Cut the arguments to some rows; equal tensors stay one tensor, as attention checks for that."""
    cut: dict[int, Tensor] = {}
    for name, dim in dims.items():
        whole: Tensor = named[name]
        if id(whole) not in cut:
            chunks = whole.chunk(rows, dim)
            cut[id(whole)] = torch.cat([chunks[row] for row in of_pass], dim)
    return {name: cut[id(value)] if name in dims else value for name, value in named.items()}


def _joined(results: Sequence[Any], passes: Sequence[Sequence[int]], dim: int, step: int) -> Any:
    """Put the rows of the passes into the order of the batch; where a result has no rows, return the first pass's."""
    chunks: dict[int, Tensor] = {}
    for result, of_pass in zip(results, passes, strict=True):
        if not isinstance(result, Tensor) or result.ndim <= dim or result.shape[dim] != len(of_pass) * step:
            return results[0]
        chunks.update(zip(of_pass, result.chunk(len(of_pass), dim), strict=True))
    return torch.cat([chunks[row] for row in sorted(chunks)], dim)


_ANY = torch.float32
"""Adapters are placed in the dtypes of their files, so the dtype of a placement makes no difference."""


class DenseExecutor(Resident[Placement[Adapters]]):
    """Bindings of one layer that need an effective weight.

    With `in_order`, each adapter acts on the weight that the adapters before it left.
    """

    name = "dense"
    _dtypes = _ANY, _ANY

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
        self._params = tuple(dict.fromkeys(binding.target.param for binding in self._bindings))
        ranges = [strength_ranges(binding) for binding in self._bindings]
        self._columns = dict(zip(ranges, strengths.register(*ranges), strict=True))
        self._scheduled = any(pair.schedule is not None for ((_, pair),) in ranges)
        self._readers: dict[str, tuple[object, type[WeightReader]]] = {}

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the layer's forward with effective weights in place of its own."""
        if compiling() and (y := opaque.call(layer, base_forward, args, kwargs)) is not None:
            return y
        return self._run_now(_Call(layer, base_forward, args, kwargs, self._strengths.now))

    @uncompiled  # it asks for more than a graph may guard
    def _run_now(self, call: _Call) -> Any:
        if call.now.is_unknown:
            self._strengths.refuse_unknown(call.now, self._groups)
        try:
            if call.now.numbers is not None:  # all rows and places have the same strengths
                return self._run(call)
            return self._run_apart(call) if call.now.mixed else self._run_regions(call)
        finally:
            if not self._stays:
                self.evict()

    def _run_apart(self, call: _Call) -> Any:
        """Make one pass for each group of rows with equal strengths."""
        groups: dict[tuple[object, ...], list[int]] = {}
        now = call.now
        for row, image in enumerate(now.rows):
            values = tuple([now.values[image][binding.group] for binding in self._bindings])
            groups.setdefault((values, self._regions(call._replace(image=image))), []).append(row)
        passes = list(groups.values())

        def run(part: _Call) -> Any:
            return self._run_regions(part._replace(image=now.rows[part.rows[0]]))

        if len(passes) == 1:
            return run(call._replace(rows=passes[0]))
        return _in_passes(call, passes, self._bindings[0].target.batched_ndim, run)

    def _regions(self, call: _Call) -> tuple[RegionPart, ...]:
        """Return the region of each binding, with its part of the prompt."""
        variant = call.now.shown if call.image is None else call.image
        return tuple([call.now.stack.region(binding.group, variant) for binding in self._bindings])

    def _run_regions(self, call: _Call) -> Any:
        """Make one pass with the bindings that act everywhere, and one for each region that adds its bindings."""
        regions = self._regions(call)
        others = [region for region in dict.fromkeys(regions) if region != ALL_PLACES]
        if not others:
            return self._run(call)
        if self._bindings[0].target.kind == "experts":
            text = f"a LoRA for a part of the picture changes the weights of experts in a {type(call.layer).__name__}"
            raise RegionError(f"{text}, whose tokens have no order; remove its region")

        def run(region: RegionPart) -> Any:
            acting = [i for i, of_binding in enumerate(regions) if of_binding in (ALL_PLACES, region)]
            return self._run(call._replace(acting=acting))

        returned = run(ALL_PLACES)  # attention's output and weights; the weights stay the ones without the region
        total = y = output_in(call.layer, returned)
        for region in others:
            total = total + (output_in(call.layer, run(region)) - y) * self._weights(region, y, call)
        return with_output(returned, total)

    def _weights(self, region: RegionPart, y: Tensor, call: _Call) -> Tensor:
        """Return the weights of a region at the places of an output with the rows of a pass."""
        target, latents, parts = self._bindings[0].target, call.now.latents, call.now.parts
        if latents is not None and call.rows:
            latents = replace(latents, rows=len(call.rows))
        nowhere = target.kind in ("embedding", "attention") or is_of_text(target.path)
        maps = target.kind == "conv" or (target.kind == "norm" and y.ndim > 3 and y.shape[1] == target.shape[0])
        layout = token_layout(y.shape, latents, spatial=y.ndim - 2 if maps else 0, of_text=nowhere)
        of_rows = [parts[row] for row in call.rows] if parts and call.rows else parts or (None,)
        rows = tuple([(region_on_row(region, layout.grid, part),) for part in of_rows])
        return shaped_by_places(self._strengths.region_weights(layout, rows, y, (1,)), layout)

    def _run(self, call: _Call) -> Any:
        """Make one pass."""
        layer, base_forward, args, kwargs, *_ = call
        place = place_of_input(args, kwargs)
        x: Tensor = args[place] if isinstance(place, int) else kwargs[place]
        readers, packed = [], False
        for param in self._params:
            reader = self._reader(layer, param)
            readers.append(reader)
            packed |= not reader.holds_values
        if (packed or call.image is not None or call.acting is not None) and not self._acts(call, x.device):
            # a product with the decoded weight has other bits than the layer's own product
            return base_forward(layer, *args, **kwargs)
        follows = torch.is_grad_enabled() and is_trained(layer)
        with plain_mode(x.device), torch.set_grad_enabled(follows):
            effective = self._effective(call, readers, x)
        if not packed and type(layer) is nn.Linear and base_forward in TORCHS:  # as its forward has it
            return F.linear(x, effective["weight"], effective.get("bias", layer.bias))
        stand_in = None if packed else with_parameters(layer, effective)
        if stand_in is None:  # a forward that unpacks its weight cannot take an unpacked one
            return self._product(layer, x, effective)
        return base_forward(stand_in, *args, **kwargs)

    def _acts(self, call: _Call, device: torch.device) -> bool:
        """Tell whether any binding has a strength other than 0, or may have one when a captured graph is replayed."""
        values = call.now.of(call.image)
        acting = range(len(self._bindings)) if call.acting is None else call.acting
        return bool(acting) if capturing(device) else any(values[self._bindings[i].group] for i in acting)

    def _reader(self, layer: nn.Module, param: str) -> type[WeightReader]:
        """Return the reader of a parameter, which is looked for again where its signs have changed."""
        weight, signs = layer._parameters.get(param), None
        if weight is not None and not weight.__dict__:
            sizes = len(layer.__dict__), len(layer._parameters), len(layer._buffers), len(layer._modules)
            signs = type(layer), type(weight), weight.dtype, weight.layout, *sizes
        known = self._readers.get(param)
        if signs is None or known is None or known[0] != signs:
            known = signs, weight_reader(layer, param)
            if known[1].plain:
                self._readers[param] = known
        return known[1]

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

    def _effective(self, call: _Call, readers: Sequence[type[WeightReader]], x: Tensor) -> dict[str, Tensor]:
        params: dict[str, Tensor] = {}
        placed = self._placed_at(call.layer, x.device, _ANY)
        bases = [reader.read(call.layer, param) for reader, param in zip(readers, self._params, strict=True)]
        like, is_whole = (bases[0].device, wide(bases[0].dtype)), call.image is None and call.acting is None
        ready = self._views if is_whole else None
        if ready is None or ready[0] is not placed or ready[1] is not call.now.numbers or ready[2] != like:
            pairs = list(zip(self._bindings, placed.get().all, strict=True))
            pairs = pairs if call.acting is None else [pairs[i] for i in call.acting]
            sums = {param: self._sum_of(param, pairs, like, call.now, call.image) for param in self._params}
            biased = [pair for pair in pairs if pair[1].has_bias or pair[1].bias_excess is not None]
            ready = placed, call.now.numbers, like, sums, biased
            # for calls in which nothing differs
            if (
                is_whole
                and placed is self._placed
                and call.now.numbers is not None
                and not (self._scheduled or placed.packed or capturing(like[0]))
            ):
                self._views = ready
        *_, sums, biased = ready
        for param, reader, base in zip(self._params, readers, bases, strict=True):
            dtype = x.dtype if not reader.plain and x.is_floating_point() else base.dtype
            params[param] = sums[param].build(base, dtype)
        return params | self._biases(call.layer, biased, params, call.now, call.image) if biased else params

    def _sum_of(
        self,
        param: str,
        pairs: Iterable[tuple[Binding, Adapter]],
        like: tuple[torch.device, torch.dtype],
        now: CallStrengths,
        image: int | None = None,
    ) -> Sum:
        """Return the deltas of one parameter by these bindings with their adapters, at the strengths of a call."""
        parts = []
        for binding, adapter in pairs:
            if binding.target.param == param:
                schedule = binding.adapter.schedule_of_parts
                rank = binding.rank if schedule is None else schedule.ranks(binding.rank, now.moment)
                parts.append(Part(adapter, self._strength(binding, like, now, image), rank, binding.target.rows))
        return Sum(parts, in_order=self._in_order)

    def _strength(
        self, binding: Binding, like: tuple[torch.device, torch.dtype], now: CallStrengths, image: int | None
    ) -> Tensor | float:
        """Return the strength of a binding; a tensor where it is several numbers, or a captured graph reads it."""
        if capturing(like[0]) or isinstance(binding.adapter.schedule_of_parts, HeadSchedule):
            return self._strengths.for_variant(self._columns[strength_ranges(binding)], *like, image)
        return now.of(image)[binding.group]

    def _biases(
        self,
        layer: nn.Module,
        pairs: Iterable[tuple[Binding, Adapter]],
        weights: Mapping[str, Tensor],
        now: CallStrengths,
        image: int | None = None,
        *,
        exact: bool = False,
    ) -> dict[str, Tensor]:
        """Return the biases that adapters change, with their changes, by parameter.

        They are in the dtype of the weight beside them, or where `exact`, in fp32 or fp64.
        """
        totals: dict[str, Tensor] = {}
        for binding, adapter in pairs:
            target, weight = binding.target, weights[binding.target.param]
            where, bias = (weight.device, wide(weight.dtype)), stored(layer, target.bias)
            if bias is not None and not torch.is_grad_enabled():
                bias = bias.data
            total, rows = totals.get(target.bias), target.slice
            before = total if self._in_order and total is not None else bias
            if before is not None:  # the sum may take it as it is
                before = before[rows].to(where[0], before.dtype if before.dtype in COMPUTING else where[1])
            delta = adapter.change_of_bias(before)
            if delta is None:
                continue
            if total is None:
                dtype = where[1] if exact else weight.dtype
                if bias is None:
                    total = weight.new_zeros(weight.shape[0], dtype=dtype)
                else:
                    total = bias.to(where[0], dtype, copy=True)
                totals[target.bias] = total
            delta, strength = delta.to(*where), self._strength(binding, where, now, image)
            if delta.ndim > 1 or isinstance(strength, Tensor):
                delta, strength = at_strength(delta, strength), 1.0
            total[rows].add_(delta, alpha=strength)
        return totals

    def _content(self, adapters: Sequence[Adapter], device: torch.device, dtypes: Dtypes) -> Adapters:
        return store(Adapters(tuple([adapter.placed(device) for adapter in adapters])), self._storage)

    def _placement(self, content: Adapters, device: torch.device, dtypes: Dtypes) -> Placement[Adapters]:
        return Placement(device, _ANY, _ANY, content, self._storage != "file" and is_packed(content))


def with_parameters(layer: nn.Module, params: Mapping[str, Tensor]) -> nn.Module | None:
    """Make a copy of `layer` that shares everything with it except `params`; None where its class overrides these."""
    own = {name: value for name, value in params.items() if "." not in name}
    children, stand_in = dict(layer._modules), object.__new__(type(layer))
    stand_in.__dict__.update(layer.__dict__)
    if parametrize.is_parametrized(layer):  # the class has a property for each tensor that is computed from others
        stand_in.__class__ = parametrize.type_before_parametrizations(layer)
        computed: Any = layer.parametrizations
        own = {name: getattr(layer, name) for name in computed} | own
    for name in own:
        stand_in.__dict__.pop(name, None)  # weight_norm's hook writes its result there
    for name, value in params.items():
        child, dot, param = name.partition(".")
        module = children.get(child)
        if dot and module is not None:
            children[child] = with_parameters(module, {param: value}) or module
    stand_in.__dict__ |= {"_parameters": {**layer._parameters, **own}, "_modules": children}
    return stand_in if all(stored(stand_in, name) is value for name, value in params.items()) else None
