"""The noise at a timestep, in the families that tell their timestep alone."""

from __future__ import annotations

import math

_UPWARDS = frozenset({"Lumina2Transformer2DModel", "MiniMaxH3Transformer3DModel", "ZImageTransformer2DModel"})
"""Classes of diffusers whose timesteps are 0 in pure noise and 1 at the picture, as the pipelines of each pass them."""


def noise_timestep(model: object, timestep: float | None, *, flow: bool) -> float | None:
    """Return the timestep of a call, between 0 and 1000, so that it grows with the noise in each model.

    Args:
        model: which is called.
        timestep: as the model takes it, where fractions are multiplied by 1000, but not 1.0.
        flow: whether the model's timesteps are fractions.
    """
    if timestep is None or not flow:
        return timestep
    timestep = 1000.0 if timestep == 1.0 else timestep
    return 1000.0 - timestep if any(cls.__name__ in _UPWARDS for cls in type(model).__mro__) else timestep


def sigma_of(timestep: float, *, flow: bool) -> float:
    """Return the noise at a timestep between 0 and 1000, for hosts that do not give it.

    The noise of flow models is a fraction. For all others it follows from the schedule that Stable Diffusion is
    trained with, betas of 0.00085 to 0.012, linear in their roots. Source: CompVis/stable-diffusion
    ldm/modules/diffusionmodules/util.py, `make_beta_schedule`.
    """
    if flow:
        return timestep / 1000.0
    low = min(max(math.floor(timestep), 0), 999)
    high = min(low + 1, 999)
    share = min(max(timestep - low, 0.0), 1.0)
    return math.exp((1 - share) * math.log(_SIGMAS[low]) + share * math.log(_SIGMAS[high]))


def _sigmas() -> tuple[float, ...]:
    kept, found = 1.0, []
    for i in range(1000):
        root = 0.00085**0.5 + (0.012**0.5 - 0.00085**0.5) * i / 999
        kept *= 1 - root * root
        found.append(((1 - kept) / kept) ** 0.5)
    return tuple(found)


_SIGMAS = _sigmas()
