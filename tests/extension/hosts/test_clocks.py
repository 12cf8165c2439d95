"""Which step a model call is of: with real schedulers of diffusers, and as A1111's denoiser tells it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

from extension.hosts._clocks import DenoiserClock
from extension.hosts._passes import pass_of
from lib_lora import Moment, SchedulerClock

SCHEDULERS = {
    "DDIMScheduler": 1,
    "PNDMScheduler": 1,
    "LCMScheduler": 1,
    "EulerDiscreteScheduler": 1,
    "EulerAncestralDiscreteScheduler": 1,
    "DPMSolverMultistepScheduler": 1,
    "UniPCMultistepScheduler": 1,
    "FlowMatchEulerDiscreteScheduler": 1,
    "HeunDiscreteScheduler": 2,
    "KDPM2DiscreteScheduler": 2,
}
"""With the number of model calls for a step."""


def sample(scheduler: Any, clock: SchedulerClock, first: int = 0) -> list[Moment]:
    """Return the clock's answer at each call of a pass."""
    x, found = torch.zeros(1, 4, 8, 8), []
    torch.manual_seed(0)
    for timestep in scheduler.timesteps[first:]:
        found.append(clock(lambda timestep=timestep: float(timestep)))
        x = scheduler.step(torch.zeros_like(x), timestep, x).prev_sample
    return found


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_steps_of_a_scheduler(name: str) -> None:
    order = SCHEDULERS[name]
    scheduler = getattr(diffusers, name)(**({"skip_prk_steps": True} if name == "PNDMScheduler" else {}))
    clock = SchedulerClock(lambda: scheduler)
    for steps in (8, 5):  # another pass follows with the same scheduler
        scheduler.set_timesteps(steps)
        found = sample(scheduler, clock)
        calls = len(found)
        assert [one.step for one in found[: 2 * order]] == [i // order for i in range(2 * order)]
        assert [one.step for one in found] == sorted(one.step or 0 for one in found)
        assert {one.steps for one in found} == {-(-calls // order)}
        assert found[-1].step == found[-1].steps - 1  # type: ignore[operator]
        if order == 1 and name != "PNDMScheduler":  # which calls twice in its second step
            assert [one.step for one in found] == list(range(steps))
        sigmas = [one.sigma for one in found]
        assert hasattr(scheduler, "sigmas") == (sigmas[0] is not None)
        if sigmas[0] is not None:
            assert sigmas == sorted(sigmas, reverse=True)


def test_image_to_image_counts_the_steps_it_makes() -> None:
    scheduler = diffusers.EulerDiscreteScheduler()
    clock = SchedulerClock(lambda: scheduler)
    scheduler.set_timesteps(10)
    scheduler.set_begin_index(6)
    assert [(one.step, one.steps) for one in sample(scheduler, clock, 6)] == [(i, 4) for i in range(4)]
    other = diffusers.DDIMScheduler()
    clock = SchedulerClock(lambda: other)
    other.set_timesteps(10)
    assert [(one.step, one.steps) for one in sample(other, clock, 6)] == [(i, 4) for i in range(4)]


def test_without_a_scheduler_nothing_is_told() -> None:
    assert SchedulerClock(lambda: None)(lambda: 5.0) == Moment()
    assert SchedulerClock(lambda: SimpleNamespace(timesteps=None))(lambda: 5.0) == Moment()


@pytest.mark.parametrize("order", [1, 2])
def test_a1111s_calls_are_counted(order: int) -> None:
    """Its counter of steps is behind in the first call of a step, and ahead in the second."""
    clock = DenoiserClock()
    config = SimpleNamespace(options={"second_order": True} if order == 2 else {})
    found = []
    for call in range(6 * order - (order - 1)):
        denoiser = SimpleNamespace(step=call, sampler=SimpleNamespace(config=config))
        clock.read(SimpleNamespace(denoiser=denoiser, sampling_step=99, total_sampling_steps=6))
        found.append(clock(lambda: pytest.fail("not asked for")))
    assert [one.step for one in found] == [call // order for call in range(len(found))]
    assert {one.steps for one in found} == {6}


def test_a_host_without_a_denoiser_is_believed() -> None:
    clock = DenoiserClock()
    clock.read(SimpleNamespace(sampling_step=3, total_sampling_steps=8))
    assert clock(lambda: None) == Moment(3, 8)


def test_passes() -> None:
    noted = {"Refiner": "xl refiner"}
    p = SimpleNamespace(is_hr_pass=False, refiner_checkpoint_info="b", extra_generation_params={})
    assert pass_of(p, "a") == "base"
    assert pass_of(p, "b") == "base"  # one that is its own refiner does not change
    p.extra_generation_params = noted
    assert pass_of(p, "a") == "base"
    assert pass_of(p, "b") == "refiner"
    p.refiner_checkpoint_info = None
    p.is_hr_pass = True
    assert pass_of(p, "b") == "hires"
    p._ad_inner = True
    assert pass_of(p, "b") == "detailer"
    assert pass_of(SimpleNamespace(), None) == "base"
