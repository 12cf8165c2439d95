"""What a web UI must offer so that Remora can live in it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from lib_lora import Clock, Rows

    from ..text.tag import Pass
    from .txt2img import Txt2Img

WARNINGS = "Remora warnings"
"""Name in a parameters text."""
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


@dataclass(frozen=True)
class Batch:
    """The LoRA tags of the images that are made together, as their prompts have them."""

    images: tuple[tuple[str, ...], ...]
    """For each image what stands between `<lora:` and `>` in its prompt, in order."""
    calls: int | None = None
    """How often the model will be called, over all batches; None where nobody knows."""
    default: float = 1.0
    """The multiplier of a tag without one."""
    without: frozenset[str] = frozenset()
    """Components that LoRA leave alone this time."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of Remora that are others this time, by their keys."""
    seeds: tuple[int, ...] = ()
    """Of the images, as far as known."""
    at: Pass = "base"
    """What the host does now."""


@dataclass(frozen=True)
class Used:
    """One LoRA in force. Its hashes may take reading the whole file, once; they raise OSError if that fails."""

    name: str
    """As the prompt has it."""
    path: Path
    shorthash: Callable[[], str]
    """12 hex digits of the SHA-256 of everything after the header, as "Lora hashes" has it, or what its trainer wrote
    down as such."""
    sha256: Callable[[], str]
    """Of the whole file."""


@dataclass(frozen=True)
class Outcome:
    """What became of a batch's tags."""

    images: tuple[tuple[Used, ...], ...] = ((),)
    """For each image what is in force; one for all where they are alike."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What a parameters text must say of the settings."""
    hashes_wanted: bool = False
    """In the parameters text."""
    problems: tuple[str, ...] = ()
    """One sentence for each LoRA or embedding that was left out, or is for other models; for the user."""
    warnings: Callable[[], Sequence[str]] = tuple
    """Tells what makes the effect of what is in force doubtful, a sentence each: some is known only when the model was
    called."""

    @property
    def parameters(self) -> dict[str, str]:
        """What a parameters text says of that."""
        found = self.warnings()
        return {WARNINGS: "; ".join(found)} if found else {}

    def image(self, index: int) -> tuple[Used, ...]:
        """What is in force for one image of the batch."""
        return self.images[index] if len(self.images) > 1 else self.images[0]


class Remora(Protocol):
    """What a host may ask of Remora; all of it from the thread that makes pictures, but `app_started`."""

    @property
    def enabled(self) -> bool:
        """Whether Remora serves LoRA tags; if not, the host does so itself."""

    def batch(self, batch: Batch) -> Outcome:
        """Put a batch's LoRAs in force in place of all others; images without tags have none.

        Raises:
            LoraError: a tag, name or file failed, and the user wants no picture then; nothing is in force.
        """

    def text_key(self) -> Hashable:
        """What a text encoder's output depends on of what is in force; equal keys, equal outputs."""

    def text_keys(self) -> Sequence[Hashable]:
        """The same for each image by itself."""

    def image(self, index: int) -> None:
        """From now on the text encoders work for this image of the batch."""

    def rows(self, rows: Rows | None) -> None:
        """Say which image each row of a call of the UNet or transformer belongs to; None for whole batches in a row."""

    def clock(self, clock: Clock | None) -> None:
        """Say what tells when a call of the UNet or transformer is, as `lib_lora.Engine.set_clock`."""

    def pasted(self, parameters: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
        """Return the prompt of a parameters text that was read, with the names its LoRA have here, and its settings."""

    def follow_model(self, at: Pass | None = None) -> bool:
        """Be in force on the model the host has now, also where it said nothing of a change.

        Args:
            at: what the host does now; None where it is the same as before.

        Returns:
            Whether it was another one.
        """

    def model_changed(self) -> None:
        """The host has loaded a model: what was in force is in force on it, as soon as a batch runs."""

    def generation_ended(self) -> None:
        """Take all LoRAs off."""

    def app_started(self, app: Any) -> None:
        """The host's FastAPI application takes routes now."""

    def axes(self) -> Sequence[Axis]:
        """Return what X/Y/Z plots can vary."""

    def tab(self) -> Any:
        """Return the tab as gradio Blocks, for hosts whose pages are made with gradio."""

    def unloaded(self) -> None:
        """The host takes its scripts down."""


@dataclass(frozen=True)
class Axis:
    """Something that an X/Y/Z plot can vary."""

    label: str
    kind: type[str] | type[float]
    """Of its values; of numbers, hosts take ranges as well."""
    apply: Callable[[str, str | float], str]
    """From a prompt and a value to the prompt of that picture."""
    choices: Callable[[], list[str]] | None = None
    """The values there are, where those are known."""
    check: Callable[[str], object] = str
    """Raises the reason why a value is none."""


@dataclass(frozen=True)
class Access:
    """What a host demands of those who use its HTTP routes: any one of these; nothing where there are none."""

    password: Callable[[str, str], bool] | None = None
    """Tells whether these are the name and password of a user of the host's API."""
    login: Callable[[Any], Any] | None = None
    """Tells who is logged in on the host's page, from a request; None is nobody. The answer may be awaitable."""


class Painter(Protocol):
    """Makes pictures for Remora the host's own way, in turn with those the user asks for."""

    def check(self, request: Txt2Img) -> None:
        """Check what can be told of a request before its turn.

        Raises:
            RequestError: the host cannot make this one.
        """

    def paint(self, request: Txt2Img, cancelled: Callable[[], bool]) -> Image | None:
        """Make one picture, and wait for it; None where it was cancelled or interrupted.

        Raises:
            RequestError: the host cannot make this one; also whatever its model raises.
        """

    def interrupt(self) -> None:
        """Stop the present one at its next step; never one of the user's."""

    @property
    def fraction(self) -> float:
        """How far the present one is, from 0 to 1."""

    @property
    def samplers(self) -> Sequence[str]:
        """Names of the samplers a request may have."""


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

    def painter(self) -> Painter | None:
        """Return what makes pictures for Remora; None where the host makes none but its user's."""
        return None

    def block_preset_files(self) -> Sequence[Path]:
        """Return the files in which an extension of block weights keeps its presets: of lists, and of rules."""
        return ()

    def data_dir(self) -> Path | None:
        """Return the folder for what Remora keeps, which need not be there; None where nothing outlives the process."""
        return None

    def access(self, app: Any) -> Access:
        """Return what the routes that are added to the host's FastAPI application must demand."""
        return Access()

    @abstractmethod
    def add_options(self, options: Sequence[Option]) -> None:
        """Show these settings; called again on a UI reload."""

    @abstractmethod
    def option(self, key: str) -> object:
        """Return the present value of a setting added before.

        Raises:
            KeyError: no such setting.
        """

    def conflicts(self) -> Sequence[str]:
        """Return one sentence for each other extension of this web UI that cannot do its part beside Remora."""
        return ()

    @abstractmethod
    def connect(self, remora: Remora) -> None:
        """Tell this one from now on what happens, in place of the one given before."""
