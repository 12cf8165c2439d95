"""The parameters text of a picture file, and files that nobody makes in good faith."""

from __future__ import annotations

import io
import os
import random
import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from extension.outputs import DamagedError, Embedded, read_embedded
from extension.standalone.pnginfo import encode_png
from tests.extension.outputs.pictures import END, HEAD, SIZE, chunk, png, with_comment

TEXT = "a fox <lora:zorp:0.8>\nSteps: 20, Sampler: Euler, Seed: 7"


def read(folder: Path, content: bytes, name: str = "a.png") -> Embedded:
    (folder / name).write_bytes(content)
    return read_embedded(folder / name)


@pytest.mark.parametrize("text", [TEXT, "ein Füchslein", "狐 <lora:a:1>"])
def test_the_text_of_a_png_is_what_was_written(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, encode_png(Image.new("RGB", (6, 4)), text))
    assert found == Embedded(6, 4, text)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (b"tEXt", TEXT.encode()),
        (b"zTXt", b"\0" + zlib.compress(TEXT.encode())),
        (b"iTXt", b"\0\0en\0Parameter\0" + TEXT.encode()),
        (b"iTXt", b"\1\0\0\0" + zlib.compress(TEXT.encode())),
    ],
)
def test_each_kind_of_text_is_read_behind_other_chunks(tmp_path: Path, kind: bytes, data: bytes) -> None:
    workflow = chunk(b"tEXt", b"workflow\0" + bytes(3 << 20))
    content = HEAD + SIZE + workflow + chunk(kind, b"parameters\0" + data) + END
    assert read(tmp_path, content) == Embedded(1, 1, TEXT)


@pytest.mark.parametrize(
    ("form", "options"), [("JPEG", {}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("JPEG", {"progressive": True})]
)
def test_the_comment_of_a_jpeg_or_webp_is_read(tmp_path: Path, form: str, options: dict[str, bool]) -> None:
    assert read(tmp_path, with_comment(form, TEXT, **options)) == Embedded(6, 4, TEXT)
    stream = io.BytesIO()
    Image.new("RGB", (6, 4)).save(stream, form, **options)
    assert read(tmp_path, stream.getvalue()) == Embedded(6, 4, "")


HOSTILE: Sequence[tuple[bytes, str]] = [
    (b"", "no PNG, JPEG or WebP"),
    (b"BM" + bytes(100), "no PNG, JPEG or WebP"),
    (HEAD, "truncated"),
    (HEAD + SIZE + struct.pack(">I4s", 1 << 31, b"tEXt") + b"parameters\0", "has more than 1,048,576 bytes"),
    (HEAD + SIZE + chunk(b"tEXt", b"parameters\0" + bytes(2 << 20)), "has more than 1,048,576 bytes"),
    (HEAD + SIZE + chunk(b"tEXt", b"parameters\0x", checksum=1), "wrong checksum"),
    (HEAD + chunk(b"IHDR", bytes(13), checksum=1), "wrong checksum"),
    (HEAD + SIZE + chunk(b"zTXt", b"parameters\0\0" + zlib.compress(bytes(50 << 20))), "more than 1,048,576 bytes"),
    (HEAD + SIZE + chunk(b"zTXt", b"parameters\0\0nothing"), "cannot be decompressed"),
    (HEAD + SIZE + chunk(b"iTXt", b"parameters\0\1\0\0\0nothing"), "cannot be decompressed"),
    (HEAD + SIZE + chunk(b"tEXt", b"") * 5000 + END, "more than 4096 chunks"),
    (b"\xff\xd8" + b"\xff\xfe\0\2" * 5000, "more than 4096 segments"),
    (b"\xff\xd8" + b"\xff" * 9000, "fill bytes without end"),
    (b"\xff\xd8" + b"\0" * 12, "without a marker"),
    (b"\xff\xd8\xff\xe1\0\x10Exif\0\0" + b"\xff" * 8, "EXIF cannot be read"),
    (b"RIFF\0\0\0\0WEBPEXIF" + struct.pack("<I", 1 << 31), "has more than 1,048,576 bytes"),
    (b"RIFF\0\0\0\0WEBPEXIF" + struct.pack("<I", 1 << 15), "truncated"),
    (b"RIFF\0\0\0\0WEBP" + b"ABCD\0\0\0\0" * 5000, "more than 4096 chunks"),
]


def test_a_hostile_file_is_refused_at_once(tmp_path: Path) -> None:
    for content, reason in HOSTILE:
        begun = time.process_time()
        with pytest.raises(DamagedError, match=reason):
            read(tmp_path, content)
        assert time.process_time() - begun < 1, reason


def test_a_file_that_is_cut_or_changed_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    draw = random.Random(1)
    for content in (png(TEXT), with_comment("JPEG", TEXT), with_comment("WEBP", TEXT)):
        for _ in range(150):
            spoiled = bytearray(content[: draw.randrange(len(content) + 1)])
            for _ in range(draw.randrange(4)):
                if spoiled:
                    spoiled[draw.randrange(len(spoiled))] = draw.randrange(256)
            with suppress(DamagedError):
                assert isinstance(read(tmp_path, bytes(spoiled)), Embedded)


def test_a_link_and_a_pipe_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "outside.png").write_bytes(png(TEXT))
    (tmp_path / "link.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(OSError, match="link"):
        read_embedded(tmp_path / "link.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DamagedError, match="no regular file"):
        read_embedded(tmp_path / "pipe.png")
