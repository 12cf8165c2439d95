"""The merged way, opt-in: the deltas are written into the base weight, which costs nothing per call.

Always from the pristine weight, never from what an earlier strength left; summed in fp32, rounded stochastically where
the weight has fewer bits; put back bit for bit. A weight that other code wrote to meanwhile is left alone, and is
pristine from then on. One that was cast meanwhile becomes what the casts would have made of the pristine one.
"""

from __future__ import annotations

import logging
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..adapters.base import Adapter
from ..errors import ComponentError, FileError
from ..placement.resident import Binding
from ..strengths.table import StrengthTable
from ..tensors import plain_mode, wide
from ..weights.base_weight import WeightMark, holds_values, mark_weight
from ..weights.originals import Checkpoint, OriginalWeight, copied, kept
from ..weights.rounding import digest, generator_for, round_stochastically
from .dense import DenseExecutor, bias_of
from .dense_products import Round, build

if TYPE_CHECKING:
    from ..weights.operation import BaseForward

logger = logging.getLogger(__name__)

_CASTS = tuple(
    getattr(torch, name)
    for name in ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
    if hasattr(torch, name)  # torch 2.1 and later
)
"""What a model is cast to, and back from."""
_MOST_CASTS = 3
_SAMPLES = 1024

_spoiled: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[int, ...]]] = weakref.WeakKeyDictionary()
"""Digests of the parameters that could not be put back; their layers are refused from then on."""


@dataclass(frozen=True, slots=True)
class _Written:
    """One parameter that is not as it was."""

    pristine: OriginalWeight
    before: tuple[int, ...] | None
    """Digest of the pristine bits, taken where the parameter was; None where they stay in their memory."""
    after: tuple[int, ...] = ()
    """Digest of the written weight."""
    held: Tensor | None = None
    """Memory of ours that the parameter has instead of its own, which is the pristine one."""
    mark: WeightMark | None = None
    """Marks that tell, without reading it whole, whether the parameter is still the written one."""


@dataclass(frozen=True, slots=True)
class _Original:
    """A parameter without adapters."""

    tensor: Tensor
    cast: bool = False
    """Whether it is what casts would have made of the pristine one, and not that one."""


