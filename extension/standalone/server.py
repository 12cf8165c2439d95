"""One application: the HTTP API and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI

from ..generation import Txt2Img
from ..options import checked, default_multiplier
from ..prompt import Tag, format_tag
from . import offload
from .jobs import Job, Runner
from .sampling import choices
from .sdapi import SdApi

if TYPE_CHECKING:
    from ..ui.backend import Backend

_UNWRITABLE = frozenset("<>:")  # in a tag; a file with one of these in its name is known by its alias or hash only


class PageBackend:
    """What the page sees of the studio."""

    def __init__(self, runner: Runner, output_dir: Path, first_prompt: str = "") -> None:
        self._runner = runner
        self._visited = not first_prompt
        self.output_dir = output_dir
        self.first_prompt = first_prompt
        self.model_name: str = runner.studio.model.name
        self.side: int = runner.studio.model.side
        self.samplers: Sequence[str] = choices()
        self.offload_modes: Sequence[str] = offload.modes(runner.studio.device)

    def first_visit(self) -> bool:
        visited, self._visited = self._visited, True
        return not visited

    @property
    def offload_mode(self) -> str:
        return self._runner.studio.offload_mode

    def loras(self) -> Sequence[str]:
        return [name for name in self._runner.studio.session.catalog.names() if not _UNWRITABLE & set(name)]

    def refresh_loras(self) -> None:
        self._runner.studio.session.catalog.refresh()

    def lora_tag(self, name: str) -> str:
        multiplier = default_multiplier(self._runner.studio.host)
        return format_tag(Tag(name, multiplier, multiplier))

    def submit(self, request: Txt2Img) -> Job:
        return self._runner.submit(request, save=True)

    def option(self, key: str) -> object:
        return self._runner.studio.host.option(key)

    def set_option(self, key: str, value: object) -> None:
        self._runner.studio.host.set_option(key, checked(key, value))

    def set_offload(self, mode: str) -> None:
        self._runner.call(lambda: self._runner.studio.set_offload(mode))


def make_api(runner: Runner) -> FastAPI:
    """Return an application with the HTTP API alone."""
    app = FastAPI(title="Remora")
    SdApi(runner).add_routes(app)
    runner.studio.host.app_started(app)
    return app


def make_app(runner: Runner, output_dir: Path, first_prompt: str = "") -> FastAPI:
    """Return an application with the HTTP API and the page.

    With a `first_prompt` the page opens with it, and makes its picture at the first visit.
    """
    from ..ui.page import build_page, mount_page  # gradio takes two seconds that the API alone can spare

    backend: Backend = PageBackend(runner, output_dir, first_prompt)
    return mount_page(make_api(runner), build_page(backend), output_dir)
