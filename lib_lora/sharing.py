"""One product for layers that are given the same tensor, as q, k and v of an attention are, where that is faster.

Which layers these are is learned as the model calls them: one directly after the other, with the same tensor. From then
on the first makes the product of that tensor with the down matrices of all of them, which lie one behind the other in
memory, and each of the others finds its share, as long as the tensor has not been written to. torch does not count that
in its inference mode; there each of the others is tried once against a product of its own. Whether it is faster than a
product for each is measured, once for each shape. On a CPU it never is, see `benchmarks/sharing.py`.

A product of several matrices is not to the last bit that of each of them. What comes to a device with its layer alone
cannot be multiplied before, and the first call of a model has nothing learned. So where this is used pictures may
differ in last bits from one way of offloading to another, and the first one from the next. In compiled and traced code,
and where there are gradients, each layer makes its own.
"""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from . import patch
from .budget import OUT_OF_MEMORY
from .compiler import compiling, tracing
from .kernels import MUST_BE, captures, cuda_seconds, current
from .tensors import plain_mode

logger = logging.getLogger(__name__)

Seconds = Callable[[Callable[[], object]], float]

_ROUNDINGS = 16  # of the sum of absolute products, by which two products of the same numbers may differ
_UNCOUNTED = -1


def _dead() -> None:
    """What a weak reference says of what is not there any more."""


class Lowering(ABC):
    """A way whose first product may be made together with those of others."""

    @abstractmethod
    def down(self) -> Tensor | None:
        """The down matrix of all its pairs, (R, in), where it lies now; None where it does not stay there."""

    @abstractmethod
    def lie(self, down: Tensor) -> None:
        """Have the same numbers elsewhere: what `down` gives from now on."""


class _Shape(NamedTuple):
    """What makes products alike."""

    device: torch.device
    dtype: torch.dtype
    rows: int
    """The next power of two."""
    inputs: int
    ranks: tuple[int, ...]


class _Share(NamedTuple):
    """What a layer is to find of a product."""

    layer: int
    """Its identity."""
    down: weakref.ref[Tensor]
    start: int
    rank: int


_Made = tuple["weakref.ref[Tensor]", Tensor]
"""A down matrix, and the product with it."""


@dataclass(slots=True)
class _Group:
    """The layers that come after a first one. It is asked for at each call, so that what does not change is kept."""

    others: list[weakref.ref[nn.Module]] = field(default_factory=list)
    down: Callable[[], Tensor | None] = _dead
    """Of the first, for which the shares are."""
    shares: tuple[_Share, ...] = ()
    pays: dict[int, bool] = field(default_factory=dict)
    """By the size of the input."""

    def layers(self) -> list[nn.Module]:
        return [one for ref in self.others if (one := ref()) is not None]

    def remove(self, layers: Collection[int]) -> None:
        """Layers by their identity."""
        self.others = [ref for ref in self.others if id(ref()) not in layers]
        self.down = _dead


@dataclass(slots=True)
class _Call:
    """What the first of some layers was given, and what it has made for the others."""

    first: weakref.ref[nn.Module]
    given: weakref.ref[Tensor]
    version: int
    made: dict[int, _Made]
    """By the identity of the layer."""

    def is_with(self, given: Tensor) -> bool:
        return self.given() is given and self.version == _version(given)


