"""`/remora/v1/blocks`: the blocks of the loaded model, and presets of block weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from ..text.block_weights import BlockWeightsError, described, format_list
from . import records
from .answers import BROKEN, UNPROCESSABLE, answer, refuse_stale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..generation.session import Session

_TITLES = {
    "BASE": "Text encoders",
    "CLIP": "CLIP text encoder",
    "T5": "T5 text encoder",
    "IN": "What comes before the blocks",
    "OUT": "What comes behind the blocks",
    "M00": "Middle block",
}
_KINDS = {"IN": "Down block", "OUT": "Up block", "D": "Double block", "S": "Single block", "B": "Block"}


class BlocksApi:
    """The blocks over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, request: Request) -> Response:
        """List the blocks of the loaded model, the sizes of lists it accepts, and presets."""
        return answer(request, self._listed())

    def _listed(self) -> records.Blocks:
        lists = self._session.model.blocks.lists()
        presets, own = self._session.block_presets.all, self._session.block_presets.own
        return {
            "blocks": [{"id": one, "title": title(one)} for one in (lists[0] if lists else ())],
            "layouts": [{"length": len(one), "ids": list(one)} for one in lists],
            "presets": [
                {"name": name, "values": format_list(values), "own": name in own}
                for name, values in presets.lists.items()
            ],
            "rules": list(presets.elements),
            "about_rules": {name: described(rules) for name, rules in presets.elements.items()},
            "problem": self._session.block_presets.problem,
        }

    def put(self, request: Request, body: records.BlockPresetWanted) -> Response:
        """Save a list of block weights under a name, replacing the preset of that name."""
        return self._changed(request, lambda: self._session.block_presets.put(body["name"], body["values"]))

    def remove(self, request: Request, name: str) -> Response:
        """Delete one of the user's own presets of block weights."""
        return self._changed(request, lambda: self._session.block_presets.delete(name))

    def _changed(self, request: Request, work: Callable[[], None]) -> Response:
        """Apply a change unless the presets have changed since the client read them; list the presets."""
        try:
            with self._session.block_presets.lock():
                refuse_stale(request, self._listed, "the list of presets of block weights")
                work()
                return self.list(request)
        except BlockWeightsError as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        except OSError as error:
            detail = f"the presets of block weights cannot be saved and are unchanged: {error.strerror or error}"
            raise HTTPException(BROKEN, detail) from error


def title(block: str) -> str:
    """Return a block's display name."""
    letters = block.rstrip("0123456789")
    if block in _TITLES:
        return _TITLES[block]
    return f"{_KINDS.get(letters, letters)} {int(block[len(letters) :])}" if block != letters else block
