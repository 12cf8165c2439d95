"""Parameters texts in the page's prompt and in files of pictures."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from extension.hosts.txt2img import Txt2Img
from extension.standalone.parameters import applied, parameters_in, text_of_picture
from extension.standalone.pnginfo import encode_png

TEXT = (
    "a fox\nNegative prompt: x\nSteps: 3, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 2, Seed: 5, Size: 72x64"
)
SAMPLERS = ("Euler a", "DPM++ 2M", "DPM++ 2M Karras")


def test_a_prompt_is_no_parameters_text() -> None:
    assert parameters_in("a fox, Steps: 3, in snow") is None
    assert parameters_in("a fox\nred: 1, blue: 2, green: 3") is None
    assert parameters_in(TEXT) is not None


def test_settings_that_cannot_be_used_are_told_and_the_others_are_used() -> None:
    found = parameters_in(TEXT)
    assert found is not None
    asked, left = applied(Txt2Img("a fox"), found.settings, SAMPLERS)
    wanted = (3, "DPM++ 2M Karras", 2.0, 5, 72, 64)
    assert (asked.steps, asked.sampler, asked.cfg_scale, asked.seed, asked.width, asked.height) == wanted
    assert left == []
    bad = {"Steps": "9999", "Sampler": "Nope", "CFG scale": "nan", "Seed": "x", "Size": "72", "Model": "other"}
    kept, left = applied(asked, bad, SAMPLERS)
    assert kept == asked
    assert left == ["Steps: 9999", "Sampler: Nope", "CFG scale: nan", "Seed: x", "Size: 72"]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_the_text_is_found_in_every_kind_of_picture(form: str) -> None:
    image = Image.new("RGB", (8, 8))
    if form == "PNG":
        content = encode_png(image, TEXT)
    else:
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + TEXT.encode("utf-16-be")
        stream = io.BytesIO()
        image.save(stream, form, exif=exif)
        content = stream.getvalue()
    assert text_of_picture(content) == TEXT


def test_a_file_that_is_no_picture_is_refused_and_a_bare_picture_has_no_text() -> None:
    assert text_of_picture(encode_png(Image.new("RGB", (8, 8)), "")) == ""
    for content in (b"", b"a fox", encode_png(Image.new("RGB", (8, 8)), TEXT)[:20]):
        with pytest.raises(ValueError, match="no picture that can be read"):
            text_of_picture(content)
