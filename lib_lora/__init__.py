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
from .file import AdapterFile
from .network import Network, inspect_file, load_network
from .patch import install, uninstall
from .reading import Reading
from .report import ActivationReport, MemoryReport, NetworkReport, Unused
from .stack import Entry, Multiplier, PerImage, Stack

__all__ = [
    "ActivationError",
    "ActivationReport",
    "AdapterFile",
    "ComponentError",
    "Engine",
    "Entry",
    "FileError",
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
    "inspect_file",
    "install",
    "load_network",
    "uninstall",
]
