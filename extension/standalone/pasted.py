"""Parameters texts that are typed, pasted or dropped into the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..hosts.txt2img import RequestError
from ..text.infotext import parse_infotext

if TYPE_CHECKING:
    from ..hosts.txt2img import Txt2Img
    from ..text.infotext import Infotext


def parameters_in(text: str) -> Infotext | None:
    """Return what a parameters text says; None of a text that is a prompt."""
    found = parse_infotext(text)
    return found if "Steps" in found.settings else None


def applied(request: Txt2Img, settings: Mapping[str, str], samplers: Sequence[str]) -> tuple[Txt2Img, list[str]]:
    """Return a request with the settings of a parameters text, and those that cannot be used here, as `Name: value`."""
    left: list[str] = []
    for name, value in settings.items():
        try:
            changed = _with(request, name, value, settings, samplers)
            changed.check()
        except (ValueError, RequestError):
            left.append(f"{name}: {value:.60}")
            continue
        request = changed
    return request, left


def _with(request: Txt2Img, name: str, value: str, settings: Mapping[str, str], samplers: Sequence[str]) -> Txt2Img:
    match name:
        case "Steps":
            return replace(request, steps=int(value))
        case "CFG scale":
            return replace(request, cfg_scale=float(value))
        case "Seed":
            return replace(request, seed=int(value))
        case "Size":
            width, height = value.lower().split("x")
            return replace(request, width=int(width), height=int(height))
        case "Sampler":
            with_schedule = f"{value} {settings.get('Schedule type', '')}"
            return replace(request, sampler=with_schedule if with_schedule in samplers else _known(value, samplers))
        case _:
            return request


def _known(sampler: str, samplers: Sequence[str]) -> str:
    if sampler not in samplers:
        raise ValueError(f"there is no sampler {sampler}")
    return sampler
