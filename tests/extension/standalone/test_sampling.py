from __future__ import annotations

import importlib.util

import pytest
import torch

from extension.hosts.txt2img import RequestError
from extension.standalone.sampling import SAMPLERS, choices, find_sampling, schedules

MODEL = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "v_prediction",
}


@pytest.mark.parametrize(
    ("name", "schedule", "sampler", "settled"),
    [
        ("Euler a", "Automatic", "Euler a", "Uniform"),
        ("euler A", "automatic", "Euler a", "Uniform"),
        ("Euler a", "karras", "Euler a", "Karras"),  # as clients send it, in two fields
        ("DPM++ 2M", "Automatic", "DPM++ 2M", "Karras"),  # A1111's default for it
        ("DPM++ 2M", "Uniform", "DPM++ 2M", "Uniform"),
        ("DPM++ 2M Karras", "Automatic", "DPM++ 2M", "Karras"),
        ("DPM++ 2M SDE", "", "DPM++ 2M SDE", "Exponential"),
        ("DPM++ 2M SDE Karras", "Automatic", "DPM++ 2M SDE", "Karras"),
        ("k_euler_a", "Automatic", "Euler a", "Uniform"),
        ("k_dpmpp_2m_ka", "Automatic", "DPM++ 2M", "Karras"),
    ],
)
def test_names_of_a1111_and_its_clients_are_understood(name: str, schedule: str, sampler: str, settled: str) -> None:
    found = find_sampling(name, schedule)
    assert (found.sampler.name, found.schedule) == (sampler, settled)


@pytest.mark.parametrize(
    ("name", "schedule", "message"),
    [
        ("Nope", "Automatic", "sampler 'Nope' is unknown; known are DPM"),
        ("Euler", "Nope", "schedule 'Nope' is unknown; known are Automatic, Uniform"),
        ("DDIM", "Karras", "DDIM cannot follow the schedule Karras"),
    ],
)
def test_what_is_unknown_is_said(name: str, schedule: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        find_sampling(name, schedule)


@pytest.mark.parametrize("name", choices())
def test_every_choice_makes_a_scheduler_that_goes_from_noise_to_nothing(name: str) -> None:
    scheduler = find_sampling(name).make(MODEL)
    assert scheduler.config.prediction_type == "v_prediction"
    assert scheduler.config.beta_schedule == "scaled_linear"
    scheduler.set_timesteps(5)
    assert len(scheduler.timesteps) >= 5
    sample = torch.ones(1, 4, 8, 8) * scheduler.init_noise_sigma
    for time in scheduler.timesteps:
        scaled = scheduler.scale_model_input(sample, time)
        sample = scheduler.step(torch.zeros_like(scaled), time, sample).prev_sample
    assert torch.isfinite(sample).all()


def test_schedules_change_the_noise_levels() -> None:
    levels = {}
    for schedule in schedules()[1:]:
        scheduler = find_sampling("DPM++ 2M", schedule).make(MODEL)
        scheduler.set_timesteps(6)
        levels[schedule] = tuple(scheduler.sigmas.tolist())
    assert len(set(levels.values())) == 3


@pytest.mark.parametrize("schedule", ["Karras", "Exponential"])
def test_euler_a_follows_a_schedule_as_euler_does(schedule: str) -> None:
    ancestral, euler = (find_sampling(name, schedule).make(MODEL) for name in ("Euler a", "Euler"))
    uniform = find_sampling("Euler a").make(MODEL)
    for scheduler in (ancestral, euler, uniform):
        scheduler.set_timesteps(7, device="cpu")
    assert torch.equal(ancestral.sigmas, euler.sigmas)
    assert torch.equal(ancestral.timesteps, euler.timesteps)
    assert not torch.equal(ancestral.sigmas, uniform.sigmas)


def test_a_sampler_without_its_package_is_not_offered() -> None:
    for sampler in ("DPM++ SDE", "LMS"):
        needs = {"DPM++ SDE": "torchsde", "LMS": "scipy"}[sampler]
        assert (sampler in SAMPLERS) == (importlib.util.find_spec(needs) is not None)
