"""Requests to every route: those that Schemathesis makes of our own OpenAPI, and changed ones."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote, urlencode

import jsonschema
from fastapi import FastAPI
from hypothesis import strategies as st
from PIL import Image

from extension import register, unregister
from extension.generation.options import TABLE
from extension.hosts.standalone import STANDALONE
from extension.hosts.txt2img import Picture, Result, Txt2Img
from extension.standalone.pnginfo import encode_png

from ..changes import changed_request, file_of
from ..target import check_answer, demand, folder, is_there, json_values, target

if TYPE_CHECKING:
    from extension.generation.session import Session

V1 = "/remora/v1"
_AGAIN = 200  # requests after which what they kept is forgotten, as it would slow the next ones down
_FIELDS = (
    *(
        "text",
        "former",
        "name",
        "names",
        "values",
        "picture",
        "always_on",
        "entries",
        "on",
        "unet",
        "text_encoder",
        "more",
    ),
    *(
        "version",
        "description",
        "words",
        "negative",
        "tags",
        "notes",
        "rating",
        "favourite",
        "strength",
        "mode",
        "prompt",
    ),
    *("negative_prompt", "steps", "sampler", "schedule", "cfg_scale", "width", "height", "seed"),
)
_NAMES = ("a", "b", "sub/c", "Mine", "../a", "left", "mine", "", "\x00", "a" * 300)


class _Painter:
    """Makes each picture at once."""

    samplers = ("Euler a",)
    fraction = 0.5

    def check(self, request: Txt2Img) -> None:
        """Take any."""

    def paint(self, request: Txt2Img, cancelled: Callable[[], bool]) -> Image.Image:
        return Image.new("RGB", (8, 8))

    def interrupt(self) -> None:
        """Nothing takes long."""


class _Runner:
    """Ends each job at once, with a picture for each that was asked for; checks what it can without a model."""

    current = None

    def __init__(self) -> None:
        digest: Future[str] = Future()
        digest.set_result("0" * 64)
        model = SimpleNamespace(name="made", path=Path("made"), shorthash="0" * 10, sha256=digest)
        self.studio = SimpleNamespace(model=model, host=STANDALONE)

    def refuse_if_busy(self) -> None:
        """Refuse nothing: no job waits."""

    def submit(self, request: Txt2Img, save: bool = False) -> SimpleNamespace:
        request.check()
        pictures = [Picture(Image.new("RGB", (8, 8)), seed, request.prompt) for seed in range(request.count)]
        over = asyncio.Event()
        over.set()
        return SimpleNamespace(over=lambda: over, result=lambda: Result(tuple(pictures), request.seed))


class Served:
    """The routes over a folder with some files."""

    def __init__(self) -> None:
        self.folder, self.data = folder("loras"), folder("data")
        # where nobody answers: a request may turn look-ups on
        os.environ.update(CIVITAI_ENDPOINT="http://127.0.0.1:9", HF_ENDPOINT="http://127.0.0.1:9")
        self._fill()
        STANDALONE.open([self.folder], {}, self.data)
        session = register()
        assert session is not None, "the log has the reason"
        self.session: Session = session
        self.app = FastAPI()
        STANDALONE.app_started(self.app)
        STANDALONE.painter = _Painter()
        session.catalog.wait(30)
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1)  # a loop may run in this one already, as Playwright's does
        self._count = 0
        status, _, body = self.ask("GET", f"{V1}/openapi.json")
        assert status == 200, body
        self.schema: Mapping[str, Any] = json.loads(body)
        self.validators = {name: self._validator(name) for name in self.schema["components"]["schemas"]}

    def _fill(self) -> None:
        down, up = "lora_unet_attn1_to_q.lora_down.weight", "lora_unet_attn1_to_q.lora_up.weight"
        data = file_of({down: {"dtype": "F32", "shape": [2, 4]}, up: {"dtype": "F32", "shape": [8, 2]}})
        for name in ("a", "b", "sub/c"):
            path = self.folder / f"{name}.safetensors"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)

    def _validator(self, name: str) -> Any:
        whole = {"$ref": f"#/components/schemas/{name}", "components": self.schema["components"]}
        return jsonschema.Draft202012Validator(whole)

    def forget(self) -> None:
        """Remove what requests kept, now and then."""
        self._count += 1
        if self._count % _AGAIN:
            return
        for path in [*self.data.glob("*"), *self.folder.rglob("*.*")]:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix not in (".safetensors", ".sqlite3"):
                path.unlink()

    def ask(
        self, method: str, path: str, query: str = "", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Hand a request to the application; no network is between."""
        found = {"host": "localhost", **({"content-length": str(len(body))} if body else {})}
        found |= {name.lower(): value for name, value in (headers or {}).items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.upper(),
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("utf-8", "replace"),
            "root_path": "",
            "query_string": query.encode("utf-8", "replace"),
            "headers": [
                (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in found.items()
            ],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }
        answered: dict[str, Any] = {"status": 0, "headers": [], "body": b""}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answered["status"], answered["headers"] = message["status"], message["headers"]
            else:
                answered["body"] += message.get("body", b"")

        self._thread.submit(self._loop.run_until_complete, self.app(scope, receive, send)).result()
        own = {name.decode("latin-1"): value.decode("latin-1") for name, value in answered["headers"]}
        return answered["status"], own, answered["body"]

    def close(self) -> None:
        """Leave nothing of it in this process."""
        self._thread.shutdown()
        self._loop.close()
        unregister()
        STANDALONE.close()
        served.cache_clear()
        served_with_pictures.cache_clear()


@cache
def served() -> Served:
    """Return the routes of this process."""
    return Served()


@cache
def served_with_pictures() -> Served:
    """Return the same with the routes that make pictures; what those import takes seconds."""
    from extension.standalone.sdapi import SdApi

    SdApi(cast("Any", _Runner())).add_routes(served().app)
    return served()


def _requests() -> st.SearchStrategy[bytes]:
    if is_there("schemathesis"):
        return _of_schemathesis() | _of_our_own()
    return _of_our_own()


def _of_schemathesis() -> st.SearchStrategy[bytes]:
    import schemathesis

    schema = schemathesis.openapi.from_dict(served().schema)
    found = []
    for operation in schema.get_all_operations():
        for mode in schemathesis.GenerationMode:
            found.append(operation.ok().as_strategy(generation_mode=mode))
    return st.one_of(found).map(_as_input)


def _as_input(case: Any) -> bytes:
    """Write down what Schemathesis would send."""
    sent = case.as_transport_kwargs(base_url="http://localhost")
    body = sent.get("data") or b""
    if "json" in sent:
        body = json.dumps(sent["json"]).encode()
    body = (
        body.encode("utf-8", "replace")
        if isinstance(body, str)
        else body
        if isinstance(body, bytes)
        else repr(body).encode()
    )
    query = urlencode(
        [
            (key, str(one))
            for key, value in (case.query or {}).items()
            for one in (value if isinstance(value, list) else [value])
        ],
        errors="replace",
    )
    headers = {str(key): str(value) for key, value in dict(sent.get("headers") or {}).items()}
    headers.pop("User-Agent", None)
    return _written(case.method, case.formatted_path, query, headers, body)


def _written(method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> bytes:
    kept = {"method": method, "path": path, "query": query, "headers": dict(headers)}
    return json.dumps({**kept, "body": base64.b64encode(body).decode()}).encode()


@st.composite
def _of_our_own(draw: st.DrawFn) -> bytes:
    paths = served().schema["paths"]
    path = draw(st.sampled_from(sorted(paths)))
    method = draw(st.sampled_from(sorted(paths[path])))
    names = draw(
        st.dictionaries(
            st.sampled_from(["name", "id", "since", "cell", "model"]),
            st.sampled_from(_NAMES) | st.text(max_size=5),
            max_size=2,
        )
    )
    query = "&".join(f"{key}={quote(value, errors='replace')}" for key, value in names.items())
    taken = paths[path][method].get("requestBody", {}).get("content", {})
    if not taken:
        return _written(method, path, query, {}, b"")
    if "application/json" not in taken:
        picture = encode_png(Image.new("RGB", (draw(st.integers(1, 9)), 3)), "")
        return _written(method, path, query, {"content-type": "image/png"}, picture)
    name = taken["application/json"]["schema"]["$ref"].rpartition("/")[2]
    own = tuple(served().schema["components"]["schemas"][name].get("properties", _FIELDS))
    leaves = st.sampled_from([*_NAMES, "<lora:a:1>", "1,0,R", 0.5, 1, -1])
    value = draw(
        st.dictionaries(st.sampled_from(own), json_values(_FIELDS, leaves), max_size=5) | json_values(_FIELDS, leaves)
    )
    return _written(method, path, query, {"content-type": "application/json"}, json.dumps(value).encode())


_OF_PICTURES = (
    *("prompt", "negative_prompt", "steps", "sampler_name", "scheduler", "cfg_scale", "width", "height", "seed"),
    *("batch_size", "n_iter", "override_settings", "send_images", "save_images", "enable_hr", "script_name", "styles"),
    *(
        "alwayson_scripts",
        "sampler_index",
        "subseed",
        "CLIP_stop_at_last_layers",
        "sd_model_checkpoint",
        *(option.key for option in TABLE),
    ),
)


@st.composite
def _of_pictures(draw: st.DrawFn) -> bytes:
    method, name = draw(
        st.sampled_from(
            [
                *(("POST", name) for name in ("txt2img", "img2img", "png-info", "extra-single-image", "options")),
                *(("GET", name) for name in ("progress", "options", "samplers")),
            ]
        )
    )
    leaves = st.sampled_from(["<lora:a:1>", "Euler a", 64, 1, -1, True, 7.5, "made"])
    value = draw(st.dictionaries(st.sampled_from(_OF_PICTURES), leaves | json_values(_OF_PICTURES, leaves), max_size=6))
    body = json.dumps(value).encode() if method == "POST" else b""
    return _written(method, f"/sdapi/v1/{name}", "", {"content-type": "application/json"} if body else {}, body)


def _read(data: bytes, below: str) -> tuple[str, str, str, Mapping[str, str], bytes] | None:
    """Return a request that was written down; None where none can be sent."""
    try:
        asked = json.loads(data)
        method, path, query, headers = (asked[name] for name in ("method", "path", "query", "headers"))
        body = base64.b64decode(asked["body"])
        sendable = all(isinstance(one, str) for one in (method, path, query, *headers, *headers.values()))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    if not sendable or not path.startswith(below) or not method.isascii():
        return None
    return method, path, query, headers, body


@target(_of_pictures(), changed_request)
def picture_routes(data: bytes) -> object:
    """Ask the routes of the embedded web UI that make pictures, as clients of A1111 do, without a model."""
    if (asked := _read(data, "/sdapi/v1/")) is None:
        return None
    status, answered, content = served_with_pictures().ask(*asked)
    demand(status < 500, f"{asked[0]} {asked[1]} answers {status}: {content[:300]!r}")
    if answered.get("content-type", "").partition(";")[0] == "application/json" and content:
        check_answer(json.loads(content))
    return status


@target(st.deferred(_requests), changed_request)
def routes(data: bytes) -> object:
    """Every route of ours: no answer is a fault of the server, and each is what the OpenAPI says."""
    if (asked := _read(data, f"{V1}/")) is None:
        return None
    method, path, *_ = asked
    server = served()
    server.forget()
    status, answered, content = server.ask(*asked)
    demand(status < 500, f"{method} {path} answers {status}: {content[:300]!r}")
    kind = answered.get("content-type", "").partition(";")[0]
    told = server.schema["paths"].get(path, {}).get(method.lower())
    if told is None or status == 304:
        return status
    if status != 200:
        answer = json.loads(content)
        server.validators["Error"].validate(answer)
        demand("\n" not in answer["detail"], "an error has several lines")
        check_answer(answer)
        return [status, answer]
    (wanted,) = told["responses"]["200"]["content"]
    demand(kind == wanted, f"{method} {path} answers {kind}, not {wanted}")
    if kind == "application/json":
        server.validators[told["responses"]["200"]["content"][kind]["schema"]["$ref"].rpartition("/")[2]].validate(
            json.loads(content)
        )
    return status
