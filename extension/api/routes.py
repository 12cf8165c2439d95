"""The table of Remora's own routes: OpenAPI, the checks of bodies, the tab's types and docs/api.md are made from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from . import records
from .answers import json_of, picture_of
from .blocks import BlocksApi
from .check import CheckApi
from .compare import CompareApi
from .copies import CopiesApi
from .files import FilesApi
from .library import Library
from .online import OnlineApi
from .outputs import OutputsApi
from .pictures import PicturesApi
from .presets import PresetsApi
from .recipes import RecipesApi
from .regions import RegionsApi
from .save import SaveApi
from .schema import Record, checked, components, reference
from .stack import StackApi

if TYPE_CHECKING:
    from ..generation.session import Session

PICTURE, WEBP, PNG, TEXT = "image/*", "image/webp", "image/png", "text/plain"


@dataclass(frozen=True)
class Body:
    """The body of a request."""

    kind: Record | str
    """A record, or a media type."""
    what: str
    """For errors."""
    at_most: int = 1 << 20
    """Bytes, of JSON."""

    async def of(self, request: Request) -> Any:
        """Return the body of a request.

        Raises:
            HTTPException: it is not what the table says.
        """
        if isinstance(self.kind, str):
            return await picture_of(request)
        return checked(self.kind, await json_of(request, self.at_most, self.what), self.what)


@dataclass(frozen=True)
class Route:
    """One route."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    """A method of a class below; its first docstring line describes the route, and its parameters the query."""
    answers: Record | str
    """A record, or a media type."""
    takes: Body | None = None
    nothing: str = ""
    """When the answer is empty, if ever."""

    @property
    def summary(self) -> str:
        """Return the sentence on the route."""
        return (self.endpoint.__doc__ or "").strip().splitlines()[0]

    @property
    def query(self) -> list[str]:
        """Return the names of the query."""
        names = list(inspect.signature(self.endpoint).parameters)
        return [name for name in names if name not in ("self", "request", "body")]

    def bound(self, api: object) -> Callable[..., Any]:
        """Return the endpoint for fastapi: it checks the body, then calls the method in a thread."""
        call, takes = self.endpoint.__get__(api), self.takes
        if takes is None:
            return call  # type: ignore[no-any-return]

        async def endpoint(request: Request, **query: str) -> Response:
            body = await takes.of(request)
            answer: Response = await run_in_threadpool(call, request, body, **query)
            return answer

        signature = inspect.signature(call, eval_str=True)
        shown = [parameter for parameter in signature.parameters.values() if parameter.name != "body"]
        setattr(endpoint, "__signature__", signature.replace(parameters=shown))  # noqa: B010  # mypy knows none
        return endpoint

    def described(self) -> dict[str, Any]:
        """Return the bodies and answers, which fastapi cannot derive."""
        error = _content(records.Error)
        told: dict[str, Any] = {
            "responses": {
                "200": {"description": "done", "content": _content(self.answers)},
                "4XX": {"description": "refused; nothing was changed", "content": error},
                "5XX": {"description": "failed; nothing was changed", "content": error},
            }
        }
        if self.nothing:
            told["responses"]["204"] = {"description": self.nothing}
        if self.takes is not None:
            told["requestBody"] = {"required": True, "content": _content(self.takes.kind)}
        return told


_FILES = (
    Route("GET", "/loras", Library.list, records.Loras),
    Route("POST", "/refresh", Library.refresh, records.Loras),
    Route("GET", "/lora", Library.one, records.LoraDetails),
    Route("PATCH", "/lora", Library.change, records.LoraDetails, Body(records.NotesWanted, "notes")),
    Route("GET", "/thumbnail", Library.thumbnail, WEBP, nothing="its picture is damaged"),
    Route("PUT", "/picture", Library.set_picture, records.LoraDetails, Body(PICTURE, "a picture")),
    Route("DELETE", "/picture", Library.restore_picture, records.LoraDetails),
    Route("POST", "/resolve", Library.resolve, records.Meanings, Body(records.NamesWanted, "the question")),
    Route("GET", "/inspect", Library.inspect, records.Inspection),
)
_CHANGES = (
    Route("PATCH", "/files", FilesApi.note, records.FilesChanged, Body(records.FilesNoted, "a change of notes")),
    Route("POST", "/files/move", FilesApi.move, records.FilesChanged, Body(records.FilesMoved, "a move")),
    Route("POST", "/files/delete", FilesApi.delete, records.FilesChanged, Body(records.FilesChosen, "a choice")),
    Route("POST", "/files/restore", FilesApi.restore, records.FilesChanged, Body(records.FilesChosen, "a choice")),
    Route("POST", "/files/undo", FilesApi.undo, records.FilesChanged, Body(records.ChangeUndone, "a change")),
    Route("GET", "/trash", FilesApi.trash, records.Trash),
    Route("DELETE", "/trash", FilesApi.delete_for_good, records.Trash, Body(records.FilesChosen, "a choice")),
)
_CHECKS = (
    Route("GET", "/check", CheckApi.file, records.CheckedFile),
    Route("GET", "/check/stack", CheckApi.stack, records.CheckedStack),
)
_COPIES = (Route("GET", "/copies", CopiesApi.list, records.Copies),)
_ONLINE = (
    Route("GET", "/online", OnlineApi.state, records.Online),
    Route("PUT", "/online", OnlineApi.switch, records.Online, Body(records.OnlineWanted, "the setting")),
    Route("DELETE", "/online", OnlineApi.cancel, records.Online),
    Route("POST", "/online/lookup", OnlineApi.look_up, records.Online, Body(records.LookUpWanted, "a look-up")),
    Route("POST", "/online/download", OnlineApi.download, records.Online, Body(records.DownloadWanted, "a download")),
    Route("POST", "/online/newer", OnlineApi.download_newer, records.Online, Body(records.NewerWanted, "files")),
)
_STACK = (
    Route("GET", "/state", StackApi.state, records.State),
    Route("PUT", "/grammar", StackApi.set_grammar, records.State, Body(records.GrammarWanted, "the setting")),
    Route("GET", "/stack", StackApi.stack, records.Stack),
    Route("PUT", "/stack", StackApi.set_stack, records.Stack, Body(records.StackWanted, "the stack")),
)
_PICTURES = (
    Route("GET", "/pictures", PicturesApi.list, records.Pictures),
    Route("GET", "/pictures/thumbnail", PicturesApi.thumbnail, WEBP),
)
_OUTPUTS = (
    Route("GET", "/outputs", OutputsApi.list, records.OutputPictures),
    Route("GET", "/outputs/loras", OutputsApi.loras, records.CountedLoras),
    Route("GET", "/outputs/picture", OutputsApi.one, records.Recipe),
    Route("GET", "/outputs/thumbnail", OutputsApi.thumbnail, WEBP, nothing="the picture is damaged"),
)
_PRESETS = (
    Route("GET", "/presets", PresetsApi.list, records.Presets),
    Route("POST", "/presets", PresetsApi.add, records.Presets, Body(records.Text, "the import", 2 << 20)),
    Route("GET", "/preset", PresetsApi.text, TEXT),
    Route("PUT", "/preset", PresetsApi.put, records.Presets, Body(records.PresetWanted, "a preset")),
    Route("DELETE", "/preset", PresetsApi.remove, records.Presets),
    Route("GET", "/preset/thumbnail", PresetsApi.thumbnail, WEBP),
    Route("PUT", "/preset/thumbnail", PresetsApi.set_thumbnail, records.Presets, Body(PICTURE, "a picture")),
)
_RECIPES = (
    Route("POST", "/recipe", RecipesApi.of_text, records.Recipe, Body(records.Text, "a recipe", 2 << 20)),
    Route("POST", "/recipe/picture", RecipesApi.of_picture, records.Recipe, Body(PICTURE, "a picture")),
    Route("GET", "/preset/recipe", RecipesApi.of_preset, records.Recipe),
    Route("GET", "/preset/file", RecipesApi.file, records.PresetFile),
)
_BLOCK = (
    Route("GET", "/blocks", BlocksApi.list, records.Blocks),
    Route("PUT", "/blocks/presets", BlocksApi.put, records.Blocks, Body(records.BlockPresetWanted, "block weights")),
    Route("DELETE", "/blocks/presets", BlocksApi.remove, records.Blocks),
)
_REGIONS = (
    Route("GET", "/regions", RegionsApi.list, records.Regions),
    Route("PUT", "/regions", RegionsApi.put, records.Regions, Body(records.RegionWanted, "a region", 16 << 20)),
    Route("DELETE", "/regions", RegionsApi.remove, records.Regions),
)
_SAVED = (
    Route("GET", "/save", SaveApi.state, records.Save),
    Route("GET", "/save/choices", SaveApi.choices, records.SaveChoices),
    Route("POST", "/save", SaveApi.start, records.Save, Body(records.SaveWanted, "a file to save")),
    Route("DELETE", "/save", SaveApi.cancel, records.Save),
    Route("PUT", "/save/inputs", SaveApi.measure, records.Save, Body(records.InputsWanted, "whether inputs are taken")),
)
_COMPARISONS = (
    Route("GET", "/compare", CompareApi.state, records.Compare),
    Route("POST", "/compare", CompareApi.start, records.Compare, Body(records.CompareWanted, "a comparison")),
    Route("DELETE", "/compare", CompareApi.cancel, records.Compare),
    Route("GET", "/compare/picture", CompareApi.picture, PNG),
)
SECTIONS: tuple[tuple[str, Callable[[Session], object], tuple[Route, ...]], ...] = (
    ("Files", Library, _FILES),
    ("Changes of many files", FilesApi, _CHANGES),
    ("The doctor", CheckApi, _CHECKS),
    ("Copies", CopiesApi, _COPIES),
    ("Civitai and Hugging Face", OnlineApi, _ONLINE),
    ("Stack and latest picture", StackApi, _STACK),
    ("Pictures of this session, the latest 200", PicturesApi, _PICTURES),
    ("Pictures in the output folders", OutputsApi, _OUTPUTS),
    ("Presets", PresetsApi, _PRESETS),
    ("Recipes", RecipesApi, _RECIPES),
    ("Block weights", BlocksApi, _BLOCK),
    ("Regions", RegionsApi, _REGIONS),
    ("Comparisons", CompareApi, _COMPARISONS),
    ("Saved files", SaveApi, _SAVED),
)
"""Title, class and routes of each subject."""


def used_records() -> Iterator[Record]:
    """Yield the records that the table names."""
    yield records.Error
    for route in (route for *_, routes in SECTIONS for route in routes):
        kinds = [route.answers, *([route.takes.kind] if route.takes is not None else [])]
        yield from (kind for kind in kinds if not isinstance(kind, str))


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of every record, by name."""
    return dict(components(*used_records()))


def _content(kind: Record | str) -> dict[str, Any]:
    if isinstance(kind, str):
        return {kind: {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": reference(kind)}}
