from __future__ import annotations

import numpy as np
import pytest
import torch

from extension.standalone.preview import preview


@pytest.mark.parametrize("family", ["sd", "sdxl", "sdxl-refiner"])
def test_a_preview_has_the_pictures_size_and_follows_the_latents(family: str) -> None:
    latents = torch.zeros(2, 4, 6, 8)
    latents[0, 0, :, :4] = 1
    image = preview(latents.half(), family)
    pixels = np.asarray(image).astype(int)
    assert image.size == (64, 48)
    assert pixels[24, 4].sum() > pixels[24, 60].sum()  # the first channel is brightness


def test_early_noise_is_toned_down() -> None:
    latents = torch.randn(1, 4, 8, 8)
    latents /= latents.std()
    difference = np.asarray(preview(latents * 15, "sd")).astype(int) - np.asarray(preview(latents, "sd"))
    assert np.abs(difference).max() <= 1
