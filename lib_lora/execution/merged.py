"""The merged executor, opt-in: the deltas are written into the base weight, which costs nothing per call.

They are added to the original weight, never to a merged one. The sum is computed in fp32, and rounded stochastically
where the weight has fewer bits. The original is restored bit for bit. A weight that other code wrote to is left alone,
and is the original from then on. A weight that was cast becomes the original after the same casts.
"""

from __future__ import annotations

import logging
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..adapters.base import Adapter
from ..errors import ComponentError, FileError
from ..placement.resident import Binding
from ..strengths.table import StrengthTable
from ..tensors import plain_mode, wide
from ..weights.originals import Checkpoint, OriginalWeight, WeightMark, copied, kept, mark_weight
from ..weights.readers.base import check_present, holds_values, with_numbers
from ..weights.rounding import digest, generator_for, round_stochastically
from .arguments import BaseForward
from .dense import DenseExecutor, bias_of

logger = logging.getLogger(__name__)

_CASTS = tuple(
    getattr(torch, name)
    for name in ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
    if hasattr(torch, name)  # torch 2.1 and later
)
"""Dtypes that a model may be cast to and back."""
_MOST_CASTS = 3
_SAMPLES = 1024

_spoiled: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[int, ...]]] = weakref.WeakKeyDictionary()
"""Digests of the parameters that could not be restored; their layers are refused from then on."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A parameter that adapters were merged into."""

    original: OriginalWeight
    before: tuple[int, ...] | None
    """Digest of the original; None where the original is still in memory of its own."""
    after: tuple[int, ...] = ()
    """Digest of the merged weight."""
    held: Tensor | None = None
    """The memory of the merged weight, where the parameter's own memory holds the original."""
    mark: WeightMark | None = None
    """Tells without a digest whether the parameter is still the merged weight."""


