"""The interface that a web UI must implement for Remora."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from lib_lora import LoraError

from ..brake import Brake

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from lib_lora import Clock, Rows

    from ..text.tag import Pass
    from .txt2img import Txt2Img

WARNINGS = "Remora warnings"
"""Name in a parameters text."""
Embeddings: TypeAlias = "Mapping[str, Mapping[str, Tensor]]"
"""{name in a prompt: {part: vectors (tokens, width)}}; parts as in `lib_lora.Network.embeddings`."""


class NotMadeError(LoraError):
    """The user interrupted a picture before its first step; the message is one sentence."""


def uninterrupted(text: str) -> bool:
    """Let pictures go on, and show nothing."""
    return True


@dataclass(frozen=True)
class Option:
    """One setting on the host's settings page; the type of its default is its type."""

    key: str
    default: str | int | float | bool
    """A str is one of `choices`; an int allows whole numbers only."""
    label: str
    info: str = ""
    choices: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """Choices of former versions; a saved one becomes the default."""
    minimum: float = -math.inf
    maximum: float = math.inf
    expert: bool = False
    """Whether few users need it, so that pages show it apart."""


@dataclass(frozen=True)
class Batch:
    """The LoRA tags in the prompts of images that are made together."""

    images: tuple[tuple[str, ...], ...]
    """For each image, the texts between `<lora:` and `>` in its prompts, in order; `PlacedTag` where their places are
    known."""
    default: float = 1.0
    """The multiplier of a tag without a number."""
    without: frozenset[str] = frozenset()
    """Components that LoRA do not change this time."""
    advice: str = ""
    """What the user does to have them changed; empty if nothing is known."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Remora's settings that have another value this time, by key."""
    seeds: tuple[int, ...] = ()
    """Of the images, as far as known."""
    at: Pass = "base"
    """The host's present pass."""
    steps: int | None = None
    """Steps of the base pass; None if unknown, or in another pass."""
    cfg: float | None = None
    """The CFG scale of the base pass; None if unknown, or in another pass."""
    goes_on: Callable[[str], bool] = uninterrupted
    """Shows a text beside the progress of the pictures, and tells whether the user lets them go on."""


@dataclass(frozen=True)
class Used:
    """One active LoRA. A hash may read the whole file once, and raises OSError if that fails."""

    name: str
    """As in the prompt."""
    path: Path
    shorthash: Callable[[], str]
    """12 hex digits of the SHA-256 of everything after the header, as in "Lora hashes", or the hash that its trainer
    stored."""
    sha256: Callable[[], str]
    """Of the whole file."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a batch's tags."""

    images: tuple[tuple[Used, ...], ...] = ((),)
    """The active LoRA of each image; one item for all if they are equal."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings for the parameters text."""
    hashes_wanted: bool = False
    """Write hashes into the parameters text."""
    problems: tuple[str, ...] = ()
    """For the user, one sentence per LoRA or embedding that was left out or is for other models."""
    warnings: Callable[[], Sequence[str]] = tuple
    """Returns why the effect of the active LoRA is doubtful, one sentence each; complete only after the model was
    called."""

    @property
    def parameters(self) -> dict[str, str]:
        """Return the warnings for the parameters text."""
        found = self.warnings()
        return {WARNINGS: "; ".join(found)} if found else {}

    def image(self, index: int) -> tuple[Used, ...]:
        """Return the active LoRA of one image of the batch."""
        return self.images[index] if len(self.images) > 1 else self.images[0]


