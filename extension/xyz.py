"""Axes of the hosts' X/Y/Z plots: what is varied in a prompt. Pure, but for the names of files and presets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .hosts import Axis
from .options import default_multiplier
from .prompt import parse_arguments
from .prompt_edit import names_in, renamed, with_strength, without

if TYPE_CHECKING:
    from .session import Session

NONE = "None"
"""Stands for no LoRA."""


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
        Axis("LoRA preset", str, preset, _presets(session), _kept(session)),
    )


def _with_lora(session: Session, prompt: str, name: str) -> str:
    """The prompt with this LoRA in place of its first one, at that one's strength; at its end where it has none."""
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
        raise RuntimeError(f"the prompt has {len(present)} LoRA, so there is no strength of number {place + 1} to vary")
    return with_strength(prompt, present[place], value, value)


def _all(prompt: str, value: float) -> str:
    for name in names_in(prompt):
        prompt = with_strength(prompt, name, value, value)
    return prompt


def _preset(session: Session, prompt: str, name: str) -> str:
    """The prompt with the LoRA of a preset, and their words, in place of its own."""
    for present in names_in(prompt):
        prompt = without(prompt, present)
    if name == NONE:
        return prompt
    return f"{prompt.rstrip()} {' '.join(session.presets.get(name).text.splitlines())}".strip()


def _names(session: Session) -> Callable[[], list[str]]:
    return lambda: [NONE, *session.catalog.names()]


def _presets(session: Session) -> Callable[[], list[str]]:
    return lambda: [NONE, *(preset.name for preset in session.presets.all)]


def _file(session: Session) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name != NONE:
            session.catalog.find_anew(parse_arguments(name).name)

    return check


def _kept(session: Session) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name != NONE:
            session.presets.get(name)

    return check
