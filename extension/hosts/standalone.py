"""The embedded web UI as a host; current once it has opened itself in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .base import Embeddings, Host, Option, Painter, Remora

if TYPE_CHECKING:
    from torch import nn

_ADAPTABLE = ("unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3")


class StandaloneHost(Host):
    """The state that the embedded web UI set up, as a host."""

    name: ClassVar[str] = "standalone"
    has_own_lora: ClassVar[bool] = False

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._open = False
        self._parts: Mapping[str, nn.Module] = {}
        self._checkpoints: Mapping[str, Sequence[Path]] = {}
        self._model: Path | None = None
        self._use_embeddings: Callable[[Embeddings], Sequence[str]] | None = None
        self._dirs: tuple[Path, ...] = ()
        self._data_dir: Path | None = None
        self._output_dir: Path | None = None
        self._values: dict[str, object] = {}
        self._remora: Remora | None = None
        self.painter: Painter | None = None

    def open(
        self,
        dirs: Sequence[Path],
        settings: Mapping[str, object],
        data_dir: Path | None = None,
        output_dir: Path | None = None,
    ) -> None:
        """Become the current host, with these LoRA folders and settings other than the defaults."""
        self._open = True
        self._data_dir, self._output_dir = data_dir, output_dir
        self._dirs = tuple(dirs)
        self._values = dict(settings)

    def close(self) -> None:
        """Stop being the current host and forget the model; reports the unload first."""
        if self._remora is not None:
            self._remora.unloaded()
        self._reset()

    def set_components(
        self,
        parts: Mapping[str, object],
        checkpoints: Mapping[str, Sequence[Path]] | None = None,
        use_embeddings: Callable[[Embeddings], Sequence[str]] | None = None,
        model: Path | None = None,
    ) -> None:
        """Use the parts of a newly loaded pipeline that LoRA can change, and report that.

        Args:
            parts: the pipeline's.
            checkpoints: as `Host.checkpoints`.
            use_embeddings: as `Host.use_embeddings`, for the pipeline.
            model: the file or the folder that the pipeline was loaded from.
        """
        if self._use_embeddings is not None:
            self._use_embeddings({})  # the former pipeline's
        self._checkpoints, self._use_embeddings, self._model = checkpoints or {}, use_embeddings, model
        self._parts = {name: part for name in _ADAPTABLE if (part := _module(parts.get(name))) is not None}
        if self._remora is not None:
            self._remora.model_changed()

    def app_started(self, app: object) -> None:
        """Report that the FastAPI application accepts routes now."""
        if self._remora is not None:
            self._remora.app_started(app)

    def is_current(self) -> bool:
        return self._open

    @property
    def families(self) -> frozenset[str] | None:
        return frozenset({"sd1", "sd2", "sdxl", "sdxl_refiner"})

    def components(self) -> Mapping[str, nn.Module]:
        return self._parts

    def checkpoints(self) -> Mapping[str, Sequence[Path]]:
        return self._checkpoints

    def models(self) -> Mapping[str, Path]:
        """Return the loaded model, and the models of the same form in its folder."""
        if self._model is None:
            return {}
        folder = self._model.parent
        if self._model.is_file():
            return {one.stem: one for one in sorted(folder.glob("[!.]*.safetensors"))}
        return {one.parent.name: one.parent for one in sorted(folder.glob("[!.]*/model_index.json"))}

    def use_embeddings(self, embeddings: Embeddings) -> Sequence[str]:
        take = super().use_embeddings if self._use_embeddings is None else self._use_embeddings
        return take(embeddings)

    def adapter_dirs(self) -> Sequence[Path]:
        return self._dirs

    def output_dirs(self) -> Sequence[Path]:
        return () if self._output_dir is None else (self._output_dir,)

    def data_dir(self) -> Path | None:
        return self._data_dir

    def add_options(self, options: Sequence[Option]) -> None:
        for option in options:
            self._values.setdefault(option.key, option.default)

    def option(self, key: str) -> object:
        return self._values[key]

    def set_option(self, key: str, value: object) -> None:
        """Change a setting.

        Raises:
            KeyError: there is no such setting.
        """
        if key not in self._values:
            raise KeyError(key)
        self._values[key] = value

    def connect(self, remora: Remora) -> None:
        self._remora = remora


STANDALONE = StandaloneHost()


def _module(part: object) -> nn.Module | None:
    from torch import nn

    return part if isinstance(part, nn.Module) else None
