"""What processes write down while they run checks: one line of JSON for each event, so that a crash loses nothing."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"

Row: TypeAlias = dict[str, Any]
"""section, check, result, figure, values, seconds; traceback where an error came."""


class Journal:
    """A file of events."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **event: object) -> None:
        """Add an event; it survives a crash of this process."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")

    def events(self) -> list[Row]:
        """Return all events."""
        if not self.path.is_file():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]  # a process that was killed wrote the other

    def rows(self) -> list[Row]:
        """Return the results."""
        return [event for event in self.events() if "result" in event]

    def ended(self) -> set[str]:
        """Return the sections of which no check is left."""
        return {event["ended"] for event in self.events() if "ended" in event}

    def running(self) -> tuple[str, str] | None:
        """Return section and name of the check that began and gave no result."""
        events = [event for event in self.events() if "begun" in event or "result" in event]
        if not events or "result" in events[-1]:
            return None
        return events[-1]["section"], events[-1]["begun"]

    def value(self, name: str) -> Any:
        """Return what was written last under a name; None where nothing was."""
        return next((event[name] for event in reversed(self.events()) if name in event), None)

    def result(self, section: str, check: str, result: str, figure: str = "", **more: object) -> None:
        """Write a row, and show it."""
        figure = scrubbed(" ".join(figure.split()))
        self.write(section=section, check=check, result=result, figure=figure, **more)
        sys.stdout.write(f"{result} {section:12}{check:64} {figure}".rstrip() + "\n")
        sys.stdout.flush()


def scrubbed(text: str) -> str:
    """Return a text without the folders of the user, as reports are published."""
    for folder in (str(ROOT), sys.prefix, tempfile.gettempdir(), str(Path.home())):
        for spelled in (folder, folder.replace("\\", "/"), folder.replace("\\", "\\\\")):
            text = text.replace(spelled, "…") if len(spelled) > 1 else text
    return re.sub(r"(/home/|/Users/|\\Users\\)[^/\\ ]+", r"\1…", text)
