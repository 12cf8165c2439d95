"""Weight readers: their base class, and which of them knows a weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ...errors import ComponentError
from ...registry import discover_classes
from .. import readers as folder
from ._elsewhere import kept_elsewhere


class WeightReader(ABC):
    """A reader of the base weight in one kind of storage. Readers have no state and never write.

    They know a storage by attributes and import no quantization library. Where one of its functions is needed, they
    take it from the module that the object at hand was made by, which is imported already.
    """

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()
    plain: ClassVar[bool] = False
    """Whether the weight is stored as numbers to compute with, so that reading costs nothing."""
    holds_values: ClassVar[bool] = False
    """Whether the parameter's numbers are the weight's own, so that writing them changes it."""

    @classmethod
    @abstractmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        """Return whether this reader knows how `param` of `layer` is stored."""

    @classmethod
    @abstractmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        """Return the weight in its logical shape, on the layer's device; never write to it.

        In a dtype that computes and holds each stored number: fp16, bf16, fp32 or fp64.
        """

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        """Return the logical shape if the storage tells it without being read; None if only the layer does."""
        return None


def stored(layer: nn.Module, param: str) -> Tensor | None:
    """Return the tensor under a dotted name below `layer`, as it is stored, or as others compute it for a call."""
    *parents, leaf = param.split(".")
    owner: object = layer
    for name in parents:
        owner = getattr(owner, name, None)
    if isinstance(owner, nn.Module) and "parametrizations" in owner._modules:
        with _kept_buffers(owner.parametrizations):
            found = getattr(owner, leaf, None)
    else:
        found = getattr(owner, leaf, None)
        if isinstance(owner, nn.Module) and owner._forward_pre_hooks and leaf not in owner._parameters:
            found = _computed_by_hooks(owner, leaf, found)
    return found if isinstance(found, Tensor) else None


def _computed_by_hooks(layer: nn.Module, param: str, latest: object) -> object:
    """Return what torch's former weight_norm or spectral_norm compute at the next call, else `latest`."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == param:
            return hook.compute_weight(layer)
        if isinstance(hook, SpectralNorm) and hook.name == param:
            return hook.compute_weight(layer, do_power_iteration=False)
    return latest


@contextmanager
def _kept_buffers(parametrizations: object) -> Iterator[None]:
    """Leave the buffers as they are that reading a weight writes to, as spectral_norm's does in train mode."""
    assert isinstance(parametrizations, nn.Module)
    former = [(module, module._buffers) for module in parametrizations.modules() if module._buffers]
    try:
        for module, buffers in former:
            module._buffers = {name: None if one is None else one.clone() for name, one in buffers.items()}
        yield
    finally:
        for module, buffers in former:
            module._buffers = buffers


def found(layer: nn.Module, param: str) -> Tensor:
    """Return the stored tensor of a matched reader with its numbers, which an offloader may keep elsewhere.

    Raises:
        ComponentError: it is on meta, and no known library keeps its numbers.
    """
    tensor = stored(layer, param)  # without `with_numbers`: layers are called with it, and a frame costs time
    assert tensor is not None
    if tensor.device.type == "meta":
        tensor = kept_elsewhere(layer, param)
    if tensor is None:
        raise ComponentError(f"the {param} of a {type(layer).__name__} is on meta, without its numbers")
    return tensor


def with_numbers(layer: nn.Module, param: str) -> Tensor | None:
    """Return a stored tensor, or on meta the one that an offloader keeps for it; None if there is neither.

    Writing to it changes the weight, unless the offloader keeps it on a disk: then it is a copy.
    """
    tensor = stored(layer, param)
    return kept_elsewhere(layer, param) if tensor is not None and tensor.device.type == "meta" else tensor


def check_present(layer: nn.Module, params: Iterable[str]) -> None:
    """Refuse to merge into a parameter that an offloader took, or that other code has replaced by now.

    Raises:
        ComponentError: one of `params` is on meta, or none, or it stands for other tensors.
    """
    for param in params:
        parameter = stored(layer, param)
        if not isinstance(parameter, nn.Parameter):
            why = "is no parameter any more"
        elif parameter.is_meta:
            why = "is offloaded now"
        else:
            why = "is quantized or sharded now" if is_wrapper(parameter) else ""
        if why:
            text = f"{param} of a {type(layer).__name__} {why}, so that no LoRA can be merged into it"
            raise ComponentError(f"{text}; switch merging off (mode='live', or the setting)")


def is_wrapper(tensor: Tensor) -> bool:
    """Return whether a tensor wraps others: torchao's and quanto's show a full dtype and hold packed data."""
    return hasattr(tensor, "__tensor_flatten__")


def read_base_weight(layer: nn.Module, param: str) -> Tensor:
    """Return a base weight in its logical shape and a dtype that computes, not to be written to.

    Autograd follows computations with a plain one, where it is on.

    Raises:
        ComponentError: no reader knows its storage.
    """
    return weight_reader(layer, param).read(layer, param)


def weight_reader(layer: nn.Module, param: str) -> type[WeightReader]:
    """Return the reader of a weight; raise ComponentError where there is none."""
    reader = reader_of(layer, param)
    if reader is None:
        raise ComponentError(f"the weight of a {type(layer).__name__} cannot be read: unknown quantization")
    return reader


def has_plain_weight(layer: nn.Module, param: str) -> bool:
    """Return whether a base weight is stored as numbers to compute with, so that reading it costs nothing."""
    reader = reader_of(layer, param)
    return reader is not None and reader.plain


def holds_values(layer: nn.Module, param: str) -> bool:
    """Return whether a parameter holds the weight itself, in a floating dtype, without a scale beside it."""
    reader = reader_of(layer, param)
    return reader is not None and reader.holds_values


def reader_of(layer: nn.Module, param: str) -> type[WeightReader] | None:
    """Return the first reader that knows the storage of a weight; None if there is none."""
    known = discover_classes(folder, WeightReader)  # type: ignore[type-abstract]
    return next((reader for reader in known if reader.matches(layer, param)), None)
