"""Remora's settings: one table for every host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeGuard, get_args

from lib_lora import Reading

from ..hosts import Option
from ..text.placed import LABEL
from ..text.tag import LIMIT
from .request import Memory, Mode, Settings, Storage

ENABLED = "remora_enabled"
DEFAULT_MULTIPLIER = "remora_default_multiplier"
ON_BAD_LORA = "remora_on_bad_lora"
HASHES = "remora_hashes_in_parameters"
ONLINE = "remora_online"
GRAMMAR = "remora_grammar"
MERGE = "remora_merge"
IN_ORDER = "remora_stack_in_order"
SPLIT_QKV = "remora_split_qkv_as_trained"
DYLORA = "remora_dylora_as_trained"
FRAGMENTS = "remora_apply_fragments"
LIMITED = "remora_limit_strengths"
STORAGE = "remora_storage"
DEVICE_BUDGET = "remora_device_budget_mb"
ROUND_UP = "remora_round_up_ranks"
CACHE = "remora_cache_mb"
READY = "remora_ready_mb"

SKIP = "skip with a warning"
FAIL = "fail the generation"
NEVER, ALWAYS = "never", "always"

_MAX_MB = 1 << 20  # a terabyte
_MB = 1 << 20  # bytes

TABLE: tuple[Option, ...] = (
    Option(
        ENABLED,
        True,
        "Apply LoRA with Remora",
        "if off, the web UI's own LoRA gets the tags, from the next picture on; the embedded web UI applies none",
    ),
    Option(
        DEFAULT_MULTIPLIER,
        1.0,
        "Multiplier of an inserted LoRA",
        "the strength that a click on a LoRA writes into the prompt, from 0 to 2",
        minimum=0,
        maximum=2,  # as AUTOMATIC1111 has it for its own
    ),
    Option(
        ON_BAD_LORA,
        SKIP,
        "A LoRA that is unknown or cannot be applied",
        "Remora shows the reason in both cases",
        choices=(SKIP, FAIL),
    ),
    Option(HASHES, True, "Write LoRA hashes into the parameters text", "Remora reads each file once for its hash"),
    Option(
        ONLINE,
        False,
        "Look up and download LoRA online",
        "when you ask for it, Civitai gets a file's hash, or a site the page that you give; nothing else is sent",
    ),
    Option(
        GRAMMAR,
        False,
        LABEL,
        "[<lora:a:1>::0.4], [..|..], (<lora:a:1>:1.2), AND and the negative prompt; if off, they count for words only",
    ),
    Option(
        MERGE,
        NEVER,
        "Merge LoRA into the weights",
        "steps take no extra time, but each new strength needs a new merge; the weights are restored bit for bit",
        choices=(NEVER, ALWAYS),
        removed=("when it pays",),
    ),
    Option(
        IN_ORDER,
        False,
        "Stack LoRA in order, as AUTOMATIC1111 bakes",
        "matters for DoRA, OFT, GLoRA and IA3; if off, each LoRA acts on the original model, in any order",
        expert=True,
    ),
    Option(
        SPLIT_QKV,
        False,
        "Full strength for kohya's split_qkv",
        "for files with split_qkv=True; if off, their fused layers act at a third or a quarter, as in other programs",
        expert=True,
    ),
    Option(
        DYLORA,
        False,
        "Full strength for LyCORIS' DyLoRA",
        "for files that name DyLoRA; if off, they act at 1 / block size, as in other programs",
        expert=True,
    ),
    Option(
        FRAGMENTS,
        False,
        "Apply files of which most does not fit the model",
        "if off, Remora refuses such a file: it is usually made for another model, and fits by accident",
        expert=True,
    ),
    Option(
        LIMITED,
        True,
        f"Limit strengths to {LIMIT:g}",
        f"higher strengths give noise or black pictures; if off, a strength of {10 * LIMIT:g} is applied as written",
        expert=True,
    ),
    Option(
        STORAGE,
        "file",
        "Keep LoRA on the GPU as",
        "bfloat16 and float8 use less memory, but cost some precision and time; file keeps the file's own dtype",
        choices=get_args(Storage),
        expert=True,
    ),
    Option(
        DEVICE_BUDGET,
        0,
        "Room for LoRA on the GPU, in MB",
        "0 leaves 1 GB of the free memory to others; LoRA that do not fit are copied at each call, to the same picture",
        minimum=0,
        maximum=_MAX_MB,
        expert=True,
    ),
    Option(
        ROUND_UP,
        False,
        "Round ranks up, for compiled models",
        "LoRA of equal rounded ranks on the same layers share compiled code; if off, each rank is compiled",
        expert=True,
    ),
    Option(
        CACHE,
        4096,
        "LoRA files to keep open after use, in MB",
        "open files need not be read again",
        minimum=0,
        maximum=_MAX_MB,
        expert=True,
    ),
    Option(
        READY,
        1024,
        "LoRA to keep ready after use, in MB",
        "switching back to them is quick; has no effect for models on a GPU",
        minimum=0,
        maximum=_MAX_MB,
        expert=True,
    ),
)

_BY_KEY = {option.key: option for option in TABLE}
_STORAGES: Mapping[object, Storage] = {name: name for name in get_args(Storage)}
_MODES: Mapping[object, Mode] = {NEVER: "live", ALWAYS: "merged"}
# For settings that change a picture: key -> (name in a parameters text, words for values other than the default).
_PARAMETERS: Mapping[str, tuple[str, Mapping[object, str]]] = {
    GRAMMAR: ("Remora grammar", {True: "on"}),
    MERGE: ("Remora mode", {ALWAYS: "merged"}),
    IN_ORDER: ("Remora stacking", {True: "in order"}),
    SPLIT_QKV: ("Remora split_qkv", {True: "as trained"}),
    DYLORA: ("Remora DyLoRA", {True: "as trained"}),
    FRAGMENTS: ("Remora fragments", {True: "applied"}),
    LIMITED: ("Remora strengths", {False: "any"}),
    STORAGE: ("Remora storage", {"bfloat16": "bfloat16", "float8": "float8"}),
}


class Values(Protocol):
    """An object that has the current values of the settings, such as a host."""

    def option(self, key: str) -> object:
        """Return the value of one setting."""


@dataclass(frozen=True)
class Overridden:
    """Settings with other values for one generation."""

    present: Values
    own: Mapping[str, object]

    def option(self, key: str) -> object:
        return self.own[key] if key in self.own else self.present.option(key)


def checked(key: str, value: object) -> object:
    """Return the value converted to the type of its setting; a choice of a former version becomes the default.

    Raises:
        KeyError: there is no such setting.
        ValueError: the value is invalid; the text lists the valid ones.
    """
    option = _BY_KEY[key]
    match option.default:
        case bool():
            if isinstance(value, bool):
                return value
        case int() | float():
            if _is_number(value, option):
                return type(option.default)(value)  # a whole number may come as 1.0, any number as 1
        case _:
            if value in option.choices:
                return value
            if value in option.removed:
                return option.default
    raise ValueError(f"{key} must be {_wanted(option)}, not {value!r:.60}")


def enabled(values: Values) -> bool:
    """Tell whether Remora applies LoRA instead of the host."""
    return bool(values.option(ENABLED))


def skip_bad(values: Values) -> bool:
    """Tell whether a LoRA that fails is left out, so that the generation continues without it."""
    return values.option(ON_BAD_LORA) == SKIP


def default_multiplier(values: Values) -> float:
    """Return the multiplier for an inserted tag; of a value that a former version took, the nearest valid one."""
    value, option = values.option(DEFAULT_MULTIPLIER), _BY_KEY[DEFAULT_MULTIPLIER]
    number = _parsed(value)
    if isinstance(number, int | float) and math.isfinite(number) and not isinstance(number, bool):
        return min(max(float(number), option.minimum), option.maximum)
    return _number(values, DEFAULT_MULTIPLIER)


def hashes_wanted(values: Values) -> bool:
    """Tell whether the parameters text gets "Lora hashes"."""
    return bool(values.option(HASHES))


def online(values: Values) -> bool:
    """Tell whether Remora may ask Civitai and Hugging Face when the user wants it."""
    return values.option(ONLINE) is True


def grammar(values: Values) -> bool:
    """Tell whether brackets around a tag mean something."""
    return bool(values.option(GRAMMAR))


def merge_mode(values: Values) -> Mode:
    """Return the library's name of the merge mode."""
    return _MODES[checked(MERGE, values.option(MERGE))]


