"""The parameters text of a batch's pictures, with A1111's names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..generation.options import Overridden, enabled, hashes_wanted, settings, to_parameters
from ..kept import always_on
from ..text import placed, regions
from ..text.infotext import format_hashes

if TYPE_CHECKING:
    from ..generation.options import Values
    from ..generation.session import Activation, Active
    from ..hosts.txt2img import Hires, Source, Txt2Img
    from .passes import Pass
    from .studio import Studio

logger = logging.getLogger(__name__)

_CONTENTS = {0: "fill", 2: "latent noise", 3: "latent nothing"}


def parameters_of(
    studio: Studio, request: Txt2Img, passes: Sequence[Pass], begun: Sequence[Activation]
) -> dict[str, str]:
    """Return the parameters of the pictures of a batch; the seed is that of the request."""
    first = passes[0]
    parameters = {
        "Steps": str(request.steps),
        "Sampler": first.sampling.sampler.name,
        "Schedule type": first.sampling.schedule,
        "CFG scale": f"{request.cfg_scale:g}",
        "Seed": str(request.seed),
        "Size": f"{request.width}x{request.height}",
        "Model hash": studio.model.shorthash,
        "Model": studio.model.name,
    }
    if request.clip_skip > 1:
        parameters["Clip skip"] = str(request.clip_skip)
    if request.source is not None:
        parameters |= source_parameters(request.source)
    if request.hires is not None:
        parameters |= hires_parameters(request, request.hires)
    values = Overridden(studio.host, request.settings)
    active = [lora for activation in begun for lora in activation.active]
    if active:
        parameters |= to_parameters(values)
    if active and hashes_wanted(values):
        parameters["Lora hashes"] = format_hashes(_hashes(studio, active).items())
    return parameters | _of_tags(studio, values, passes, begun)


def source_parameters(source: Source) -> dict[str, str]:
    """Return the parameters of a job that starts from pictures."""
    parameters = {"Denoising strength": f"{source.denoising:g}"}
    if source.mask is None:
        return parameters
    if source.blur:
        parameters["Mask blur"] = str(source.blur)
    if source.inverted:
        parameters["Mask mode"] = "Inpaint not masked"
    if source.only_masked:
        parameters |= {"Inpaint area": "Only masked", "Masked area padding": str(source.padding)}
    if source.content in _CONTENTS:
        parameters["Masked content"] = _CONTENTS[source.content]
    return parameters


def hires_parameters(request: Txt2Img, hires: Hires) -> dict[str, str]:
    """Return the parameters of a second pass; what is as in the first one is left out."""
    parameters = {"Denoising strength": f"{hires.denoising:g}"}
    scale = hires.width / request.width
    if scale == hires.height / request.height:
        parameters["Hires upscale"] = f"{scale:g}"
    else:
        parameters["Hires resize"] = f"{hires.width}x{hires.height}"
    parameters |= {"Hires steps": str(hires.steps), "Hires upscaler": hires.upscaler}
    for name, chosen, usual in (
        ("Hires sampler", hires.sampler, request.sampler),
        ("Hires schedule type", hires.schedule, request.schedule),
        ("Hires prompt", hires.prompt, request.prompt),
        ("Hires negative prompt", hires.negative_prompt, request.negative_prompt),
    ):
        if chosen not in ("", usual):
            parameters[name] = chosen
    return parameters


def _of_tags(studio: Studio, values: Values, passes: Iterable[Pass], begun: Sequence[Activation]) -> dict[str, str]:
    """Return the parameters about tags that the prompts alone do not tell."""
    if not enabled(values):
        return {}
    prompts = {id(prompt): prompt for run in passes for prompt in (run.prompt, run.negative)}.values()
    always, _ = studio.session.always_tags(settings(values).skip_bad)
    positions = dict.fromkeys(position for activation in begun for position in activation.always)
    tags = [*always, *(tag for prompt in prompts for tag in prompt.tags)]
    return (
        always_on.parameters(always, positions)
        | regions.parameters(tag.mask for tag in tags)
        | placed.parameters([mark for prompt in prompts for mark in prompt.placed])
    )


def _hashes(studio: Studio, active: Sequence[Active]) -> dict[str, str]:
    """Hash the files by name; an unreadable file only loses its own hash."""
    hashes = {}
    for lora in active:
        try:
            hashes[lora.name] = studio.session.catalog.shorthash(lora.file)
        except OSError as error:
            logger.warning("remora: no hash of %s for the parameters text: %s", lora.name, error)
    return hashes
