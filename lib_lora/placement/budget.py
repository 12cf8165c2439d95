"""How much of each device adapters may take, and what happens to those for which that is not enough.

Adapters that were placed stay while the budget lasts. One that would exceed it streams: it is placed for its call and
dropped after it. Plans that are not in force leave a device before any layer streams.

The peak is the budget plus the largest layer that streams. The CPU has no budget. The budget counts the tensors that
are placed, and neither weights that are built for a call nor strengths.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

logger = logging.getLogger(__name__)

OUT_OF_MEMORY: type[RuntimeError] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""The first name came with torch 2.5."""

_OUT_OF_MEMORY = re.compile(r"out of memory|not enough GPU video memory|STATUS_ALLOC_FAILED")
"""The errors of MPS, DirectML and CUDA's libraries are plain RuntimeErrors."""

_RESERVE = 1 << 30
"""Bytes of a device's memory that adapters leave to the host, where the engine was given no limit."""
_RESERVE_AT_REST = 2 << 30
"""Likewise, before adapters stay on a device that are not in force."""
UNLIMITED = "cpu"  # the computer's own memory
Evict = Callable[[str], None]
"""Drops the placed tensors of an executor; the argument is for the trace."""
_GIVEN_BACK = 8  # one part of so many, when memory ran out: computing needs room, too


@dataclass(slots=True, eq=False)
class Account:
    """The memory that the adapters of one layer take; their executor keeps it."""

    device: torch.device | None = None
    nbytes: int = 0
    host: int = 0
    """Bytes in the computer's memory, from which it is placed again."""
    streams: bool = False


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error says that a device has run out of memory."""
    is_plain = isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    return is_plain or isinstance(error, OUT_OF_MEMORY)


class Budget:
    """The memory of all layers of an engine.

    Args:
        limit: bytes for each device but the CPU; None for what is free on a device, less a reserve for the host.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.relief: list[Callable[[], None]] = []
        """Called first where a device has run out of memory: gives back memory that is not in use."""
        self.leave_at_rest: Callable[[], None] = lambda: None
        """Has adapters leave their devices that are not in force."""
        self._limit = limit
        self._fitted: dict[torch.device, int] = {}
        """Lower limits, found by running out of memory."""
        self._measured: dict[torch.device, float] = {}
        """Limits from the free memory of devices without any other."""
        self._lock = threading.RLock()
        self._accounts: dict[Account, weakref.WeakMethod[Evict]] = {}
        self._gone: deque[Account] = deque()
        self._placed: Counter[torch.device] = Counter()
        self._full: set[torch.device] = set()
        """Where a layer had no room though all at rest had left, so that it is not looked for again."""

    def join(self, evict: Evict) -> Account:
        """Make an account for a new executor, whose method `evict` is held weakly."""
        account, gone = Account(), self._gone
        # only noted: a finalizer may run anywhere, in the middle of a sum of ours too
        with self._lock:
            self._accounts[account] = weakref.WeakMethod(evict, lambda _: gone.append(account))
        return account

    def room(self, device: torch.device) -> float:
        """Return how many more bytes may be placed on a device."""
        if device.type == UNLIMITED:
            return math.inf
        limit: float | None = self._fitted.get(device, self._limit)
        if limit is None:
            limit = self._measured.get(device)
        if limit is None:
            free = _free_memory(device)
            limit = math.inf if free is None else self._placed[device] + max(0, free - _RESERVE)
            self._measured[device] = limit
        return limit - self._placed[device]

    def has_headroom(self, device: torch.device) -> bool:
        """Tell whether a device has so much free memory that plans may stay there which are not in force."""
        is_limited = device.type == UNLIMITED or self._fitted.get(device, self._limit) is not None
        free = None if is_limited else _free_memory(device)
        return free is not None and free > _RESERVE_AT_REST

    def charge(self, account: Account, device: torch.device, nbytes: int) -> bool:
        """Count placed tensors of a layer, and tell whether they may stay after the call."""
        with self._lock:
            if self._gone:
                self._count_gone()
            stays = device.type == UNLIMITED or nbytes <= self.room(device)
            if not stays and device not in self._full:
                self.leave_at_rest()
                self._measured.pop(device, None)  # others may have given memory back
                self._full.add(device)
                stays = nbytes <= self.room(device)
            account.device, account.nbytes, account.streams = device, nbytes, not stays
            self._placed[device] += nbytes
            return stays

    def free(self, account: Account) -> None:
        """Count that the placed tensors are gone."""
        with self._lock:
            if account.device is None:
                return
            self._placed[account.device] -= account.nbytes
            if not account.streams:
                self._full.discard(account.device)
            account.device, account.nbytes = None, 0

    def attempt(self, device: torch.device, place: Callable[[], object]) -> None:
        """Call `place`, and give some memory back where the device runs out of it; the CPU has none to give."""
        try:
            place()
            return
        except RuntimeError as error:
            if device.type == UNLIMITED or not is_out_of_memory(error):
                raise
        self.shrink(device)  # only here are the failure and all that it held gone

    def make_way(self) -> None:
        """Give memory back after code of others failed as a device ran out of it, in the middle of a model call."""
        for device in list(self._placed):
            if device.type != UNLIMITED and self._placed[device]:
                self.shrink(device, share=2)

    def shrink(self, device: torch.device, share: int = _GIVEN_BACK) -> bool:
        """Give one part of `share` back after a device ran out of memory; tell whether adapters had any.

        The rest is the limit from then on.
        """
        for relieve in (self.leave_at_rest, *self.relief):
            relieve()
        with self._lock:
            self._count_gone()
            there = [(one, ref) for one, ref in self._accounts.items() if one.device == device and not one.streams]
            placed = self._placed[device]
            goal = placed - max([placed // share, *(2 * account.nbytes for account, _ in there)])
            for _, ref in there:
                evict = ref()
                if evict is not None and self._placed[device] > goal:
                    evict("the device is out of memory")
            if device not in self._fitted:
                text = "%s is out of memory: no more than %d MB of adapters stay there from now on, others are streamed"
                logger.warning(text, device, self._placed[device] >> 20)
            self._fitted[device] = self._placed[device]
            self._full.add(device)
        empty_cache = getattr(getattr(torch, device.type, None), "empty_cache", None)
        if empty_cache is not None:
            empty_cache()
        return placed > 0

    def reset(self) -> None:
        """Forget which devices are full, as other adapters come, or none."""
        with self._lock:
            self._count_gone()
            self._full.clear()
            self._measured.clear()

    def forget(self) -> None:
        """Forget the limits that were found beside another model."""
        self.reset()
        self._fitted.clear()

    def usage(self) -> tuple[dict[torch.device, int], int, int]:
        """Return the bytes placed on each device, how many layers stream, and the bytes to place them again from."""
        with self._lock:
            self._count_gone()
            placed = {device: nbytes for device, nbytes in self._placed.items() if nbytes}
            accounts = list(self._accounts)
            return placed, sum(one.streams for one in accounts), sum(one.host for one in accounts)

    def _count_gone(self) -> None:
        """Subtract the accounts of executors that are gone."""
        while self._gone:
            account = self._gone.popleft()
            self.free(account)
            del self._accounts[account]


def _free_memory(device: torch.device) -> int | None:
    """Return the bytes of a device that are free, or that torch keeps unused; None where it does not tell."""
    module: Any = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    reserved, used = (getattr(module, name, None) for name in ("memory_reserved", "memory_allocated"))
    kept = reserved(device) - used(device) if reserved is not None and used is not None else 0
    return int(module.mem_get_info(device)[0]) + max(0, kept)
