"""A batch whose images belong to several requests: the part of its activation that each request has; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ..text.tag import Place, Tag
from .request import place_of, placed

if TYPE_CHECKING:
    from lib_lora import ActivationReport

    from .activation import Activation
    from .outcomes import Active, TagOutcome
    from .request import Request

T = TypeVar("T")


@dataclass(frozen=True)
class PlaceInRequest(Place):
    """The place of a tag in one of several requests, whose prompts may have equal tags in equal places."""

    request: int = 0


def placed_in(tags: Iterable[Tag], request: int) -> tuple[Tag, ...]:
    """Return the tags of a request of this number with their places in it."""
    return tuple(replace(tag, place=_in_request(place_of(tag), request)) for tag in placed(tags, "prompt"))


def _in_request(place: Place, request: int) -> PlaceInRequest:
    return PlaceInRequest(place.where, place.number, place.written, place.note, request)


def failed_in(activation: Activation, request: int) -> list[TagOutcome]:
    """Return the tags of a request that are left out as they failed; these of the always-on stack are of every one."""
    return [one for one in activation.left_out if one.state in ("failed", "missing") and _is_in(one.place, request)]


def share_of(
    activation: Activation,
    asked: Request,
    request: int,
    images: range,
    components: Collection[str],
    note_on: Callable[[str], str],
) -> Activation:
    """Return the part of an activation that one request has.

    Args:
        activation: of the whole batch.
        asked: what this request alone asks for.
        request: its number, as in `placed_in`.
        images: its images in the batch.
        components: of the model.
        note_on: returns one sentence on a name that fits several files, else nothing.
    """
    asked, limited = asked.limited() if asked.settings.limited else (asked, ())
    written = {
        place_of(tag): i for i, tag in enumerate((*asked.always, *(tag for tags in asked.images for tag in tags)))
    }
    of_images = {i: _of_images(one, images) for i, one in enumerate(activation.active)}
    own = [i for i, one in of_images.items() if one.images]
    own.sort(key=lambda i: min(written[place] for place in of_images[i].places))  # as alone
    active = tuple(of_images[i] for i in own)
    always = {place.number for one in active for place in one.places if place.where == "always"}
    return replace(
        activation,
        active=active,
        left_out=(*asked.apart, *failed_in(activation, request)),
        resting=tuple(one for one in activation.resting if _is_in(one.place, request)),
        report=_of_entries(activation.report, own),
        notes=(*limited, *asked.of_all_noise(components), *asked.unreached()),
        kept=asked.unreached(),
        several=tuple(dict.fromkeys(filter(None, (note_on(one.name) for one in active)))),
        text_keys=tuple(activation.text_keys[i if len(activation.text_keys) > 1 else 0] for i in images),
        always={position: file for position, file in activation.always.items() if position in always},
    )


def _is_in(place: Place | None, request: int) -> bool:
    return not isinstance(place, PlaceInRequest) or place.request == request


def _of_images(active: Active, images: range) -> Active:
    """Return a LoRA as if there were only these images."""
    places = {
        place: tuple(image - images.start for image in whose if image in images)
        for place, whose in active.places.items()
        if not set(whose).isdisjoint(images)
    }
    return replace(active, images=tuple(i - images.start for i in active.images if i in images), places=places)


def _of_entries(report: ActivationReport, positions: Sequence[int]) -> ActivationReport:
    def own(texts: Mapping[int, T]) -> dict[int, T]:
        return {new: texts[old] for new, old in enumerate(positions) if old in texts}

    return replace(
        report,
        entries=tuple(report.entries[i] for i in positions),
        idle=own(report.idle),
        partly_idle=own(report.partly_idle),
        unlimited=own(report.unlimited),
        too_strong=own(report.too_strong),
    )
