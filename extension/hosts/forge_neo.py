"""Forge Neo: Forge's backend with ComfyUI's patcher, which merges LoRA when a model is loaded on its device.

A patcher has no loader of LoRA to refresh. It keeps the original weights in a table that all its clones share, and
restores them when it is detached.

Source: Haoming02/sd-webui-forge-classic, branch neo, backend/patcher/base.py and extensions-builtin/sd_forge_lora;
tried with 2.26, in exo101/sd-webui-forge-neo-v3 at 5692d2d.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import nn

from lib_lora import is_denoiser

from ._log_levels import LogLevels
from ._nunchaku import why_not
from ._webui_modules import module, shared
from .base import Remora
from .forge import ForgeHost

_PATCHER = "backend.patcher.base"
_OPERATIONS = ("backend.operations", "backend.operations_int8")


class ForgeNeoHost(ForgeHost):
    """A Forge whose patchers have no `refresh_loras`."""

    name: ClassVar[str] = "forge_neo"
    before: ClassVar[tuple[str, ...]] = ("forge", "a1111")
    lora_dir_flags: ClassVar[tuple[str, ...]] = (*ForgeHost.lora_dir_flags, "lora_dirs")

    def __init__(self) -> None:
        super().__init__()
        self._levels = LogLevels()

    def is_current(self) -> bool:
        patcher = getattr(module(_PATCHER), "ModelPatcher", None)
        detaches = hasattr(patcher, "detach") and not hasattr(patcher, "refresh_loras")
        return detaches and super().is_current()

    def connect(self, remora: Remora) -> None:
        super().connect(remora)
        # the root logger is at ERROR here, unless the user chose a level, and the host's own loggers at INFO
        chosen = getattr(shared().cmd_opts, "loglevel", None) or os.environ.get("SD_WEBUI_LOG_LEVEL")
        self._levels.set(logging.INFO if chosen is None else chosen)

    def unload(self) -> None:
        super().unload()
        self._levels.restore()

    def layer_classes_of(self) -> Iterator[object]:
        for name in _OPERATIONS:
            for value in vars(module(name) or object).values():
                if isinstance(value, type) and not issubclass(value, nn.Module):
                    yield value

    def cannot_serve(self) -> str:
        if getattr(getattr(module("backend.args"), "dynamic_args", None), "nunchaku", False):
            parts = self.components()
            for reason in filter(None, [why_not(parts[name]) for name in parts if is_denoiser(name)]):
                return f"this model is {reason}, which Remora cannot change: the web UI's own LoRA gets the tags"
        return super().cannot_serve()

    def unmerge(self, model: Any) -> None:
        """Detach the original patchers: they restore the weights that their clones merged into."""
        objects = model.forge_objects_original
        for patcher in (objects.unet, getattr(objects.clip, "patcher", None)):
            if patcher is not None:
                patcher.detach()


FORGE_NEO = ForgeNeoHost()
