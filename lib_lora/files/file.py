"""Adapter files: the header is read and checked first, tensors are mapped and touched only when asked for.

The layout is safetensors': 8 bytes of little-endian header length N, N bytes of JSON, then the tensors' bytes
(https://github.com/huggingface/safetensors#format). The header is parsed here and not by that library because
a file from the internet deserves one exact sentence about what is wrong with it, and the library's JSON reader
silently keeps the last of two equal keys.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import FileError, PickleError
from ..tensors import LARGEST, TensorFields

A = TypeVar("A", bound=TensorFields)

_METADATA_FIRST = b'{"__metadata__":'
MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation
MOST_TENSORS = 50_000
"""Of a file. Adapters have a few thousand; to read a header of many more takes minutes."""
_MAX_CONFIG = 8 << 20  # bytes of an adapter_config.json

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
for _code, _name in (("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")):
    if hasattr(torch, _name):  # torch 2.1 and later
        _DTYPES[_code] = getattr(torch, _name)

_PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".pkl"})

_PICKLE_STARTS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

_CONVERT = (
    "a pickle, which can run any code when loaded, so it is refused; convert it once with "
    'python -c "import sys, torch; from safetensors.torch import save_file; '
    "d = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    'save_file({k: v.contiguous() for k, v in d.items()}, sys.argv[2])" IN.pt OUT.safetensors'
)


_SIZES = {code: (dtype, torch.empty((), dtype=dtype).element_size()) for code, dtype in _DTYPES.items()}
_MOST = 1 << 48  # bytes, and entries of a tensor


class TensorInfo(NamedTuple):
    """Where one tensor lies in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    end: int


