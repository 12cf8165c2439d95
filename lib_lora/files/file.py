"""Adapter files: Remora checks the header first, then maps tensors, and reads their values only when they are needed.

The layout is safetensors': 8 bytes of little-endian header length N, N bytes of JSON, then the tensors' bytes
(https://github.com/huggingface/safetensors#format). That library checks the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import FileError, PickleError, check_path
from ..tensors import FEW, LARGEST, MANY, TensorFields
from .formats.strangers.base import stranger_by_head, stranger_in_pickle
from .reading import open_regular

A = TypeVar("A", bound=TensorFields)

_METADATA_FIRST = '{"__metadata__":'
MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation
MOST_TENSORS = 50_000
"""The limit of one file. Adapters have a few thousand tensors; a header of many more takes minutes to read."""

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".pkl"})
_PICKLE_STARTS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_CONVERT = (
    "it is a pickle, which can run any code when loaded, so it is refused; convert it once with "
    'python -c "import sys, torch; from safetensors.torch import save_file; '
    "d = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    'save_file({k: v.contiguous() for k, v in d.items()}, sys.argv[2])" IN.pt OUT.safetensors'
)
Stamp = tuple[int, int, int, int, int]
"""Bytes, time of writing, device, inode and time of change of a file. Two files differ in one, and two states of one;
times are in nanoseconds."""


def stamp_of(stat: os.stat_result) -> Stamp:
    return stat.st_size, stat.st_mtime_ns, stat.st_dev, stat.st_ino, stat.st_ctime_ns


class TensorInfo(NamedTuple):
    """Dtype, shape and position of one tensor in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    end: int


