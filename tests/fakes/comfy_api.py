"""Stand-ins of `comfy_api.latest` of ComfyUI: what Remora's nodes use of its schemas, and no more.

Source: comfy_api/latest/_io.py of Comfy-Org/ComfyUI.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any


class ComfyExtension:
    """Names the nodes of a pack."""


class ComfyNode:
    """A node; ComfyUI runs a clone of its class, which knows its hidden inputs."""

    hidden = SimpleNamespace(unique_id=None)

    @classmethod
    def numbered(cls, number: str) -> Any:
        """Return the clone that ComfyUI runs for the node of this number."""
        return type(cls.__name__, (cls,), {"hidden": SimpleNamespace(unique_id=number)})


class NodeOutput:
    """Outputs of a run, and what the page shows."""

    def __init__(self, *args: Any, ui: dict[str, Any] | None = None) -> None:
        self.args, self.ui = args, ui

    def __getitem__(self, index: int) -> Any:
        return self.args[index]


class Input:
    """An input of a schema."""

    def __init__(self, io_type: str, name: str, *, optional: bool = False, tooltip: str, **options: Any) -> None:
        self.io_type, self.id, self.optional, self.tooltip, self.options = io_type, name, optional, tooltip, options


class Output:
    """An output of a schema."""

    def __init__(self, io_type: str, *, display_name: str | None = None, tooltip: str) -> None:
        self.io_type, self.display_name, self.tooltip = io_type, display_name, tooltip


def Custom(io_type: str) -> Any:  # noqa: N802
    """Return a type of inputs and outputs."""
    return SimpleNamespace(
        Input=lambda name, **options: Input(io_type, name, **options),
        Output=lambda **options: Output(io_type, **options),
    )


KINDS = ("Model", "Clip", "Latent", "Mask", "Conditioning", "Image", "Combo", "Float", "Int", "String")


def modules() -> dict[str, ModuleType]:
    """Return the modules by their names."""
    latest = ModuleType("comfy_api.latest")
    io = SimpleNamespace(ComfyNode=ComfyNode, NodeOutput=NodeOutput, Schema=SimpleNamespace, Custom=Custom)
    io.Hidden = SimpleNamespace(unique_id="UNIQUE_ID")
    for kind in KINDS:
        setattr(io, kind, Custom(kind.upper()))
    latest.__dict__.update(io=io, ComfyExtension=ComfyExtension)
    return {"comfy_api": ModuleType("comfy_api"), "comfy_api.latest": latest}


def put() -> None:
    """Put them in the place of ComfyUI's in this process."""
    sys.modules.update(modules())