class MergedExecutor(DenseExecutor):
    """Bindings of one layer whose weight holds them.

    Args:
        bindings: the adapters, in the order of the stack.
        strengths: of the plan.
        in_order: let each adapter act on the weight that the ones before it left.
        checkpoint: where pristine parameters can be read again; others are copied to the CPU.
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
        self._values: tuple[float, ...] = ()
        self._recalling = False

    @property
    def backup_bytes(self) -> int:
        """Return the bytes of the copies of replaced weights."""
        return sum(written.pristine.nbytes for written in self._written.values())

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the layer's forward; its weight has the adapters."""
        return base_forward(layer, *args, **kwargs)

    def move(self, layer: nn.Module, device: torch.device, *, now: bool = False) -> None:
        """Write the weight for the present strengths where the plan comes into force; a merged layer moves by itself.

        Raises:
            ComponentError: another program wrote a part of the weight; the model must be loaded again.
            FileError: a checkpoint that holds the original was overwritten; the same.
        """
        if not now:
            return
        (values,) = self._strengths.values  # images that differ are not merged
        wanted = tuple(values[binding.group] for binding in self._bindings)
        with plain_mode(next(layer.parameters()).device):
            marked = [(written.mark, param) for param, written in self._written.items()]
            if not all(mark is not None and mark == mark_weight(layer, param) for mark, param in marked):
                self._forget_replaced(layer)
            if self._written and wanted == self._values:
                return
            try:
                self._merge(layer)
            except BaseException:
                self.release(layer)
                raise
        self._values = wanted

    def is_stale(self, layer: nn.Module) -> bool:
        """Return False: `move` looks whether other code wrote to the weight before it writes the strengths."""
        return False

    def release(self, layer: nn.Module) -> None:
        """Put every parameter back, bit for bit.

        Raises:
            FileError: a checkpoint that holds an original was overwritten; the model must be loaded again.
            ComponentError: what was put back is not what it was; the same.
        """
        failed: FileError | ComponentError | None = None
        while self._written:
            param, written = self._written.popitem()
            try:
                self._put_back(layer, param, written)
            except (FileError, ComponentError) as error:  # the other parameters are put back all the same
                failed = failed or error
        self._values = ()
        super().release(layer)
        if failed is not None:
            raise failed

    def _forget_replaced(self, layer: nn.Module) -> dict[str, _Original]:
        """Forget what was written if something else wrote one of the parameters since, and put back the others.

        Returns:
            Where nothing did, what the parameters would be without adapters.
        """
        found: dict[str, _Original] = {}
        for param, written in self._written.items():
            parameter = layer.get_parameter(param)
            if parameter.device.type == "meta":
                continue
            original = self._original(layer, param, parameter, written)
            if original is None:
                self.release(layer)
                self._known = None  # was worked out of the weight that was
                return {}
            found[param] = original
        return found

    def _follow_casts(self, layer: nn.Module) -> None:
        """Let the next merge start from the pristine parameters as casts would have left them."""
        for param, original in self._forget_replaced(layer).items():
            if original.cast:
                now = digest(layer.get_parameter(param))
                self._written[param] = _Written(copied(original.tensor), digest(original.tensor), now)

    def _merge(self, layer: nn.Module) -> None:
        refuse_spoiled(layer)
        self._follow_casts(layer)
        adapters = self._adapters(layer)  # norms of the base weight among them: read before anything is written
        for param in self._params:
            weight = layer.get_parameter(param)
            with _writing(weight):
                placed = [adapter.placed(weight.device) for adapter in adapters]
                base = self._pristine(layer, param, weight).to(weight.device)
                total = torch.empty_like(weight)
                parts = self._parts(param, placed, base)
                build(total, base, parts, in_order=self._in_order, write=_rounding(self._seed(param), weight))
                self._write(layer, param, weight, total)
        self._merge_biases(layer, adapters)

    def _merge_biases(self, layer: nn.Module, adapters: Sequence[Adapter]) -> None:
        def pristine(param: str, bias: Tensor) -> Tensor:
            return self._pristine(layer, param, bias).to(bias.device)

        for param, total in self._bias_totals(layer, adapters, pristine).items():
            bias = layer.get_parameter(param)
            with _writing(bias):
                self._write(layer, param, bias, total.to(bias.dtype))

    def _bias_totals(
        self, layer: nn.Module, adapters: Sequence[Adapter], pristine: Callable[[str, Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """Compute the biases with their changes, by parameter."""
        totals: dict[str, Tensor] = {}
        for binding, adapter in zip(self._bindings, adapters, strict=True):
            bias = _changed_bias(layer, binding)
            if bias is None:
                continue
            target = binding.target
            own = pristine(target.bias, bias)
            own = own.to(wide(own.dtype))
            total = totals.setdefault(target.bias, own.clone())
            rows = slice(None) if target.bias_rows is None else slice(*target.bias_rows)
            delta = adapter.change_of_bias((total if self._in_order else own)[rows])
            if delta is not None:
                total[rows].add_(delta.to(total) * self._strength(binding, total))
        return totals

    def _pristine(self, layer: nn.Module, param: str, parameter: Tensor) -> Tensor:
        """Return the parameter as it was, on the CPU; kept from the first time on."""
        written = self._written.get(param)
        if written is None:
            path = self._bindings[0].target.path
            found = None if self._checkpoint is None else self._checkpoint.find(path, param, parameter)
            pristine = found or kept(parameter)
            before = None if pristine.source == "memory" else digest(parameter)
            written = self._written[param] = _Written(pristine, before)
        return written.pristine.read()

    def _write(self, layer: nn.Module, param: str, parameter: Tensor, total: Tensor) -> None:
        """Have the parameter be `total`: a copy, or in place of its own memory where that is kept."""
        written = self._written[param]
        if written.pristine.source == "memory" and parameter.device == total.device:
            written = self._written[param] = replace(written, after=digest(total), held=total, mark=None)
            parameter.data = total
        else:
            written = self._written[param] = replace(written, after=digest(total), held=None, mark=None)
            parameter.detach().copy_(total)
        self._written[param] = replace(written, mark=mark_weight(layer, param))

    def _put_back(self, layer: nn.Module, param: str, written: _Written) -> None:
        parameter = layer.get_parameter(param)
        if parameter.device.type == "meta":
            return  # the model was unloaded: there is nothing left to put back
        with _writing(parameter):
            try:
                original = self._original(layer, param, parameter, written)
            except (FileError, ComponentError):
                _spoiled.setdefault(layer, {})[param] = digest(parameter)
                raise
            if original is None:
                name = f"{type(layer).__name__}.{param}"
                logger.warning("%s was changed by something else while adapters were merged into it; left alone", name)
            elif written.held is not None and _is_in(parameter, written.held) and not original.cast:
                if original.tensor.device == parameter.device:
                    parameter.data = original.tensor
                else:
                    parameter.detach().copy_(original.tensor)
            else:
                parameter.detach().copy_(original.tensor)
                if digest(parameter) != (digest(original.tensor) if original.cast else _before(written)):
                    text = f"{param} of a {type(layer).__name__} is not what it was"
                    raise ComponentError(f"{text}; load the model again")

    def _original(self, layer: nn.Module, param: str, parameter: Tensor, written: _Written) -> _Original | None:
        """Tell what a parameter would be now without adapters; None where something else has written it.

        Raises:
            ComponentError: it has adapters in it, and what became of it cannot be told; the model must be loaded again.
            FileError: a checkpoint that holds the original was overwritten; the same.
        """
        pristine, now = written.pristine.read(), digest(parameter)
        if now == written.after or now == _before(written):  # the second takes time
            return _Original(pristine)
        if not written.after or (written.held is not None and _is_in(parameter, written.held)):
            return None  # a cast would have made other memory
        total, exact = self._total(layer, param, parameter, written)
        total, value = total.cpu(), parameter.detach().cpu()
        for casts in _ways_to(value, total) if exact else ():
            if digest(_cast(total, casts)) == now:
                return _Original(_cast(pristine.cpu(), casts), cast=True)
        if not exact and parameter.dtype != pristine.dtype and _rounds_to(total, value, pristine.dtype):
            return _Original(pristine.cpu().to(parameter.dtype), cast=True)
        if _has(value, total, pristine.cpu()):
            text = f"{param} of a {type(layer).__name__} was changed while a LoRA was merged into it, and still has it"
            raise ComponentError(f"{text}; load the model again")
        return None

    def _total(self, layer: nn.Module, param: str, parameter: Tensor, written: _Written) -> tuple[Tensor, bool]:
        """Return the written weight, kept or made again, and whether it is the same to the bit.

        Raises:
            ComponentError: a file of an adapter changed on disk, so that it cannot be made.
        """
        if written.held is not None and digest(written.held) == written.after:
            return written.held, True
        base = written.pristine.read().to(parameter.device)
        self._recalling = True
        try:
            adapters = self._adapters(layer)
            if param in self._params:
                total = torch.empty_like(base)
                parts = self._parts(param, [adapter.placed(base.device) for adapter in adapters], base)
                build(total, base, parts, in_order=self._in_order, write=_rounding(self._seed(param), total))
            else:
                total = self._bias_totals(layer, adapters, lambda name, bias: base)[param].to(base.dtype)
        except FileError as error:
            text = f"{param} of a {type(layer).__name__} was changed while {error.path.name} was merged into it"
            text = f"{text}, and that file has changed, too, so that the weight cannot be put back"
            raise ComponentError(f"{text}; load the model again") from error
        finally:
            self._recalling = False
        return total, digest(total) == written.after

    def _strength(self, binding: Binding, like: Tensor, image: int | None = None) -> Tensor:
        if not self._recalling:
            return super()._strength(binding, like, image)
        values = (value for one, value in zip(self._bindings, self._values, strict=True) if one is binding)
        return torch.full((1,), next(values), device=like.device, dtype=wide(like.dtype))

    def _seed(self, param: str) -> int:
        """Return a seed that is the same whenever a layer is merged, so that one stack always gives the same bits."""
        return zlib.crc32(f"{self._bindings[0].target.path}.{param}".encode())


def _is_in(parameter: Tensor, memory: Tensor) -> bool:
    return parameter.device == memory.device and parameter.data_ptr() == memory.data_ptr()


def _before(written: _Written) -> tuple[int, ...]:
    return digest(written.pristine.read()) if written.before is None else written.before


def refuse_spoiled(layer: nn.Module) -> None:
    """Refuse a layer with a weight that a LoRA could not be taken off, as long as it is that weight.

    Raises:
        ComponentError: it is such a one.
    """
    for param, spoiled in _spoiled.get(layer, {}).items():
        parameter = dict(layer.named_parameters()).get(param)
        if parameter is not None and parameter.device.type != "meta" and digest(parameter) == spoiled:
            text = f"{param} of a {type(layer).__name__} still has a LoRA that could not be taken off"
            raise ComponentError(f"{text}; load the model again")


def refuse_spoiled_in(modules: Iterable[nn.Module]) -> None:
    """Refuse modules that are such a layer or contain one.

    Raises:
        ComponentError: there is one.
    """
    if _spoiled:
        for module in modules:
            for layer in module.modules():
                refuse_spoiled(layer)


def _cast(tensor: Tensor, dtypes: Iterable[torch.dtype]) -> Tensor:
    for dtype in dtypes:
        tensor = tensor.to(dtype)
    return tensor


def _ways_to(value: Tensor, total: Tensor) -> Iterator[tuple[torch.dtype, ...]]:
    """Yield the casts, the fewest first, that make `value` of `total` as far as some of the numbers tell."""
    step = max(1, total.numel() // _SAMPLES)
    some, want = total.flatten()[::step], digest(value.flatten()[::step])
    for count in range(_MOST_CASTS):
        for between in product(_CASTS, repeat=count):
            casts = (*between, value.dtype)
            if digest(_cast(some, casts)) == want:
                yield casts


def _rounds_to(total: Tensor, value: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether `value` may be `total`, rounded to a dtype by chance up or down, and then to its own."""
    limits = [torch.finfo(one) for one in (value.dtype, dtype)]
    least, share = sum(one.tiny for one in limits), 2 * sum(one.eps for one in limits)
    want = total.to(wide(total.dtype))
    return bool(((value.to(want.dtype) - want).abs() <= share * want.abs() + least).all())


def _has(value: Tensor, total: Tensor, pristine: Tensor) -> bool:
    """Tell whether a weight is one with adapters that was changed a little, and not an altogether other one."""
    value, total, pristine = (one.to(torch.float32) for one in (value, total, pristine))
    off = torch.dist(value, total)
    return bool(off < 0.5 * total.norm()) and bool(off < torch.dist(value, pristine))


def _changed_bias(layer: nn.Module, binding: Binding) -> Tensor | None:
    """Return the bias that an adapter changes; None where it changes none, or the layer has none."""
    changes = binding.adapter.has_bias or binding.adapter.bias_excess is not None
    return bias_of(layer, binding.target) if changes else None


def _rounding(seed: int, weight: Tensor) -> Round | None:
    if weight.element_size() >= 4:
        return None
    generator = generator_for(weight.device, seed)

    def write(out: Tensor, block: Tensor) -> None:
        round_stochastically(out, block, generator)

    return write


def _writing(parameter: Tensor) -> AbstractContextManager[None]:
    """Return the mode in which a parameter may be written: one made in inference mode only in that mode."""
    return torch.inference_mode() if parameter.is_inference() else torch.no_grad()


def why_not_merged(layer: nn.Module, bindings: Sequence[Binding], shared: frozenset[int]) -> str | None:
    """Return why these adapters cannot be merged into the layer; None where they can.

    Args:
        layer: the layer.
        bindings: its adapters.
        shared: ids of the parameters that several layers of the model have in common.
    """
    for binding in bindings:
        if binding.adapter.ranks_by_timestep is not None:
            return "its ranks change from step to step"
        bias = binding.adapter.has_bias or _changed_bias(layer, binding) is not None
        params = [binding.target.param, *((binding.target.bias,) if bias else ())]
        for param in params:
            reason = _unwritable(layer, param, shared)
            if reason is not None:
                return reason
    return None


def _unwritable(layer: nn.Module, param: str, shared: frozenset[int]) -> str | None:
    owner, _, leaf = param.rpartition(".")
    parameter = layer.get_submodule(owner)._parameters.get(leaf)
    if parameter is None:
        return f"there is no {leaf} to merge into"
    if parameter.device.type == "meta":
        return "the weight is elsewhere (offloaded) between two calls"
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()  # no two entries in one place
    if not holds_values(layer, param) or not dense:
        return f"a {type(layer).__name__} keeps its weight in a form that cannot be put back exactly"
    if id(parameter) in shared:
        return "the weight belongs to several layers"
    return None
