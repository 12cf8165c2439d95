"""The merged executor, opt-in: the deltas are written into the base weight, so a call computes nothing more.

The sum is computed in fp32 from the original weight, and rounded stochastically where the weight has fewer bits. The
original is restored bit for bit while the parameter has the memory and the version that were noted when it was written:
then no other code wrote to it. Conversions of the layer are followed; the original is cast once, to the last dtype.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..adapters.base import Adapter
from ..compiler import compiling
from ..errors import ComponentError, FileError, LoraError
from ..naming.binding import Binding
from ..strengths.table import StrengthTable
from ..weights.originals import Checkpoint, OriginalWeight, kept, samples_of, version_of
from ..weights.readers.base import check_present, holds_values, stored, with_numbers
from ..weights.rounding import generator_for, round_stochastically
from .arguments import BaseForward
from .dense import DenseExecutor

_spoiled: weakref.WeakKeyDictionary[nn.Module, dict[str, bytes]] = weakref.WeakKeyDictionary()
"""Samples of the parameters that could not be restored; their layers are refused while they have these numbers."""


_Memory: TypeAlias = tuple[torch.dtype, torch.Size, tuple[int, ...], torch.device, int]
"""The dtype, shape, strides, device and address of a parameter."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A parameter with adapters, as it was written, or as the last conversion of its layer left it."""

    memory: _Memory
    version: int | None
    samples: bytes | None
    """Some of its numbers, by which other code may have moved it; None where a conversion changed them."""
    change: str = ""
    """What other code did to it before a conversion of the layer."""
    unfinished: bool = False
    """Whether it is being written, which an interruption may end: then the original is written, whatever is there."""

    def converted(self, parameter: Tensor) -> _Written:
        """Return the record after a conversion of the layer."""
        memory = _memory_of(parameter)
        return _Written(memory, version_of(parameter), self.samples if memory[:3] == self.memory[:3] else None)

    def change_of(self, parameter: Tensor, *, waits: bool = True) -> str:
        """Return what other code did to the parameter; empty where it did nothing, or moved it.

        A write that its version does not count, through `data` or in inference mode, is seen only if this `waits`.
        """
        is_there = _memory_of(parameter) == self.memory
        if self.change or self.unfinished:
            return self.change
        if is_there and version_of(parameter) != self.version:
            return "written to"
        if is_there and (self.samples is None or not waits):
            return ""
        is_same = (
            parameter.shape == self.memory[1] and self.samples is not None and samples_of(parameter) == self.samples
        )
        return "" if is_same else "written to" if is_there else "replaced"


def _memory_of(parameter: Tensor) -> _Memory:
    return parameter.dtype, parameter.shape, parameter.stride(), parameter.device, parameter.data_ptr()


