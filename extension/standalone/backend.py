"""What the embedded page needs of the program behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..hosts.txt2img import Progress, Result, Txt2Img

if TYPE_CHECKING:
    from lib_lora import LoraError


class RunningJob(Protocol):
    """A job that was handed in."""

    @property
    def progress(self) -> Progress: ...

    @property
    def done(self) -> bool: ...

    def cancel(self) -> None:
        """Stop at the next step."""

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end; raises whatever the job failed with."""


class Backend(Protocol):
    """The program behind the page."""

    @property
    def model_name(self) -> str: ...

    @property
    def first_prompt(self) -> str:
        """What the prompt box holds when the page opens."""

    def first_visit(self) -> bool:
        """Return True once, where the page should make a first picture by itself."""

    @property
    def side(self) -> int:
        """Width and height the model was made for, in pixels."""

    @property
    def samplers(self) -> Sequence[str]: ...

    @property
    def offload_modes(self) -> Sequence[str]: ...

    @property
    def offload_mode(self) -> str: ...

    @property
    def output_dir(self) -> Path:
        """Where finished pictures are saved."""

    def submit(self, request: Txt2Img) -> RunningJob:
        """Queue a job; raises what the user should read."""

    def is_told(self, error: LoraError) -> bool:
        """Tell whether the tab shows an error, at the LoRA it belongs to or at its top."""

    def option(self, key: str) -> object:
        """Return the present value of one of Remora's settings."""

    def set_option(self, key: str, value: object) -> None:
        """Change one of them for the jobs that start from now on; raises what the user should read."""

    def set_offload(self, mode: str) -> None:
        """Change the offload mode between two jobs; raises what the user should read."""
