"""Pictures that are small files and many pixels."""

from __future__ import annotations

import io
import logging
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from extension.kept.region_files import read_picture
from extension.library import pictures
from extension.library.pictures import PictureError, opened_picture, shrunk_picture
from extension.text.regions import RegionTextError

ROOT = Path(__file__).resolve().parents[3]
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
    assert str(caught.value).startswith("this is no picture that can be read: ")


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
    with pytest.raises(PictureError, match="EPS files are not taken"):
        shrunk_picture(stream.getvalue(), 64)


def encoded(form: str) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(stream, form)
    return stream.getvalue()


def damaged() -> Iterator[bytes]:
    """Files that are cut off, and files of which a few bytes are others."""
    chance = random.Random(7)
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "ICO", "PPM", "TGA"):
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
    damage = "this is no picture that can be read: its file is damaged, or of a format that is not known"
    assert damage in reasons
    others = reasons - {damage}
    assert [one for one in others if not re.search(r"(files are not taken|more than 25 million( pixels)?)$", one)] == []


def test_whatever_a_decoder_raises_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> Image.Image:
        raise ZeroDivisionError

    monkeypatch.setattr(pictures, "_reduced", breaks)
    with caplog.at_level(logging.DEBUG), pytest.raises(PictureError, match="its file is damaged"):
        shrunk_picture(png(8, 8), 64)
    assert "ZeroDivisionError" in caplog.text, "what it was is in the log, for those who look for it"
