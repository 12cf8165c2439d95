"""Remora's axes in the X/Y/Z plots of web UIs of A1111's family."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from ._webui_modules import module
from .base import Axis

_MARK = "[Remora] "
_PACKAGE = "scripts.xyz.xyz_grid_classes"  # of SD.Next


def add_axes(axes: Sequence[Axis]) -> None:
    """Replace the axes in every plot by these; must be called before the page is made."""
    for plot in _plots():
        others = [option for option in plot.axis_options if not str(option.label).startswith(_MARK)]
        # change the list in place: other modules hold it
        plot.axis_options[:] = [*others, *(_option(plot, axis) for axis in axes)]


def _plots() -> Iterator[ModuleType]:
    for name in ("modules.scripts", "modules.scripts_manager"):
        for script in getattr(module(name), "scripts_data", ()):
            if _is_plot(script.module):
                yield script.module
    if _is_plot(found := sys.modules.get(_PACKAGE)):
        assert found is not None
        yield found


def _is_plot(found: object) -> bool:
    return isinstance(getattr(found, "axis_options", None), list) and hasattr(found, "AxisOption")


def _option(plot: ModuleType, axis: Axis) -> Any:
    return plot.AxisOption(
        f"{_MARK}{axis.label}", axis.kind, _apply(axis), confirm=_confirm(axis), choices=axis.choices
    )


def _apply(axis: Axis) -> Callable[[Any, Any, Any], None]:
    def apply(p: Any, value: Any, values: Any) -> None:
        p.prompt = axis.apply(p.prompt, value)

    return apply


def _confirm(axis: Axis) -> Callable[[Any, Any], None]:
    def confirm(p: Any, values: Sequence[Any]) -> None:
        for value in values:
            axis.check(value)  # the page shows its error

    return confirm
