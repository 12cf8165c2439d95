"""Plug-in folders: what lies in a folder is found by itself, in a stable order.

A plug-in module has a public name (no leading underscore) other than `base`. Nobody edits a list to add one.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol, TypeVar

from torch import Tensor

from .errors import RegistryError


class Named(Protocol):
    """What the registry needs of a plug-in."""

    @property
    def name(self) -> str: ...

    @property
    def before(self) -> tuple[str, ...]:
        """Names of plug-ins that must be asked later than this one."""
        ...


class Tuner(Protocol):
    """Decides by measurement how an engine computes. `lib_lora.tuning` has one; without it nothing is measured."""

    stops: list[Callable[[], None]]
    """End what `begin` began."""

    def add_pair_(self, y: Tensor, x: Tensor, down: Tensor, up: Tensor, strength: Tensor) -> bool:
        """Add x down^T diag(strength) up^T onto `y`; return False, and leave `y`, where torch's products are faster."""
        ...

    def begin(self, choices: Any, components: Any, calls: int, exchange: Callable[[], Any]) -> None:
        """Watch the next `calls` calls of the model, and have layers exchanged where merging pays."""
        ...

    def end(self) -> None:
        """Watch no longer; what was decided stays."""
        ...


T = TypeVar("T", bound=Named)
C = TypeVar("C")


def discover(package: ModuleType, kind: type[T]) -> dict[str, T]:
    """Collect the module-level instances of `kind` in `package`, in topological `before` order.

    Raises:
        RegistryError: a name occurs twice, or `before` names something unknown or goes in a circle.
    """
    found: dict[str, T] = {}
    for module in _plugin_modules(package):
        for value in vars(module).values():
            if not isinstance(value, kind) or found.get(value.name) is value:
                continue
            if value.name in found:
                raise RegistryError(f"{package.__name__}: two plug-ins are named {value.name!r}")
            found[value.name] = value
    return {name: found[name] for name in _ordered({name: value.before for name, value in found.items()}, package)}


def discover_classes(package: ModuleType, base: type[C]) -> list[type[C]]:
    """Collect the concrete subclasses of `base` defined in `package`, by `before` order of their `name`.

    Raises:
        RegistryError: as `discover`.
    """
    found: dict[str, type[C]] = {}
    before: dict[str, tuple[str, ...]] = {}
    for module in _plugin_modules(package):
        for value in vars(module).values():
            # by its own type: to Python 3.10, list[int] says that it is an instance of `type`
            if not (issubclass(type(value), type) and issubclass(value, base)):
                continue
            if value.__module__ != module.__name__ or inspect.isabstract(value):
                continue
            name: str = value.name
            if name in found:
                raise RegistryError(f"{package.__name__}: two plug-ins are named {name!r}")
            found[name], before[name] = value, getattr(value, "before", ())
    return [found[name] for name in _ordered(before, package)]


def _plugin_modules(package: ModuleType) -> Iterator[ModuleType]:
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    for name in names:
        if name != "base" and not name.startswith("_"):
            # by the package's own name, so it holds under whatever name the host imported us
            yield importlib.import_module(f"{package.__name__}.{name}")


def _ordered(before: Mapping[str, tuple[str, ...]], package: ModuleType) -> list[str]:
    for name, later in before.items():
        for other in later:
            if other not in before:
                raise RegistryError(f"{package.__name__}: {name!r} wants to be before unknown {other!r}")
    order: list[str] = []
    waiting = sorted(before)
    while waiting:
        free = next((name for name in waiting if not any(name in before[other] for other in waiting)), None)
        if free is None:
            raise RegistryError(f"{package.__name__}: `before` goes in a circle among {', '.join(waiting)}")
        waiting.remove(free)
        order.append(free)
    return order