class AdapterFile:
    """An open safetensors file.

    Tensors are private (copy-on-write) views into the mapped file: nothing is copied before a tensor is placed,
    and nothing written to them ever reaches the disk. Read their values through `private`: where a program truncates
    the file, as one does that saves over it, reading the map kills the process.

    All that reads the file raises FileError where it cannot be read or has changed, and KeyError for an unknown key.
    """

    def __init__(self, path: Path, infos: dict[str, TensorInfo], metadata: dict[str, str], stamp: Stamp) -> None:
        self.path = path
        self.infos: Mapping[str, TensorInfo] = infos
        self.metadata: Mapping[str, str] = metadata
        self.stamp = stamp
        self._map: mmap.mmap | None = None
        self._address = 0  # of the map
        self._readers: dict[int, Reader] = {}
        """By the number of the thread."""
        self.magnitudes: dict[str, float] = {}
        """The largest number of each tensor that `not_finite` has checked, without its sign."""
        self.largest = 0.0
        """The magnitude of the largest number that `not_finite` has seen in tensors of more than one element."""

    @classmethod
    def open(cls, path: str | Path) -> AdapterFile:
        """Read and check the header of `path`; no tensor is read.

        Raises:
            PickleError: it is a pickle, by name or by content.
            FileError: it does not exist, is empty, truncated, damaged, or no safetensors file at all.
        """
        check_path(path, "AdapterFile.open('lora.safetensors')")
        path = Path(path).absolute()
        raw, stamp = _read_header(path)
        return cls(path, *_parse_header(path, raw), stamp)

    def __reduce__(self) -> tuple[Callable[[Path], AdapterFile], tuple[Path]]:
        return AdapterFile.open, (self.path,)  # a map is of one process

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum([info.end - info.start for info in self.infos.values()])

    def tensor(self, key: str) -> Tensor:
        """Map one tensor, on the CPU, in the file's dtype."""
        return self.tensors([key])[key]

    def tensors(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Map tensors, on the CPU, in the file's dtypes."""
        tensors = {}
        for key in keys:
            dtype, shape, start, end = self.infos[key]
            if start == end:
                tensors[key] = torch.empty(shape, dtype=dtype)
            elif start % dtype.itemsize:
                with self.reading() as reader:
                    tensors[key] = reader.flat(dtype, start, end).view(shape)
            else:
                buffer, count = self._map or self._mapped(), (end - start) // dtype.itemsize
                tensors[key] = torch.frombuffer(buffer, dtype=dtype, count=count, offset=start).view(shape)
        return tensors

    def not_finite(self, keys: Iterable[str]) -> set[str]:
        """Return the keys whose tensors have a NaN or a number beyond float32.

        The first check of a tensor reads it whole; all tensors of one element are read at once, see `numbers`.
        """
        keys, with_half = set(keys), torch.__version__ >= "2.2"
        extremes, names = list[Tensor](), list[str]()
        with self.reading() as reader:
            for start, key in sorted([(self.infos[key].start, key) for key in keys - self.magnitudes.keys()]):
                dtype, *_, end = self.infos[key]
                if key in self.numbers or not dtype.is_floating_point or start == end:
                    self.magnitudes[key] = abs(self.numbers.get(key, float(start < end)))
                    continue
                offset, count = start - reader.first, (end - start) // dtype.itemsize
                if reader.first <= start < end <= reader.stop and offset % dtype.itemsize == 0:  # without a call
                    tensor = torch.frombuffer(reader.window, dtype=dtype, count=count, offset=offset)
                else:
                    tensor = reader.flat(dtype, start, end)
                wide = dtype.itemsize > 1 and (dtype is not torch.half or with_half)
                for piece in torch.split(tensor, count if count > MANY else FEW):
                    extremes += torch.aminmax(piece if wide else piece.float())
                    names.append(key)
        if len({one.dtype for one in extremes}) > 1:
            extremes = [one.double() for one in extremes]
        numbers = torch.stack(extremes).double().abs_().view(-1, 2).amax(1).tolist() if names else []
        found = dict[str, float]()
        for key, number in zip(names, numbers, strict=True):
            known = found.get(key, number)
            found[key] = known if number <= known or math.isnan(known) else number
        self.magnitudes.update(found)
        self.largest = max([self.largest, *numbers])
        return {key for key in keys if not self.magnitudes[key] <= LARGEST}  # NaN is no more and no less

    def private(self, adapter: A) -> A:
        """Return the adapter with copies of its tensors in the file, read from disk and not from the map."""
        reader = self._readers.get(threading.get_ident())
        if reader is not None:  # which needs no `with`
            return adapter.mapped(reader.copy)
        with self.reading() as reader:
            return adapter.mapped(reader.copy)

    def reading(self) -> Reader:
        """Return the reader of this thread, which is open inside a `with` block.

        Blocks may lie in each other: all that is read inside the outermost one is read from one open file, which is
        checked before and after.
        """
        number = threading.get_ident()
        return self._readers.get(number) or Reader(self, number)

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """Return the values of all tensors of one element, such as alphas.

        They are read from disk: a touch of the map makes the system read the surroundings of each, too, which takes as
        long as the whole file if that is not cached.
        """
        single = sorted([(info.start, key) for key, info in self.infos.items() if math.prod(info.shape) == 1])
        contents: dict[torch.dtype, dict[str, bytearray]] = {}
        with self.reading() as reader:
            for start, key in single:
                dtype, *_, end = self.infos[key]
                contents.setdefault(dtype, {})[key] = bytearray(end - start)
            reader.read([(self.infos[key].start, one) for keys in contents.values() for key, one in keys.items()])
        found: dict[str, float] = {}
        for dtype, of_keys in contents.items():
            values = torch.frombuffer(bytearray(b"".join(of_keys.values())), dtype=dtype)
            found.update(zip(of_keys, values.double().tolist(), strict=True))
        return found

    def verify(self) -> None:
        """Check that the file on disk is still the one that was opened."""
        try:
            now = stamp_of(self.path.stat())
        except OSError as error:
            raise FileError(self.path, f"it vanished from disk while in use: {error.strerror or error}") from error
        if now[:4] != self.stamp[:4]:  # other rights and links change the last
            raise FileError(self.path, "it changed on disk while in use; activate it again to use the new content")

    def release_pages(self) -> None:
        """Give the memory back that was read through the map, which the system reads again when it is needed."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)

    def _mapped(self) -> mmap.mmap:
        self.verify()
        try:
            with open_regular(self.path) as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            self._address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        except (OSError, ValueError) as error:
            raise FileError(self.path, f"it cannot be mapped: {error}") from error
        return self._map


_AHEAD = 1 << 20  # bytes that are read at once, where the tensors of a file are read in its order


class Reader:
    """Reads a file from front to back inside a `with` block; it is opened when something is read.

    Args:
        file: the file.
        number: of this thread.
    """

    def __init__(self, file: AdapterFile, number: int) -> None:
        self._file, self._number = file, number
        self._depth = self.first = self.stop = 0
        self._stream: BufferedReader | None = None
        self.window = bytearray()
        """The bytes of the file from `first` to `stop`."""

    def __enter__(self) -> Reader:
        self._file._readers[self._number] = self
        self._depth += 1
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        del self._file._readers[self._number]
        if self._stream is not None:
            self._stream.close()
            if kind is None:
                self._file.verify()

    def flat(self, dtype: torch.dtype, start: int, end: int) -> Tensor:
        """Read the tensor, (n,), that lies between two offsets; it shares its memory with its neighbours."""
        if not self.first <= start <= end <= self.stop:
            self._advance(start, end)
        offset = start - self.first
        if offset % dtype.itemsize:  # allowed by the format, and torch wants alignment
            return torch.frombuffer(self.window[offset : offset + end - start], dtype=dtype)
        return torch.frombuffer(self.window, dtype=dtype, count=(end - start) // dtype.itemsize, offset=offset)

    def copy(self, tensor: Tensor) -> Tensor:
        """Read a tensor that is a view of the map; return any other one as it is."""
        start, count = tensor.data_ptr() - self._file._address, tensor.numel()
        if self._file._map is None or not 0 <= start < self._file.stamp[0] or not count or not tensor.is_cpu:
            return tensor
        if not tensor.is_contiguous():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            count = 1 + sum([(size - 1) * stride for size, stride in steps])
        end = start + count * tensor.element_size()
        if not self.first <= start < end <= self.stop:
            self._advance(start, end)
        flat = torch.frombuffer(self.window, dtype=tensor.dtype, count=count, offset=start - self.first)
        return flat.view(tensor.shape) if tensor.is_contiguous() else flat.as_strided(tensor.shape, tensor.stride())

    def _advance(self, start: int, end: int) -> None:
        """Have some bytes in the window, and those behind them where the file is read in its order."""
        first = start & ~7  # as dtypes are aligned in the file
        ahead = min(_AHEAD, self._file.stamp[0] - first) if 0 <= start - self.stop <= _AHEAD else 0
        window = bytearray(max(end - first, ahead))  # a new one, as tensors may be views of the last one
        self.read([(first, window)])
        self.first, self.stop, self.window = first, first + len(window), window

    def read(self, parts: Iterable[tuple[int, bytearray]]) -> None:
        """Fill memory with the bytes of the file from offsets on.

        What took the place of the file may be a pipe, and a change may come at any time.
        """
        try:
            if self._stream is None:
                self._file.verify()
                self._stream = open_regular(self._file.path)
            is_whole = True
            for start, content in parts:
                self._stream.seek(start)
                is_whole &= self._stream.readinto(content) == len(content)
        except OSError as error:
            self._file.verify()
            raise FileError(self._file.path, f"it cannot be read: {error.strerror or error}") from error
        if not is_whole:
            self._file.verify()
            text = "it was truncated while in use; activate it again to use the new content"
            raise FileError(self._file.path, text)


class Glance(NamedTuple):
    """The metadata of a file and a digest of the rest of its header, for which no tensor is looked at."""

    metadata: Mapping[str, str]
    tensors: bytes
    """Files with the same digest have the same keys, dtypes, shapes and offsets."""


def glance(path: str | Path) -> Glance | None:
    """Read a header and parse its metadata alone; return None where they do not come first, as all programs put them.

    Nothing else is checked. Where a file with the same tensors was opened, this one can be opened, too.

    Raises:
        FileError: as `AdapterFile.open`, where the beginning shows it.
    """
    check_path(path, "glance('lora.safetensors')")
    raw, (size, *_) = _read_header(Path(path))
    metadata: object = {}
    try:
        text = raw.decode("utf-8")
        if text.startswith(_METADATA_FIRST):
            text = text.removeprefix(_METADATA_FIRST).lstrip()
            metadata, end = json.JSONDecoder().raw_decode(text)
            text = text[end:]
    except (ValueError, RecursionError):
        return None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        return None
    if '"__metadata__"' in text:
        return None
    tensors = text.rstrip(" ").encode() + (size - len(raw)).to_bytes(8, "little")  # headers are filled up
    return Glance(metadata, hashlib.blake2b(tensors, digest_size=16).digest())


def _read_header(path: Path) -> tuple[bytes, Stamp]:
    try:
        with open_regular(path) as stream:
            stamp = stamp_of(os.fstat(stream.fileno()))
            length = _header_length(path, stream.read(8), stamp[0])
            return stream.read(length), stamp
    except OSError as error:
        raise FileError(path, f"it cannot be read: {error.strerror or error}") from error


def _header_length(path: Path, head: bytes, size: int) -> int:
    length = int.from_bytes(head, "little")
    # a header of 640 bytes begins like a pickle, too, but no pickle goes on with six zeros
    if path.suffix.lower() in _PICKLE_SUFFIXES or (head.startswith(_PICKLE_STARTS) and length > MAX_HEADER):
        stranger = stranger_in_pickle(path)
        raise PickleError(path, _CONVERT if stranger is None else f"{stranger}; it is a pickle and was not loaded")
    if size == 0:
        raise FileError(path, "it is empty (0 bytes); download it again")
    if (not length or length > MAX_HEADER) and (other := stranger_by_head(head)):
        raise FileError(path, str(other))
    if length > min(size - 8, MAX_HEADER):
        text = f"it is truncated, or not a safetensors file (header claims {length} bytes of {size}); download it again"
        raise FileError(path, text)
    return length


def _parse_header(path: Path, raw: bytes) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    if raw.count(b'"data_offsets"') > MOST_TENSORS:  # no text in the metadata has its quotes without a backslash
        raise FileError(path, f"it has more than {MOST_TENSORS:,} tensors, which no adapter has; it is not read")
    try:
        with safe_open(path, "np"):  # every byte belongs to one tensor, as its dtype and shape say
            header = json.loads(raw.decode("utf-8"))
        metadata, base, infos = header.pop("__metadata__", None) or {}, 8 + len(raw), {}
        for key, fields in header.items():
            dtype, shape, (start, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
            if dtype not in DTYPES:
                raise FileError(path, f"tensor {key!r} has the dtype {dtype}, which Remora cannot read")
            if math.prod(filter(None, shape)) > 1 << 48:  # strides are as large, of a tensor without entries, too
                raise FileError(path, f"tensor {key!r} has a shape that no tensor can have: {str(shape)[:60]}")
            infos[key] = TensorInfo(DTYPES[dtype], tuple(shape), base + start, base + end)
        return infos, metadata
    except FileError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:  # the last where it has just changed
        raise FileError(path, f"it is truncated or damaged: {error}; download it again") from error
