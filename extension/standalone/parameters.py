"""The parameters text of a batch's pictures, with A1111's names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..generation.options import Overridden, hashes_wanted, to_parameters
from ..kept import always_on
from ..text import placed, regions
from ..text.infotext import format_hashes

if TYPE_CHECKING:
    from ..generation.activation import Activation
    from ..generation.outcomes import Active, TagOutcome
    from ..hosts.txt2img import Hires, Source, Txt2Img
    from ..text.placed import PlacedTag
    from ..text.tag import Tag
    from .sampling import Sampling
    from .studio import Studio

logger = logging.getLogger(__name__)

_CONTENTS = {0: "fill", 2: "latent noise", 3: "latent nothing"}


@dataclass(frozen=True)
class PassTags:
    """The tags of a pass."""

    always: Sequence[Tag] = ()
    """Of the always-on stack."""
    own: Sequence[Tag] = ()
    """Of the prompts."""
    apart: Sequence[TagOutcome] = ()
    """The outcomes of the tags that cannot be parsed, that are words, or that Remora does not apply."""
    written: Sequence[PlacedTag] = ()
    """What the tags of the prompts say; empty if Remora is turned off."""


def parameters_of(
    studio: Studio, request: Txt2Img, sampling: Sampling, tags: Sequence[PassTags], begun: Sequence[Activation]
) -> dict[str, str]:
    """Return the parameters of the pictures of a batch; the seed is that of the request.

    Args:
        studio: the model.
        request: the job.
        sampling: of the first pass.
        tags: of each pass.
        begun: the LoRA of each pass that was made.
    """
    parameters = {
        "Steps": str(request.steps),
        "Sampler": sampling.sampler.name,
        "Schedule type": sampling.schedule,
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
    active = [lora for activation in begun for one in activation.active for lora in one.parts]
    if active:
        parameters |= to_parameters(values)
    if active and hashes_wanted(values):
        parameters["Lora hashes"] = format_hashes(_hashes(studio, active).items())
    return parameters | _of_tags(tags, begun)


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


def _of_tags(passes: Sequence[PassTags], begun: Sequence[Activation]) -> dict[str, str]:
    """Return the parameters about tags that the prompts alone do not tell."""
    positions = dict.fromkeys(position for activation in begun for position in activation.always)
    always = passes[0].always
    return (
        always_on.parameters(always, positions)
        | regions.parameters(tag.mask for tag in (*always, *(tag for tags in passes for tag in tags.own)))
        | placed.parameters([written for tags in passes for written in tags.written])
    )


def _hashes(studio: Studio, active: Sequence[Active]) -> dict[str, str]:
    """Hash the files by name; an unreadable file only loses its own hash."""
    hashes = {}
    for lora in active:
        try:
            hashes[lora.name] = studio.session.catalog.hashes.short(lora.file)
        except OSError as error:
            logger.warning("remora: no hash of %s for the parameters text: %s", lora.name, error)
    return hashes