def in_order(values: Values) -> bool:
    """Tell whether each LoRA changes the result of the LoRA before it."""
    return bool(values.option(IN_ORDER))


def reading(values: Values) -> Reading:
    """Return how to read files that other programs read differently than their trainer."""
    return Reading(
        split_qkv_as_trained=bool(values.option(SPLIT_QKV)),
        dylora_as_trained=bool(values.option(DYLORA)),
        fragments=bool(values.option(FRAGMENTS)),
    )


def memory(values: Values) -> Memory:
    """Return how the engine stores LoRA, sizes in bytes."""
    budget = int(_number(values, DEVICE_BUDGET)) * _MB
    storage = _STORAGES[checked(STORAGE, values.option(STORAGE))]
    cache, ready = (int(_number(values, key)) * _MB for key in (CACHE, READY))
    return Memory(storage, budget or None, cache, bool(values.option(ROUND_UP)), ready)


def settings(values: Values) -> Settings:
    """Return all settings that the start of a generation needs."""
    limited = bool(values.option(LIMITED))
    return Settings(skip_bad(values), merge_mode(values), in_order(values), memory(values), reading(values), limited)


def to_parameters(values: Values) -> dict[str, str]:
    """Return the parameters for settings that change a picture and are not at their default."""
    found = {name: words.get(values.option(key)) for key, (name, words) in _PARAMETERS.items()}
    return {name: word for name, word in found.items() if word is not None}


def from_parameters(parameters: Mapping[str, str]) -> dict[str, object]:
    """Return the settings that a parameters text names; unknown values are left out."""
    found = {
        key: value
        for key, (name, words) in _PARAMETERS.items()
        for value, word in words.items()
        if parameters.get(name) == word
    }
    if parameters.get(_PARAMETERS[MERGE][0]) == "auto":  # a mode of former versions
        found[MERGE] = NEVER
    return found


def _number(values: Values, key: str) -> float:
    number = checked(key, _parsed(values.option(key)))
    assert isinstance(number, int | float)
    return number


def _parsed(value: object) -> object:
    """Return a value as a number if it is the text of one: some hosts hand back text."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def _is_number(value: object, option: Option) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    if isinstance(option.default, int) and value != int(value):
        return False
    return option.minimum <= value <= option.maximum


def _wanted(option: Option) -> str:
    match option.default:
        case bool():
            return "true or false"
        case int() | float():
            what = "a whole number" if isinstance(option.default, int) else "a number"
            return what if math.isinf(option.maximum) else f"{what} from {option.minimum:.10g} to {option.maximum:.10g}"
        case _:
            return f"one of: {', '.join(option.choices)}"
