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
    active = [one for activation in begun for one in activation.active]
    if active:
        parameters |= to_parameters(values)
    if active and hashes_wanted(values):
        parameters["Lora hashes"] = format_hashes(_hashes(studio, active).items())
    return parameters | _of_tags(studio, values, passes, begun)


def source_parameters(source: Source) -> dict[str, str]:
    """Return the parameters of a job that starts from pictures."""
    found = {"Denoising strength": f"{source.denoising:g}"}
    if source.mask is None:
        return found
    if source.blur:
        found["Mask blur"] = str(source.blur)
    if source.inverted:
        found["Mask mode"] = "Inpaint not masked"
    if source.only_masked:
        found |= {"Inpaint area": "Only masked", "Masked area padding": str(source.padding)}
    if source.content in _CONTENTS:
        found["Masked content"] = _CONTENTS[source.content]
    return found


def hires_parameters(request: Txt2Img, hires: Hires) -> dict[str, str]:
    """Return the parameters of a second pass; what is as in the first one is left out."""
    found = {"Denoising strength": f"{hires.denoising:g}"}
    scale = hires.width / request.width
    if scale == hires.height / request.height:
        found["Hires upscale"] = f"{scale:g}"
    else:
        found["Hires resize"] = f"{hires.width}x{hires.height}"
    found |= {"Hires steps": str(hires.steps), "Hires upscaler": hires.upscaler}
    for name, own, usual in (
        ("Hires sampler", hires.sampler, request.sampler),
        ("Hires schedule type", hires.schedule, request.schedule),
        ("Hires prompt", hires.prompt, request.prompt),
        ("Hires negative prompt", hires.negative_prompt, request.negative_prompt),
    ):
        if own not in ("", usual):
            found[name] = own
    return found


def _of_tags(studio: Studio, values: Values, passes: Iterable[Pass], begun: Sequence[Activation]) -> dict[str, str]:
    """Return the parameters about tags that the prompts alone do not tell."""
    if not enabled(values):
        return {}
    prompts = {id(one): one for run in passes for one in (run.prompt, run.negative)}.values()
    always, _ = studio.session.always_tags(settings(values).skip_bad)
    positions = dict.fromkeys(position for activation in begun for position in activation.always)
    tags = [*always, *(tag for one in prompts for tag in one.tags)]
    return (
        always_on.parameters(always, positions)
        | regions.parameters(tag.mask for tag in tags)
        | placed.parameters([mark for one in prompts for mark in one.placed])
    )


def _hashes(studio: Studio, active: Sequence[Active]) -> dict[str, str]:
    """Hash the files by name; an unreadable file only loses its own hash."""
    hashes = {}
    for one in active:
        try:
            hashes[one.name] = studio.session.catalog.shorthash(one.file)
        except OSError as error:
            logger.warning("remora: no hash of %s for the parameters text: %s", one.name, error)
    return hashes
