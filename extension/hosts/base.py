"""What a web UI must offer so that Remora can live in it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, nn

Embeddings: TypeAlias = "Mapping[str, Mapping[str, Tensor]]"
"""{name to prompt with: {part: vectors (tokens, width)}}; parts as in `lib_lora.Network.embeddings`."""


@dataclass(frozen=True)
class Option:
    """One setting, shown by the host in its settings page; what it takes is told by the type of its default."""

    key: str
    default: str | int | float | bool
    """A text is one of `choices`; of the numbers, an `int` is a whole one."""
    label: str
    info: str = ""
    choices: tuple[str, ...] = ()
    minimum: float = -math.inf
    maximum: float = math.inf


class Tags(Protocol):
    """What is called with a generation's tags."""

    def __call__(self, arguments: Sequence[str], calls: int | None = None) -> None:
        """Put these in force; `calls` is how often the generation will call the model, None where nobody knows."""


@dataclass(frozen=True)
class Events:
    """What Remora does when the host says that something happened; each host maps its own callbacks to these."""

    model_changed: Callable[[], None]
    tags: Tags
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

    def checkpoints(self) -> Mapping[str, Sequence[Path]]:
        """Return the safetensors files each component was loaded from, as far as known.

        A weight that LoRA were merged into is then put back from there, instead of from a copy in memory.
        """
        return {}

    def use_embeddings(self, embeddings: Embeddings) -> Sequence[str]:
        """Let prompts use these textual inversions, which came with LoRA files, in place of those given before.

        Returns:
            One sentence for each that cannot be used.
        """
        return [f"embedding {name!r} stays plain words: {self.name} takes none from a LoRA file" for name in embeddings]

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
