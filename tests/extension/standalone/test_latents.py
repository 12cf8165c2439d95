"""Masks during sampling, and the way to latents and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from extension.hosts.txt2img import Hires, Source
from extension.standalone.latents import Blend, decode, encode, strength_of, upscaled
from extension.standalone.sampling import find_sampling
from extension.standalone.studio import Studio

STEPS = 6
TRAINED = {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", ["Euler", "Euler a Karras", "DPM++ 2M", "DPM++ 2M SDE", "DDIM", "PLMS", "UniPC"])
def test_a_sampler_keeps_the_rest_whatever_the_model_says(name: str, prediction: str) -> None:
    scheduler = find_sampling(name).make({**TRAINED, "prediction_type": prediction})
    scheduler.set_timesteps(STEPS)
    generator = torch.Generator().manual_seed(0)
    start, noise = (torch.randn(1, 4, 8, 8, generator=generator) for _ in range(2))
    masks = torch.zeros(1, 1, 8, 8)
    masks[..., :4] = 1
    Blend(start, masks, noise).guard(scheduler)
    sample = scheduler.add_noise(start, noise, scheduler.timesteps[:1])
    for now in scheduler.timesteps:
        scheduler.scale_model_input(sample, now)
        sample = scheduler.step(torch.randn(sample.shape, generator=generator), now, sample, return_dict=False)[0]
    kept = (sample - start)[..., 4:].abs().max()
    assert kept < 0.1 < (sample - start)[..., :4].abs().max()


@pytest.mark.parametrize("name", ["Heun", "DPM2", "DPM2 a"])
def test_samplers_of_two_stages_keep_the_rest_after_each_step(name: str) -> None:
    scheduler = find_sampling(name).make(TRAINED)
    scheduler.set_timesteps(STEPS)
    start, noise = torch.randn(1, 4, 8, 8), torch.randn(1, 4, 8, 8)
    blend = Blend(start, torch.zeros(1, 1, 8, 8), noise)
    step = scheduler.step
    blend.guard(scheduler)
    assert scheduler.step == step
    sample = scheduler.add_noise(start, noise, scheduler.timesteps[:1])
    for number, now in enumerate(scheduler.timesteps):
        scheduler.scale_model_input(sample, now)
        sample = step(torch.randn(sample.shape), now, sample, return_dict=False)[0]
        sample = blend.after(scheduler, scheduler.timesteps, number, sample)
        if number + 1 < len(scheduler.timesteps):
            level = scheduler.sigmas[scheduler.step_index]
            assert torch.allclose((sample - start) / level, noise, atol=1e-3)
    assert torch.equal(sample, start)


def test_pictures_come_back_from_latents(studio: Studio) -> None:
    pipeline = studio.model.pipeline
    image = Image.new("RGB", (64, 64), (200, 40, 40))
    (back,) = decode(pipeline, encode(pipeline, [image]))
    assert np.abs(np.asarray(back).astype(int) - np.asarray(image)).mean() < 16
    assert torch.equal(encode(pipeline, [image] * 2)[1:], encode(pipeline, [image]))


@pytest.mark.parametrize("upscaler", ["Latent", "Latent (bicubic antialiased)", "Latent (nearest-exact)", "Lanczos"])
def test_upscaling_covers_the_size_and_cuts_off_the_rest(upscaler: str, studio: Studio) -> None:
    latents = torch.arange(8.0).expand(1, 4, 8, 8).contiguous()
    larger = upscaled(studio.model.pipeline, latents, upscaler, 96, 128)
    assert larger.shape == (1, 4, 16, 12)
    if upscaler.startswith("Latent"):
        columns = larger[0, 0, 8].tolist()
        assert columns[0] + columns[-1] == pytest.approx(7, abs=0.6), "it is cut off on both sides"


@pytest.mark.parametrize("steps", [1, 2, 7, 20, 49, 150])
def test_a_pipeline_makes_as_many_steps_as_are_meant(steps: int) -> None:
    image = Image.new("RGB", (8, 8))
    for denoising in (0.0, 0.3, 0.5, 0.75, 1.0):
        made = Source((image,), denoising).steps_of(steps)
        assert made == min(steps, int(min(denoising, 0.999) * steps) + 1)  # as in A1111
        assert made_by_diffusers(made, steps) == made
        if denoising:
            hires: Any = Hires(512, 512, steps=steps, denoising=denoising)
            assert made_by_diffusers(steps, hires.levels) == steps


def made_by_diffusers(steps: int, of: int) -> int:
    """As in `get_timesteps` of its pipelines."""
    return min(int(of * strength_of(steps, of)), of)
