"""Samplers by A1111's names, as diffusers schedulers."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import diffusers

from ..hosts.txt2img import RequestError

AUTOMATIC, UNIFORM = "Automatic", "Uniform"

_SCHEDULES: Mapping[str, Mapping[str, bool]] = {
    UNIFORM: {},
    "Karras": {"use_karras_sigmas": True},
    "Exponential": {"use_exponential_sigmas": True},
}
_FROM_MODEL = (
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "prediction_type",
    "rescale_betas_zero_snr",
)


@dataclass(frozen=True)
class Sampler:
    """One sampler of A1111."""

    name: str
    scheduler: str
    """Class name in diffusers."""
    schedule: str = "Uniform"
    """A1111's "Automatic" schedule for this sampler."""
    settings: Mapping[str, Any] = field(default_factory=lambda: {"timestep_spacing": "linspace"})
    needs: str = ""
    """A package that the scheduler imports and that may be missing."""
    levels_of: str = ""
    """A class of diffusers with the same noise levels, which knows schedules that this one does not."""

    @property
    def schedule_class(self) -> Any:
        """Return the class that makes the noise levels."""
        return getattr(diffusers, self.levels_of or self.scheduler)


_TABLE = (
    Sampler("DPM++ 2M", "DPMSolverMultistepScheduler", "Karras"),
    Sampler(
        "DPM++ 2M SDE",
        "DPMSolverMultistepScheduler",
        "Exponential",
        {"timestep_spacing": "linspace", "algorithm_type": "sde-dpmsolver++"},
    ),
    Sampler("DPM++ SDE", "DPMSolverSDEScheduler", "Karras", needs="torchsde"),
    Sampler("Euler a", "EulerAncestralDiscreteScheduler", levels_of="EulerDiscreteScheduler"),
    Sampler("Euler", "EulerDiscreteScheduler"),
    Sampler("LMS", "LMSDiscreteScheduler", needs="scipy"),
    Sampler("Heun", "HeunDiscreteScheduler"),
    Sampler("DPM2", "KDPM2DiscreteScheduler", "Karras"),
    Sampler("DPM2 a", "KDPM2AncestralDiscreteScheduler", "Karras"),
    Sampler("DDIM", "DDIMScheduler", settings={"steps_offset": 1, "clip_sample": False, "set_alpha_to_one": False}),
    Sampler("PLMS", "PNDMScheduler", settings={"steps_offset": 1, "skip_prk_steps": True, "set_alpha_to_one": False}),
    Sampler("UniPC", "UniPCMultistepScheduler"),
)
SAMPLERS: Mapping[str, Sampler] = {
    sampler.name: sampler
    for sampler in _TABLE
    if not sampler.needs or importlib.util.find_spec(sampler.needs) is not None
}


@dataclass(frozen=True)
class Sampling:
    """A sampler with its schedule."""

    sampler: Sampler
    schedule: str

    def make(self, model: Mapping[str, Any]) -> Any:
        """Make a new scheduler for a model whose own scheduler has the configuration `model`."""
        kind = getattr(diffusers, self.sampler.scheduler)
        known = inspect.signature(kind).parameters
        trained = {key: model[key] for key in _FROM_MODEL if key in known and model.get(key) is not None}
        settings = {**trained, **self.sampler.settings}
        if self.schedule == UNIFORM or not self.sampler.levels_of:
            return kind(**settings, **_SCHEDULES[self.schedule])
        levels = getattr(diffusers, self.sampler.levels_of)(**settings, **_SCHEDULES[self.schedule])
        made = kind(**settings)
        made.set_timesteps = partial(_set_timesteps, made, levels)
        return made


def _set_timesteps(scheduler: Any, levels: Any, num_inference_steps: int, device: Any = None) -> None:
    """Take the noise levels of another scheduler, in place of `scheduler.set_timesteps`."""
    type(scheduler).set_timesteps(scheduler, num_inference_steps, device)
    levels.set_timesteps(num_inference_steps, device)
    scheduler.sigmas, scheduler.timesteps = levels.sigmas, levels.timesteps


def aliases(name: str) -> list[str]:
    """Return the other names of a sampler."""
    return [alias for alias, known in _ALIASES.items() if known == name.lower()]


def schedules() -> tuple[str, ...]:
    """Return the names of the schedules."""
    return (AUTOMATIC, *_SCHEDULES)


def choices() -> list[str]:
    """Return sampler names for a menu: each alone, and with every schedule it supports."""
    names = list(SAMPLERS)
    for sampler in SAMPLERS.values():
        names += [
            f"{sampler.name} {schedule}" for schedule in _SCHEDULES if schedule != UNIFORM and _can(sampler, schedule)
        ]
    return names


def find_sampling(name: str, schedule: str = AUTOMATIC) -> Sampling:
    """Return the sampler of a name such as `Euler a`, `DPM++ 2M Karras` or `k_euler`, in any case.

    Raises:
        RequestError: the sampler or schedule is unknown, or they do not fit.
    """
    wanted = _ALIASES.get(name.strip().lower(), name.strip().lower())
    chosen = _by_name(_SCHEDULES, schedule) or ""
    sampler = _by_name(SAMPLERS, wanted)
    for suffix in _SCHEDULES:
        if sampler is None and wanted.endswith(f" {suffix.lower()}"):
            sampler, chosen = _by_name(SAMPLERS, wanted.removesuffix(f" {suffix.lower()}")), suffix
    if sampler is None:
        raise RequestError(f"sampler {name!r:.60} is unknown; known are {', '.join(SAMPLERS)}")
    if not chosen and schedule.lower() not in ("", AUTOMATIC.lower()):
        raise RequestError(f"schedule {schedule!r:.60} is unknown; known are {', '.join(schedules())}")
    kind = SAMPLERS[sampler]
    if chosen and not _can(kind, chosen):
        raise RequestError(f"sampler {kind.name} cannot follow the schedule {chosen}")
    return Sampling(kind, chosen or kind.schedule)


_ALIASES = {
    "k_euler": "euler",
    "k_euler_a": "euler a",
    "k_euler_ancestral": "euler a",
    "k_lms": "lms",
    "k_heun": "heun",
    "k_dpm_2": "dpm2",
    "k_dpm_2_a": "dpm2 a",
    "k_dpmpp_2m": "dpm++ 2m",
    "k_dpmpp_2m_ka": "dpm++ 2m karras",
    "k_dpmpp_2m_sde": "dpm++ 2m sde",
    "pndm": "plms",
}


def _by_name(table: Mapping[str, object], name: str) -> str | None:
    return next((known for known in table if known.lower() == name.strip().lower()), None)


def _can(sampler: Sampler, schedule: str) -> bool:
    known = inspect.signature(sampler.schedule_class).parameters
    return all(key in known for key in _SCHEDULES[schedule])
