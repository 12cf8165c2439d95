"""Sentences for the host's log, each once."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ..library.catalog import CatalogFile

logger = logging.getLogger(__name__)

REMEMBERED = 1000
"""Sentences that are not said again; a prompt can make any number of different ones."""
_Key: TypeAlias = "tuple[CatalogFile | None, bytes]"


class OnceLog:
    """Logs each sentence once; of many sentences, it forgets the ones that did not come up for the longest time."""

    def __init__(self) -> None:
        self._said: OrderedDict[_Key, None] = OrderedDict()  # the latest last; digests, as a sentence may be long

    def say(self, sentence: str, level: int = logging.WARNING, file: CatalogFile | None = None) -> None:
        """Log a sentence about a file, or about all, unless it was logged before."""
        key = file, hashlib.sha256(sentence.encode("utf-8", "surrogatepass")).digest()
        if key not in self._said:
            logger.log(level, "remora: %s", sentence)
        self._said[key] = None
        self._said.move_to_end(key)
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
