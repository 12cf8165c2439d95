"""A model on disk written again with a stack in its weights.

It is read and written in the order of its tensors, some rows at once, so that memory has the change of a layer or two
and never the model. What no LoRA changes is copied byte by byte.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..errors import FileError, LoraError, check_choice, check_count, check_path, check_type
from ..files.components import DENOISER, role
from ..files.file import AdapterFile
from ..files.reading import open_regular
from ..stack import Stack
from ..strengths.strength import Moment
from ..tensors import plain_mode
from ..weights.rounding import generator_for, round_stochastically
from .changes import StackChanges, StackWeight, unchanged
from .difference import Difference
from .layout import Layout, NewFile
from .merging import SUM, Combination, combined_changes
from .model_files import PLAIN, ModelFiles, joined_name, parts_of
from .new_file import Progress, SavedFile, SavedLayer, check_progress
from .packings.base import StoredTensor
from .packings.gguf import GGUFFile
from .provenance import HEADER, carried, constant_stack, recipe_of
from .writing import (
    SUFFIX,
    OpenFile,
    PlannedTensor,
    check_place,
    check_room,
    free_folder,
    header_of,
    size_of,
    unfinished_files,
    write_tensors,
)

Rounding = Literal["nearest", "stochastic"]
"""To the nearest number of the weight's dtype, or to one of the two neighbours at random, right on average."""
_EXAMPLE = "bake_stack(stack, 'model.safetensors', 'baked.safetensors')"
_CPU, _EXACT = torch.device("cpu"), torch.float64
_SEEDS = 1 << 63  # those that torch takes
_HASH = "modelspec.hash_sha256"
"""The metadata that have the SHA-256 of all bytes behind the header."""
_OF_SOURCES = ("modelspec.title", "modelspec.merged_from", "modelspec.trigger_phrase", "modelspec.license")
_QUANTIZED = "bake into the model in float16, bfloat16 or float32 and quantize that, or use the LoRA without baking"


def bake_stack(
    stack: Stack,
    model: str | PathLike[str],
    path: str | PathLike[str],
    *,
    moment: Moment | None = None,
    image: int | None = None,
    negative: bool | None = None,
    combination: Combination = SUM,
    rounding: Rounding = "nearest",
    seed: int = 0,
    shard_size: int | None = None,
    replace: bool = False,
    preview: bool = False,
    progress: Progress | None = None,
) -> SavedFile:
    """Write a model on disk again, with LoRA in its weights; the same call makes the same files, bit for bit.

    Names, order and dtypes stay. The error of a layer is the rounding's, as a share of its change.

    Args:
        stack: the LoRA, as `engine.stack`.
        model: a checkpoint, the index of its shards, the folder of a component, or a diffusers folder.
        path: of the new file, or of the new folder where `model` is one, or where it is parted.
        moment: of a stack whose strengths differ from step to step.
        image: its number, where the images of the stack have strengths of their own.
        negative: whether the strengths of the negative prompt are meant, where they differ.
        combination: how the LoRA are combined, as `Combination("ties", 0.5)`, by the rules of `combine_files`.
        rounding: of weights in float16 and bfloat16: `nearest`, or `stochastic`, which keeps small changes on average.
        seed: of the stochastic rounding.
        shard_size: the most bytes of the tensors of a file, in shards as diffusers has them; None keeps the files.
        replace: whether a new file may take the place of another one. A folder never does.
        preview: to write nothing and return what the model would be.
        progress: is called with the number of changed weights that are done, and of all; what it raises ends the work.

    Raises:
        StackError, MomentError: there is no LoRA, a strength depends on what is not given, or ranks differ.
        FileError: a file cannot be read or written, the name is taken, or a weight is quantized.
        ComponentError: there is no component in `model`.
        ArgumentError: an argument is of another type.
    """
    _check(stack, model, path, combination, rounding, seed, shard_size, (replace, preview), progress)
    old, place = ModelFiles(Path(model)), Path(path)
    made = constant_stack(stack, old.components, moment, image, negative), moment, combination, rounding, seed
    return bake_into(old, place, *made, shard_size=shard_size, replace=replace, preview=preview, progress=progress)


