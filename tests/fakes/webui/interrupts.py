"""The state of a web UI's job, whose user interrupts it once a text is shown, and its result without pictures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class JobState:
    """`shared.state` of A1111, Forge and SD.Next, as far as a job can be interrupted before its first step."""

    def __init__(self) -> None:
        self.interrupted = self.skipped = False
        self.job = ""
        self.shown: list[str | None] = []
        """What was beside the progress."""
        self.press = ""
        """Which attribute the user's button sets at the third text."""

    @property
    def textinfo(self) -> str | None:
        return self.shown[-1] if self.shown else None

    @textinfo.setter
    def textinfo(self, text: str | None) -> None:
        self.shown.append(text)
        if self.press and len(self.shown) == 3:
            setattr(self, self.press, True)

    def begin(self, job: str = "") -> None:
        self.interrupted = self.skipped = False
        self.job, self.shown = job, []

    def end(self) -> None:
        self.job = ""


class Processed(SimpleNamespace):
    """The result of a generation, by the first arguments that it has in all of them."""

    def __init__(self, p: Any, images_list: list[Any], seed: int = -1, info: str | None = None) -> None:
        super().__init__(p=p, images=images_list, seed=seed, info=info, infotexts=[], index_of_first_image=0)
