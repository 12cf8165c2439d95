"""The LoRA of each image in A1111's parameters text.

The host calls a callable value again for each text, with everything it knows then. The outcome is stored on the
processing object, as the host's own scripts copy these and share their tables of values.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .base import WARNINGS, Outcome, Used

logger = logging.getLogger(__name__)

HASHES = "Lora hashes"
_OUTCOMES = "remora_outcomes"
_LEFT_OUT = str.maketrans("", "", ":,")  # separators


@dataclass
class _OfBatch:
    """The outcome of a batch's tags in each of its passes."""

    first: Outcome = field(default_factory=Outcome)
    hires: Outcome = field(default_factory=Outcome)

    @property
    def problems(self) -> Sequence[str]:
        """Return what the user was told of it."""
        return [*self.first.problems, *self.hires.problems]

    @property
    def warnings(self) -> Sequence[str]:
        """Return why the effect of its LoRA is doubtful."""
        return list(dict.fromkeys([*self.first.warnings(), *self.hires.warnings()]))


def note(p: Any, outcome: Outcome) -> None:
    """Write this outcome into the parameters texts of the present batch."""
    hires, number = getattr(p, "is_hr_pass", False), getattr(p, "iteration", 0)
    known: dict[int, _OfBatch] = vars(p).get(_OUTCOMES, {})
    if number == 0 and not hires:
        known = {}  # a generation starts; a copy of its object may belong to another one
    batch = _OfBatch(known[number].first, outcome) if hires and number in known else _OfBatch(outcome)
    setattr(p, _OUTCOMES, {**known, number: batch})
    for name in (HASHES, WARNINGS, *outcome.settings):
        p.extra_generation_params[name] = Parameter(name)


@dataclass(frozen=True)
class Parameter:
    """One value of a parameters text."""

    name: str

    def __call__(
        self, /, p: Any, index: int = 0, all_prompts: Any = None, use_main_prompt: bool = False, **context: Any
    ) -> str | None:
        """Return the value for one image; None leaves the name out.

        Args:
            p: the processing object.
            index: of the image in its batch if `all_prompts` are of that batch, else in the generation.
            all_prompts: the prompts at hand.
            use_main_prompt: the text is for the first image of all.
            context: other arguments of the host.
        """
        number, image = divmod(index, max(1, p.batch_size))
        if all_prompts is p.prompts:
            number, image = p.iteration, index
        if use_main_prompt:
            number, image = 0, 0
        batch = vars(p).get(_OUTCOMES, {}).get(number)
        if batch is not None and self.name == WARNINGS:
            for sentence in batch.warnings:
                if sentence not in batch.problems:  # which the user was told when the batch began
                    p.comment(sentence)
        return None if batch is None else self._of(batch, image)

    def _of(self, batch: _OfBatch, image: int) -> str | None:
        if self.name == WARNINGS:
            return "; ".join(batch.warnings) or None
        if self.name != HASHES:
            both: Mapping[str, str] = {**batch.hires.settings, **batch.first.settings}
            return both.get(self.name)
        if not batch.first.hashes_wanted:
            return None
        return _hashes([*_of_image(batch.first, image), *_of_image(batch.hires, image)]) or None


def _of_image(outcome: Outcome, image: int) -> Sequence[Used]:
    return outcome.image(image) if len(outcome.images) == 1 or image < len(outcome.images) else ()


def _hashes(used: Sequence[Used]) -> str:
    hashes = {}
    for one in used:
        try:
            hashes[one.name.translate(_LEFT_OUT)] = one.shorthash()
        except OSError as error:
            logger.warning("remora: no hash of %s for the parameters text: %s", one.name, error)
    return ", ".join(f"{name}: {digest}" for name, digest in hashes.items())
