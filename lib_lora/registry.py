"""The registry of plug-ins: files in a folder of the library, and plug-ins of other packages, in a stable order.

A plug-in module of the library has a public name (no leading underscore) other than `base`. Other packages use
`lib_lora.plugins`, which is built on this module.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, ParamSpec, TypeVar

from .errors import RegistryError

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

_added: defaultdict[str, list[Any]] = defaultdict(list)
"""The name of the library's folder for a kind of plug-ins -> the plug-ins of other packages."""
_caches: list[Callable[[], None]] = []
_has_entry_points = False
_version = 0


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """Cache a function of the plug-ins until one is added."""
    kept = lru_cache(maxsize=1024)(function)
    _caches.append(kept.cache_clear)
    return kept  # type: ignore[return-value]


def change(package: ModuleType, kinds: Sequence[type[Any]], plugin: Any, *, wanted: bool) -> None:
    """Add a plug-in of another package to those in `package`, as each of `kinds`, or remove it.

    Raises:
        RegistryError: as `discover`. Then nothing changes.
    """
    former = _added[package.__name__]
    others = [other for other in former if other is not plugin]
    if wanted == (len(others) < len(former)):
        return
    _added[package.__name__] = [*others, plugin] if wanted else others
    _clear()
    try:
        for kind in kinds:
            (discover_classes if is_class(plugin) else discover)(package, kind)
    except RegistryError:
        _added[package.__name__] = former
        _clear()
        raise


def version() -> int:
    """Return a number that differs after each change of the plug-ins."""
    return _version


def _clear() -> None:
    global _version
    _version += 1
    for clear in _caches:
        clear()


@cached
def discover(package: ModuleType, kind: type[T]) -> Mapping[str, T]:
    """Return the instances of `kind` in `package`, and those added to it, by name and in `before` order.

    Raises:
        RegistryError: a name occurs twice, or `before` names an unknown plug-in or forms a circle.
    """
    return _collected(package, lambda value: isinstance(value, kind))


@cached
def discover_classes(package: ModuleType, base: type[T]) -> tuple[type[T], ...]:
    """Return the concrete subclasses of `base` in `package`, and those added to it; as `discover`."""

    def matches(value: Any) -> bool:
        return is_class(value) and issubclass(value, base) and not inspect.isabstract(value)

    return tuple(_collected(package, matches).values())


def is_class(value: object) -> bool:
    """Tell whether a value is a class, by its own type: to Python 3.10, list[int] is an instance of `type`."""
    return issubclass(type(value), type)


def defined_in(module: ModuleType) -> Iterator[Any]:
    """Yield the values of a module, without classes that it imports."""
    for value in vars(module).values():
        if not is_class(value) or value.__module__ == module.__name__:
            yield value


def _collected(package: ModuleType, matches: Callable[[Any], bool]) -> Mapping[str, Any]:
    global _has_entry_points
    if not _has_entry_points:
        _has_entry_points = True
        import_module(f"{__package__}.plugins").load_entry_points()  # which imports this module
    values: list[Any] = []
    for name in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        if name != "base" and not name.startswith("_"):
            # by the package's own name, so it holds under whatever name the host imported us
            values += defined_in(import_module(f"{package.__name__}.{name}"))
    plugins: dict[str, Any] = {}
    for value in filter(matches, [*values, *_added[package.__name__]]):
        if plugins.setdefault(value.name, value) is not value:
            raise RegistryError(f"{package.__name__}: two plug-ins are named {value.name!r}")
    before = {name: getattr(value, "before", ()) for name, value in plugins.items()}
    unknown = [(name, other) for name, later in before.items() for other in later if other not in before]
    if unknown:
        name, other = unknown[0]
        raise RegistryError(f"{package.__name__}: {name!r} wants to be before unknown {other!r}")
    order, waiting = dict[str, Any](), sorted(before)
    while waiting:
        free = next((name for name in waiting if not any(name in before[other] for other in waiting)), None)
        if free is None:
            raise RegistryError(f"{package.__name__}: `before` goes in a circle among {', '.join(waiting)}")
        waiting.remove(free)
        order[free] = plugins[free]
    return MappingProxyType(order)
