"""The files of a model that is written again: the files of its source, or shards of a size."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import FileError, printed
from ..files.file import AdapterFile
from .model_files import INDEX, ModelFiles
from .packings.base import StoredTensor
from .writing import SUFFIX

_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(\.\w+)?")
"""The stem of a shard's name; behind its number may be a precision."""
_DIGITS = 5


class NewFile(NamedTuple):
    """A file that is to be written."""

    place: Path
    """In the new folder."""
    source: AdapterFile
    """Whose metadata it gets; the first one of several."""
    tensors: tuple[StoredTensor, ...]
    """In their order."""


class Layout(NamedTuple):
    """The files of a new model."""

    files: tuple[NewFile, ...]
    indexes: dict[Path, bytes]
    """What says which shard has which tensor, by where it is in the new folder."""
    others: tuple[Path, ...]
    """Files of the source that are copied."""

    @classmethod
    def of(cls, model: ModelFiles, shard_size: int | None) -> Layout:
        """Return the files of a model; of at most so many bytes, where the size is given.

        Raises:
            FileError: two shards have the same tensor.
        """
        if shard_size is None:
            files = [NewFile(model.below(file.path), file, _tensors([file])) for file in model.files]
            return cls(tuple(files), {}, tuple(model.others()))
        groups: dict[Path, list[AdapterFile]] = {}
        for file in model.files:
            place = model.below(file.path)
            groups.setdefault(place.with_name(_base(place.stem)), []).append(file)
        found, indexes = list[NewFile](), dict[Path, bytes]()
        for base, sources in groups.items():
            shards = _shards(_tensors(sources), shard_size)
            names = [f"{base.name}-{i + 1:0{_DIGITS}}-of-{len(shards):0{_DIGITS}}" for i in range(len(shards))]
            places = [base.with_name(one + SUFFIX) for one in (names if len(shards) > 1 else [base.name])]
            found += [NewFile(place, sources[0], one) for place, one in zip(places, shards, strict=True)]
            if len(shards) > 1:
                indexes[base.with_name(f"{base.name}{INDEX}")] = _index(places, shards)
        return cls(tuple(found), indexes, tuple([one for one in model.others() if not one.name.endswith(INDEX)]))


def _base(stem: str) -> str:
    found = _SHARD.fullmatch(stem)
    return stem if found is None else found[1] + (found[2] or "")


def _tensors(files: Sequence[AdapterFile]) -> tuple[StoredTensor, ...]:
    """List the tensors of files in their order."""
    found: dict[str, StoredTensor] = {}
    for file in files:
        for key, _ in sorted(file.infos.items(), key=lambda item: item[1].start):
            if key in found:
                text = f"its tensor {printed(key)} is in {found[key].file.path.name}, too"
                raise FileError(file.path, f"{text}; leave one of the two files out")
            found[key] = StoredTensor(file, key)
    return tuple(found.values())


def _shards(tensors: Sequence[StoredTensor], size: int) -> list[tuple[StoredTensor, ...]]:
    """Part tensors in their order as diffusers does; one that is larger than the size is alone."""
    shards, nbytes = [list[StoredTensor]()], 0
    for one in tensors:
        own = one.info.end - one.info.start
        if shards[-1] and nbytes + own > size:
            shards.append([])
            nbytes = 0
        shards[-1].append(one)
        nbytes += own
    return [tuple(shard) for shard in shards]


def _index(places: Sequence[Path], shards: Sequence[Sequence[StoredTensor]]) -> bytes:
    total = sum([one.info.end - one.info.start for shard in shards for one in shard])
    known = {one.key: place.name for place, shard in zip(places, shards, strict=True) for one in shard}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(known.items()))}
    return (json.dumps(content, indent=2) + "\n").encode()
