"""The low-rank executor: adapters beside their layer; only the base forward uses the base weight.

y = W (x + sum of changes of the input) + b + up (m * (down x)) + sum of changes of the output

All low-rank pairs of a layer are one pair of matrices, stacked along the rank, with m = multiplier * scale per rank
component: two products for any number of entries. Changes of the input are added before the same product by W, so they
cost no further base call. Plain pairs on many tokens may instead be added to the weight first, see
`low_rank_products.py`. Where the rows of a batch have strengths of their own, m has a row for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from ..adapters.base import Adapter, Factors, Form, InputEffect, Operation, OutputEffect, Pair
from ..compiler import compiling, tracing
from ..naming.architectures.base import is_of_text
from ..naming.binding import Binding
from ..placement.arena import Dtypes
from ..placement.resident import PlacementPolicy, Resident, is_trained, strength_ranges
from ..placement.static import padded_rank
from ..placement.storage import Placement, is_packed, store
from ..strengths.calls import CallStrengths
from ..strengths.model_call import repeats_per_row
from ..strengths.regions import TokenLayout, token_layout
from ..strengths.table import LayerStrengths, StrengthTable, with_change_of_bias
from ..tensors import TensorFields, capturing
from . import opaque
from .arguments import Args, BaseForward, Kwargs, output_in, place_of_input, with_output
from .low_rank_products import (
    EXACT,
    MARGIN,
    USUAL,
    PackedPair,
    Plain,
    add_pair,
    add_pair_by_row,
    effective_linear,
    is_fresh,
    pays,
    shared_cast,
    spread,
    stacked,
)


@dataclass(frozen=True, slots=True, eq=False)
class Parts(TensorFields):
    """A layer's adapters, in the dtype of the output; changes of the input in the dtype of the input."""

    pair: Factors | None
    inputs: tuple[InputEffect, ...]
    outputs: tuple[OutputEffect, ...]
    bias: Tensor | None  # (n, out), one row for each binding that changes the bias

    exact: ClassVar[frozenset[str]] = frozenset({"bias"})


@dataclass(frozen=True, slots=True, eq=False)
class Placed(Placement[Parts]):
    """A layer's adapters on one device, and their strengths."""

    strengths: LayerStrengths
    """Strengths of the pair, of the biases, and of each change of the output."""
    inputs: LayerStrengths | None
    """Strengths of each change of the input, in the dtype of the input."""
    plain: Plain | None
    """For eager calls of a layer that has a pair and nothing else; None where it is packed."""
    reads: Sequence[bool]
    """Of each change of the output that reads the output, whether the bias belongs to it."""