def bake_into(
    model: ModelFiles,
    path: Path,
    stack: Stack,
    moment: Moment | None,
    combination: Combination,
    rounding: Rounding,
    seed: int,
    title: str | None = None,
    *,
    shard_size: int | None = None,
    replace: bool = False,
    preview: bool = False,
    progress: Progress | None = None,
) -> SavedFile:
    """Write a model with a stack of constant strengths, which calls itself by its title; raise as `bake_stack`."""
    layout = Layout.of(model, shard_size)
    is_folder = len(layout.files) > 1 or (model.path.is_dir() and (shard_size is None or path.suffix != SUFFIX))
    if is_folder and shard_size is not None and path.suffix == SUFFIX:
        text = f"the model becomes {len(layout.files)} files, which are written into a folder"
        raise FileError(path, f"{text}; give a name without {SUFFIX}, or a larger size")
    place = path.absolute() if preview else _place(path, is_folder=is_folder, replace=replace)
    title = title or (place.stem if place.suffix == SUFFIX else place.name)
    with plain_mode(_CPU):
        token, changes = secrets.token_hex(32), _changes(stack, model, moment, combination)
        rank = changes.largest_rank if combination.cuts else None
        made = {"title": title, "model": model.path.name, "rounding": rounding, "seed": seed, **combination.to_json()}
        recipe = recipe_of(stack, moment, made | _said_of(model, token, shard_size, preview=preview))
        baking = _Baking(model, layout, changes, rank, rounding, seed, recipe, token, title, progress, is_folder)
        return baking.preview(place) if preview else baking.run(place, replace=replace)


def _said_of(model: ModelFiles, token: str, shard_size: int | None, *, preview: bool) -> dict[str, object]:
    """Return what the header says of the files of the model, for which a token stands until they are read."""
    if shard_size is None:
        return {"model_sha256": token}
    hashes = dict.fromkeys(model.places(), token) if preview else model.hashes()
    return {"model_sha256": hashes, "shard_size": shard_size}


def _check(
    stack: object,
    model: object,
    path: object,
    combination: object,
    rounding: object,
    seed: object,
    shard_size: object,
    flags: tuple[object, object],
    progress: object,
) -> None:
    """Raise ArgumentError where an argument is of another type."""
    check_type(stack, Stack, "stack", f"a Stack, as in {_EXAMPLE}")
    for one in (model, path):
        check_path(one, _EXAMPLE)
    check_type(combination, Combination, "combination", "a Combination, as Combination('ties', 0.5)")
    check_choice(rounding, get_args(Rounding), "rounding")
    check_count(seed, "seed")
    if shard_size is not None:
        check_count(shard_size, "shard_size")
    for name, flag in zip(("replace", "preview"), flags, strict=True):
        check_type(flag, bool, name, "True or False")
    check_progress(progress)


def _place(path: Path, *, is_folder: bool, replace: bool) -> Path:
    return free_folder(path) if is_folder else check_place(path, replace=replace)


def _changes(stack: Stack, model: ModelFiles, moment: Moment | None, combination: Combination) -> StackChanges:
    """Return what a stack changes of a model.

    Raises:
        FileError: a weight is quantized, or the stack does not fit.
    """
    gguf = [StoredTensor(file, next(iter(file.infos))) for file in model.files if isinstance(file, GGUFFile)]
    packed = gguf + [one for name in model.components if role(name) == DENOISER and (one := model.quantized(name))]
    for one in packed:
        raise FileError(one.file.path, f"its weights are quantized ({one.key}), and cannot be baked into; {_QUANTIZED}")
    return combined_changes(stack, model.components, moment, combination)


class _Part(NamedTuple):
    """Rows of a parameter that a stack changes."""

    weight: StackWeight
    first: int
    is_bias: bool
    rank: int | None
    """To which its change is cut; None where it is whole."""

    def change(self) -> Callable[[int, int], Tensor]:
        """Return a function that computes some of its rows."""
        found = self.weight.difference()
        if self.is_bias:
            bias = torch.zeros(found.shape[0], 1, dtype=_EXACT) if found.bias is None else found.bias.unsqueeze(1)
            return lambda start, stop: bias[start:stop]
        if self.rank is not None and found.is_matrix and (found.pairs or found.rest is not None):
            found = found.cut(self.rank, limit=self.rank)
        return _rows_of(found)


def _rows_of(found: Difference) -> Callable[[int, int], Tensor]:
    up, down = found.factors()
    rest = None if found.rest is None else found.rest.reshape(len(up), -1)

    def rows(start: int, stop: int) -> Tensor:
        product = up[start:stop] @ down
        return product if rest is None else product.add_(rest[start:stop])

    return rows


