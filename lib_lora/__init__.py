"""LoRA adapters applied live in the forward of any torch model; only merging writes base weights.

A host imports this when it starts. What a start does not need is imported by the first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    ActivationError,
    ArgumentError,
    ComponentError,
    FileError,
    LoraError,
    MomentError,
    NoMatchError,
    PickleError,
    RegionError,
    RowsError,
    StackError,
    StorageError,
    UnknownAdapterError,
    UnknownFormatError,
)
from .execution.hooks import install, uninstall
from .files.components import EXACT as COMPONENTS
from .files.components import is_denoiser
from .files.file import AdapterFile, Glance, glance
from .files.formats import base_model
from .files.reading import Reading
from .files.sources import component_files
from .naming.blocks import BlockNames, BlockWeights, Element, Side
from .report import ActivationReport, Cause, Family, MemoryReport, NetworkReport, Uncalled, Unused
from .stack import Entry, Stack
from .strengths.pipeline_rows import Row
from .strengths.regions import Region
from .strengths.strength import (
    Amount,
    Clock,
    Curve,
    Halves,
    Moment,
    Multiplier,
    PerImage,
    Shape,
    Strength,
    Unit,
    Window,
    is_off,
)

if TYPE_CHECKING:
    from .engine import Engine
    from .naming.network import Network, inspect_file, load_network, model_blocks, model_family
    from .pipelines.attached import PipelineEngine, attach
    from .pipelines.calls import LoraCalls, replace_lora_calls
    from .placement.static import RANK_BUCKETS
    from .plugins import register, unregister
    from .saving import (
        InputSamples,
        SavedFile,
        SavedLayer,
        bake_stack,
        combine_files,
        convert_file,
        extract_lora,
        save_again,
        save_stack,
    )
    from .strengths.model_call import Rows, SchedulerClock

__all__ = ["LoraCalls", "PipelineEngine", "attach", "replace_lora_calls"]
__all__ += ["SavedFile", "SavedLayer", "bake_stack", "combine_files", "convert_file", "extract_lora", "save_again"]
__all__ += ["InputSamples", "save_stack"]
__all__ += ["RANK_BUCKETS", "Engine", "Entry", "Reading", "Stack", "install", "uninstall"]
__all__ += ["Amount", "BlockNames", "BlockWeights", "Curve", "Element", "Halves", "Multiplier", "PerImage", "Region"]
__all__ += ["Shape", "Side", "Strength", "Unit", "Window", "is_off"]
__all__ += ["Clock", "Moment", "Row", "Rows", "SchedulerClock"]
__all__ += ["COMPONENTS", "AdapterFile", "Glance", "Network", "base_model", "component_files", "glance", "inspect_file"]
__all__ += ["is_denoiser"]
__all__ += ["load_network", "model_blocks", "model_family", "register", "unregister"]
__all__ += ["ActivationReport", "Cause", "Family", "MemoryReport", "NetworkReport", "Uncalled", "Unused"]
__all__ += ["ActivationError", "ArgumentError", "ComponentError", "LoraError", "MomentError", "RegionError"]
__all__ += ["RowsError", "StackError"]
__all__ += ["FileError", "NoMatchError", "PickleError", "StorageError", "UnknownAdapterError", "UnknownFormatError"]

_AT_FIRST_ACCESS = {
    "engine": ("Engine",),
    "naming.network": ("Network", "inspect_file", "load_network", "model_blocks", "model_family"),
    "pipelines.attached": ("PipelineEngine", "attach"),
    "pipelines.calls": ("LoraCalls", "replace_lora_calls"),
    "placement.static": ("RANK_BUCKETS",),
    "saving": (
        "InputSamples",
        "SavedFile",
        "SavedLayer",
        "bake_stack",
        "combine_files",
        "convert_file",
        "extract_lora",
        "save_again",
        "save_stack",
    ),
    "plugins": ("register", "unregister"),
    "strengths.model_call": ("Rows", "SchedulerClock"),
}


def __getattr__(name: str) -> object:
    for module, names in _AT_FIRST_ACCESS.items():
        if name in names:
            value: object = getattr(import_module(f".{module}", __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