class LowRankExecutor(Resident[Placed]):
    """Bindings of one linear, convolution or embedding layer that act beside it; `forms` has the form of each."""

    name = "low-rank"

    def __init__(
        self, bindings: Sequence[Binding], forms: Sequence[Form], strengths: StrengthTable, policy: PlacementPolicy
    ) -> None:
        super().__init__(bindings, strengths, policy)
        target = bindings[0].target
        self._static, self._forms, self._rank = policy.static, forms, 0
        self._kind, self._spatial = target.kind, len(target.shape) - 2
        self._nowhere = target.kind == "embedding" or is_of_text(target.path)
        self._biased, self._inputs, self._outputs = list[int](), list[int](), list[int]()
        pairs = list[tuple[int, Pair]]()
        for i, (binding, form) in enumerate(zip(self._bindings, forms, strict=True)):
            if form.pair is not None:
                pairs.append((binding.group, form.pair))
                self._rank += form.pair.rank
            if binding.adapter.has_bias:
                self._biased.append(i)
            if form.on_input:
                self._inputs.append(i)
            if form.on_output:
                self._outputs.append(i)
        if pairs and policy.buckets:
            rank = padded_rank(self._rank, policy.buckets)
            pairs.append((pairs[0][0], Pair(rank - self._rank, 0.0)))
            self._rank = rank
        biases = tuple([(bindings[i].group, Pair(1, 1.0)) for i in self._biased]) if self._biased else ()
        self._columns = strengths.register(tuple(pairs), biases)
        if self._inputs or self._outputs:
            self._input_columns = strengths.register(*[strength_ranges(bindings[i]) for i in self._inputs])
            self._columns += strengths.register(*[strength_ranges(bindings[i]) for i in self._outputs])
        self._only_pairs = bool(pairs) and not self._inputs and not self._outputs
        self._is_plain = self._only_pairs and not (biases or policy.static is not None or target.kind == "embedding")

    def run(self, layer: nn.Module, base_forward: BaseForward, args: Args, kwargs: Kwargs) -> Any:
        """Compute the layer's forward plus its deltas."""
        placed = None if compiling() or tracing() else self._placed  # a graph must not guard it
        if self.weight_readers and torch.is_grad_enabled():
            placed = None  # autograd may follow what they read
        if placed is None or placed.plain is None or len(args) != 1 or kwargs:
            return self._run_any(layer, base_forward, args, kwargs)
        x, numbers, strengths = args[0], self._strengths.now.numbers, placed.strengths
        if numbers is None or not (self._stays and isinstance(x, Tensor)) or x.device != placed.device:
            return self._run_any(layer, base_forward, args, kwargs)
        if x.is_cuda and capturing(x.device):  # a graph reads strengths from tensors
            return self._run_any(layer, base_forward, args, kwargs)
        (pair, flat, many), (last, number) = placed.plain, strengths.known
        strength = number if number is not None and numbers is last else strengths.number(numbers)
        if x.numel() > many and x.dtype is placed.dtype and pays(layer, base_forward, x):
            return effective_linear(layer, x, pair, strength)
        y = base_forward(layer, x)
        if not isinstance(y, Tensor) or y.dtype is not placed.dtype or y.device != x.device:
            return self._run_any(layer, base_forward, args, kwargs, y)
        if x.dtype is not y.dtype:  # under autocast, or with a host that casts inside its forward
            x = shared_cast(x, y.dtype)
        fresh = is_fresh(layer, y, base_forward)  # among the arguments of another call, `y` would be held once more
        return add_pair(layer, x, y, pair, strength, fresh=fresh, flat=flat)

    def _run_any(
        self, layer: nn.Module, base_forward: BaseForward, args: Args, kwargs: Kwargs, returned: Any = None
    ) -> Any:
        """Compute any call; `returned` is the result of the base forward, if it was called already."""
        now = self._strengths.now
        if now.stack.has_regions and (y := opaque.call(layer, base_forward, args, kwargs)) is not None:
            return y
        if now.is_unknown:
            self._strengths.refuse_unknown(now, self._groups)
        place = place_of_input(args, kwargs)
        x: Tensor = args[place] if isinstance(place, int) else kwargs[place]
        alike = not now.mixed and not self._is_regional(now)
        of_base: Any = None

        def base(x: Tensor) -> Tensor:
            nonlocal returned, of_base
            if returned is not None:
                of_base, returned = returned, None
            elif isinstance(place, str):
                of_base = base_forward(layer, *args, **{**kwargs, place: x})
            else:
                of_base = base_forward(layer, *args[:place], x, *args[place + 1 :], **kwargs)
            return of_base if isinstance(of_base, Tensor) else output_in(layer, of_base)

        try:
            if alike and self._only_pairs and self._kind == "linear" and pays(layer, base_forward, x):
                return self._in_weight(layer, x)
            y = self._beside(layer, base_forward, base, x, alike=alike)
            return y if isinstance(of_base, Tensor) else with_output(of_base, y)
        finally:
            if not self._stays:
                self.evict()

    def _in_weight(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute a linear layer with its pairs in an effective weight."""
        placed = self._placed_at(layer, x.device, x.dtype)
        parts, number = placed.get(), self._number(placed)
        _, (of_pair, of_bias, *_), _ = placed.strengths.present()
        assert parts.pair is not None
        y = effective_linear(layer, x, parts.pair, of_pair if number is None else number)
        return y if parts.bias is None else with_change_of_bias(y, of_bias, parts.bias, self._spatial)

    def _beside(
        self, layer: nn.Module, base_forward: BaseForward, base: Callable[[Tensor], Tensor], x: Tensor, *, alike: bool
    ) -> Tensor:
        op = Operation(layer, self._spatial, base)
        y = base(self._changed_input(layer, x, op, alike=alike) if self._inputs else x)
        placed = self._placed_at(layer, y.device, y.dtype, x.dtype)
        own, parts, number = x, placed.get(), self._number(placed) if self._is_plain else None
        if self._kind != "embedding" and (x.dtype is not y.dtype or x.device != y.device):
            own = shared_cast(x.to(y.device), y.dtype)  # a host casts, as autocast does, or moves inside its forward
        if number is not None and parts.pair is not None:
            fresh = is_fresh(layer, y, base_forward, held=2)  # `base` holds it, too
            return add_pair(layer, own, y, parts.pair, number, fresh=fresh)
        if self._strengths.stale:  # compiled code reads them without asking
            self._strengths.rewrite()
        by_row = None if alike or parts.pair is None else self._by_row(layer, placed, own, y)
        is_alone = by_row is not None and not parts.outputs and parts.bias is None  # then nothing reads the others
        live = placed.strengths.alike if alike or is_alone else self._live(layer, placed.strengths, x, y)
        of_pair, of_bias, *of_outputs = live
        y, deltas = self._with_outputs(y, x, of_outputs, parts, placed.reads, op) if parts.outputs else (y, [])
        is_new = len(deltas) < len(parts.outputs)
        if parts.pair is not None and self._kind == "embedding":
            y, is_new = y + (F.embedding(own, parts.pair.up) * of_pair) @ parts.pair.down, True
        elif parts.pair is not None:
            fresh = (is_new and not y.requires_grad) or is_fresh(layer, y, base_forward, held=2)
            if by_row is None:
                y, is_new = add_pair(layer, own, y, parts.pair, of_pair, fresh=fresh), True
            else:
                y, is_new = add_pair_by_row(own, y, parts.pair, *by_row, fresh=fresh), True
        for delta, window in deltas:
            if y.requires_grad or not (is_new or is_fresh(layer, y, base_forward, held=2)):
                y = y.clone()
            window.outputs(y).add_(delta)
            is_new = True
        return y if parts.bias is None else with_change_of_bias(y, of_bias, parts.bias, self._spatial)

    def _number(self, placed: Placed) -> Tensor | float | None:
        """Return the strength of a plain call; None for any other call.

        All ways through the executor use it, so that they have the same bits.
        """
        if compiling() or tracing() or not self._is_plain:  # first, so that a graph does not guard numbers
            return None
        numbers = self._strengths.now.numbers
        return None if numbers is None or capturing(placed.device) else placed.strengths.number(numbers)

    def _by_row(self, layer: nn.Module, placed: Placed, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the strengths of the rows of a call, and the ranks that act on each; None where many act on each.

        None also in compiled code, which guards no rows, in a graph, which would keep them, and for gradients.

        Raises:
            RowsError: the layer's input has no rows that belong to the model call's.
        """
        if self._kind != "linear" or compiling() or tracing() or x.requires_grad or y.requires_grad:
            return None
        now, _, factors = placed.strengths.present()
        if not now.mixed or self._is_regional(now) or capturing(placed.device):
            return None
        ranks = self._strengths.ranks_of_rows(now, self._columns[0], placed.device)
        if ranks is None:
            return None
        repeats_per_row(layer, x, ranks.shape[0], self._bindings[0].target.batched_ndim)  # raises
        return factors[0], ranks

    def _live(self, layer: nn.Module, strengths: LayerStrengths, x: Tensor, changed: Tensor) -> Sequence[Tensor]:
        """Return the strengths of the changes of `changed`, by row of the batch and by place where these differ.

        Raises:
            RowsError: the layer's input has no rows that belong to the model call's.
        """
        now, factors, rows = strengths.present()
        regional, repeats = self._is_regional(now), 1
        if now.mixed:  # by their number: a graph must not guard which rows they are
            factors, least = rows, self._bindings[0].target.batched_ndim
            repeats = repeats_per_row(layer, x, rows[0].shape[0], least)
        if regional:
            return strengths.at(self._layout(changed, now), now, factors, regional=True)
        layout = TokenLayout(None, (1,) * (changed.ndim - 2), repeats, channels_first=self._spatial > 0)
        return strengths.at(layout, now, factors, regional=False) if now.mixed else factors

    def _layout(self, tensor: Tensor, now: CallStrengths) -> TokenLayout:
        return token_layout(tensor.shape, now.latents, spatial=self._spatial, of_text=self._nowhere)

    def _is_regional(self, now: CallStrengths) -> bool:
        """Tell whether some of its strengths differ from place to place."""
        regional = now.stack.regional_groups
        return bool(regional) and not regional.isdisjoint(self._groups)  # without regions, a graph guards no groups

    def _changed_input(self, layer: nn.Module, x: Tensor, op: Operation, *, alike: bool) -> Tensor:
        placed = self._placed
        if placed is None or placed.device != x.device or placed.input_dtype != x.dtype:
            # the dtype of the output is not known before the base call; the last call's is the best guess
            placed = self._place_for_call(layer, x.device, (x.dtype if placed is None else placed.dtype, x.dtype))
        if self.weight_readers and torch.is_grad_enabled() and is_trained(layer):
            placed = self._in_training(layer, placed)
        assert placed.inputs is not None
        if self._strengths.stale:  # compiled code reads them without asking
            self._strengths.rewrite()
        changed, strengths = x, placed.inputs.alike if alike else self._live(layer, placed.inputs, x, x)
        for effect, strength in zip(placed.get().inputs, strengths, strict=True):
            changed = effect.added(changed, x, (strength.clone() if x.requires_grad else strength).to(x.dtype), op)
        return changed

    def _with_outputs(
        self, y: Tensor, x: Tensor, strengths: Sequence[Tensor], parts: Parts, reads: Sequence[bool], op: Operation
    ) -> tuple[Tensor, list[tuple[Tensor, Operation]]]:
        """Return the output with changes of all outputs, in new memory; and each change of some, with their operation.

        `y` is the base output.
        """
        whole = op.whole(x) if self._inputs and reads else y
        pristine = whole if all(reads) else op.without_bias(whole)
        x, total, deltas = x.to(device=y.device, dtype=y.dtype), y, []
        if y.requires_grad:  # strengths may change before the gradient is computed
            strengths = [one.clone() for one in strengths]
        for i, effect, strength in zip(self._outputs, parts.outputs, strengths, strict=True):
            rows, seen = self._bindings[i].target.rows, whole if effect.reads_bias else pristine
            if rows is None:
                total = effect.added(total, x, seen, strength, op)
            else:
                window = op.window(rows)
                deltas.append((effect.delta(x, window.outputs(seen), strength, window), window))
        return total, deltas

    def _content(self, adapters: Sequence[Adapter], device: torch.device, dtypes: Dtypes) -> Parts:
        target, (dtype, input_dtype) = self._bindings[0].target, dtypes
        pair: Factors | PackedPair | None = None
        bias: Tensor | None = None
        width = target.outputs or target.shape[0]
        downs, ups, rows = list[Tensor](), list[Tensor](), list[tuple[int, int] | None]()
        for i, (adapter, binding) in enumerate(zip(adapters, self._bindings, strict=True)):
            if self._forms[i].pair is not None:
                factors = adapter.factors(binding.rank)
                if dtype is torch.float16 and binding.file.largest > USUAL:
                    factors = spread(factors, USUAL)
                downs.append(factors.down)
                ups.append(factors.up)
                rows.append(binding.target.rows)
        if downs:
            down = stacked(downs, 0, device, dtype, length=self._rank)
            pair = Factors(down, stacked(ups, 1, device, dtype, rows, width, length=self._rank))
            pair = PackedPair.of(pair) if self._storage == "float8" else pair
        if self._biased:
            changes = [adapters[i].delta_bias().unsqueeze(1) for i in self._biased]
            windows = [self._bindings[i].target.rows for i in self._biased]
            bias = stacked(changes, 1, device, dtype, windows, width).t()
        inputs = tuple([adapters[i].input_effect(device, input_dtype) for i in self._inputs]) if self._inputs else ()
        outputs = tuple([adapters[i].output_effect(device, dtype) for i in self._outputs]) if self._outputs else ()
        # a packed pair is there to be unpacked, as any packed tensor
        parts = Parts(cast(Factors | None, pair), inputs, outputs, bias)
        return parts if self._storage == "file" else store(parts, self._storage)

    def _placement(self, content: Parts, device: torch.device, dtypes: Dtypes) -> Placed:
        (dtype, input_dtype), packed = dtypes, self._storage != "file" and is_packed(content)
        strengths, of_inputs = self._strengths.for_layer(self._columns, device, dtype, self._spatial), None
        if self._inputs:
            of_inputs = self._strengths.for_layer(self._input_columns, device, input_dtype, self._spatial)
        plain: Plain | None = None
        if (pair := content.pair) is not None and self._is_plain and not packed:
            plain = pair, None, math.inf
            if not self._spatial:
                out, inside = pair.up.shape[0], pair.down.shape[1]
                least = MARGIN * inside * inside * out / (out + inside) if dtype in EXACT else math.inf
                plain = pair, (pair.down.t(), pair.up.t()), least
        reads = [effect.reads_bias for effect in content.outputs if effect.reads_output] if content.outputs else ()
        return Placed(device, dtype, input_dtype, content, packed, strengths, of_inputs, plain, reads)
