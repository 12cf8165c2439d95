"""The settings of Remora, one table for every host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .hosts import Option

if TYPE_CHECKING:
    from .hosts import Host

DEFAULT_MULTIPLIER = "remora_default_multiplier"
ON_BAD_LORA = "remora_on_bad_lora"
HASHES = "remora_hashes_in_parameters"

SKIP = "skip with a warning"
FAIL = "fail the generation"

TABLE: tuple[Option, ...] = (
    Option(DEFAULT_MULTIPLIER, 1.0, "Multiplier of an inserted LoRA", "what a click on a LoRA writes into the prompt"),
    Option(
        ON_BAD_LORA,
        SKIP,
        "A LoRA that is unknown or cannot be applied",
        "either way the reason is shown",
        choices=(SKIP, FAIL),
    ),
    Option(HASHES, True, "Write LoRA hashes into the parameters text", "read once per file"),
)


def checked(key: str, value: object) -> object:
    """Return a value as its setting takes it.

    Raises:
        KeyError: no such setting.
        ValueError: the value is not one it takes; the text says which are.
    """
    option = {option.key: option for option in TABLE}[key]
    if option.choices and value not in option.choices:
        raise ValueError(f"{key} must be one of: {', '.join(option.choices)}")
    if isinstance(option.default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false")
    elif isinstance(option.default, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{key} must be a number")
        return float(value)
    return value


def skip_bad(host: Host) -> bool:
    """Tell whether a LoRA that fails is left out, so that the generation goes on without it."""
    return host.option(ON_BAD_LORA) == SKIP


def default_multiplier(host: Host) -> float:
    """Return the multiplier for an inserted tag."""
    value = host.option(DEFAULT_MULTIPLIER)
    return float(value) if isinstance(value, (int, float, str)) else 1.0


def hashes_wanted(host: Host) -> bool:
    """Tell whether the parameters text gets "Lora hashes"."""
    return bool(host.option(HASHES))
