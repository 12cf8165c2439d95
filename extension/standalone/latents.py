"""The way from pictures to latents and back, upscaling between two passes, and masks during sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import diffusers
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from ..hosts.txt2img import RequestError

LATENT = 8  # pixels
LATENT_UPSCALERS: Mapping[str, Mapping[str, Any]] = {
    "Latent": {"mode": "bilinear"},
    "Latent (antialiased)": {"mode": "bilinear", "antialias": True},
    "Latent (bicubic)": {"mode": "bicubic"},
    "Latent (bicubic antialiased)": {"mode": "bicubic", "antialias": True},
    "Latent (nearest)": {"mode": "nearest"},
    "Latent (nearest-exact)": {"mode": "nearest-exact"},
}
UPSCALERS: Mapping[str, Image.Resampling] = {
    "None": Image.Resampling.LANCZOS,  # as in A1111, where it resizes all the same
    "Lanczos": Image.Resampling.LANCZOS,
    "Nearest": Image.Resampling.NEAREST,
}


def check_upscaler(name: str, *, latent: bool) -> None:
    """Check the name of an upscaler.

    Raises:
        RequestError: it is unknown, or works on latents where pictures are upscaled.
    """
    known = [*(LATENT_UPSCALERS if latent else ()), *UPSCALERS]
    if name not in known:
        raise RequestError(f"upscaler {name!r:.60} is unknown; known are {', '.join(known)}")


def image_pipeline(pipeline: Any, family: str) -> Any:
    """Return a pipeline that starts from latents, over the parts of another one and its present scheduler."""
    if family == "sdxl-refiner":
        return pipeline
    parts = {**pipeline.components, "scheduler": None}  # the constructor would change its configuration, and warn
    if family == "sdxl":
        config = pipeline.config
        made = diffusers.StableDiffusionXLImg2ImgPipeline(
            **parts,
            force_zeros_for_empty_prompt=config.get("force_zeros_for_empty_prompt", True),
            add_watermarker=getattr(pipeline, "watermark", None) is not None,
        )
    else:
        checker = pipeline.config.get("requires_safety_checker", False)
        made = diffusers.StableDiffusionImg2ImgPipeline(**parts, requires_safety_checker=checker)
    made.scheduler = pipeline.scheduler
    made.set_progress_bar_config(disable=True)
    return made


def strength_of(steps: int, of: int) -> float:
    """Return the `strength` with which a pipeline makes the last `steps` of a schedule: it rounds down."""
    return min(1.0, (steps + 0.5) / of)


@torch.no_grad()
def encode(pipeline: Any, images: Sequence[Image.Image]) -> Tensor:
    """Encode pictures of one size; the same picture has the same latents in every batch."""
    vae = pipeline.vae
    pixels = pipeline.image_processor.preprocess(list(images))
    with _precise(vae):
        encoded = [
            vae.encode(picture[None].to(pipeline._execution_device, vae.dtype)).latent_dist.mode() for picture in pixels
        ]
    shift, scale = _scaling(vae, encoded[0])
    latents: Tensor = (torch.cat(encoded) - shift) * scale
    return latents


@torch.no_grad()
def decode(pipeline: Any, latents: Tensor) -> list[Image.Image]:
    """Decode latents."""
    vae = pipeline.vae
    shift, scale = _scaling(vae, latents)
    with _precise(vae):
        pixels = vae.decode((latents / scale + shift).to(vae.dtype)).sample
    images: list[Image.Image] = pipeline.image_processor.postprocess(pixels, output_type="pil")
    return images


def upscaled(pipeline: Any, latents: Tensor, upscaler: str, width: int, height: int) -> Tensor:
    """Upscale latents to cover this size in pixels, and cut off what is too much."""
    tall, wide = latents.shape[-2] * LATENT, latents.shape[-1] * LATENT
    factor = max(width / wide, height / tall)
    size = max(height, round(tall * factor)) // LATENT, max(width, round(wide * factor)) // LATENT
    if upscaler in LATENT_UPSCALERS:
        larger = functional.interpolate(latents.float(), size, **LATENT_UPSCALERS[upscaler]).to(latents.dtype)
    else:
        pixels = size[1] * LATENT, size[0] * LATENT
        larger = encode(
            pipeline, [picture.resize(pixels, UPSCALERS[upscaler]) for picture in decode(pipeline, latents)]
        )
    top, left = (size[0] - height // LATENT) // 2, (size[1] - width // LATENT) // 2
    return larger[..., top : top + height // LATENT, left : left + width // LATENT]


def stretched(latents: Tensor, width: int, height: int) -> Tensor:
    """Stretch latents to this size in pixels."""
    size = height // LATENT, width // LATENT
    return latents if latents.shape[-2:] == size else functional.interpolate(latents, size, mode="bilinear")


def masks_of(masks: Sequence[Image.Image], latents: Tensor) -> Tensor:
    """Return masks in the size of these latents: 1 is painted, and 0 is kept."""
    size = latents.shape[-1], latents.shape[-2]
    small = [np.asarray(mask.resize(size), dtype=np.float32) / 255 for mask in masks]
    return torch.from_numpy(np.stack(small)[:, None]).round().to(latents)


def started(latents: Tensor, masks: Tensor, content: int, noise: Tensor) -> Tensor:
    """Return the latents to start from, see `Source.content`."""
    match content:
        case 2:
            return latents * (1 - masks) + noise.to(latents) * masks
        case 3:
            return latents * (1 - masks)
        case _:
            return latents


class Blend:
    """Keeps the latents outside the masks as they were, at the noise of each step.

    Samplers that remember former steps compute wrongly if their samples are changed between two steps. So the model's
    output is changed, to the one that leads to the picture. Samplers of two stages for each step have no noise level
    for the second one that could be asked for; these remember nothing, and their samples are changed.

    Args:
        start: the latents of the picture.
        masks: 1 is painted, 0 is kept.
        noise: of the first step.
    """

    def __init__(self, start: Tensor, masks: Tensor, noise: Tensor) -> None:
        self._start, self._masks, self._noise = start, masks, noise

    def guard(self, scheduler: Any) -> None:
        """Change what reaches the steps of a scheduler."""
        step = scheduler.step
        if scheduler.order > 1:
            return

        @wraps(step)  # pipelines look which arguments it takes
        def kept(model_output: Tensor, timestep: Any, sample: Tensor, **more: Any) -> Any:
            return step(self._output(scheduler, model_output, timestep, sample), timestep, sample, **more)

        scheduler.step = kept

    def _output(self, scheduler: Any, output: Tensor, timestep: Any, sample: Tensor) -> Tensor:
        """Return the model's output, and outside the masks the one for the picture."""
        present = sample.float()
        now = torch.as_tensor(timestep, device=sample.device).expand(len(sample))
        ones, zeros = torch.ones_like(present), torch.zeros_like(present)
        signal, noise = scheduler.add_noise(ones, zeros, now), scheduler.add_noise(zeros, ones, now)
        start, masks = self._start.to(present), self._masks.to(output)
        wanted = (present - signal * start) / noise
        if scheduler.config.prediction_type == "v_prediction":
            wanted = (signal * wanted - noise * start) / (signal**2 + noise**2).sqrt()
        blended: Tensor = output * masks + wanted.to(output) * (1 - masks)
        return blended

    def after(self, scheduler: Any, timesteps: Tensor, step: int, latents: Tensor) -> Tensor:
        """Return the latents after a step, with the rest in place."""
        is_last = step + 1 == len(timesteps)
        if scheduler.order == 1 and not is_last:
            return latents
        start, masks, noise = (part.to(latents) for part in (self._start, self._masks, self._noise))
        if not is_last:
            start = scheduler.add_noise(start, noise, timesteps[step + 1].expand(len(latents)))
        return latents * masks + start * (1 - masks)


@contextmanager
def _precise(vae: Any) -> Iterator[None]:
    """Compute in full precision where a decoder overflows in half, as its configuration tells."""
    dtype = vae.dtype
    needed = dtype == torch.float16 and bool(vae.config.force_upcast)
    if needed:
        vae.to(dtype=torch.float32)
    try:
        yield
    finally:
        if needed:
            vae.to(dtype=dtype)


def _scaling(vae: Any, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
    """Return what is subtracted from an encoder's output, and what the rest is multiplied by."""
    mean, deviation = (getattr(vae.config, name, None) for name in ("latents_mean", "latents_std"))
    if mean is None or deviation is None:
        return 0.0, float(vae.config.scaling_factor)
    of_channel = [torch.tensor(values).view(1, -1, 1, 1).to(like) for values in (mean, deviation)]
    return of_channel[0], vae.config.scaling_factor / of_channel[1]
