"""HTML snippets for the page; all outside text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import zip_longest

from ..hosts.txt2img import Progress, Result


def bar(progress: Progress) -> str:
    """Return the progress bar of a job."""
    if progress.waiting:
        text = "Waiting for another job"
    elif progress.text:
        text = progress.text
    elif not progress.steps:
        text = "Starting"
    else:
        text = f"Step {progress.step} of {progress.steps}"
    percent = f"{100 * progress.fraction:.0f}"
    return (
        f'<div class="remora-bar" role="progressbar" aria-valuenow="{percent}" aria-valuemin="0" aria-valuemax="100">'
        f'<div class="remora-bar-done" style="width:{percent}%"></div><span>{escape(text)}</span></div>'
    )


def idle() -> str:
    """Return the progress bar without a job."""
    return '<div class="remora-bar remora-idle"><span>Ready</span></div>'


def outcome(result: Result) -> str:
    """Return one line per LoRA and per note, warnings about wrong pictures first.

    A LoRA with a warning has no other line: the stack tells the rest.
    """
    cancelled = ["Cancelled"] if result.cancelled else []
    warned = {text.partition(": ")[0] for text in result.warnings if ": " in text}
    reports = "".join(
        lines("lora" if state == "applied" else "partly", [text])
        for text, state in zip_longest(result.lora_reports, result.states, fillvalue="applied")
        if text.partition(": ")[0] not in warned
    )
    return lines("warning", result.warnings) + reports + lines("note", [*cancelled, *result.notes])


def failure(error: BaseException) -> str:
    """Return the text of an error."""
    return f'<div class="remora-line remora-error" role="alert">{escape(str(error) or type(error).__name__)}</div>'


def older() -> str:
    """Return the mark of a picture that a later generation, which made none, has left in place."""
    return lines("older", ["The picture and its parameters are from an earlier generation."])


def pointer(names: Sequence[str]) -> str:
    """Return a hint to the rows of the tab, which show the error of a LoRA until it is fixed."""
    where = f"{', '.join(dict.fromkeys(names))} in the stack" if names else "the stack"
    return failure(ValueError(f"No picture was made: see {where} of LoRA."))


def lines(kind: str, texts: Sequence[str]) -> str:
    """Return a line of a kind (`warning`, `lora`, `partly`, `note`, `older`) per text."""
    return "".join(f'<div class="remora-line remora-{kind}">{escape(text)}</div>' for text in texts)