class MergedExecutor(DenseExecutor):
    """Bindings of one layer whose weight holds them.

    Args:
        bindings: the adapters, in the order of the stack.
        strengths: the strength table of the plan.
        in_order: let each adapter act on the weight that the adapters before it left.
        checkpoint: the files to read original parameters from; others are copied to the CPU.
    """

    name = "merged"
    merges = True

    def __init__(
        self,
        bindings: Sequence[Binding],
        strengths: StrengthTable,
        *,
        in_order: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        super().__init__(bindings, strengths, in_order=in_order)
        self._checkpoint = checkpoint
        self._written: dict[str, _Written] = {}
        self._values: dict[int, float] = {}
        """The strength of each group in the merged weights."""

    @property
    def backup_bytes(self) -> int:
        """Return the bytes of the copies of replaced weights."""
        return sum(written.original.nbytes for written in self._written.values())

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the layer's forward; its weight has the adapters."""
        return base_forward(layer, *args, **kwargs)

    def move(self, layer: nn.Module, device: torch.device, *, now: bool = False) -> None:
        """Merge for the present strengths when the plan becomes active; a merged layer moves by itself.

        Raises:
            ComponentError: another program wrote a part of the weight; the model must be loaded again.
            FileError: a checkpoint that holds the original was overwritten; the same.
        """
        if not now:
            return
        (values,) = self._strengths.values  # images that differ are not merged
        wanted = {group: values[group] for group in self._groups}
        with plain_mode(next(layer.parameters()).device):
            if any(one.mark is None or one.mark != mark_weight(layer, param) for param, one in self._written.items()):
                self._forget_replaced(layer)
            if self._written and wanted == self._values:
                return
            check_present(layer, self._written or self._params)
            try:
                self._merge(layer, wanted)
            except BaseException:
                self.release(layer)
                raise

    def release(self, layer: nn.Module) -> None:
        """Restore every parameter, bit for bit.

        Raises:
            FileError: a checkpoint that holds an original was overwritten; the model must be loaded again.
            ComponentError: a restored parameter differs from its original; the same.
        """
        failed: FileError | ComponentError | None = None
        while self._written:
            param, written = self._written.popitem()
            try:
                self._restore(layer, param, written)
            except (FileError, ComponentError) as error:  # the other parameters are restored all the same
                failed = failed or error
        self._values = {}
        super().release(layer)
        if failed is not None:
            raise failed

    def _forget_replaced(self, layer: nn.Module) -> dict[str, tuple[Tensor, bool]]:
        """Restore all parameters if other code wrote to one of them; else return `_original` of each."""
        found: dict[str, tuple[Tensor, bool]] = {}
        for param, written in self._written.items():
            parameter = with_numbers(layer, param)
            if parameter is None:
                continue
            original = self._original(layer, param, parameter, written)
            if original is None:
                self.release(layer)
                self._known = None  # computed from the weight before
                return {}
            found[param] = original
        return found

    def _merge(self, layer: nn.Module, values: dict[int, float]) -> None:
        refuse_spoiled([layer])
        for param, (original, cast) in self._forget_replaced(layer).items():
            if cast:
                now = digest(layer.get_parameter(param))
                self._written[param] = _Written(copied(original), digest(original), now)
        self._values = values
        adapters = self._adapters(layer)  # norms of the base weight among them: read before anything is written
        read = partial(self._original_weight, layer)
        weights = [(param, layer.get_parameter(param)) for param in self._params]
        totals = {param: self._sum(param, adapters, read(param, weight), weight) for param, weight in weights}
        for param, total in (totals | self._bias_sums(layer, adapters, read)).items():
            self._write(layer, param, total)

    def _sum(self, param: str, adapters: Sequence[Adapter], base: Tensor, like: Tensor) -> Tensor:
        """Return a weight with its deltas, on the device of `base` and as `like`; the same bits each time."""
        total, write = torch.empty_like(like), None
        if like.element_size() < 4:
            seed = zlib.crc32(f"{self._bindings[0].target.path}.{param}".encode())
            write = partial(round_stochastically, generator=generator_for(like.device, seed))
        pairs = zip(self._bindings, [adapter.placed(base.device) for adapter in adapters], strict=True)
        self._sum_of(param, pairs, (base.device, base.dtype)).build(total, base, write)
        return total

    def _bias_sums(
        self, layer: nn.Module, adapters: Sequence[Adapter], original: Callable[[str, Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """Return the biases with their changes, by parameter."""
        totals: dict[str, Tensor] = {}
        for binding, adapter in zip(self._bindings, adapters, strict=True):
            bias = _changed_bias(layer, binding)
            if bias is None:
                continue
            target = binding.target
            own = original(target.bias, bias)
            own = own.to(wide(own.dtype))
            total = totals.setdefault(target.bias, own.clone())
            rows = slice(None) if target.bias_rows is None else slice(*target.bias_rows)
            delta = adapter.change_of_bias((total if self._in_order else own)[rows])
            if delta is not None:
                total[rows].add_(delta.to(total) * self._strength(binding, total.device, total.dtype))
        return totals

    def _original_weight(self, layer: nn.Module, param: str, parameter: Tensor) -> Tensor:
        """Return the original of a parameter on its device; the first call decides where the original is kept."""
        written = self._written.get(param)
        if written is None:
            path = self._bindings[0].target.path
            found = None if self._checkpoint is None else self._checkpoint.find(path, param, parameter)
            original = found or kept(parameter)
            before = None if original.source == "memory" else digest(parameter)
            written = self._written[param] = _Written(original, before)
        return written.original.read().to(parameter.device)

    def _write(self, layer: nn.Module, param: str, total: Tensor) -> None:
        """Set a parameter to `total`, in other memory where its own memory holds the original."""
        parameter, written, held = layer.get_parameter(param), self._written[param], None
        total = total.to(parameter.dtype)
        with _writing(parameter):
            if written.original.source == "memory" and parameter.device == total.device:
                parameter.data = held = total
            else:
                parameter.detach().copy_(total)
            self._written[param] = replace(written, after=digest(total), held=held, mark=mark_weight(layer, param))

    def _restore(self, layer: nn.Module, param: str, written: _Written) -> None:
        parameter = with_numbers(layer, param)
        if parameter is None:
            return  # the model was unloaded: there is nothing left to restore
        with _writing(parameter):
            try:
                found = self._original(layer, param, parameter, written)
            except (FileError, ComponentError):
                _spoiled.setdefault(layer, {})[param] = digest(parameter)
                raise
            if found is None:
                name = f"{type(layer).__name__}.{param}"
                logger.warning("%s was changed by other code while adapters were merged into it; left alone", name)
                return
            original, cast = found
            if _has_memory(parameter, written.held) and not cast:
                parameter.data = original.to(parameter.device)
                return
            parameter.detach().copy_(original)
            now = with_numbers(layer, param)  # read again: of one on a disk, a copy was written
            if now is None or digest(now) != (digest(original) if cast else _before(written)):
                text = f"{param} of a {type(layer).__name__} is not what it was"
                raise ComponentError(f"{text}; load the model again")

    def _original(
        self, layer: nn.Module, param: str, parameter: Tensor, written: _Written
    ) -> tuple[Tensor, bool] | None:
        """Return a parameter without adapters, and whether it was cast; None where other code wrote to it.

        Raises:
            ComponentError: it still has adapters, and how it was changed is unknown; the model must be loaded again.
            FileError: a checkpoint that holds the original was overwritten; the same.
        """
        original, now = written.original.read(), digest(parameter)
        if now == written.after or now == _before(written):  # the second takes time
            return original, False
        if not written.after or _has_memory(parameter, written.held):
            return None  # a cast would have made other memory
        total, exact = self._merged_weight(layer, param, parameter, written)
        total, value = total.cpu(), parameter.detach().cpu()
        for casts in _casts_to(value, total) if exact else ():
            if digest(_cast(total, casts)) == now:
                return _cast(original.cpu(), casts), True
        if not exact and parameter.dtype != original.dtype and _rounds_to(total, value, original.dtype):
            return original.cpu().to(parameter.dtype), True
        if _has_adapters(value, total, original.cpu()):
            text = f"{param} of a {type(layer).__name__} was changed while a LoRA was merged into it, and still has it"
            raise ComponentError(f"{text}; load the model again")
        return None

    def _merged_weight(self, layer: nn.Module, param: str, parameter: Tensor, written: _Written) -> tuple[Tensor, bool]:
        """Return a merged weight as it was written, or computed again, and whether it has the same bits.

        Raises:
            ComponentError: a file of an adapter changed on disk, so that the weight cannot be computed.
        """
        if written.held is not None and digest(written.held) == written.after:
            return written.held, True
        base = written.original.read().to(parameter.device)
        try:
            adapters = self._adapters(layer)
            if param in self._params:
                total = self._sum(param, adapters, base, base)
            else:
                total = self._bias_sums(layer, adapters, lambda name, bias: base)[param].to(base.dtype)
        except FileError as error:
            text = f"{param} of a {type(layer).__name__} was changed while {error.path.name} was merged into it"
            text = f"{text}, and that file has changed, too, so that the weight cannot be restored"
            raise ComponentError(f"{text}; load the model again") from error
        return total, digest(total) == written.after

    def _strength(self, binding: Binding, device: torch.device, dtype: torch.dtype, image: int | None = None) -> Tensor:
        return torch.full((1,), self._values[binding.group], device=device, dtype=wide(dtype))


def _has_memory(parameter: Tensor, memory: Tensor | None) -> bool:
    return memory is not None and (parameter.device, parameter.data_ptr()) == (memory.device, memory.data_ptr())


def _before(written: _Written) -> tuple[int, ...]:
    return digest(written.original.read()) if written.before is None else written.before


def refuse_spoiled(modules: Iterable[nn.Module]) -> None:
    """Refuse layers, or modules that contain one, with a weight that a LoRA could not be taken off.

    Raises:
        ComponentError: there is one, and it still has that weight.
    """
    layers = (layer for module in modules for layer in module.modules()) if _spoiled else ()
    for layer in layers:
        for param, spoiled in _spoiled.get(layer, {}).items():
            parameter = dict(layer.named_parameters()).get(param)
            if parameter is not None and parameter.device.type != "meta" and digest(parameter) == spoiled:
                text = f"{param} of a {type(layer).__name__} still has a LoRA that could not be taken off"
                raise ComponentError(f"{text}; load the model again")


def _cast(tensor: Tensor, dtypes: Iterable[torch.dtype]) -> Tensor:
    for dtype in dtypes:
        tensor = tensor.to(dtype)
    return tensor


def _casts_to(value: Tensor, total: Tensor) -> Iterator[tuple[torch.dtype, ...]]:
    """Yield the casts, the fewest first, that turn samples of `total` into the same samples of `value`."""
    step = max(1, total.numel() // _SAMPLES)
    some, want = total.flatten()[::step], digest(value.flatten()[::step])
    for count in range(_MOST_CASTS):
        for between in product(_CASTS, repeat=count):
            casts = (*between, value.dtype)
            if digest(_cast(some, casts)) == want:
                yield casts


def _rounds_to(total: Tensor, value: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether `value` may be `total`, rounded up or down at random to a dtype, and then to its own."""
    limits = [torch.finfo(one) for one in (value.dtype, dtype)]
    least, share = sum(one.tiny for one in limits), 2 * sum(one.eps for one in limits)
    want = total.to(wide(total.dtype))
    return bool(((value.to(want.dtype) - want).abs() <= share * want.abs() + least).all())


def _has_adapters(value: Tensor, total: Tensor, original: Tensor) -> bool:
    """Tell whether a weight is nearer to the merged weight than to the original one."""
    value, total, original = (one.to(torch.float32) for one in (value, total, original))
    return bool(torch.dist(value, total) < torch.minimum(0.5 * total.norm(), torch.dist(value, original)))


def _changed_bias(layer: nn.Module, binding: Binding) -> Tensor | None:
    """Return the bias that an adapter changes; None where it changes none, or the layer has none."""
    changes = binding.adapter.has_bias or binding.adapter.bias_excess is not None
    return bias_of(layer, binding.target) if changes else None


def _writing(parameter: Tensor) -> AbstractContextManager[None]:
    """Return the mode in which a parameter may be written: one made in inference mode only in that mode."""
    return torch.inference_mode() if parameter.is_inference() else torch.no_grad()


def why_not_merged(layer: nn.Module, bindings: Sequence[Binding], shared: frozenset[int]) -> str | None:
    """Return why these adapters cannot be merged into the layer; None where they can.

    `shared` has the ids of the parameters that several layers of the model have in common.
    """
    for binding in bindings:
        if binding.adapter.schedule_of_parts is not None:
            return "its ranks or heads change from step to step"
        bias = binding.adapter.has_bias or _changed_bias(layer, binding) is not None
        for param in (binding.target.param, *((binding.target.bias,) if bias else ())):
            owner, _, leaf = param.rpartition(".")
            parameter = layer.get_submodule(owner)._parameters.get(leaf)
            if parameter is None:
                return f"there is no {leaf} to merge into"
            if parameter.device.type == "meta":
                return "the weight is elsewhere (offloaded) between two calls"
            is_packed = not holds_values(layer, param)  # such a tensor need not know `empty_like`
            # no two entries in one place
            if is_packed or torch.empty_like(parameter, device="meta").stride() != parameter.stride():
                return f"a {type(layer).__name__} keeps its weight in a form that cannot be put back exactly"
            if id(parameter) in shared:
                return "the weight belongs to several layers"
    return None
