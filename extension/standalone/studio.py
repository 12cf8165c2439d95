"""What the embedded web UI works with: one loaded model, its LoRA session, and where pictures go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import register
from ..generation.options import FAIL, ON_BAD_LORA
from ..hosts._clocks import SchedulerClock
from ..hosts._diffusers_rows import DiffusersRows
from ..hosts.standalone import STANDALONE, StandaloneHost
from . import offload
from .inversions import TextualInversions

if TYPE_CHECKING:
    import torch

    from ..generation.session import Session
    from .model import LoadedModel


@dataclass
class Studio:
    """Used by one job at a time."""

    model: LoadedModel
    session: Session
    host: StandaloneHost
    device: torch.device
    inversions: TextualInversions
    output_dir: Path | None = None
    """Pictures made with the page are saved here; None saves none."""
    offload_mode: str = offload.NONE
    batch_size: int = 1
    """Pictures that are made at once now."""

    def set_offload(self, mode: str) -> None:
        """Change the offload mode.

        Raises:
            RequestError: there is no such mode on this device.
        """
        if mode != self.offload_mode:
            offload.set_mode(self.model.pipeline, mode, self.device)
            self.offload_mode = mode

    def close(self) -> None:
        """Take Remora off the model and stop being the current host."""
        self.host.close()


def open_studio(
    model: LoadedModel,
    device: torch.device,
    lora_dirs: Sequence[Path],
    output_dir: Path | None = None,
    offload_mode: str = offload.NONE,
    data_dir: Path | None = None,
) -> Studio:
    """Become the current host, connect Remora, and put the model where it runs.

    Args:
        data_dir: where what is set in the page is kept; None forgets it at the end.

    Raises:
        RequestError: there is no such offload mode on this device.
        RuntimeError: Remora could not be set up; the log has the reason.
    """
    offload.check_mode(offload_mode, device)
    # whoever sits before the picture sees the error; a host with pictures of its own rather goes on
    STANDALONE.open(lora_dirs, {ON_BAD_LORA: FAIL}, data_dir)
    session = register()
    if session is None:
        raise RuntimeError("Remora could not be set up; the log has the reason")
    session.set_clock(SchedulerClock(lambda: model.pipeline.scheduler))
    inversions = TextualInversions(model.pipeline)
    STANDALONE.set_components(model.pipeline.components, model.checkpoints, inversions.use)
    offload.set_mode(model.pipeline, offload_mode, device)
    studio = Studio(model, session, STANDALONE, device, inversions, output_dir, offload_mode)
    session.set_rows(DiffusersRows(lambda: model.pipeline, lambda: studio.batch_size))
    return studio
