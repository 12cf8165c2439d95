"""The runs of a sampler that make a picture: from a text, or from latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from .canvas import canvas_of
from .encode import encode_each, encode_skipping
from .latents import LATENT, Blend, encode, image_pipeline, masks_of, started, strength_of, stretched

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ..hosts.txt2img import Source
    from ..text.grammar import Grammar
    from ..text.placed import PlacedTag
    from ..text.tag import Pass as Where
    from .sampling import Sampling
    from .studio import Studio

OnStep: TypeAlias = Callable[..., dict[str, Any]]
"""As diffusers' `callback_on_step_end`."""


@dataclass(frozen=True)
class Pass:
    """One run of the sampler for each batch."""

    at: Where
    prompt: Grammar
    negative: Grammar
    sampling: Sampling
    steps: int
    levels: int
    """Noise levels of the whole schedule; the last `steps` of them are made."""
    cfg_scale: float
    clip_skip: int

    @property
    def written(self) -> tuple[PlacedTag, ...]:
        """Return what the tags of both prompts say."""
        return tuple(tag for _, tag in (*self.prompt.tags, *self.negative.tags))


def text_to_image(
    studio: Studio,
    run: Pass,
    size: tuple[int, int],
    seeds: Sequence[int],
    on_step: OnStep,
    output: str,
    prompts: Sequence[tuple[str, str]] = (),
) -> Any:
    """Make pictures of this width and height from noise.

    Args:
        studio: the model, whose LoRA are active.
        run: what to make.
        size: width and height in pixels.
        seeds: of the pictures.
        on_step: called after each step.
        output: `pil`, or `latent`.
        prompts: the prompt and the negative prompt of each picture; without any, all have these of `run`.
    """
    pipeline = studio.model.pipeline
    pipeline.scheduler = run.sampling.make(pipeline.scheduler.config)
    arguments = _arguments(studio, run, seeds, prompts)
    width, height = size
    if studio.model.family == "sdxl-refiner":  # has no text-to-image: start from an empty picture, all noise
        shape = len(seeds), pipeline.unet.config.in_channels, height // LATENT, width // LATENT
        arguments |= {"image": torch.zeros(shape, dtype=pipeline.unet.dtype), "strength": 1.0}
    else:
        latents = _noise(studio, size, arguments["generator"])
        arguments |= {"latents": latents, "height": height, "width": width}
    return _called(pipeline, {**arguments, "output_type": output, "callback_on_step_end": on_step})


def image_to_image(
    studio: Studio, run: Pass, latents: Tensor, seeds: Sequence[int], on_step: OnStep, masks: Tensor | None = None
) -> list[Image]:
    """Make pictures from latents.

    Args:
        studio: the model, whose LoRA are active.
        run: what to make.
        latents: one for each picture.
        seeds: of the pictures.
        on_step: called after each step.
        masks: of latents, one for each picture: 1 is painted, and 0 is kept.
    """
    base = studio.model.pipeline
    base.scheduler = run.sampling.make(base.scheduler.config)
    arguments = _arguments(studio, run, seeds)
    base.maybe_free_model_hooks()  # the other pipeline has no hooks of its own to do it
    latents = latents.to(base.unet.dtype)
    arguments |= {"image": latents, "strength": strength_of(run.steps, run.levels)}
    if masks is not None:
        size = latents.shape[-1] * LATENT, latents.shape[-2] * LATENT
        blend = Blend(latents, masks, _noise(studio, size, _generators(seeds)))
        blend.guard(base.scheduler)
        on_step = partial(_blended, blend, on_step)
    images: list[Image] = _called(
        image_pipeline(base, studio.model.family), {**arguments, "callback_on_step_end": on_step}
    )
    return images


def from_source(
    studio: Studio, run: Pass, source: Source, size: tuple[int, int], seeds: Sequence[int], on_step: OnStep
) -> list[Image]:
    """Make the pictures of a batch from the user's pictures; `size` is width and height in pixels."""
    pipeline = studio.model.pipeline
    canvases = [canvas_of(source, number, *size) for number in range(len(source.images))]
    encoded = [stretched(encode(pipeline, [canvas.start]), *size) for canvas in canvases]
    if len(canvases) == 1:
        canvases, encoded = canvases * len(seeds), encoded * len(seeds)
    latents, masks = torch.cat(encoded), None
    drawn = [canvas.mask for canvas in canvases if canvas.mask is not None]
    if len(drawn) == len(canvases):
        masks = masks_of(drawn, latents)
        latents = started(latents, masks, source.content, _noise(studio, size, _generators(seeds)))
    made = image_to_image(studio, run, latents, seeds, on_step, masks)
    return [canvas.finished(image) for canvas, image in zip(canvases, made, strict=True)]


def _noise(studio: Studio, size: tuple[int, int], generators: Sequence[torch.Generator]) -> Tensor:
    """Draw the latents of pictures of this width and height."""
    unet = studio.model.pipeline.unet
    shape = 1, unet.config.in_channels, size[1] // LATENT, size[0] // LATENT
    drawn: Tensor = torch.cat([torch.randn(shape, generator=generator) for generator in generators]).to(unet.dtype)
    return drawn


def _called(pipeline: Any, arguments: Mapping[str, Any]) -> Any:
    with np.errstate(invalid="ignore"):  # of numbers that are not finite the report says more
        return pipeline(**arguments).images


def _blended(
    blend: Blend, on_step: OnStep, pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]
) -> dict[str, Any]:
    timesteps = pipeline.scheduler.timesteps[-pipeline.num_timesteps :]
    kept = blend.after(pipeline.scheduler, timesteps, step, tensors["latents"])
    return on_step(pipeline, step, timestep, {**tensors, "latents": kept})


def _generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """Return one CPU generator per picture: it depends neither on its batch nor on the device."""
    return [torch.Generator("cpu").manual_seed(seed) for seed in seeds]


def _arguments(
    studio: Studio, run: Pass, seeds: Sequence[int], prompts: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    prompt, negative = (studio.inversions.spell(parsed.text) for parsed in (run.prompt, run.negative))
    arguments: dict[str, Any] = {
        "num_inference_steps": run.levels,
        "guidance_scale": run.cfg_scale,
        "generator": _generators(seeds),
    }
    pipeline, is_sd = studio.model.pipeline, studio.model.family == "sd"
    clip_skip = run.clip_skip if is_sd else 1  # XL always takes the last layer but one
    if not prompts and len(set(studio.session.last.text_keys)) > 1:
        use_images = [partial(studio.session.use_image, image) for image in range(len(seeds))]
        return arguments | encode_each(pipeline, prompt, negative, clip_skip, use_images)
    positives, negatives = zip(*prompts, strict=True) if prompts else ((prompt,) * len(seeds), (negative,) * len(seeds))
    texts = {"prompt": list(positives), "negative_prompt": list(negatives)}
    if clip_skip > 1:
        encoded = {f"{name}_embeds": encode_skipping(pipeline, text, clip_skip) for name, text in texts.items()}
        return arguments | encoded
    return arguments | texts