class Remora(Protocol):
    """What a host may call on Remora; all except `app_started` from the thread that makes pictures."""

    @property
    def enabled(self) -> bool:
        """Return whether Remora applies LoRA tags; if not, the host applies them itself."""

    @property
    def grammar(self) -> bool | None:
        """Return whether brackets around tags mean something, see `text.grammar`; None while the host applies them."""

    @property
    def handed_back(self) -> str:
        """Return why the host applies the tags itself though Remora is on; empty if Remora applies them or is off."""

    def batch(self, batch: Batch) -> Outcome:
        """Activate the LoRA of a batch in place of all others; an image without tags has none.

        Raises:
            NotMadeError: the user interrupted it; no LoRA is active.
            LoraError: a tag, name or file failed and the settings stop the generation; no LoRA is active.
        """

    def handed_over(self, images: Sequence[Sequence[str]], at: Pass) -> Outcome:
        """Note that the web UI's own LoRA gets the tags of a batch; return why, unless Remora is turned off.

        Args:
            images: as `Batch.images`.
            at: the host's present pass.
        """

    @property
    def pictures(self) -> object:
        """Return the state of the present pictures, for `go_on_with`."""

    def go_on_with(self, pictures: object) -> None:
        """Note that the latest batch goes on with these pictures, after others were made in between."""

    def ended_by(self, error: BaseException) -> None:
        """Note that an error ended the generation: its LoRA have not made the pictures."""

    def text_key(self) -> Hashable:
        """Return a key of everything that changes the text encoders' output; equal keys mean equal outputs."""

    def text_keys(self) -> Sequence[Hashable]:
        """Return the same key for each image of the batch."""

    def image(self, index: int | None) -> None:
        """Make the text encoders use the LoRA of this image of the batch; None, of the image of each row."""

    def bytes_to_place(self) -> int:
        """Return the bytes of the GPU that the active LoRA will take beside what they take now."""

    def rows(self, rows: Rows | None) -> None:
        """Set which image each row of a denoiser call belongs to; None as `lib_lora.Engine.set_rows`."""

    def clock(self, clock: Clock | None) -> None:
        """Set the clock that tells the step of each denoiser call, as `lib_lora.Engine.set_clock`."""

    def pasted(self, parameters: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
        """Return the prompt of a pasted parameters text, with LoRA names as they are here, and its settings."""

    def follow_model(self, at: Pass | None = None) -> bool:
        """Move to the host's present model, even if the host did not report a change.

        Args:
            at: the host's present pass; None if it is unchanged.

        Returns:
            Whether the model is another one.
        """

    def model_changed(self) -> None:
        """Handle that the host loaded a model: the next batch activates its LoRA on it."""

    def generation_ended(self) -> None:
        """Deactivate all LoRA."""

    def pictures_made(self, pictures: Sequence[tuple[int, Any]]) -> None:
        """Record the pictures of a generation that ended.

        Args:
            pictures: seed and image of each; none if the generation failed.
        """

    def cannot_apply(self, error: Exception, *, in_picture: bool) -> None:
        """Leave the tags to the host from now on, until Remora is turned off and on or another model is loaded.

        Logs the error, and shows it in the tab.

        Raises:
            LoraError: a picture is being made, and the settings stop the generation.
        """

    def failed(self, sentence: str, images: Sequence[Sequence[str]] = (), at: Pass = "base") -> Outcome:
        """Log an error and show it in the tab.

        Args:
            sentence: about the error.
            images: for each image, the tags that have no effect for it.
            at: the host's present pass.

        Raises:
            LoraError: the settings stop the generation.
        """

    def app_started(self, app: Any) -> None:
        """Add Remora's routes to the host's FastAPI application."""

    def axes(self) -> Sequence[Axis]:
        """Return what X/Y/Z plots can vary."""

    def tab(self) -> Any:
        """Return the tab as gradio Blocks, for hosts with gradio pages."""

    def unloaded(self) -> None:
        """Handle that the host unloads its scripts."""


@dataclass(frozen=True)
class Axis:
    """One parameter that an X/Y/Z plot can vary."""

    label: str
    kind: type[str] | type[float]
    """Type of its values; hosts accept ranges of numbers."""
    apply: Callable[[str, str | float], str]
    """Returns the prompt with this value."""
    choices: Callable[[], list[str]] | None = None
    """Returns all values, if they are known."""
    check: Callable[[str], object] = str
    """Raises if a value is invalid, with the reason."""


@dataclass(frozen=True)
class Access:
    """Credentials that the host demands on its HTTP routes: one of these suffices; open if both are None."""

    password: Callable[[str, str], bool] | None = None
    """Tells whether a user of the host's API has this name and password."""
    login: Callable[[Any], Any] | None = None
    """Returns who is logged in on the host's page for a request, or None; may be awaitable."""
    brake: Brake = field(default_factory=Brake, compare=False)
    """Counts wrong passwords."""


class Painter(Protocol):
    """Makes pictures for Remora in the host's own way, queued with the user's."""

    def check(self, request: Txt2Img) -> None:
        """Check a request before its turn.

        Raises:
            RequestError: the host cannot make this picture.
        """

    def paint(self, request: Txt2Img, cancelled: Callable[[], bool]) -> Image | None:
        """Make one picture and wait for it; return None if it was cancelled or interrupted.

        Raises:
            RequestError: the host cannot make this picture. Errors of the model pass through.
        """

    def interrupt(self) -> None:
        """Stop Remora's present picture at its next step; never one of the user's."""

    @property
    def fraction(self) -> float:
        """Return the progress of the present picture, from 0 to 1."""

    @property
    def samplers(self) -> Sequence[str]:
        """Return the names of the samplers a request may use."""


class Host(ABC):
    """One web UI. A subclass imports the host's modules inside its methods: every host file is imported everywhere."""

    name: ClassVar[str]
    has_parts: ClassVar[bool] = False
    """Whether each part of a prompt that AND divides has its own rows in a model call."""
    has_own_lora: ClassVar[bool] = True
    """Whether it applies the tags itself where Remora does not."""
    has_comments: ClassVar[bool] = False
    """Whether a # in a prompt begins a comment, even inside a tag."""
    before: ClassVar[tuple[str, ...]] = ()  # hosts to check after this one, such as the one it is a fork of
    painter: Painter | None = None
    """What makes pictures for Remora; None if the host makes its user's pictures only."""
    examples: Sequence[str] = (
        "portrait of a woman, smiling",
        "a man walking in a street, full body",
        "a cat on a wooden table",
        "a house by a lake, mountains",
    )
    """Prompts that the loaded model understands, to show what a LoRA does."""

    @abstractmethod
    def is_current(self) -> bool:
        """Tell whether this process is that web UI, by its features, never by a version."""

    @property
    def families(self) -> frozenset[str] | None:
        """Return the families of models that it loads, by the names of `lib_lora.Family`; None if unknown."""
        return None

    @abstractmethod
    def components(self) -> Mapping[str, nn.Module]:
        """Return the loaded model's parts that LoRA can change, by diffusers' names; empty without a model."""

    def checkpoints(self) -> Mapping[str, Sequence[Path]]:
        """Return the safetensors files each component was loaded from, as far as known.

        A merged weight is then restored from its file instead of from a copy in memory.
        """
        return {}

    def models(self) -> Mapping[str, Path]:
        """Return the models on disk that the host lists, safetensors files and folders, by the names that it shows."""
        return {}

    def use_embeddings(self, embeddings: Embeddings) -> Sequence[str]:
        """Let prompts use these textual inversions from LoRA files, in place of the previous ones.

        Returns:
            One sentence for each that cannot be used.
        """
        return [
            f"embedding {name!r} is read as plain words: {self.name} takes none from a LoRA file" for name in embeddings
        ]

    def layer_classes(self) -> Sequence[type[nn.Module]]:
        """Return the host's own layer classes that define their forward."""
        return ()

    @abstractmethod
    def adapter_dirs(self) -> Sequence[Path]:
        """Return the folders of LoRA files."""

    def output_dirs(self) -> Sequence[Path]:
        """Return the folders in which the host saves pictures, which need not exist; empty if it saves none."""
        return ()

    def own_choice(self, files: Sequence[Path]) -> Path | None:
        """Return which of several files of one name the host's own LoRA takes; None if it takes none."""
        return None

    def block_preset_files(self) -> Sequence[Path]:
        """Return the preset files of a block-weight extension: of lists, and of rules."""
        return ()

    def data_dir(self) -> Path | None:
        """Return the folder for data that Remora keeps, which need not exist; None keeps nothing."""
        return None

    def access(self, app: Any) -> Access:
        """Return the credentials that routes added to the host's FastAPI application must demand."""
        return Access()

    @abstractmethod
    def add_options(self, options: Sequence[Option]) -> None:
        """Show these settings; called again when the UI reloads."""

    @abstractmethod
    def option(self, key: str) -> object:
        """Return the present value of a setting that was added.

        Raises:
            KeyError: there is no such setting.
        """

    def set_option(self, key: str, value: object) -> None:
        """Change a setting that was added, and keep it.

        Raises:
            KeyError: there is no such setting.
            PermissionError: the host's settings are fixed.
            OSError: it cannot be kept.
        """
        raise PermissionError(f"Remora cannot change settings of this web UI; change {key} there")

    def cannot_serve(self) -> str:
        """Return why LoRA would have no effect on the present model; empty if they have, or may have."""
        return ""

    def conflicts(self) -> Sequence[str]:
        """Return one sentence for each other extension that does not work beside Remora."""
        return ()

    @abstractmethod
    def connect(self, remora: Remora) -> None:
        """Report events to this object from now on, in place of the previous one."""
