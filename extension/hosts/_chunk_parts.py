"""Which part of a prompt divided by AND each row of a model call belongs to, in the Forge family.

Its sampling has a condition for each part, with a row for every image, and runs as many of them in one call as it
can join and fit in memory, in its own order. So each condition is marked until some are joined for a call.

Source: lllyasviel's Forge backend/sampling/sampling_function.py and condition.py; the other two modules_forge/
forge_sampler.py, ldm_patched/modules/samplers.py and conds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lib_lora import Row

_MARK = "remora_part"
_PROMPT = "c_crossattn"
"""The condition of every prompt, by the name under which it is joined with others."""


class ChunkParts:
    """The parts of the conditions that were joined last."""

    def __init__(self) -> None:
        self._images = 1
        self._chunks: tuple[int | None, ...] = ()

    def begin(self, images: int) -> None:
        """Start a batch.

        Args:
            images: with LoRA of their own; 1 if all are equal, whatever their number.
        """
        self._images, self._chunks = images, ()

    def mark(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wrap the function that makes the conditions of the positive prompt's parts, in their order."""
        found = original(*args, **kwargs)
        if len(found) > 1:
            for number, one in enumerate(found):
                conditions = one.get("model_conds", {})
                if _PROMPT in conditions:
                    conditions[_PROMPT] = _marked(conditions[_PROMPT], number)
        return found

    def joined(
        self, original: Callable[..., Any], chunks: Sequence[Mapping[str, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Wrap the function that joins conditions for one call."""
        self._chunks = tuple(getattr(chunk.get(_PROMPT), _MARK, None) for chunk in chunks)
        return original(chunks, *args, **kwargs)

    def __call__(self, rows: int) -> Sequence[Row] | None:
        """Return the part of each row of the next call; None without parts, or if others join or cut the rows."""
        count = len(self._chunks)
        if all(part is None for part in self._chunks) or rows % count or self._images not in (1, rows // count):
            return None
        return [Row(image, part=part) for part in self._chunks for image in range(rows // count)]


def _marked(condition: Any, number: int) -> Any:
    """Return the same condition, whose copies tell their part, as they are made of its class."""
    return _class_of_part(condition.__class__, number)(condition.cond)


@lru_cache(maxsize=256)
def _class_of_part(condition: Any, number: int) -> Any:
    return type(condition.__name__, (condition,), {_MARK: number})
