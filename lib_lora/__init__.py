"""LoRA adapters applied live in the forward of any torch model; base weights are never written."""

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
from .execution.hooks import install, uninstall
from .files.components import is_denoiser
from .files.file import AdapterFile, Glance, glance
from .files.formats._trainer_config import base_model
from .files.reading import Reading
from .naming.architectures._block import Side
from .naming.blocks import BlockNames, BlockWeights, Element
from .naming.network import Network, inspect_file, load_network, model_blocks, model_family
from .placement.static import RANK_BUCKETS
from .plugins import register, unregister
from .report import ActivationReport, Cause, Family, MemoryReport, NetworkReport, Uncalled, Unused
from .stack import Entry, Stack
from .strengths.model_call import Row, Rows, SchedulerClock
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
    "SchedulerClock",
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
    "register",
    "uninstall",
    "unregister",
]
