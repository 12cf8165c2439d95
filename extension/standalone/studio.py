"""The state of the embedded web UI: one loaded model, its LoRA session, and the output folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lib_lora import SchedulerClock

from .. import register
from ..generation.options import FAIL, ON_BAD_LORA
from ..hosts.standalone import STANDALONE, StandaloneHost
from . import offload
from .inversions import TextualInversions

if TYPE_CHECKING:
    import torch

    from ..generation.session import Session
    from .model import LoadedModel


@dataclass
class Studio:
    """Model, session and output folder; used by one job at a time."""

    model: LoadedModel
    session: Session
    host: StandaloneHost
    device: torch.device
    inversions: TextualInversions
    output_dir: Path | None = None
    """For pictures made with the page; None saves none."""
    offload_mode: str = offload.NONE

    def set_offload(self, mode: str) -> None:
        """Change the offload mode.

        Raises:
            RequestError: this device does not have this mode.
        """
        if mode != self.offload_mode:
            offload.set_mode(self.model.pipeline, mode, self.device)
            self.offload_mode = mode

    def close(self) -> None:
        """Remove Remora from the model and stop being the current host."""
        self.host.close()


def open_studio(
    model: LoadedModel,
    device: torch.device,
    lora_dirs: Sequence[Path],
    output_dir: Path | None = None,
    offload_mode: str = offload.NONE,
    data_dir: Path | None = None,
) -> Studio:
    """Become the current host, connect Remora, and move the model to its device.

    Args:
        data_dir: for data set in the page; None keeps them in memory only.

    Raises:
        RequestError: this device does not have this offload mode.
        RuntimeError: connecting Remora failed; the log has the reason.
    """
    offload.check_mode(offload_mode, device)
    # the user sees the error at once; in other hosts the default is to go on
    STANDALONE.open(lora_dirs, {ON_BAD_LORA: FAIL}, data_dir, output_dir)
    session = register()
    if session is None:
        raise RuntimeError("Remora could not be set up; the log has the reason")
    session.model.set_clock(SchedulerClock(lambda: model.pipeline.scheduler))
    inversions = TextualInversions(model.pipeline)
    STANDALONE.set_components(model.pipeline.components, model.checkpoints, inversions.use, model.path)
    offload.set_mode(model.pipeline, offload_mode, device)
    return Studio(model, session, STANDALONE, device, inversions, output_dir, offload_mode)
