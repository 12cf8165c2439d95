from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL

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


def test_a_small_decoder_shows_what_it_decodes_and_one_that_is_offloaded_is_left_alone() -> None:
    torch.manual_seed(0)
    vae = AutoencoderKL(block_out_channels=(32,), norm_num_groups=8).eval()
    latents = torch.randn(2, 4, 8, 8) * vae.config.scaling_factor
    decoded = vae.decode(latents[:1] / vae.config.scaling_factor).sample[0].detach().permute(1, 2, 0).numpy()
    shown = np.asarray(preview(latents, "sd", vae)).astype(float)
    assert np.abs(shown - (decoded.clip(-1, 1) + 1) * 127.5).max() <= 1
    vae.decoder._hf_hook = object()
    assert preview(latents, "sd", vae) == preview(latents, "sd")
