"""LoRA adapters applied live in the forward of any torch model; base weights are never written."""

from .engine import Engine
from .errors import (
    ActivationError,
    ComponentError,
    FileError,
    LoraError,
    NoMatchError,
    PickleError,
    RowsError,
    StackError,
    StorageError,
    UnknownAdapterError,
    UnknownFormatError,
)
from .file import AdapterFile, Glance, glance
from .network import Network, inspect_file, load_network, model_family
from .patch import install, uninstall
from .provenance import base_model
from .reading import Reading
from .report import ActivationReport, Cause, Family, MemoryReport, NetworkReport, Unused
from .stack import Entry, Multiplier, PerImage, Stack

__all__ = [
    "ActivationError",
    "ActivationReport",
    "AdapterFile",
    "Cause",
    "ComponentError",
    "Engine",
    "Entry",
    "Family",
    "FileError",
    "Glance",
    "LoraError",
    "MemoryReport",
    "Multiplier",
    "Network",
    "NetworkReport",
    "NoMatchError",
    "PerImage",
    "PickleError",
    "Reading",
    "RowsError",
    "Stack",
    "StackError",
    "StorageError",
    "UnknownAdapterError",
    "UnknownFormatError",
    "Unused",
    "base_model",
    "glance",
    "inspect_file",
    "install",
    "load_network",
    "model_family",
    "uninstall",
]
