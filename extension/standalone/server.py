"""The application: the HTTP API and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute

from ..api import add_route
from ..generation.options import checked
from ..guest import Guest
from ..hosts import Access
from ..hosts.txt2img import Txt2Img
from . import offload
from .demo import DEMO_EXAMPLES, DEMO_MODEL
from .guard import Guard
from .jobs import Job, Runner
from .painter import RunnerPainter
from .sampling import choices
from .sdapi import SdApi

if TYPE_CHECKING:
    from lib_lora import LoraError

    from .backend import Backend

_SCRIPT = "/remora/remora.js"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_NOT_ALLOWED = 405
_COMPRESSED = 1000  # bytes from which an answer is, as in AUTOMATIC1111; the list of 10,000 files has 7 million


class PageBackend:
    """The `Backend` of the page, over the studio."""

    def __init__(self, runner: Runner, output_dir: Path, first_prompt: str = "", first_seed: int = -1) -> None:
        self._runner = runner
        self._visited = not first_prompt
        self.output_dir = output_dir
        self.first_prompt = first_prompt
        self.first_seed = first_seed
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

    def pasted(self, parameters: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
        studio = self._runner.studio
        return Guest(studio.host, studio.session, studio.session.close).pasted(parameters)

    def submit(self, request: Txt2Img) -> Job:
        return self._runner.submit(request, save=True)

    def told(self, error: LoraError) -> list[str] | None:
        failed = self._runner.studio.session.failed
        if "; ".join(dict.fromkeys(one.sentence for one in failed)) != str(error):
            return None
        return [one.name for one in failed if one.name]

    def option(self, key: str) -> object:
        return self._runner.studio.host.option(key)

    def set_option(self, key: str, value: object) -> None:
        self._runner.studio.host.set_option(key, checked(key, value))

    async def set_offload(self, mode: str) -> None:
        await self._runner.call(lambda: self._runner.studio.set_offload(mode))


def make_api(runner: Runner, address: str = "127.0.0.1", login: str = "") -> FastAPI:
    """Return an application with the HTTP API alone.

    Args:
        runner: of the jobs.
        address: the address it is served on.
        login: `user:password` that every request needs; empty demands none.
    """
    app = FastAPI(title="Remora", docs_url=None, redoc_url=None)  # these pages load scripts of other sites
    app.add_middleware(GZipMiddleware, minimum_size=_COMPRESSED, compresslevel=1)
    app.add_middleware(Guard, address=address, logins=[login] if login else [])
    SdApi(runner).add_routes(app)
    runner.studio.host.painter = RunnerPainter(runner)
    if runner.studio.model.name == DEMO_MODEL:
        runner.studio.host.examples = DEMO_EXAMPLES
    runner.studio.host.app_started(app)
    _refuse_other_methods(app)
    return app


def _refuse_other_methods(app: FastAPI) -> None:
    """Answer other methods of each route with 405; the page at the root would answer that there is no such address."""
    known: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, APIRoute):
            known.setdefault(route.path, set()).update(route.methods or ())
    for path, methods in known.items():
        refuse = _WrongMethod(path, ", ".join(sorted(methods)))
        add_route(app, path, refuse.answer, Access(), methods=sorted(_METHODS - methods), include_in_schema=False)


@dataclass(frozen=True)
class _WrongMethod:
    """The answer to a method that a path does not have."""

    path: str
    methods: str

    def answer(self) -> None:
        raise HTTPException(_NOT_ALLOWED, f"{self.path} takes {self.methods}", {"Allow": self.methods})


def make_app(
    runner: Runner,
    output_dir: Path,
    first_prompt: str = "",
    address: str = "127.0.0.1",
    login: str = "",
    first_seed: int = -1,
) -> FastAPI:
    """Return an application with the HTTP API and the page; see `make_api`.

    With a `first_prompt` the page opens with it, and makes its picture at the first visit. It opens with `first_seed`.
    """
    from .page import TAB_SCRIPT, build_page, mount_page  # importing gradio takes two seconds

    backend: Backend = PageBackend(runner, output_dir, first_prompt, first_seed)
    app = make_api(runner, address, login)
    app.add_api_route(_SCRIPT, lambda: FileResponse(TAB_SCRIPT), methods=["GET"], include_in_schema=False)
    return mount_page(app, build_page(backend), output_dir, _SCRIPT.removeprefix("/"))
