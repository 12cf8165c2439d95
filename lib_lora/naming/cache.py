"""Files that are kept open and resolved after use: the least recently used go first, those in force never."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import FileError
from ..files.file import AdapterFile, Stamp
from ..files.reading import USUAL, Reading
from ..registry import version
from .index import LayerIndex
from .network import Network
from .parsed import ParsedFile

_MODELS = 4
"""Models, or ways of reading it, for which one file is kept resolved."""


@dataclass(slots=True)
class _Kept:
    """One file, and what it is to each model it was used with, in each way it was read."""

    parsed: ParsedFile
    networks: OrderedDict[tuple[Reading, tuple[tuple[str, int], ...]], Network] = field(default_factory=OrderedDict)
    nbytes: int = field(init=False)
    """Bytes of all tensors in the file."""

    def __post_init__(self) -> None:
        self.nbytes = sum(info.end - info.start for info in self.parsed.file.infos.values())


class NetworkCache:
    """Networks by file and model.

    Args:
        count: how many files to keep.
        nbytes: how many bytes their tensors may have together, as the files have them; None for any.
    """

    def __init__(self, count: int, nbytes: int | None = None) -> None:
        self._count = count
        self._limit = nbytes
        self._files: OrderedDict[tuple[Path, Stamp, int], _Kept] = OrderedDict()

    def resolved(self, path: Path, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> Network:
        """The network of a file for a model, as it is to be read. May go beyond the limits until the next `trim`.

        Raises:
            LoraError: the file cannot be read, or nobody knows what it is.
        """
        try:
            key = path, Stamp.of(path.stat()), version()
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}") from error
        began = time.perf_counter()
        kept = self._files.get(key)
        if kept is None:
            kept = self._files[key] = _Kept(ParsedFile(AdapterFile.open(path)))
        self._files.move_to_end(key)
        use = reading, tuple(index.signature for index in indexes)
        network = kept.networks.get(use)
        if network is None:
            network = kept.networks[use] = Network(kept.parsed, indexes, reading)
            network.report = replace(network.report, seconds=time.perf_counter() - began)
        kept.networks.move_to_end(use)
        return network

    def trim(self, in_force: Collection[Network] = ()) -> None:
        """Forget what is beyond the limits, the least recently used first, but nothing that is in force."""
        used = {id(network.file) for network in in_force}
        total = self.nbytes
        for key, kept in list(self._files.items()):
            while len(kept.networks) > _MODELS:
                kept.networks.popitem(last=False)
            if len(self._files) <= self._count and (self._limit is None or total <= self._limit):
                continue
            if id(kept.parsed.file) not in used:
                total -= kept.nbytes
                del self._files[key]

    def holds(self, network: Network) -> bool:
        """Whether it is what its file is resolved to."""
        return any(network is one for kept in self._files.values() for one in kept.networks.values())

    def clear(self) -> None:
        """Forget all."""
        self._files.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors of all files that are kept."""
        return sum(kept.nbytes for kept in self._files.values())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are kept, the least recently used first."""
        return tuple(path for path, _, _ in self._files)
