"""Pictures that are small files and many pixels."""

from __future__ import annotations

import io
import logging
import random
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from extension.kept.region_files import read_picture
from extension.library import CatalogFile, Found, pictures
from extension.library.pictures import PictureError, Thumbnails, opened_picture, shrunk_picture
from extension.text.regions import RegionTextError

ROOT = Path(__file__).resolve().parents[3]
TAKEN = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA")
PEAK = """
import io, sys, threading
from PIL import Image
from extension.kept.region_files import read_picture
from extension.library.pictures import shrunk_picture
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10
stream = io.BytesIO()
Image.new("L", (5000, 5000), 200).save(stream, "PNG")
content = stream.getvalue()
del stream
read_picture(content)  # imports what it needs
open("/proc/self/clear_refs", "w").write("5")
before = peak()
works = [lambda: read_picture(content), lambda: shrunk_picture(content, 384)] * 4
threads = [threading.Thread(target=work) for work in works]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(peak() - before)
"""


def png(width: int, height: int, mode: str = "L", colour: object = 200) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (width, height), colour).save(stream, "PNG")  # type: ignore[arg-type]
    return stream.getvalue()


def test_more_pixels_than_a_picture_has_are_refused() -> None:
    content = png(5001, 5000, "1", 1)
    with pytest.raises(PictureError, match="5001 x 5000 pixels are more than 25 million"):
        shrunk_picture(content, 384)
    with pytest.raises(RegionTextError, match="5001 x 5000 pixels are more than 25 million"):
        read_picture(content)


@pytest.mark.parametrize("content", [b"", b"no picture", png(8, 8)[:20]])
def test_no_place_in_memory_is_told(content: bytes) -> None:
    with pytest.raises(PictureError) as caught:
        opened_picture(content, 16)
    assert "0x" not in str(caught.value)
    assert str(caught.value).startswith("this picture cannot be read: ")


def test_pixels_that_a_library_warns_of_are_refused_as_well() -> None:
    with pytest.raises(PictureError, match="more than 25 million"):
        shrunk_picture(png(10_000, 9_990, "1", 1), 384)
    with pytest.raises(PictureError, match="it has more than 25 million pixels"):
        shrunk_picture(png(20_000, 9_990, "1", 1), 384)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell")
def test_eight_at_once_take_the_memory_of_one() -> None:
    command = [sys.executable, "-c", PEAK]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    assert int(done.stdout) < 60  # megabytes, where the pixels of one are 24


def test_one_is_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, content = 0, 0, png(100, 100)
    reduced = pictures._reduced

    def watched(*arguments: object) -> Image.Image:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.02)
        at_once -= 1
        return reduced(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pictures, "_reduced", watched)
    threads = [threading.Thread(target=lambda: shrunk_picture(content, 16)) for _ in range(4)]
    threads += [threading.Thread(target=lambda: read_picture(content)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_picture_of_every_mode_is_read_and_made_small(mode: str) -> None:
    colour = {"LA": (200, 255), "RGB": (200, 200, 200), "RGBA": (200, 200, 200, 255)}.get(mode, 1)
    opened = opened_picture(png(2000, 1000, mode, colour), 64)
    assert opened.mode == ("RGBA" if "A" in mode else "RGB")
    assert min(opened.size) < 4 * 64
    assert opened.width == pytest.approx(2 * opened.height, abs=2)


def test_a_format_for_which_another_program_is_started_is_refused() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "EPS")
    with pytest.raises(PictureError, match="of an unknown format"):
        shrunk_picture(stream.getvalue(), 64)


def ico(content: bytes) -> bytes:
    """Return an icon whose header says a small size and which holds this PNG."""
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 64, 64, 0, 0, 1, 32, len(content), 22) + content


