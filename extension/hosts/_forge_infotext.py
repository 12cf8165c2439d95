"""What a batch's LoRA do to its parameters texts, in the web UIs whose texts have "Lora hashes"."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Outcome, Used

logger = logging.getLogger(__name__)

HASHES = "Lora hashes"


class Told:
    """Writes them for one batch after the other; nothing of an earlier batch stays in a later one's texts."""

    _base: str = "remora_hashes"
    _names: str = "remora_parameters"

    def tell(self, p: Any, outcome: Outcome) -> None:
        """Show what became of a batch, and its problems, in the texts and comments of a processing object.

        The second pass of a picture adds what it uses to what the first one used.
        """
        second_pass = getattr(p, "is_hr_pass", False)
        first: Sequence[Mapping[str, str]] = getattr(p, self._base, ()) if second_pass else ()
        for name in getattr(p, self._names, ()):
            p.extra_generation_params.pop(name, None)
        every = [dict(image) for image in first] or [{}]
        if outcome.hashes_wanted:
            every = _joined(every, [_hashes(image, p) for image in outcome.images])
        if not second_pass:
            setattr(p, self._base, every)
        texts = [", ".join(f"{name}: {digest}" for name, digest in image.items()) for image in every]
        told: dict[str, object] = dict(outcome.settings)
        if any(texts):
            told[HASHES] = texts[0] if len(set(texts)) == 1 else _of_image(texts)
        p.extra_generation_params.update(told)
        setattr(p, self._names, tuple(told))
        for problem in outcome.problems:
            p.comment(problem)


def _joined(earlier: Sequence[Mapping[str, str]], later: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """For each image what either has; one image stands for all."""
    count = max(len(earlier), len(later))
    return [{**earlier[image % len(earlier)], **later[image % len(later)]} for image in range(count)]


def _hashes(used: Sequence[Used], p: Any) -> dict[str, str]:
    found = {}
    for one in used:
        try:
            digest = one.shorthash()
        except OSError as error:
            p.comment(f"{one.name} has no hash in the parameters text: {error}")
        else:
            found[one.name.replace(":", "").replace(",", "")] = digest
    return found


def _of_image(texts: Sequence[str]) -> Any:
    """What hosts ask for a value of their texts; it is called with all that makes the text."""

    def value(index: int | None = None, **_: object) -> str | None:
        return texts[(index or 0) % len(texts)] or None  # counted in the batch, or over all batches of this size

    return value
