"""The outcome of the LoRA of the latest pictures, as plain data for the tab and other clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..version import VERSION
from .options import default_multiplier, enabled, grammar

if TYPE_CHECKING:
    from lib_lora import ActivationReport, NetworkReport

    from ..library.catalog import CatalogFile
    from .session import Activation, Active, Session, Skipped

State: TypeAlias = Literal["applied", "partly", "none", "failed", "missing"]

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
    """Return the LoRA of the latest batch; after a failure, only those that failed."""
    last, failed = session.last, session.failed
    ran = not failed
    model = session.model_family()
    return {
        "version": VERSION,
        "host": session.host.name,
        "enabled": enabled(session.host),
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
            *([session.useless] if session.useless else []),
            *(_notes(last) if ran else [one.reason for one in failed if not _is_of_a_lora(one)]),
        ],
        "conflicts": list(session.host.conflicts()),
        "pictures": session.record.count,
        "catalog": {"revision": session.catalog.index.revision, **asdict(session.catalog.progress)},
    }


def _loras(session: Session) -> list[dict[str, Any]]:
    """Describe each LoRA; after a failure, only those that failed."""
    if session.failed:
        return [_left_out(one) for one in session.failed if _is_of_a_lora(one)]
    last, names = session.last, names_of(session)
    always = set(last.always.values())
    found = [_active(one, names, one.file in always, last.report, i) for i, one in enumerate(last.active)]
    return [*found, *(_left_out(one) for one in last.left_out)]


def names_of(session: Session) -> Mapping[CatalogFile, str]:
    """Return the readable files with the names by which tags find them."""
    return {file: session.catalog.name_of(file) for file in session.catalog.files}


def state_at(report: ActivationReport, index: int) -> State:
    """Return what became of one active LoRA, the entry of the report with this index."""
    one = report.entries[index]
    if index in report.too_strong:
        return "failed"
    if index in report.idle:
        return "none"
    whole = not one.unused and one.hit == one.layers and not report.without_effect(index)
    return "applied" if whole else "partly"


def _active(
    active: Active, names: Mapping[CatalogFile, str], always_on: bool, whole_report: ActivationReport, index: int
) -> dict[str, Any]:
    """Describe one active LoRA, the entry of the report with this index."""
    report = active.report
    partly_idle, too_strong = whole_report.without_effect(index), whole_report.too_strong.get(index, "")
    idle = whole_report.idle.get(index) or (f"it has {partly_idle}" if partly_idle else "")
    state = state_at(whole_report, index)
    return {
        "name": names.get(active.file, active.name),
        "asked": active.name,
        "state": state,
        "reason": "" if state == "applied" else _why_not_whole(report, idle, too_strong),
        "hit": report.hit,
        "layers": report.layers,
        **{name: value for name, value in report.to_json().items() if name in _OF_FILE},
        "warning": "; ".join(filter(None, [report.doubt, whole_report.unlimited.get(index)])),
        "images": list(active.images),
        "always_on": always_on,
    }


def _notes(last: Activation) -> list[str]:
    """Return the notes on all active LoRA together."""
    return [*last.notes, *last.waiting, *([last.report.silence] if last.report.silence else [])]


def _left_out(skipped: Skipped) -> dict[str, Any]:
    state: State = "missing" if skipped.missing else "failed"
    return {
        "name": skipped.name,
        "asked": skipped.written or skipped.name,
        "state": state,
        "reason": skipped.cause or skipped.reason,
        "hit": 0,
        "layers": None,
        **_OF_FILE,
        "images": [],
        "always_on": skipped.always_on,
    }


def _is_of_a_lora(failed: Skipped) -> bool:
    return bool(failed.name or failed.written)


def _why_not_whole(report: NetworkReport, idle: str, too_strong: str) -> str:
    none = [one for one in (too_strong, idle) if one]
    fit, keys = "fits" if report.hit == 1 else "fit", "key" if len(report.unused) == 1 else "keys"
    missed = [] if report.hit == report.layers else [f"{report.hit} of {report.layers} layers {fit} this model"]
    unused = [f"{len(report.unused)} {keys} unused: {report.why()}"] if report.unused else []
    return "; ".join([*none, *missed, *unused])