def tiff(side: int, tile: int) -> bytes:
    """Return a square picture that lies in one corner of a tile."""
    data = zlib.compress(bytes(tile * tile))
    tags = [(256, side), (257, side), (258, 8), (259, 8), (262, 1), (277, 1), (322, tile), (323, tile)]
    tags += [(324, 8 + 2 + 12 * 10 + 4), (325, len(data))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


def test_no_pixel_is_decoded_before_their_number_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    for content in (ico(png(5001, 5000, "1", 1)), *(encoded(form, 5001) for form in TAKEN)):
        with pytest.raises(PictureError, match=r"more than 25 million|of an unknown format"):
            shrunk_picture(content, 64)


def test_a_small_picture_of_a_large_tile_is_refused() -> None:
    assert shrunk_picture(tiff(64, 128), 64)
    with pytest.raises(PictureError, match="5008 x 5008 pixels are more than 25 million"):
        shrunk_picture(tiff(64, 5008), 64)


def test_what_another_program_added_to_the_library_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    Image.init()
    monkeypatch.setitem(Image.OPEN, "FOREIGN", (lambda *_: tried.append(1), lambda _: True))
    monkeypatch.setattr(Image, "ID", ["FOREIGN", *Image.ID])
    with pytest.raises(PictureError, match="of an unknown format"):
        shrunk_picture(b"foreign", 64)
    assert tried == []


def test_a_picture_that_cannot_be_read_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    sidecar = tmp_path / "a.png"
    sidecar.write_bytes(b"no picture")
    found = Found(CatalogFile(tmp_path / "a.safetensors", "a", 1, 1), picture=sidecar, stamp="1")
    thumbnails = Thumbnails(tmp_path / "kept")
    assert [thumbnails.of(found, embedded=False) for _ in range(3)] == [None] * 3
    assert caplog.text.count("cannot be shown") == 1
    sidecar.write_bytes(png(8, 8))
    assert thumbnails.of(replace(found, stamp="2"), embedded=False), "it is another one now"

    def gone(*_: object) -> bytes:
        raise OSError("the drive is gone")

    with monkeypatch.context() as patch:
        patch.setattr(pictures, "read_bytes", gone)
        assert thumbnails.of(replace(found, stamp="3"), embedded=False) is None
    assert thumbnails.of(replace(found, stamp="3"), embedded=False), "the drive is back"


def encoded(form: str, side: int = 64) -> bytes:
    stream = io.BytesIO()
    picture = Image.effect_noise((64, 64), 50).convert("RGB")
    picture.resize((side, side), Image.Resampling.NEAREST).save(stream, form)
    return stream.getvalue()


def damaged() -> Iterator[bytes]:
    """Files that are cut off, and files of which a few bytes are others."""
    chance = random.Random(7)
    for form in TAKEN:
        whole = encoded(form)
        yield from (whole[:end] for end in (0, 1, 4, 8, 20, 40, len(whole) // 2))
        for _ in range(10):
            content = bytearray(whole)
            for _ in range(5):
                content[chance.randrange(min(len(content), 200))] = chance.randrange(256)
            yield bytes(content)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of a part of them
def test_why_a_picture_is_refused_is_said_in_words_and_not_in_those_of_the_decoder() -> None:
    reasons = set()
    for content in damaged():
        try:
            shrunk_picture(content, 64)
        except PictureError as error:
            reasons.add(str(error))
    damage = "this picture cannot be read: its file is damaged, or of an unknown format"
    assert damage in reasons
    others = reasons - {damage}
    assert [one for one in others if not re.search(r"more than 25 million( pixels)?$", one)] == []


def test_whatever_a_decoder_raises_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> Image.Image:
        raise ZeroDivisionError

    monkeypatch.setattr(pictures, "_reduced", breaks)
    with caplog.at_level(logging.DEBUG), pytest.raises(PictureError, match="its file is damaged"):
        shrunk_picture(png(8, 8), 64)
    assert "ZeroDivisionError" in caplog.text, "what it was is in the log, for those who look for it"
