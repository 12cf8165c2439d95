"""The outcome of the LoRA of the latest pictures, as plain data for the tab and other clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..version import VERSION
from .options import default_multiplier, enabled, grammar

if TYPE_CHECKING:
    from ..library.catalog import CatalogFile
    from ..text.tag import Place
    from .activation import Passes
    from .outcomes import TagOutcome
    from .session import Session

# The fields of `lib_lora.NetworkReport.to_json`, with the values for a LoRA that is not active.
_OF_FILE: Mapping[str, object] = {
    "warning": "",
    "format": None,
    "family": None,
    "base_model": None,
    "model": None,
    "kinds": {},
    "ranks": None,
    "changed": 0,
    "bytes": 0,
    "seconds": 0.0,
    "unused": {},
    "causes": {},
    "details": {},
}


def state_of(session: Session) -> dict[str, Any]:
    """Return what became of each tag of the latest batch; of a generation that was stopped, of those that failed."""
    last, failed = session.last, session.failed
    ran = not failed
    model = session.model.family
    return {
        "version": VERSION,
        "host": session.host.name,
        "enabled": enabled(session.host),
        "own_lora": session.host.has_own_lora,
        "default_multiplier": default_multiplier(session.host),
        "grammar": grammar(session.host),
        "parts": session.host.has_parts,
        "comments": session.host.has_comments,
        "model": None if model is None else model.titles,
        "images": last.images,
        "loras": _loras(session),
        "merged": last.report.merged if ran else 0,
        "live": dict(last.report.live) if ran else {},
        "notes": [
            *([session.model.useless] if session.model.useless else []),
            *(_notes(session.passes) if ran else [one.sentence for one in failed if not one.is_of_a_tag]),
        ],
        "conflicts": list(session.host.conflicts()),
        "combining": _layers(session.combiner.progress),
        "pictures": session.record.count,
        "catalog": {"revision": session.catalog.index.revision, **asdict(session.catalog.progress)},
    }


def _layers(progress: tuple[int, int] | None) -> dict[str, int] | None:
    return None if progress is None else {"done": progress[0], "layers": progress[1]}


def _loras(session: Session) -> list[dict[str, Any]]:
    """Describe what became of each tag."""
    names = names_of(session)
    return [_described(one, one.place, names) for one in session.outcomes if one.place is not None]


def names_of(session: Session) -> Mapping[CatalogFile, str]:
    """Return the readable files with the names by which tags find them."""
    return {file: session.catalog.names.name_of(file) for file in session.catalog.files}


def _described(one: TagOutcome, place: Place, names: Mapping[CatalogFile, str]) -> dict[str, Any]:
    """Describe what became of one tag."""
    active = one.active
    report = _OF_FILE if active is None else active.report.to_json()
    return {
        "name": one.name if active is None else names.get(active.file, active.name),
        "asked": one.asked,
        "where": place.where,
        "number": place.number,
        "written": place.written,
        "state": one.state,
        "reason": one.reason,
        "advice": one.advice,
        "hit": 0 if active is None else active.report.hit,
        "layers": None if active is None else active.report.layers,
        **{name: report[name] for name in _OF_FILE},
        "warning": one.warning,
        "hint": place.note.removeprefix(f"{one.name} "),
        "images": list(one.images),
        "always_on": one.always_on,
    }


def _notes(passes: Passes) -> list[str]:
    """Return the notes on all LoRA together."""
    found = [text for one in passes.activations for text in (*one.notes, one.report.silence)]
    return list(dict.fromkeys(filter(None, found)))
