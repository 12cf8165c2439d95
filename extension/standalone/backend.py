"""The interface between the embedded page and the program behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..hosts.txt2img import Progress, Result, Txt2Img

if TYPE_CHECKING:
    from lib_lora import LoraError


class RunningJob(Protocol):
    """A submitted job."""

    @property
    def progress(self) -> Progress: ...

    @property
    def done(self) -> bool: ...

    def cancel(self) -> None:
        """Stop at the next step."""

    def over(self) -> asyncio.Event:
        """Return an event of the running loop that is set at the end."""

    def result(self, timeout: float | None = None) -> Result:
        """Return the result of a job that is done; raises any error of the job."""


class Backend(Protocol):
    """The program behind the page."""

    @property
    def model_name(self) -> str: ...

    @property
    def first_prompt(self) -> str:
        """Return the prompt that the page opens with."""

    @property
    def first_seed(self) -> int:
        """Return the seed that the page opens with; -1 is random."""

    def first_visit(self) -> bool:
        """Return True once if the page should make a first picture on its own."""

    @property
    def side(self) -> int:
        """Return width and height the model was made for, in pixels."""

    @property
    def samplers(self) -> Sequence[str]: ...

    @property
    def offload_modes(self) -> Sequence[str]: ...

    @property
    def offload_mode(self) -> str: ...

    @property
    def output_dir(self) -> Path:
        """Return the folder of finished pictures."""

    def pasted(self, parameters: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
        """Return the prompt of a parameters text, with names of LoRA and regions as they are here, and its settings."""

    def submit(self, request: Txt2Img) -> RunningJob:
        """Queue a job; raises errors for the user."""

    def told(self, error: LoraError) -> Sequence[str] | None:
        """Return the LoRA whose rows of the tab show an error; None if the tab does not show it."""

    def option(self, key: str) -> object:
        """Return the present value of one of Remora's settings."""

    def set_option(self, key: str, value: object) -> None:
        """Change a setting for the jobs that start from now on; raises errors for the user."""

    async def set_offload(self, mode: str) -> None:
        """Change the offload mode between two jobs; raises errors for the user."""
