from __future__ import annotations

import base64
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from PIL.ExifTags import IFD, Base
from PIL.PngImagePlugin import PngInfo

from extension.hosts.txt2img import Picture, RequestError
from extension.standalone.pnginfo import encode_png, read_infotext, read_picture, read_texts, save_picture
from extension.store import LOCK_FILE

IMAGE = Image.new("RGB", (8, 8), (10, 20, 30))


@pytest.mark.parametrize("text", ["a fox\nSteps: 1, Seed: 2", "лиса 狐\nSteps: 1", "é", ""])
def test_the_parameters_text_is_in_the_png(text: str) -> None:
    with Image.open(io.BytesIO(encode_png(IMAGE, text))) as image:
        assert read_infotext(image) == text
        assert image.getpixel((0, 0)) == (10, 20, 30)
        assert ("parameters" in image.info) == bool(text)


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
@pytest.mark.parametrize("comment", [b"UNICODE\0" + "лиса\nSteps: 1".encode("utf-16-be"), "лиса\nSteps: 1".encode()])
def test_the_parameters_text_of_other_formats_is_their_comment(form: str, comment: bytes) -> None:
    exif = Image.Exif()
    exif.get_ifd(IFD.Exif)[Base.UserComment] = comment
    buffer = io.BytesIO()
    IMAGE.save(buffer, form, exif=exif)
    sent = base64.b64encode(buffer.getvalue()).decode()
    assert read_infotext(read_picture(f"data:image/x;base64,{sent}", "image")) == "лиса\nSteps: 1"


def test_a_picture_that_is_sent_stands_upright_and_keeps_its_texts() -> None:
    exif = Image.Exif()
    exif[Base.Orientation] = 6
    chunks = PngInfo()
    chunks.add_text("Software", "a program")
    chunks.add_text("parameters", "a fox")
    buffer = io.BytesIO()
    Image.new("RGBA", (8, 4)).save(buffer, "PNG", exif=exif, pnginfo=chunks)
    image = read_picture(base64.encodebytes(buffer.getvalue()).decode(), "image")
    assert image.size == (4, 8)
    assert (read_infotext(image), read_texts(image)["Software"]) == ("a fox", "a program")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (None, "image must be a picture as base64, not None"),
        ("http://example.org/a.png", "image is an address; send the picture itself"),
        ("?", "image: it is no base64"),
        ("aGVsbG8=", "image: this picture cannot be read: its file is damaged"),
    ],
)
def test_what_is_no_picture_is_refused(sent: object, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read_picture(sent, "image")


def test_pictures_are_numbered_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    names = [save_picture(Picture(IMAGE, seed, "x"), folder).name for seed in (7, 7)]
    assert names == ["00001-7.png", "00002-7.png"]
    (folder / "00041-1.png").touch()
    (folder / "holiday.png").touch()
    assert save_picture(Picture(IMAGE, 9, "x"), folder).name == "00042-9.png"


def test_two_at_the_same_time_do_not_take_the_same_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def encode(image: Image.Image, infotext: str) -> bytes:
        both.wait(10)
        return encode_png(image, infotext)

    monkeypatch.setattr("extension.standalone.pnginfo.encode_png", encode)
    with ThreadPoolExecutor(2) as pool:
        names = sorted(path.name for path in pool.map(lambda _: save_picture(Picture(IMAGE, 7, "x"), tmp_path), "ab"))
    assert names == ["00001-7.png", "00002-7.png"]


def test_of_a_picture_that_does_not_fit_on_the_disk_nothing_is_left(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            save_picture(Picture(IMAGE, 7, "x"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir() if path.name != LOCK_FILE] == []
