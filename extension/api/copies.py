"""`/remora/v1/copies`: files of the library that are copies of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from . import records
from .answers import answer, whole

if TYPE_CHECKING:
    from ..generation.session import Session
    from ..library.copies import Copy, MergeOfTwo

_PER_PAGE = 50  # groups


class CopiesApi:
    """The copies over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, request: Request, page: str = "0") -> Response:
        """List groups of copies, and look for more in the background; pages of 50 groups are counted from 0."""
        start = whole(page, "page") * _PER_PAGE
        copies = self._session.catalog.copies
        copies.ask()
        progress, compared = copies.progress, copies.compared
        told: records.Copies = {
            "running": progress.running,
            "done": progress.done,
            "total": progress.total,
            "left_out": [{"id": file.id, "reason": reason} for file, reason in progress.left_out.items()],
            "groups": [[_copied(one) for one in group] for group in compared.groups[start : start + _PER_PAGE]],
            "found": len(compared.groups),
            "per_page": _PER_PAGE,
            "firsts": [group[0].file.id for group in compared.groups],
            "others": [one.file.id for group in compared.groups for one in group[1:]],
            "superseded": [file.id for file in compared.superseded],
            "merges": [_merged(one) for one in compared.merges],
        }
        return answer(request, told)


def _copied(one: Copy) -> records.CopiedFile:
    return {
        "id": one.file.id,
        "precisions": list(one.precisions),
        "other": None if one.other is None else one.other.id,
        "alike": one.alike,
        "steps": one.steps,
        "cosine": one.cosine,
        "factor": one.factor,
    }


def _merged(one: MergeOfTwo) -> records.MergedFile:
    first, second = one.parents
    return {"id": one.file.id, "parents": (first.id, second.id), "strengths": one.strengths, "left": one.left}
