"""Pictures that a job starts from."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from extension.hosts.txt2img import Source
from extension.standalone.canvas import canvas_of, has_empty_mask, resized

WIDE = Image.fromarray(np.repeat([[[255, 0, 0], *[[0, 255, 0]] * 6, [0, 0, 255]]], 4, axis=0).astype(np.uint8))


def boxed(size: tuple[int, int], box: tuple[int, int, int, int]) -> Image.Image:
    mask = Image.new("L", size)
    mask.paste(255, box)
    return mask


def test_each_resize_mode_does_as_in_a1111() -> None:
    stretched, cropped, filled, latents = (np.asarray(resized(WIDE, mode, 8, 8)) for mode in range(4))
    assert stretched[0, 0].tolist() == stretched[7, 0].tolist() == [255, 0, 0]
    assert np.abs(cropped.astype(int) - [0, 255, 0]).mean() < 8
    assert (filled[0] == np.asarray(WIDE)[0]).all()
    assert (filled[7] == np.asarray(WIDE)[3]).all()
    assert (latents == stretched).all()
    tall = np.asarray(resized(WIDE.transpose(Image.Transpose.ROTATE_90), 2, 8, 8))
    assert (tall[:, 0] == tall[:, 7]).all()


@pytest.mark.parametrize("only_masked", [False, True])
def test_what_the_mask_does_not_name_stays_as_it_was(only_masked: bool) -> None:
    image = Image.effect_noise((64, 48), 90).convert("RGB")
    mask = boxed(image.size, (8, 8, 24, 24))
    source = Source((image,), mask=mask, blur=0, only_masked=only_masked, padding=4)
    canvas = canvas_of(source, 0, 64, 48)
    made = np.asarray(canvas.finished(Image.new("RGB", (64, 48), "red")))
    inside = np.asarray(mask) > 0
    assert (made[~inside] == np.asarray(image)[~inside]).all()
    assert (made[inside] == [255, 0, 0]).all()
    assert canvas.start.size == (64, 48)
    if only_masked:
        assert canvas.box == (0, 4, 32, 28)  # padded, and as wide for its height as the picture
        assert canvas.mask is not None
        assert np.asarray(canvas.mask)[24, 32] == 255


def test_a_mask_may_be_inverted_transparent_or_empty() -> None:
    image = Image.new("RGB", (16, 16), "blue")
    drawn = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    drawn.paste((9, 9, 9, 255), (0, 0, 8, 16))
    found = np.asarray(canvas_of(Source((image,), mask=drawn, blur=0), 0, 16, 16).mask)
    turned = np.asarray(canvas_of(Source((image,), mask=drawn, blur=0, inverted=True), 0, 16, 16).mask)
    assert found[:, :8].all()
    assert not found[:, 8:].any()
    assert (turned == 255 - found).all()
    assert not has_empty_mask(Source((image,), mask=drawn))
    for only_masked in (False, True):
        empty = Source((image,), mask=Image.new("L", (16, 16)), only_masked=only_masked)
        assert has_empty_mask(empty)
        painted = canvas_of(empty, 0, 16, 16).finished(Image.new("RGB", (16, 16), "red"))
        assert (np.asarray(painted)[..., 0] == 255 * only_masked).all()


def test_filling_takes_the_colours_around_the_mask() -> None:
    image = Image.new("RGB", (64, 64), "blue")
    image.paste("yellow", (0, 0, 32, 64))
    image.paste("black", (8, 8, 24, 56))
    mask = boxed(image.size, (8, 8, 24, 56))
    filled = np.asarray(canvas_of(Source((image,), mask=mask, blur=0, content=0), 0, 64, 64).start).astype(int)
    original = np.asarray(canvas_of(Source((image,), mask=mask, blur=0, content=1), 0, 64, 64).start)
    assert np.abs(filled[12:52, 8:12] - [255, 255, 0]).max() < 16
    assert (original == np.asarray(image)).all()
    nothing_known = Source((image,), mask=Image.new("L", (64, 64), 255), content=0)
    assert (np.asarray(canvas_of(nothing_known, 0, 64, 64).start) == 128).all()


def test_transparent_parts_are_white() -> None:
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    assert np.asarray(canvas_of(Source((clear,)), 0, 8, 8).start).min() == 255
