"""Offload modes of a pipeline: diffusers' schemes, and the exact way back."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from ..hosts.txt2img import RequestError

logger = logging.getLogger(__name__)

NONE, MODEL, SEQUENTIAL, GROUP = "none", "model", "sequential", "group"
_GROUP_HOOKS = ("group_offloading", "layer_execution_tracker", "lazy_prefetch_group_offloading")


def modes(device: torch.device) -> tuple[str, ...]:
    """Return the modes of a device: without an accelerator there is nothing to offload."""
    return (NONE,) if device.type == "cpu" else (NONE, MODEL, SEQUENTIAL, GROUP)


def check_mode(mode: str, device: torch.device) -> None:
    """Check a mode.

    Raises:
        RequestError: the mode is unknown, or there is no accelerator.
    """
    if mode not in modes(device):
        known = ", ".join(modes(device))
        raise RequestError(f"offload mode {mode!r} is not available on {device.type}; available: {known}")


def set_mode(pipeline: Any, mode: str, device: torch.device) -> None:
    """Put a pipeline into an offload mode, from any other mode.

    Raises:
        RequestError: as `check_mode`.
    """
    check_mode(mode, device)
    _remove(pipeline)
    match mode:
        case "model":
            pipeline.enable_model_cpu_offload(device=device)
        case "sequential":
            pipeline.enable_sequential_cpu_offload(device=device)
        case "group":
            pipeline.enable_group_offload(device, offload_type="leaf_level", use_stream=device.type == "cuda")
        case _:
            pipeline.to(device)
    logger.info("offload mode %s on %s", mode, device)


def _remove(pipeline: Any) -> None:
    pipeline.remove_all_hooks()
    for part in pipeline.components.values():
        for module in part.modules() if isinstance(part, nn.Module) else ():
            if (registry := getattr(module, "_diffusers_hook", None)) is not None:
                for name in _GROUP_HOOKS:
                    registry.remove_hook(name, recurse=False)
    pipeline.to("cpu")
