"""LoRA adapters applied live in the forward of any torch model; base weights are never written."""

from .blocks import BlockNames, BlockWeights, Element, Side
from .buckets import RANK_BUCKETS
from .components import is_denoiser
from .engine import Engine
from .errors import (
    ActivationError,
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
from .file import AdapterFile, Glance, glance
from .multiplier import Amount, Halves, Multiplier, PerImage, Strength, is_off
from .network import Network, inspect_file, load_network, model_blocks, model_family
from .patch import install, uninstall
from .provenance import base_model
from .reading import Reading
from .region import Region
from .report import ActivationReport, Cause, Family, MemoryReport, NetworkReport, Uncalled, Unused
from .rows import Row, Rows
from .schedule import Clock, Curve, Moment, Shape, Unit, Window
from .stack import Entry, Stack

__all__ = [
    "RANK_BUCKETS",
    "ActivationError",
    "ActivationReport",
    "AdapterFile",
    "Amount",
    "BlockNames",
    "BlockWeights",
    "Cause",
    "Clock",
    "ComponentError",
    "Curve",
    "Element",
    "Engine",
    "Entry",
    "Family",
    "FileError",
    "Glance",
    "Halves",
    "LoraError",
    "MemoryReport",
    "Moment",
    "MomentError",
    "Multiplier",
    "Network",
    "NetworkReport",
    "NoMatchError",
    "PerImage",
    "PickleError",
    "Reading",
    "Region",
    "RegionError",
    "Row",
    "Rows",
    "RowsError",
    "Shape",
    "Side",
    "Stack",
    "StackError",
    "StorageError",
    "Strength",
    "Uncalled",
    "Unit",
    "UnknownAdapterError",
    "UnknownFormatError",
    "Unused",
    "Window",
    "base_model",
    "glance",
    "inspect_file",
    "install",
    "is_denoiser",
    "is_off",
    "load_network",
    "model_blocks",
    "model_family",
    "uninstall",
]