class MergedExecutor(DenseExecutor):
    """Bindings of one layer whose weight holds them.

    Original parameters are read from the files of `checkpoint`; others are copied to the CPU.
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
        self._touched = tuple(dict.fromkeys((*self._params, *[binding.target.bias for binding in bindings])))
        self._originals: dict[str, OriginalWeight] = {}
        self._written: dict[str, _Written] = {}
        self._known: list[Adapter] | None = None
        self._values: dict[int, float] = {}
        """The strength of each group in the merged weights."""

    @property
    def backup_bytes(self) -> int:
        """Return the bytes of the copies of replaced weights."""
        return sum(original.nbytes for original in self._originals.values())

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the layer's forward; its weight has the adapters."""
        if compiling():
            return base_forward(layer, *args, **kwargs)
        # another thread may exchange the memory of a weight on the CPU, which must live while the layer reads it
        held = [
            parameter.data
            for module in (layer, *layer._modules.values())
            if module is not None
            for parameter in module._parameters.values()
            if parameter is not None and parameter.device.type == "cpu"
        ]
        y = base_forward(layer, *args, **kwargs)
        del held
        return y

    def follow(self, layer: nn.Module, device: torch.device, *, now: bool) -> None:
        """Merge for the present strengths when the plan becomes active; a merged layer moves by itself.

        Raises:
            ComponentError, FileError: see `release`.
        """
        if not now:
            return
        (values,) = self._strengths.now.values  # images that differ are not merged
        wanted = {group: values[group] for group in self._groups}
        written = ((with_numbers(layer, param), one) for param, one in self._written.items())
        if wanted == self._values and all(found is not None and not one.change_of(found) for found, one in written):
            return
        check_present(layer, self._originals or self._params)
        refuse_spoiled([layer])
        try:
            self._put_back(layer)
            self._merge(layer, wanted)
        except BaseException:
            self.release(layer)
            raise

    def weights(self, layer: nn.Module) -> list[tuple[nn.Module, str]]:
        """Return the parameters that have the adapters, and the ones that these were computed from."""
        return [*super().weights(layer), *[(layer, param) for param in self._touched if param in layer._parameters]]

    @contextmanager
    def converting(self, layer: nn.Module) -> Iterator[None]:
        """Follow the parameters through a conversion of the layer, such as `to`, even where it fails half-way."""
        for param, written in self._written.items():
            parameter = with_numbers(layer, param)
            if parameter is not None:
                self._written[param] = replace(written, change=written.change_of(parameter, waits=False))
        try:
            yield
        finally:
            for param, written in self._written.items():
                parameter = stored(layer, param)
                if parameter is not None and parameter.device.type != "meta" and not written.change:
                    self._written[param] = written.converted(parameter)

    def before_load(self, layer: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
        """Restore the parameters before `load_state_dict` replaces one of them: what it loads is an original."""
        if any(prefix + param in state for param in self._written):
            with suppress(LoraError):  # what is not loaded either is refused at the next activation
                self.release(layer)

    def release(self, layer: nn.Module) -> None:
        """Restore every parameter, bit for bit.

        Raises:
            ComponentError: other code changed a weight that has adapters; the model must be loaded again.
            FileError: a checkpoint that holds an original was overwritten; the same.
        """
        try:
            self._put_back(layer)
        except LoraError:
            raise
        except BaseException:  # an interruption, after which nothing else would restore the rest
            self._put_back(layer)
            raise
        finally:
            self._originals.clear()
            self._known = None
            super().release(layer)

    def _put_back(self, layer: nn.Module) -> None:
        """Restore every parameter, and keep the originals for the next strengths."""
        failed, self._values = list[LoraError](), {}
        for param, written in list(self._written.items()):
            try:
                self._restore(layer, param, written)
            except (FileError, ComponentError) as error:  # the other parameters are restored all the same
                parameter = stored(layer, param)
                samples = None if parameter is None else samples_of(parameter)
                _spoiled.setdefault(layer, {})[param] = samples or b""
                failed.append(error)
            self._written.pop(param, None)
        if failed:
            raise failed[0]

    def _restore(self, layer: nn.Module, param: str, written: _Written) -> None:
        parameter = with_numbers(layer, param)
        if parameter is None:
            return  # the model was unloaded: there is nothing left to restore
        change, original = written.change_of(parameter), self._originals[param]
        if not change:
            value = original.read()
            self._written[param] = replace(written, unfinished=True)
            _fill(parameter, value, original)
            if value.dtype != parameter.dtype:
                del self._written[param], self._originals[param]
                self._known = None  # computed from the weight before it was cast
            again = with_numbers(layer, param)
            change = "" if again is not None and again.data_ptr() == parameter.data_ptr() else "moved to a disk"
        if change:
            text = f"{param} of a {type(layer).__name__} was {change} by other code while a LoRA was merged into it"
            raise ComponentError(f"{text}, so that the LoRA cannot be taken off; load the model again")

    def _merge(self, layer: nn.Module, values: dict[int, float]) -> None:
        """Write the adapters into a layer that has its original parameters."""
        self._values, path = values, self._bindings[0].target.path
        # norms of the base weight among them: read before anything is written
        adapters = self._known or self._adapters(layer)
        self._known = adapters if self._marks else None
        pairs = list(zip(self._bindings, adapters, strict=True))
        weights = {param: layer.get_parameter(param).data for param in self._params}
        totals = {param: self._sum(param, pairs, weight) for param, weight in weights.items()}
        totals |= self._biases(layer, pairs, weights, self._strengths.now, exact=True)
        for param, total in totals.items():
            parameter, original = layer.get_parameter(param), self._originals.get(param)
            if original is None and self._checkpoint is not None:
                original = self._checkpoint.find(path, param, parameter)
            self._originals[param] = original = original or kept(parameter)
            self._written[param] = _Written(_memory_of(parameter), None, None, unfinished=True)
            _fill(parameter, total.to(parameter.dtype), original)
            self._written[param] = _Written(_memory_of(parameter), version_of(parameter), samples_of(parameter))

    def _sum(self, param: str, pairs: Iterable[tuple[Binding, Adapter]], base: Tensor) -> Tensor:
        """Return a weight with its deltas; the same bits each time."""
        write = None
        if base.element_size() < 4:
            seed = zlib.crc32(f"{self._bindings[0].target.path}.{param}".encode())
            write = partial(round_stochastically, generator=generator_for(base.device, seed))
        placed = [(binding, adapter.placed(base.device)) for binding, adapter in pairs]
        deltas = self._sum_of(param, placed, (base.device, base.dtype), self._strengths.now)
        return deltas.build(base, base.dtype, write)


def _fill(parameter: Tensor, value: Tensor, original: OriginalWeight) -> None:
    """Write a parameter; exchange its memory instead where the original is in memory that it has, or had.

    The version stays, as parameters that were cut from one tensor share it.
    """
    is_like = value.dtype == parameter.dtype and value.stride() == parameter.stride()
    is_plain = parameter.device.type == "cpu" and not (parameter.is_inference() or value.is_inference())
    with torch.inference_mode() if parameter.is_inference() else torch.no_grad():
        if original.source == "memory" and is_like and is_plain:
            parameter.data = value
        else:
            parameter.data.copy_(value)


def refuse_spoiled(modules: Iterable[nn.Module]) -> None:
    """Refuse layers, or modules that contain one, with a weight that a LoRA could not be taken off.

    Raises:
        ComponentError: there is one, and it still has that weight.
    """
    layers = (layer for module in modules for layer in module.modules()) if _spoiled else ()
    for layer in layers:
        for param, samples in _spoiled.get(layer, {}).items():
            parameter = stored(layer, param)
            if parameter is not None and samples_of(parameter) == samples:
                text = f"{param} of a {type(layer).__name__} still has a LoRA that could not be taken off"
                raise ComponentError(f"{text}; load the model again")


def why_not_merged(layer: nn.Module, bindings: Sequence[Binding], shared: frozenset[int]) -> str | None:
    """Return why these adapters cannot be merged into the layer; None where they can.

    `shared` has the ids of the parameters that several layers of the model have in common.
    """
    for binding in bindings:
        if binding.adapter.schedule_of_parts is not None:
            return "its ranks or heads change from step to step"
        adapter, target = binding.adapter, binding.target
        scales = adapter.bias_excess is not None and stored(layer, target.bias) is not None
        for param in (target.param, target.bias) if adapter.has_bias or scales else (target.param,):
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
