from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from extension.generation import Picture
from extension.standalone.pnginfo import encode_png, read_infotext, save_picture

IMAGE = Image.new("RGB", (8, 8), (10, 20, 30))


@pytest.mark.parametrize("text", ["a fox\nSteps: 1, Seed: 2", "лиса 狐\nSteps: 1", "é", ""])
def test_the_parameters_text_is_in_the_png(text: str) -> None:
    with Image.open(io.BytesIO(encode_png(IMAGE, text))) as image:
        assert read_infotext(image) == text
        assert image.getpixel((0, 0)) == (10, 20, 30)
        assert ("parameters" in image.info) == bool(text)


def test_pictures_are_numbered_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    names = [save_picture(Picture(IMAGE, seed, "x"), folder).name for seed in (7, 7)]
    assert names == ["00001-7.png", "00002-7.png"]
    (folder / "00041-1.png").touch()
    (folder / "holiday.png").touch()
    assert save_picture(Picture(IMAGE, 9, "x"), folder).name == "00042-9.png"