@dataclass(slots=True)
class _Baking:
    """The writing of one model."""

    model: ModelFiles
    layout: Layout
    changes: StackChanges
    rank: int | None
    """Of the changes, at most."""
    rounding: Rounding
    seed: int
    recipe: str
    token: str
    """What the recipe has in the place of the hash of a file of the model, until it is read."""
    title: str
    progress: Progress | None
    is_folder: bool
    """Whether a folder is written."""
    squares: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """The sum of the squares of the errors of a parameter, and of its change."""

    def run(self, place: Path, *, replace: bool) -> SavedFile:
        """Write the model, and return what became of its layers."""
        changes, model = self.changes, self.model
        with (
            unfinished_files(place, is_folder=self.is_folder, replace=replace) as open_file,
            unchanged([*changes.files, *model.files]),
        ):
            nbytes = self._write(place, open_file)
        return SavedFile(place, nbytes, *self._result(), tuple(changes.notes))

    def preview(self, place: Path) -> SavedFile:
        """Return what the model would be, and write nothing."""
        changes, model = self.changes, self.model
        with unchanged([*changes.files, *model.files]):
            parts = self._parts(place)
            nbytes = self._size_of_others()
            for new in self.layout.files:
                planned, header = self._header(new, self.token)
                nbytes += size_of(header, planned)
                for stored in new.tensors:
                    if model.names.get(stored) in parts:
                        for _ in self._numbers(stored, parts, len):
                            pass
            self._check_changed(place)
        return SavedFile(place, nbytes, *self._result(), tuple(changes.notes))

    def _check_changed(self, place: Path) -> None:
        if not self.squares:
            raise FileError(place, "it was not written: the LoRA change nothing of this model")

    def _size_of_others(self) -> int:
        """Return the bytes of the files beside the weights."""
        if not self.is_folder:
            return 0
        sizes = [path.stat().st_size for path in self.layout.others]
        return sum([*sizes, *[len(content) for content in self.layout.indexes.values()]])

    def _write(self, place: Path, open_file: OpenFile) -> int:
        """Write all files and read them back; return their bytes."""
        model, parts, total = self.model, self._parts(place), self._size_of_others()
        room = total + sum([file.stamp[0] for file in model.files]) + 2 * len(self.recipe) * len(self.layout.files)
        check_room(place, room, "free some of it, or choose another disk")
        for new in self.layout.files:
            total += self._write_file(place, new, parts, *open_file(new.place))
        self._check_changed(place)
        for path in self.layout.others if self.is_folder else ():
            stream, _ = open_file(model.below(path))
            with open_regular(path) as source:
                shutil.copyfileobj(source, stream, 1 << 20)
            _flush(stream)
        for path, content in self.layout.indexes.items():
            stream, _ = open_file(path)
            stream.write(content)
            _flush(stream)
        return total

    def _parts(self, place: Path) -> dict[tuple[str, str], list[_Part]]:
        """Return what is changed of each parameter.

        Raises:
            FileError: the model has no such parameter, or it is quantized.
        """
        found: dict[tuple[str, str], list[_Part]] = {}
        for weight in self.changes.weights:
            target, component = weight.target, weight.index.component
            names = {target.param: False}
            if any(
                one.binding.adapter.has_bias or one.binding.adapter.bias_excess is not None for one in weight.acting
            ):
                names[target.bias] = True
            for param, is_bias in names.items():
                name = component, joined_name(target.path, param)
                one = self.model.stored.get(name)
                if one is None and is_bias and weight.difference().bias is None:
                    continue
                if one is None:
                    raise FileError(place, f"it was not written: the model has no {'.'.join(name)} to be changed")
                if one.info.dtype not in PLAIN:
                    raise FileError(one.file.path, f"{one.key} is quantized, and cannot be baked into; {_QUANTIZED}")
                found.setdefault(name, []).append(_Part(weight, target.first, is_bias, self.rank))
        return found

    def _write_file(
        self,
        place: Path,
        new: NewFile,
        parts: Mapping[tuple[str, str], list[_Part]],
        stream: BinaryIO,
        there: Path,
    ) -> int:
        file, token = new.source, secrets.token_hex(32)
        planned, header = self._header(new, token)
        source, written = hashlib.sha256(), hashlib.sha256()
        first = min([info.start for info in file.infos.values()], default=file.stamp[0])
        with file.reading() as reader:
            source.update(_bytes(reader.flat(torch.uint8, 0, first)))
        tensors = (part for stored in new.tensors for part in self._numbers(stored, parts, source.update))
        write_tensors(stream, header, _seen(tensors, written.update))
        header = header.replace(token.encode(), written.hexdigest().encode())
        header = header.replace(self.token.encode(), source.hexdigest().encode())
        stream.seek(0)
        stream.write(header)
        _flush(stream)
        _read_back(place, there, planned, written.hexdigest())
        return size_of(header, planned)

    def _header(self, new: NewFile, token: str) -> tuple[dict[str, PlannedTensor], bytes]:
        """Return the tensors of a new file in their order, and its header with a token for the hash."""
        planned = {one.key: PlannedTensor(*one.info[:2]) for one in new.tensors}
        return planned, header_of(planned, self._metadata(new.source) | {_HASH: f"0x{token}"})

    def _metadata(self, file: AdapterFile) -> dict[str, str]:
        """Return what the header of a file says: all that it said before, the sources, and how it was made."""
        kept = {key: text for key, text in file.metadata.items() if not key.startswith(("modelspec.hash", "sshs_"))}
        own = carried([file, *self.changes.files], self.title)
        of_sources = {key: own[key] for key in _OF_SOURCES if key in own}
        return {"format": "pt"} | kept | of_sources | {HEADER: self.recipe}

    def _numbers(
        self,
        stored: StoredTensor,
        parts: Mapping[tuple[str, str], list[_Part]],
        seen: Callable[[memoryview], object],
    ) -> Iterator[Tensor]:
        """Yield the numbers of a tensor with its changes, some rows at once; `seen` takes the bytes that are read."""
        name, (dtype, shape, *_) = self.model.names.get(stored), stored.info
        own = parts.get(name, []) if name is not None else []
        changes = [(part.first, part.weight.target.shape[0], part.change()) for part in own]
        generator = generator_for(_CPU, (self.seed ^ zlib.crc32(stored.key.encode())) % _SEEDS)
        errors = sizes = 0.0
        for start, stop in parts_of(shape):
            base = stored.rows(start, stop)
            seen(_bytes(base))
            if not changes:
                yield base
                continue
            change = torch.zeros(base.shape, dtype=_EXACT)
            for first, count, rows in changes:
                low, high = max(start, first), min(stop, first + count)
                if low < high:
                    change[low - start : high - start] += rows(low - first, high - first)
            total = base.to(_EXACT) + change
            value = self._rounded(total, dtype, generator)
            _check_finite(stored, base, value)
            errors, sizes = errors + _squares(value.to(_EXACT) - total), sizes + _squares(change)
            yield value
        if name is not None and sizes:
            self.squares[name] = errors, sizes
            self.model.release_pages()
        if self.progress is not None:
            self.progress(len(self.squares), len(parts))

    def _rounded(self, value: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        if self.rounding == "nearest" or dtype.itemsize > 2:
            return value.to(dtype)
        out = torch.empty(value.shape, dtype=dtype)
        round_stochastically(out, value.float(), generator)
        return out

    def _result(self) -> tuple[tuple[SavedLayer, ...], float]:
        """Return the changed layers, and the error of all of them."""
        layers = [
            SavedLayer(component, name.removesuffix(".weight"), None, math.sqrt(missed / size))
            for (component, name), (missed, size) in self.squares.items()
        ]
        missed, size = (sum(one) for one in zip(*self.squares.values(), strict=True))
        return tuple(layers), math.sqrt(missed / size)


def _read_back(path: Path, there: Path, planned: Mapping[str, PlannedTensor], wanted: str) -> None:
    """Compare the file that lies `there` with what was meant."""
    digest = hashlib.sha256()
    try:
        file = AdapterFile.open(there)
        with file.reading():
            for key, one in planned.items():
                for start, stop in parts_of(one.shape):
                    digest.update(_bytes(StoredTensor(file, key).rows(start, stop)))
    except (LoraError, KeyError) as error:
        text = "it was not written: read back, it is not what was meant"
        raise FileError(path, f"{text}: {error}") from error
    found = {key: PlannedTensor(*info[:2]) for key, info in file.infos.items()}
    if found != planned or digest.hexdigest() != wanted:
        raise FileError(path, "it was not written: read back, it differs from what was meant; check the disk")


def _check_finite(stored: StoredTensor, base: Tensor, value: Tensor) -> None:
    if bool(value.isfinite().all()):
        return
    if not bool(base.isfinite().all()):
        raise FileError(stored.file.path, f"{stored.key} has numbers that are NaN or infinite; nothing was written")
    name = str(value.dtype).removeprefix("torch.")
    text = f"{stored.key} would have numbers that {name} cannot hold, so that nothing was written"
    raise FileError(stored.file.path, f"{text}; choose a lower strength, or a model in bfloat16 or float32")


def _flush(stream: BinaryIO) -> None:
    """Wait until the disk has a file."""
    stream.flush()
    os.fsync(stream.fileno())


def _squares(numbers: Tensor) -> float:
    return float(numbers.square().sum())


def _seen(tensors: Iterable[Tensor], seen: Callable[[memoryview], object]) -> Iterator[Tensor]:
    for tensor in tensors:
        seen(_bytes(tensor))
        yield tensor


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
