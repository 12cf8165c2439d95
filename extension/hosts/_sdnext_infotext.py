"""The LoRA of each image in SD.Next's parameters texts and messages."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._wraps import Wraps
from .base import Outcome, Used

logger = logging.getLogger(__name__)

NAMES = "LoRA networks"
HASHES = "LoRA hashes"
_HASH_LENGTH = 8  # hex digits of the SHA-256 of the file
_TOLD = "remora_told"  # attribute of a processing object


class Infotexts:
    """Wraps the host's `modules.processing`."""

    def wrap(self, wraps: Wraps) -> None:
        """Install the wrappers; idempotent."""
        processing = importlib.import_module("modules.processing")
        wraps.put(processing, "create_infotext", _create)
        wraps.put(processing, "get_processed", _processed)

    def note(self, p: Any, outcome: Outcome, batch: int, *, further_pass: bool) -> None:
        """Store the outcome of the tags of a batch, in its first pass or in a later one."""
        told = vars(p).get(_TOLD)
        parameters = p.extra_generation_params
        for name in told.written if told is not None else ():
            parameters.pop(name, None)
        if told is None or (batch == 0 and not further_pass):
            told = vars(p)[_TOLD] = _Told()  # a new one: a copy of this object may be another picture
        if not further_pass:
            told.passes[batch] = []
        told.passes.setdefault(batch, []).append(outcome)
        written = _entries(told.passes[batch], None)
        told.written = frozenset(written)
        parameters.update(written)


@dataclass
class _Told:
    """The outcomes of a processing object, which its copies for later passes share."""

    passes: dict[int, list[Outcome]] = field(default_factory=dict)
    """For each batch, one outcome per pass."""
    written: frozenset[str] = frozenset()
    """The object's parameters written from them."""


def _create(original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
    """Return one parameters text, with the LoRA of that image only."""
    told = getattr(p, _TOLD, None)
    if told is None:
        return original(p, *args, **kwargs)
    common = p.extra_generation_params
    own = {name: value for name, value in common.items() if name not in told.written}
    batch, image = _place(p, inspect.signature(original).bind(p, *args, **kwargs).arguments)
    passes = told.passes.get(batch, []) if batch is not None else _all(told)
    p.extra_generation_params = own | _entries(passes, image)
    try:
        return original(p, *args, **kwargs)
    finally:
        p.extra_generation_params = common


def _all(told: _Told) -> list[Outcome]:
    return [outcome for passes in told.passes.values() for outcome in passes]


def _place(p: Any, asked: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the batch of a text and the image in it; None for a grid of all."""
    if asked.get("grid") is not None:
        return None, None
    index = asked.get("index")
    if index is None:
        return asked.get("iteration", 0), asked.get("position_in_batch", 0)
    if asked.get("all_prompts") is p.prompts:  # of one batch, not of all
        return p.iteration, index
    size = max(1, int(p.batch_size))
    return index // size, index % size


def _entries(passes: Iterable[Outcome], image: int | None) -> dict[str, str]:
    """Return the parameters of one image, or of all."""
    used: dict[str, Used] = {}
    found: dict[str, str] = {}
    hashes_wanted = False
    for outcome in passes:
        images = outcome.images if image is None or image >= len(outcome.images) > 1 else (outcome.image(image),)
        for own in images:
            used |= {one.name: one for one in own}
        if any(images):
            found |= {**outcome.settings, **outcome.parameters}
        elif not any(outcome.images):
            found |= outcome.parameters  # such as why the built-in applied the tags
        hashes_wanted |= outcome.hashes_wanted
    if not used:
        return found
    hashes = _hashes(used.values()) if hashes_wanted else ""
    return {NAMES: ", ".join(used)} | ({HASHES: hashes} if hashes else {}) | found


def _hashes(used: Iterable[Used]) -> str:
    """Return a hash for each name, or an empty text: names and hashes are paired by position."""
    try:
        return ", ".join(one.sha256()[:_HASH_LENGTH] for one in used)
    except OSError as error:
        logger.warning("remora: the parameters text is without LoRA hashes: %s", error)
        return ""


def _processed(original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the displayed result, with the LoRA that were left out."""
    told = getattr(p, _TOLD, None)
    problems = dict.fromkeys(
        one for outcome in (_all(told) if told else ()) for one in (*outcome.problems, *outcome.warnings())
    )
    if problems:
        kwargs["comments"] = "\n".join([*filter(None, [kwargs.get("comments")]), *problems])
    return original(p, *args, **kwargs)