class AdapterFile:
    """An open safetensors file.

    Tensors are private (copy-on-write) views into the mapped file: nothing is copied until somebody places them,
    and nothing written to them ever reaches the disk. Read their values through `private`: where a program truncates
    the file, as one does that saves over it, reading the map kills the process.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str], stamp: Stamp
    ) -> None:
        self.path = path
        self.infos: Mapping[str, TensorInfo] = MappingProxyType(dict(tensors))
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata))
        self.stamp = stamp
        self._map: mmap.mmap | None = None
        self._address = 0  # of the map
        self._finite: dict[str, bool] = {}

    @classmethod
    def open(cls, path: str | Path) -> AdapterFile:
        """Read and check the header of `path`; no tensor is read.

        Raises:
            PickleError: it is a pickle, by name or by content.
            FileError: it does not exist, is empty, truncated, damaged, or no safetensors file at all.
        """
        path = Path(path)
        raw, stamp = _read_header(path)
        tensors, metadata = _parse_header(path, raw, 8 + len(raw), stamp.size)
        return cls(path, tensors, metadata, stamp)

    @property
    def keys(self) -> Sequence[str]:
        """Tensor names in the order of the header."""
        return tuple(self.infos)

    def tensor(self, key: str) -> Tensor:
        """Map one tensor, on the CPU, in the file's dtype.

        Raises:
            KeyError: no such key.
            FileError: the file changed on disk since it was opened.
        """
        info = self.infos[key]
        if info.start == info.end:
            return torch.empty(info.shape, dtype=info.dtype)
        if info.start % info.dtype.itemsize:  # allowed by the format, and torch wants alignment
            with self._opened() as stream:
                content = self._read(stream, info.start, info.end - info.start)
            return torch.frombuffer(content, dtype=info.dtype).view(info.shape)
        count = (info.end - info.start) // info.dtype.itemsize
        return torch.frombuffer(self._mapped(), dtype=info.dtype, count=count, offset=info.start).view(info.shape)

    def first_not_finite(self, keys: Iterable[str]) -> str | None:
        """Return the first of these tensors that has a NaN or a number beyond float32; None where none has.

        Reads each of them whole when it is asked for the first time; single numbers all at once, see `numbers`.

        Raises:
            KeyError: no such key.
            FileError: the file changed on disk since it was opened.
        """
        keys = list(keys)
        new = [key for key in keys if key not in self._finite]
        if new:
            with self._opened() as stream:
                for key in new:
                    single = self.numbers.get(key)
                    whole = torch.tensor(single) if single is not None else self._copy(stream, self.tensor(key))
                    self._finite[key] = _is_finite(whole)
        return next((key for key in keys if not self._finite[key]), None)

    def private(self, adapter: A) -> A:
        """Return the same with copies of the tensors that lie in the file, read from there and not from the map.

        Raises:
            FileError: the file changed on disk since it was opened, or cannot be read.
        """
        with self._opened() as stream:
            return adapter.mapped(lambda tensor: self._copy(stream, tensor))

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """Open the file as it was when its header was read; it must be so at the end, too.

        Raises:
            FileError: it is not, or it cannot be read.
        """
        self.verify()
        try:
            with self.path.open("rb", buffering=0) as stream:
                yield stream
        except OSError as error:
            raise FileError(self.path, f"cannot be read: {error.strerror or error}") from error
        self.verify()

    def _copy(self, stream: BinaryIO, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor that lies in the map, from an open file; any other one as it is."""
        offset = tensor.data_ptr() - self._address
        if self._map is None or not tensor.numel() or tensor.device.type != "cpu" or not 0 <= offset < self.stamp.size:
            return tensor
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        nbytes = (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()
        content = self._read(stream, offset, nbytes)
        return torch.frombuffer(content, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _read(self, stream: BinaryIO, offset: int, nbytes: int) -> bytearray:
        content = bytearray(nbytes)
        stream.seek(offset)
        rest = memoryview(content)
        while rest:  # systems read no more than two gigabytes at once
            count = stream.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                raise FileError(self.path, "was truncated while in use; activate it again to use the new content")
            rest = rest[count:]
        return content

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The values of all tensors of one element, such as alphas.

        Read by themselves: each that is touched in the map makes the system read its surroundings, too, which takes as
        long as the whole file if that is not cached.

        Raises:
            FileError: the file changed on disk since it was opened, or cannot be read.
        """
        single = [key for key, info in _by_offset(self.infos) if math.prod(info.shape) == 1]
        raw: dict[torch.dtype, bytearray] = {}
        keys: dict[torch.dtype, list[str]] = {}
        with self._opened() as stream:
            for key in single:
                info = self.infos[key]
                raw.setdefault(info.dtype, bytearray()).extend(self._read(stream, info.start, info.end - info.start))
                keys.setdefault(info.dtype, []).append(key)
        found: dict[str, float] = {}
        for dtype, own in keys.items():
            found.update(zip(own, torch.frombuffer(raw[dtype], dtype=dtype).double().tolist(), strict=True))
        return found

    def verify(self) -> None:
        """Check that the file on disk is still the one that was opened.

        Raises:
            FileError: it was changed, truncated or removed.
        """
        try:
            now = Stamp.of(self.path.stat())
        except OSError as error:
            raise FileError(self.path, f"vanished from disk while in use: {error.strerror or error}") from error
        if now != self.stamp:
            raise FileError(self.path, "changed on disk while in use; activate it again to use the new content")

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            self.verify()
            try:
                with self.path.open("rb") as stream:
                    self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
                self._address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
            except (OSError, ValueError) as error:
                raise FileError(self.path, f"cannot be mapped: {error}") from error
        return self._map


@dataclass(frozen=True, slots=True)
class Glance:
    """What can be told of a file without taking its header apart."""

    metadata: Mapping[str, str]
    tensors: bytes
    """A digest: files that have the same have the same keys, dtypes, shapes and offsets."""


def glance(path: str | Path) -> Glance | None:
    """Read a header and parse its metadata alone; None where they do not come first, as all programs put them.

    Nothing else is checked. Where a file with the same tensors was opened, this one can be, too.

    Raises:
        FileError: as `AdapterFile.open`, where the beginning shows it.
    """
    path = Path(path)
    raw, stamp = _read_header(path)
    size = stamp.size - len(raw)
    if not raw.startswith(_METADATA_FIRST):
        return None if b'"__metadata__"' in raw else Glance({}, _digest(raw.rstrip(b" "), size))
    try:
        text = raw.decode("utf-8")
        start = len(_METADATA_FIRST)
        while text[start : start + 1].isspace():
            start += 1
        metadata, end = json.JSONDecoder().raw_decode(text, start)
    except (UnicodeDecodeError, ValueError, RecursionError):
        return None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        return None
    return Glance(metadata, _digest(text[end:].rstrip(" ").encode(), size))  # filled up to whole words of 8 bytes


def _digest(tensors: bytes, size: int) -> bytes:
    return hashlib.blake2b(tensors + size.to_bytes(8, "little"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells two states of a file apart without reading it."""

    size: int  # bytes
    mtime: int  # nanoseconds

    @classmethod
    def of(cls, stat: os.stat_result) -> Stamp:
        return cls(stat.st_size, stat.st_mtime_ns)


def adapter_config(path: Path) -> dict[str, object] | None:
    """Read PEFT's `adapter_config.json` beside an adapter file; None where there is none.

    Raises:
        FileError: it is there but is no JSON object.
    """
    config = path.parent / "adapter_config.json"
    if not config.exists():
        return None
    try:
        with _open(config) as stream:
            content = stream.read(_MAX_CONFIG + 1)
        if len(content) > _MAX_CONFIG:
            raise ValueError(f"it has more than {_MAX_CONFIG:,} bytes")
        loaded = json.loads(content.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(config, f"beside {path.name} cannot be read as JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise FileError(config, f"beside {path.name} is no JSON object")
    return loaded


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    wide = tensor.float() if tensor.element_size() == 1 else tensor  # there is no arithmetic in 8 bits
    least, most = torch.stack(torch.aminmax(wide)).tolist()
    return bool(least >= -LARGEST and most <= LARGEST)  # NaN goes through both, and is neither


def _open(path: Path) -> BinaryIO:
    """Open a regular file. A pipe would block for ever, and a device may have no end.

    Raises:
        OSError: it cannot be opened, or it is no regular file.
    """
    if not S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, and no regular file", str(path))
    return path.open("rb")


def _read_header(path: Path) -> tuple[bytes, Stamp]:
    try:
        with _open(path) as stream:
            stamp = Stamp.of(os.fstat(stream.fileno()))
            length = _header_length(path, stream.read(8), stamp.size)
            return stream.read(length), stamp
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error


def _header_length(path: Path, head: bytes, size: int) -> int:
    length = int.from_bytes(head, "little")
    # a header of 640 bytes begins like a pickle, too, but no pickle goes on with six zeros
    if path.suffix.lower() in _PICKLE_SUFFIXES or (head.startswith(_PICKLE_STARTS) and length > MAX_HEADER):
        raise PickleError(path, _CONVERT)
    if size == 0:
        raise FileError(path, "is empty (0 bytes); download it again")
    for start, what in _MISTAKEN.items():
        if head.lstrip().lower().startswith(start):
            raise FileError(path, what)
    if size < 8:
        raise FileError(path, f"is only {size} bytes long, too short for a safetensors file; download it again")
    if length > size - 8:
        raise FileError(
            path, f"header claims {length} bytes but the file has only {size}: truncated, or no safetensors file"
        )
    if length > MAX_HEADER:
        raise FileError(path, f"header claims {length} bytes, more than the {MAX_HEADER} a safetensors file may have")
    return length


_MISTAKEN: dict[bytes, str] = {
    b"<!doct": "is a web page, not an adapter: the site answered with HTML (a log-in page?); download it again",
    b"<html": "is a web page, not an adapter: the site answered with HTML (a log-in page?); download it again",
    b"version ": "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
    b"gguf": "is a GGUF file; only safetensors adapters can be read",
}


def _parse_header(path: Path, raw: bytes, base: int, size: int) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    if raw.count(b'"data_offsets"') > MOST_TENSORS:  # no text in the metadata has its quotes without a backslash
        raise FileError(path, f"has more than {MOST_TENSORS:,} tensors, which no adapter has; it is not read")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(path, f"header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise FileError(path, "header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FileError(path, "header's __metadata__ is no object of strings")
    tensors = {key: _tensor_info(path, key, value, base) for key, value in header.items()}
    _check_layout(path, tensors, base, size)
    return tensors, metadata


def _unique(path: Path, pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise FileError(path, f"header has the key {twice!r} twice")
    return unique


def _tensor_info(path: Path, key: str, value: object, base: int) -> TensorInfo:
    # plain steps, as a list of ten thousand files has ten million of these
    try:
        code, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]  # type: ignore[index]
        known = _SIZES.get(code)
    except (TypeError, KeyError, ValueError):
        code = shape = None
    if type(code) is not str or type(shape) is not list:
        raise FileError(path, f"header entry {key!r} lacks dtype, shape or data_offsets")
    if known is None:
        raise FileError(path, f"tensor {key!r} has the unknown dtype {code!r}")
    size = 1
    for number in (*shape, start, end):
        if type(number) is not int or not 0 <= number < _MOST:
            raise FileError(path, f"header entry {key!r} has a shape or an offset that is no natural number")
    for length in shape:
        size *= length
    dtype, width = known
    if end - start != size * width:
        raise FileError(path, f"tensor {key!r} of shape {shape} and dtype {code} cannot have {end - start} bytes")
    return TensorInfo(dtype, tuple(shape), base + start, base + end)


def _check_layout(path: Path, tensors: Mapping[str, TensorInfo], base: int, size: int) -> None:
    """Every byte belongs to exactly one tensor, as the format demands: no overlap, no gap, nothing behind."""
    position, previous = base, "the header"
    for info in tensors.values():
        if info.start != position:
            break
        position = info.end
    else:
        if position == size:
            return  # written one after the other, as by nearly every program
    position = base
    for key, info in _by_offset(tensors):
        if info.end > size:
            raise FileError(path, f"tensor {key!r} ends at byte {info.end} but the file has {size}: truncated")
        if info.start < position:
            raise FileError(path, f"tensor {key!r} overlaps {previous!r}")
        if info.start > position:
            raise FileError(path, f"{info.start - position} bytes before tensor {key!r} belong to no tensor")
        position, previous = info.end, key
    if position != size:
        raise FileError(path, f"{size - position} bytes at the end belong to no tensor")


def _by_offset(tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, TensorInfo]]:
    return iter(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)))
