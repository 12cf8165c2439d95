"""The parameters text of a picture file, read without decoding the picture: PNG, JPEG and WebP."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import IO

from PIL import Image
from PIL.ExifTags import IFD, Base

MOST = 1 << 20
"""Bytes of a parameters text."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_PARTS = 4096  # chunks or segments of a file that are looked at
_PNG = b"\x89PNG\r\n\x1a\n"
_KEYWORD = b"parameters\0"
_EXIF = b"Exif\0\0"
_WITHOUT_SIZE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers of JPEG
_NO_FRAME = frozenset({0xC4, 0xC8, 0xCC})  # markers of JPEG among those that begin a frame
_UNLINKED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class DamagedError(ValueError):
    """A picture file is damaged; the message says how."""


@dataclass(frozen=True)
class Embedded:
    """The size and the parameters text in a picture file."""

    width: int = 0
    height: int = 0
    text: str = ""
    """The parameters text; empty without one."""


def read_embedded(path: Path) -> Embedded:
    """Read the size and the parameters text of a regular file that is no link.

    Raises:
        OSError: it cannot be opened.
        DamagedError: it is no such picture, it is damaged, or its text is too long.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | _UNLINKED), "rb") as stream:
        if not S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise DamagedError("it is no regular file")
        return embedded_in(stream)


def embedded_in(stream: IO[bytes]) -> Embedded:
    """Read the size and the parameters text of a picture.

    Raises:
        DamagedError: as `read_embedded`.
    """
    start = stream.read(12)
    if start.startswith(_PNG):
        stream.seek(len(_PNG))
        return _of_png(stream)
    if start.startswith(b"\xff\xd8"):
        stream.seek(2)
        return _of_jpeg(stream)
    if start.startswith(b"RIFF") and start.endswith(b"WEBP"):
        return _of_webp(stream)
    raise DamagedError("it is no PNG, JPEG or WebP")


def comment_text(comment: object) -> str:
    """Return the text of EXIF's UserComment."""
    if not isinstance(comment, bytes):
        return str(comment)
    kind, text = comment[:8], comment[8:]
    if kind == b"UNICODE\0":
        return text.decode("utf-16-be", "replace")
    return (text if kind in (b"ASCII\0\0\0", bytes(8)) else comment).decode("utf-8", "replace")


def _of_png(stream: IO[bytes]) -> Embedded:
    """Read the chunks before the pixels."""
    width = height = 0
    for _ in range(_PARTS):
        size, kind = struct.unpack(">I4s", _exactly(stream, 8))
        if kind == b"IHDR":
            width, height = struct.unpack(">II", _checked(stream, kind, b"", size, 13)[:8])
        elif kind in (b"IDAT", b"IEND"):
            return Embedded(width, height)
        else:
            start = _exactly(stream, min(size, len(_KEYWORD)))
            if start == _KEYWORD and kind in _TEXTS:
                data = _checked(stream, kind, start, size, MOST)
                return Embedded(width, height, _TEXTS[kind](data[len(_KEYWORD) :]))
            stream.seek(size - len(start) + 4, os.SEEK_CUR)
    raise DamagedError(f"it has more than {_PARTS} chunks before its pixels")


def _checked(stream: IO[bytes], kind: bytes, start: bytes, size: int, most: int) -> bytes:
    """Return the data of a chunk whose first bytes were read."""
    if size > most:
        raise DamagedError(f"its {kind.decode('latin-1')} chunk has more than {most:,} bytes")
    data = start + _exactly(stream, size - len(start))
    (written,) = struct.unpack(">I", _exactly(stream, 4))
    if zlib.crc32(data, zlib.crc32(kind)) != written:
        raise DamagedError(f"its {kind.decode('latin-1')} chunk has a wrong checksum")
    return data


def _compressed(data: bytes) -> bytes:
    """Decompress a text, but never more than it may have."""
    try:
        text = zlib.decompressobj().decompress(data, MOST + 1)
    except zlib.error as error:
        raise DamagedError("its text cannot be decompressed") from error
    if len(text) > MOST:
        raise DamagedError(f"its text has more than {MOST:,} bytes")
    return text


def _international(data: bytes) -> str:
    """Return the text of an iTXt chunk: flag, method, language, translated keyword, text."""
    _, _, rest = data[2:].partition(b"\0")
    text = rest.partition(b"\0")[2]
    return (_compressed(text) if data[:1] == b"\1" else text).decode("utf-8", "replace")


_TEXTS = {
    b"tEXt": lambda data: data.decode("latin-1"),
    b"zTXt": lambda data: _compressed(data[1:]).decode("latin-1"),
    b"iTXt": _international,
}
"""Kind of chunk -> reads its text, after the keyword."""


def _of_jpeg(stream: IO[bytes]) -> Embedded:
    """Read the segments before the pixels."""
    text = ""
    for _ in range(_PARTS):
        marker = _marker(stream)
        if marker in _WITHOUT_SIZE:
            continue
        if marker in (0xD9, 0xDA):
            return Embedded(text=text)
        (size,) = struct.unpack(">H", _exactly(stream, 2))
        data = _exactly(stream, max(0, size - 2))
        if marker == 0xE1 and data.startswith(_EXIF):
            text = _comment(data)
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME and len(data) >= 5:
            height, width = struct.unpack(">HH", data[1:5])
            return Embedded(width, height, text)
    raise DamagedError(f"it has more than {_PARTS} segments before its pixels")


def _marker(stream: IO[bytes]) -> int:
    """Return the next marker of a JPEG; any number of fill bytes may be before it."""
    if _exactly(stream, 1) != b"\xff":
        raise DamagedError("a segment of it begins without a marker")
    for _ in range(_PARTS):
        if (code := _exactly(stream, 1)) != b"\xff":
            return code[0]
    raise DamagedError("it has fill bytes without end")


def _of_webp(stream: IO[bytes]) -> Embedded:
    """Read the chunks; EXIF is after the pixels."""
    width = height = 0
    for _ in range(_PARTS):
        head = stream.read(8)
        if len(head) < 8:
            return Embedded(width, height)
        kind, size = struct.unpack("<4sI", head)
        if kind == b"EXIF":
            if size > MOST:
                raise DamagedError(f"its EXIF has more than {MOST:,} bytes")
            return Embedded(width, height, _comment(_exactly(stream, size)))
        start = stream.read(min(size, 10))
        if not width:
            width, height = _size_of_webp(kind, start)
        stream.seek(size + size % 2 - len(start), os.SEEK_CUR)
    raise DamagedError(f"it has more than {_PARTS} chunks")


def _size_of_webp(kind: bytes, start: bytes) -> tuple[int, int]:
    if len(start) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(start[4:7], "little") + 1, int.from_bytes(start[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(start[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", start[6:10])
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def _comment(data: bytes) -> str:
    """Return EXIF's UserComment."""
    try:
        exif = Image.Exif()
        exif.load(data)
        found = exif.get_ifd(IFD.Exif).get(Base.UserComment, b"")
    except Exception as error:  # Pillow raises any error for damaged EXIF
        raise DamagedError("its EXIF cannot be read") from error
    return comment_text(found)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise DamagedError("it is truncated")
    return data
