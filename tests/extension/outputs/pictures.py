"""Picture files, made byte by byte."""

from __future__ import annotations

import io
import os
import struct
import time
import zlib
from pathlib import Path

from PIL import Image
from PIL.ExifTags import IFD, Base

PIXELS = zlib.compress(b"\0\0\0\0")
HEAD = b"\x89PNG\r\n\x1a\n"
SETTINGS = "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 7, Size: 64x64"


def chunk(kind: bytes, data: bytes, *, checksum: int | None = None) -> bytes:
    """Return a chunk of a PNG."""
    right = zlib.crc32(data, zlib.crc32(kind))
    return struct.pack(">I4s", len(data), kind) + data + struct.pack(">I", right if checksum is None else checksum)


SIZE = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
END = chunk(b"IDAT", PIXELS) + chunk(b"IEND", b"")


def png(text: str = "", *others: bytes) -> bytes:
    """Return a PNG of one pixel with a parameters text, and other chunks before it."""
    own = chunk(b"tEXt", b"parameters\0" + text.encode("latin-1")) if text else b""
    return b"".join([HEAD, SIZE, *others, own, END])


def with_comment(form: str, text: str, **options: bool) -> bytes:
    """Return a JPEG or WebP with the text in EXIF's UserComment, as A1111 writes it."""
    exif = Image.Exif()
    exif.get_ifd(IFD.Exif)[Base.UserComment] = b"UNICODE\0" + text.encode("utf-16-be")
    stream = io.BytesIO()
    Image.new("RGB", (6, 4)).save(stream, form, exif=exif.tobytes(), **options)
    return stream.getvalue()


def saved(path: Path, content: bytes, age: float = 60.0) -> Path:
    """Write a file that is some seconds old, as the folders around it are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    aged(path, age)
    for folder in (path.parent, path.parent.parent):
        aged(folder, 30.0)
    return path


def aged(path: Path, age: float) -> None:
    then = time.time() - age
    os.utime(path, (then, then))


def text_with(tags: str, hashes: str = "") -> str:
    return f"a fox {tags}\nNegative prompt: grey\n{SETTINGS}" + (f', Lora hashes: "{hashes}"' if hashes else "")