class Sharing:
    """The layers of an engine that are given the same tensors. They are held weakly.

    Args:
        clock: gives for a device what says how long something takes on it, run again and again; None where products are
            not to be shared.
    """

    def __init__(self, clock: Callable[[torch.device], Seconds | None] | None = None) -> None:
        self._clock = clock or _clock
        self._pays: dict[_Shape, bool] = {}
        self._groups: weakref.WeakKeyDictionary[nn.Module, _Group] = weakref.WeakKeyDictionary()
        self._checked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._refused: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._last: _Call | None = None

    def lowered(self, layer: nn.Module, given: Tensor, x: Tensor, down: Tensor) -> Tensor:
        """The product of a layer's input with its down matrix.

        Args:
            layer: a linear one.
            given: what it was called with.
            x: the same in the dtype of `down`, (…, in).
            down: (R, in).

        Returns:
            (…, R); some of a larger tensor, perhaps.
        """
        if compiling() or tracing() or given.requires_grad or self._clock(x.device) is None:
            return F.linear(x, down)
        last = self._last
        if last is None or not last.is_with(given) or last.first() is layer:
            return self._begun(layer, given, x, down)
        made = last.made.pop(id(layer), None)
        if made is not None and made[0]() is down:
            return self._trusted(layer, last, made[1], x, down)
        self._learn(last, layer, down)
        return F.linear(x, down)

    def forget_last(self) -> None:
        """Hold nothing of the last call."""
        self._last = None

    def _begun(self, layer: nn.Module, given: Tensor, x: Tensor, down: Tensor) -> Tensor:
        """The product of a first layer, and of those that are expected after it."""
        last, self._last = self._last, None  # what that still holds goes before more is made
        if last is not None and last.made:
            self._forget(last, last.made.keys())  # those that did not come after all are not expected again
        group = self._groups.get(layer)
        made = {} if group is None or not group.others else self._made(group, layer, x, down)
        self._last = _Call(weakref.ref(layer), weakref.ref(given), _version(given), made)
        return made.pop(id(layer))[1] if made else F.linear(x, down)

    def _made(self, group: _Group, layer: nn.Module, x: Tensor, down: Tensor) -> dict[int, _Made]:
        """The products of a first layer and of the others, by their identity; none where that does not pay."""
        try:
            if group.down() is not down:
                _gather(group, layer, down)
            lying = group.down()
            over = None if lying is None else lying._base
            if over is None or not group.shares or not self._is_faster(group, x, over):
                return {}
            product = F.linear(x, over)
        except OUT_OF_MEMORY:  # there may be room for one after the other
            return {}
        return {layer: (own, product.narrow(-1, start, rank)) for layer, own, start, rank in group.shares}

    def _is_faster(self, group: _Group, x: Tensor, over: Tensor) -> bool:
        """Than a product for each."""
        known = group.pays.get(x.numel())
        if known is None and not captures(x.device):
            known = group.pays[x.numel()] = self._measured(group, x, over)
        return bool(known)

    def _measured(self, group: _Group, x: Tensor, over: Tensor) -> bool:
        inputs = over.shape[1]
        rows = 1 << (x.numel() // inputs - 1).bit_length()
        shape = _Shape(x.device, x.dtype, rows, inputs, tuple(share.rank for share in group.shares))
        seconds = self._clock(x.device)
        if shape not in self._pays and seconds is not None:
            downs = [over.narrow(0, share.start, share.rank) for share in group.shares]
            with current(x.device):
                one = seconds(lambda: F.linear(x, over))
                each = seconds(lambda: [F.linear(x, own) for own in downs])
            logger.debug("%s: %.1f us by a product for each layer, %.1f us by one", shape, each * 1e6, one * 1e6)
            self._pays[shape] = one < MUST_BE * each
        return self._pays.get(shape, False)

    def _trusted(self, layer: nn.Module, last: _Call, share: Tensor, x: Tensor, down: Tensor) -> Tensor:
        """The share, if the tensor is known to be as it was; where torch does not count that, it is tried once."""
        if last.version != _UNCOUNTED or layer in self._checked:
            return share
        own = F.linear(x, down)
        if captures(x.device):
            return own
        bound = _ROUNDINGS * torch.finfo(x.dtype).eps * F.linear(x.abs(), down.abs())
        if bool(((share - own).abs() <= bound).all()):
            self._checked.add(layer)
        else:
            self._refused.add(layer)
            self._forget(last, {id(layer)})
        return own

    def _learn(self, last: _Call, layer: nn.Module, down: Tensor) -> None:
        """That a layer comes after another, or has another down matrix than it had."""
        first = last.first()
        if first is None or layer in self._refused:
            return
        group = self._groups.setdefault(first, _Group())
        if layer not in group.layers():
            group.others.append(weakref.ref(layer))
        if not any(share.down() is down for share in group.shares):
            group.down = _dead

    def _forget(self, last: _Call, layers: Collection[int]) -> None:
        group = self._groups.get(first) if (first := last.first()) is not None else None
        if group is not None:
            group.remove(layers)


def _gather(group: _Group, layer: nn.Module, down: Tensor) -> None:
    """Have the down matrices of a first layer and of those after it, as far as they stay, behind one another."""
    group.down, group.shares = weakref.ref(down), ()
    group.pays.clear()
    if _down_of(layer, down) is not down:  # which does not stay
        return
    members = [(layer, down), *((one, own) for one in group.layers() if (own := _down_of(one, down)) is not None)]
    if len(members) == 1:
        return
    shares, start = [], 0
    with plain_mode(down.device):
        over = torch.cat([own for _, own in members])
        for one, own in members:
            part = over.narrow(0, start, own.shape[0])
            shares.append(_Share(id(one), weakref.ref(part), start, part.shape[0]))
            start += part.shape[0]
            _lie(one, part)
    group.down, group.shares = shares[0].down, tuple(shares)


def _way_of(layer: nn.Module) -> Lowering | None:
    slot = patch.slot_of(layer)
    return slot.way if slot is not None and isinstance(slot.way, Lowering) else None


def _lie(layer: nn.Module, down: Tensor) -> None:
    way = _way_of(layer)
    if way is not None:
        way.lie(down)


def _down_of(layer: nn.Module, like: Tensor) -> Tensor | None:
    """The down matrix of a layer, if it can be multiplied together with another one."""
    way = _way_of(layer)
    down = None if way is None else way.down()
    if down is None or (down.device, down.dtype, down.shape[1:]) != (like.device, like.dtype, like.shape[1:]):
        return None
    return down


def _version(tensor: Tensor) -> int:
    """How often it was written to; torch does not count that in its inference mode."""
    return _UNCOUNTED if tensor.is_inference() else tensor._version


def _clock(device: torch.device) -> Seconds | None:
    return cuda_seconds if device.type == "cuda" else None
