"""Axes of the hosts' X/Y/Z plots: what varies in a prompt. Pure, except for names of files and presets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..hosts import Axis
from ..library.catalog import Lookup
from ..text.prompt import parse_arguments
from ..text.prompt_edit import names_in, renamed, with_field, with_strength, without
from ..text.regions import NAMED
from .options import default_multiplier

if TYPE_CHECKING:
    from .session import Session

NONE = "None"
"""The value for no LoRA."""


def axes(session: Session) -> Sequence[Axis]:
    """Return the axes over one session."""

    def lora(prompt: str, value: object) -> str:
        return _with_lora(session, prompt, str(value))

    def preset(prompt: str, value: object) -> str:
        return _preset(session, prompt, str(value))

    return (
        Axis("LoRA", str, lora, _names(session), _file(session)),
        Axis("LoRA strength", float, lambda prompt, value: _strength(prompt, 0, float(value))),
        Axis("Second LoRA's strength", float, lambda prompt, value: _strength(prompt, 1, float(value))),
        Axis("Strength of all LoRA", float, lambda prompt, value: _all(prompt, float(value))),
        Axis(
            "LoRA block weights",
            str,
            lambda prompt, value: with_blocks(prompt, _first(prompt), str(value)),
            _block_presets(session),
            _known_blocks(session),
        ),
        Axis(
            "LoRA region",
            str,
            lambda prompt, value: with_region(prompt, _first(prompt), str(value)),
            _regions(session),
            _known_regions(session),
        ),
        Axis(
            "LoRA schedule", str, lambda prompt, value: with_schedule(prompt, _first(prompt), str(value)), None, _points
        ),
        Axis("LoRA preset", str, preset, _presets(session), _kept(session)),
    )


def _with_lora(session: Session, prompt: str, name: str) -> str:
    """Replace the prompt's first LoRA at the same strength, or append one if the prompt has none."""
    present = names_in(prompt)
    if name == NONE:
        return without(prompt, present[0]) if present else prompt
    if present:
        return renamed(prompt, present[0], name)
    strength = default_multiplier(session.host)
    return with_strength(prompt, name, strength, strength)


def _strength(prompt: str, place: int, value: float) -> str:
    present = list(dict.fromkeys(names_in(prompt)))
    if place >= len(present):
        raise RuntimeError(f"the prompt has {len(present)} LoRA, so the strength of LoRA {place + 1} cannot be varied")
    return with_strength(prompt, present[place], value, value)


def with_blocks(prompt: str, name: str, value: str) -> str:
    """Change the block weights of a LoRA; `NONE` removes them."""
    return with_field(prompt, name, "lbw", "" if value == NONE else value)


def with_region(prompt: str, name: str, value: str) -> str:
    """Change the region of a LoRA; `NONE` removes it."""
    changed = with_field(prompt, name, "mask", "" if value == NONE else value)
    return with_field(changed, name, "feather", "") if value == NONE else changed


def with_schedule(prompt: str, name: str, value: str) -> str:
    """Change the points or the steps of a LoRA, `0@0;1@0.5` or `stop=10`; `NONE` removes them."""
    if value == NONE:
        for key in ("start", "stop", "step"):
            prompt = with_field(prompt, name, key, "")
        return with_field(prompt, name, "unet", "")
    key, equals, steps = value.partition("=")
    return with_field(prompt, name, key.strip() if equals else "unet", steps.strip() if equals else value)


def _first(prompt: str) -> str:
    present = names_in(prompt)
    if not present:
        raise RuntimeError("the prompt has no LoRA whose strength could be varied")
    return present[0]


def _points(value: str) -> None:
    if value != NONE:
        parse_arguments(with_schedule("<lora:x:1>", "x", value).strip("<>").removeprefix("lora:"))


def _block_presets(session: Session) -> Callable[[], list[str]]:
    return lambda: [NONE, *session.block_presets.all.lists]


def _known_blocks(session: Session) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value != NONE:
            parse_arguments(f"x:lbw={value}", names=session.names)

    return check


def _regions(session: Session) -> Callable[[], list[str]]:
    return lambda: [NONE, *NAMED, *session.regions.all]


def _known_regions(session: Session) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value != NONE:
            parse_arguments(f"x:mask={value}", names=session.names)

    return check


def _all(prompt: str, value: float) -> str:
    for name in names_in(prompt):
        prompt = with_strength(prompt, name, value, value)
    return prompt


def _preset(session: Session, prompt: str, name: str) -> str:
    """Replace the prompt's LoRA and their words by the ones of a preset."""
    for present in names_in(prompt):
        prompt = without(prompt, present)
    if name == NONE:
        return prompt
    return f"{prompt.rstrip()} {' '.join(session.presets.get(name).text.splitlines())}".strip()


def _names(session: Session) -> Callable[[], list[str]]:
    return lambda: [NONE, *session.catalog.names.all()]


def _presets(session: Session) -> Callable[[], list[str]]:
    return lambda: [NONE, *(preset.name for preset in session.presets.all)]


def _file(session: Session) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name != NONE:
            Lookup(session.catalog).find(parse_arguments(name).name)

    return check


def _kept(session: Session) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name != NONE:
            session.presets.get(name)

    return check
