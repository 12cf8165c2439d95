"""Plug-ins of other packages: adapter algorithms, key formats, architectures, weight readers, offload schemes and kinds
of files that are no adapters.

Call `register` with a plug-in, or let a distribution name a plug-in, or a module of plug-ins, as an entry point:

    [project.entry-points."lib_lora.plugins"]
    coral = "my_package.coral"

Entry points are loaded when plug-ins are first needed. The names in `__all__` are stable.
"""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeAlias

from . import adapters, registry
from .adapters import Modifier, Operation
from .adapters.base import (
    Adapter,
    At,
    Factors,
    Form,
    InputEffect,
    Kind,
    LowRank,
    Origin,
    OutputEffect,
    Pair,
    Params,
    Rows,
    Shapes,
    Site,
    Tensors,
    taken,
)
from .errors import RegistryError
from .files import formats
from .files.components import DENOISER
from .files.formats import strangers
from .files.formats.base import CONFIG_SCALE, KeyFormat
from .files.formats.strangers.base import Stranger
from .naming import architectures
from .naming.architectures.base import Alias, Architecture, Sign, Variant, aliases, layers, linears, named, within
from .placement import schemes
from .placement.schemes.base import Scheme
from .weights import readers
from .weights.readers.base import WeightReader

__all__ = ["RegistryError", "register", "unregister"]
__all__ += ["Adapter", "At", "Factors", "Form", "InputEffect", "Kind", "LowRank", "Modifier", "Operation", "Origin"]
__all__ += ["OutputEffect", "Pair", "Params", "Rows", "Shapes", "Site", "Tensors", "taken"]
__all__ += ["CONFIG_SCALE", "DENOISER", "Alias", "Architecture", "KeyFormat", "Scheme", "Sign", "Stranger"]
__all__ += ["Variant", "WeightReader", "aliases", "layers", "linears", "named", "within"]

GROUP = "lib_lora.plugins"
"""The group of entry points."""

Plugin: TypeAlias = type[Adapter] | KeyFormat | Architecture | type[WeightReader] | type[Scheme] | Stranger

_FOLDERS: dict[type[Any], ModuleType] = {
    Adapter: adapters,
    Modifier: adapters,
    KeyFormat: formats,
    Architecture: architectures,
    WeightReader: readers,
    Scheme: schemes,
    Stranger: strangers,
}
"""Base class of plug-ins -> the library's folder for them."""

logger = logging.getLogger(__name__)


def register(*plugins: Plugin) -> None:
    """Add plug-ins to the library. Files that were loaded before are read again at the next activation.

    A model that an engine knows keeps the layer names that were known when the engine first used it.

    Raises:
        RegistryError: one is no plug-in or lacks methods, its name is taken, or its `before` names an unknown plug-in
            or forms a circle. The plug-ins before it are registered.
    """
    for plugin in plugins:
        kinds = _kinds(plugin)
        if not kinds:
            known = ", ".join(kind.__name__ for kind in _FOLDERS)
            raise RegistryError(f"{plugin!r} is not a plug-in: want a subclass or an instance of {known}")
        if inspect.isabstract(plugin):
            lacking = ", ".join(sorted(getattr(plugin, "__abstractmethods__", ())))
            raise RegistryError(f"{plugin!r} lacks {lacking}")
        registry.change(_FOLDERS[kinds[0]], kinds, plugin, wanted=True)


def unregister(*plugins: Plugin) -> None:
    """Remove plug-ins that were registered. Others are ignored.

    Raises:
        RegistryError: the `before` of a plug-in that stays names one of them.
    """
    for plugin in plugins:
        if kinds := _kinds(plugin):
            registry.change(_FOLDERS[kinds[0]], kinds, plugin, wanted=False)


def _kinds(plugin: object) -> list[type[Any]]:
    """Return the base classes of a plug-in: one, two of a modifier, none if it is no plug-in."""
    is_kind: Any = issubclass if registry.is_class(plugin) else isinstance
    return [kind for kind in _FOLDERS if is_kind(plugin, kind)]


def load_entry_points() -> None:
    """Register the plug-ins of installed distributions, before plug-ins are first collected."""
    for point in entry_points(group=GROUP):
        try:
            plugins = [point.load()]
            if isinstance(plugins[0], ModuleType):
                values = registry.defined_in(plugins[0])
                plugins = [value for value in values if _kinds(value) and not inspect.isabstract(value)]
            if not plugins:
                raise RegistryError("the module has no plug-in")
            register(*plugins)
        except Exception as error:  # noqa: BLE001  # other people's code; it costs this plug-in alone
            logger.warning("the plug-in %s (%s) is not loaded: %s", point.name, point.value, error)
