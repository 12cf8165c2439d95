"""Adapter files: Remora checks the header first, then maps tensors, and reads their values only when they are needed.

The layout is safetensors': 8 bytes of little-endian header length N, N bytes of JSON, then the tensors' bytes
(https://github.com/huggingface/safetensors#format). That library checks the header.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import FileError, PickleError
from ..tensors import LARGEST, TensorFields
from ..values import check_path
from .formats.strangers.base import stranger_by_head, stranger_in_pickle

A = TypeVar("A", bound=TensorFields)
T = TypeVar("T")

_METADATA_FIRST = '{"__metadata__":'
MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation
MOST_TENSORS = 50_000
"""The limit of one file. Adapters have a few thousand tensors; a header of many more takes minutes to read."""

_DTYPES: dict[str, torch.dtype] = {
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
        self._magnitudes: dict[str, float] = {}
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
        return self.tensors({key: key})[key]

    def tensors(self, keys: Mapping[str, str]) -> dict[str, Tensor]:
        """Map tensors, on the CPU, in the file's dtypes; `keys` has the key of each name in the result."""
        tensors = {}
        for name, key in keys.items():
            dtype, shape, start, end = self.infos[key]
            if start == end:
                tensors[name] = torch.empty(shape, dtype=dtype)
            elif start % dtype.itemsize:  # allowed by the format, and torch wants alignment
                content = self._with_stream(partial(self._bytes, offset=start, nbytes=end - start))
                tensors[name] = torch.frombuffer(content, dtype=dtype).view(shape)
            else:
                buffer, count = self._map or self._mapped(), (end - start) // dtype.itemsize
                tensors[name] = torch.frombuffer(buffer, dtype=dtype, count=count, offset=start).view(shape)
        return tensors

    def not_finite(self, keys: Iterable[str]) -> set[str]:
        """Return the keys whose tensors have a NaN or a number beyond float32.

        The first check of a tensor reads it whole; all tensors of one element are read at once, see `numbers`.
        """
        keys = set(keys)
        new = keys - self._magnitudes.keys()

        def check(stream: BufferedReader) -> None:
            for key in sorted(new, key=lambda key: self.infos[key].start):
                dtype, _, start, end = self.infos[key]
                most = abs(self.numbers.get(key, float(start < end)))
                if key not in self.numbers and dtype.is_floating_point and start < end:
                    tensor = torch.frombuffer(self._bytes(stream, start, end - start), dtype=dtype)
                    wide = dtype.itemsize > 1 and (dtype is not torch.half or torch.__version__ >= "2.2")
                    most = torch.stack(torch.aminmax(tensor if wide else tensor.float())).abs().max().item()
                    self.largest = max(self.largest, most)
                self._magnitudes[key] = most

        if new:
            self._with_stream(check)
        return {key for key in keys if not self._magnitudes[key] <= LARGEST}  # NaN is no more and no less

    def magnitude(self, key: str) -> float:
        """Return the largest number of a tensor that `not_finite` has checked, without its sign."""
        return self._magnitudes[key]

    def private(self, adapter: A) -> A:
        """Return the adapter with copies of its tensors in the file, read from disk and not from the map."""
        return self._with_stream(lambda stream: adapter.mapped(partial(self._copy, stream)))

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """Return the values of all tensors of one element, such as alphas.

        They are read from disk: a touch of the map makes the system read the surroundings of each, too, which takes as
        long as the whole file if that is not cached.
        """
        single = sorted([(info.start, key) for key, info in self.infos.items() if math.prod(info.shape) == 1])

        def read(stream: BufferedReader) -> dict[str, float]:
            found = {}
            for start, key in single:
                dtype, *_, end = self.infos[key]
                found[key] = float(torch.frombuffer(self._bytes(stream, start, end - start), dtype=dtype).item())
            return found

        return self._with_stream(read) if single else {}

    def verify(self) -> None:
        """Check that the file on disk is still the one that was opened."""
        try:
            now = stamp_of(self.path.stat())
        except OSError as error:
            raise FileError(self.path, f"it vanished from disk while in use: {error.strerror or error}") from error
        if now[:4] != self.stamp[:4]:  # other rights and links change the last
            raise FileError(self.path, "it changed on disk while in use; activate it again to use the new content")

    def _with_stream(self, read: Callable[[BufferedReader], T]) -> T:
        """Return what `read` makes of the open file, which is checked before and after.

        What took its place may be a pipe, and a change may come at any time.
        """
        self.verify()
        try:
            with self.path.open("rb") as stream:
                found = read(stream)
        except OSError as error:
            self.verify()
            raise FileError(self.path, f"it cannot be read: {error.strerror or error}") from error
        self.verify()
        return found

    def _bytes(self, stream: BufferedReader, offset: int, nbytes: int) -> bytearray:
        content = bytearray(nbytes)
        stream.seek(offset)
        if stream.readinto(content) < nbytes:
            self.verify()
            raise FileError(self.path, "it was truncated while in use; activate it again to use the new content")
        return content

    def _copy(self, stream: BufferedReader, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor that is a view of the map, read from an open file; any other one as it is."""
        offset = tensor.data_ptr() - self._address
        if self._map is None or not tensor.numel() or tensor.device.type != "cpu" or not 0 <= offset < self.stamp[0]:
            return tensor
        last = sum([(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)])
        content = self._bytes(stream, offset, (last + 1) * tensor.element_size())
        return torch.frombuffer(content, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _mapped(self) -> mmap.mmap:
        self.verify()
        try:
            with self.path.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            self._address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        except (OSError, ValueError) as error:
            raise FileError(self.path, f"it cannot be mapped: {error}") from error
        return self._map


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
    if '"__metadata__"' in text or not isinstance(metadata, dict):
        return None
    if not all(isinstance(value, str) for value in metadata.values()):
        return None
    tensors = text.rstrip(" ").encode() + (size - len(raw)).to_bytes(8, "little")  # headers are filled up
    return Glance(metadata, hashlib.blake2b(tensors, digest_size=16).digest())


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file. A pipe would block for ever, and a device may have no end."""
    if not S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a regular file", str(path))
    return path.open("rb")


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
        metadata = header.pop("__metadata__", None) or {}
        return {key: _tensor_info(path, key, 8 + len(raw), **fields) for key, fields in header.items()}, metadata
    except FileError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError) as error:  # the last two where it has just changed
        raise FileError(path, f"it is truncated or damaged: {error}; download it again") from error


def _tensor_info(
    path: Path, key: str, base: int, dtype: str, shape: Sequence[int], data_offsets: tuple[int, int]
) -> TensorInfo:
    if dtype not in _DTYPES:
        raise FileError(path, f"tensor {key!r} has the dtype {dtype}, which Remora cannot read")
    if math.prod(filter(None, shape)) > 1 << 48:  # strides are as large, of a tensor without entries, too
        raise FileError(path, f"tensor {key!r} has a shape that no tensor can have: {str(shape)[:60]}")
    return TensorInfo(_DTYPES[dtype], tuple(shape), base + data_offsets[0], base + data_offsets[1])
