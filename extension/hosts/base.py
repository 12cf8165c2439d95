"""What a web UI must offer so that Remora can live in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Option:
    """One setting, shown by the host in its settings page."""

    key: str
    default: str | float | bool
    label: str
    info: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Events:
    """What Remora does when the host says that something happened; each host maps its own callbacks to these."""

    model_changed: Callable[[], None]
    tags: Callable[[Sequence[str]], None]
    """A generation starts with these tags, each as written between `<lora:` and `>`; empty switches all off."""
    generation_ended: Callable[[], None]
    app_started: Callable[[Any], None]
    """The host's FastAPI application takes routes now."""
    unloaded: Callable[[], None]


class Host(ABC):
    """One web UI. A subclass imports the host's modules inside its methods: every host file is imported everywhere."""

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()  # hosts that must be asked later, such as what this one is a fork of

    @abstractmethod
    def is_current(self) -> bool:
        """Tell whether this process is that web UI, by what it can do, never by a version."""

    @abstractmethod
    def components(self) -> Mapping[str, nn.Module]:
        """Return the loaded model's parts that LoRA can change, by diffusers' names; empty without a model."""

    @abstractmethod
    def layer_classes(self) -> Sequence[type[nn.Module]]:
        """Return layer classes of the host's own that define their forward."""

    @abstractmethod
    def adapter_dirs(self) -> Sequence[Path]:
        """Return the folders LoRA files are looked for in, the first wins."""

    @abstractmethod
    def add_options(self, options: Sequence[Option]) -> None:
        """Show these settings; called again on a UI reload."""

    @abstractmethod
    def option(self, key: str) -> object:
        """Return the present value of a setting added before.

        Raises:
            KeyError: no such setting.
        """

    @abstractmethod
    def connect(self, events: Events) -> None:
        """Call these from now on, in place of those given before."""
