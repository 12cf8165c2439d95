"""Which step a model call belongs to, from A1111's denoiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lib_lora import Moment


class DenoiserClock:
    """The clock from the callback of A1111's family before each model call.

    The host's step counter lags behind, and leads in the second call of a second-order sampler, so calls are counted.
    Source: AUTOMATIC1111/stable-diffusion-webui modules/sd_samplers_cfg_denoiser.py and sd_samplers_kdiffusion.py.
    """

    def __init__(self) -> None:
        self._now = Moment()

    def read(self, params: Any) -> None:
        """Read the host's `CFGDenoiserParams`."""
        steps = params.total_sampling_steps
        calls = getattr(getattr(params, "denoiser", None), "step", None)
        step = params.sampling_step if calls is None else calls // _order(params.denoiser)
        self._now = Moment(min(step, max(steps - 1, 0)), steps)

    def __call__(self, timestep: Callable[[], float | None]) -> Moment:
        return self._now


def _order(denoiser: Any) -> int:
    """Return how often its sampler calls the model in one step."""
    options = getattr(getattr(getattr(denoiser, "sampler", None), "config", None), "options", None) or {}
    return 2 if options.get("second_order", False) else 1
