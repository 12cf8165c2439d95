"""Hundreds of requests that nobody sends in good faith, to every route of the table, without a socket or a model.

Each is refused with one sentence, or served as the OpenAPI says; and none of them leaves a file where none belongs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

from extension.api.routes import SECTIONS, Route
from extension.api.schema import fields_of
from extension.standalone.pnginfo import encode_png
from tests.fuzz.target import check_answer, demand
from tests.fuzz.targets.requests import V1, Served

JSON = {"content-type": "application/json"}
ROUTES = [route for *_, routes in SECTIONS for route in routes]
LEAST = 300
"""Different requests in the table, at least."""

WRONG_TYPES: Mapping[str, object] = {
    "null": None,
    "true": True,
    "minus": -1,
    "a fraction": 0.5,
    "huge": 1e308,
    "beyond 64 bits": 1 << 63,
    "empty text": "",
    "a list": [],
    "a list of null": [None],
    "lists": [[["a"]]],
    "an object": {"name": {"name": "a"}},
    "long": "a" * 100_000,
}
TEXTS: Mapping[str, str] = {
    "NUL": "a\x00b",
    "composed": "caf\u00e9",
    "decomposed": "cafe\u0301",
    "right to left": "a\u202egnp.exe",
    "no width": "a\u200bb\ufeff",
    "half a character": "a\ud800",
    "many marks": "a" + "\u0301" * 5000,
    "a line": "a\r\nSet-Cookie: x=1",
    "parent": "../outside",
    "parents": "sub/../../outside",
    "parent, with a backslash": "..\\outside",
    "parent, escaped": "%2e%2e%2foutside",
    "absolute": "/etc/passwd",
    "a drive": "C:\\Windows\\win.ini",
    "a drive's folder": "C:outside",
    "a share": "\\\\server\\share\\a",
    "a device": "CON",
    "a device with a suffix": "nul.safetensors",
    "a port": "COM1",
    "a verbatim path": "\\\\?\\C:\\a",
    "a stream": "a.safetensors:stream",
    "a stream's type": "a::$DATA",
    "a point at the end": "a.",
    "a space at the end": "a ",
    "home": "~/outside",
    "an option": "--help",
    "only points": "...",
    "a slash that is none": "..\u2215outside",
    "markup": "<img src=x onerror=alert(1)>",
    "a tag": "<lora:a:1>",
    "a pattern": "(a+)+$",
    "a format": "{0.__class__} %s %n",
}
BODIES: Mapping[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "null": b"null",
    "a number": b"5",
    "a text": b'"a"',
    "a list": b"[]",
    "NaN": b'{"a": NaN}',
    "infinite": b'{"a": 1e999}',
    "many digits": b'{"a": ' + b"9" * 5000 + b"}",
    "deep": b"[" * 50_000,
    "deep and closed": b'{"a":' * 40 + b"1" + b"}" * 40,
    "UTF-16": '{"name": "a"}'.encode("utf-16"),
    "a mark of order": b"\xef\xbb\xbf{}",
    "no UTF-8": b'{"name": "\xff\xfe"}',
    "twice": b'{"name": "a", "name": "../a", "text": 1, "text": 2}',
    "another field": b'{"__proto__": {"a": 1}, "constructor": 1}',
    "many values": b"[" + b"0," * 200_001 + b"0]",
}
HEADERS: Mapping[str, Mapping[str, str]] = {
    "another type": {"content-type": "text/plain"},
    "a form": {"content-type": "application/x-www-form-urlencoded"},
    "a type of many parts": {"content-type": "multipart/form-data; boundary=a"},
    "a type without a name": {"content-type": ";;;"},
    "a packed body": {**JSON, "content-encoding": "gzip"},
    "a length that is none": {**JSON, "content-length": "ten"},
    "a negative length": {**JSON, "content-length": "-1"},
    "a length of many digits": {**JSON, "content-length": "9" * 400},
    "another site": {**JSON, "origin": "https://evil.example"},
    "no site": {**JSON, "origin": "null"},
    "a site that is no address": {**JSON, "origin": "http://[::1"},
    "another site, by the browser": {**JSON, "sec-fetch-site": "cross-site"},
    "a proxy's name": {**JSON, "origin": "https://evil.example", "x-forwarded-host": "evil.example", "host": "a.b"},
    "wildcard": {**JSON, "if-match": "*"},
    "an old state": {**JSON, "if-match": '"0000000000000000"'},
    "a weak state": {**JSON, "if-match": 'W/"x", "y", *'},
    "a long state": {**JSON, "if-match": '"' + "a" * 60_000 + '"'},
    "any state known": {**JSON, "if-none-match": "*"},
    "many states known": {**JSON, "if-none-match": ",".join(f'"{number:016x}"' for number in range(3000))},
    "a range": {**JSON, "range": "bytes=0-0"},
    "many ranges": {**JSON, "range": "bytes=" + ",".join("0-" for _ in range(2000))},
    "a range backwards": {**JSON, "range": "bytes=9-1,-0"},
    "no password": {**JSON, "authorization": "Basic !!!!"},
    "a cookie": {**JSON, "cookie": "a=" + "b" * 30_000},
    "another method": {**JSON, "x-http-method-override": "DELETE"},
}
_PIXELS = encode_png(Image.new("L", (2, 2), 255), "")
USUAL: Mapping[str, object] = {
    "name": "a",
    "names": ["a"],
    "ids": ["a"],
    "undo": "a",
    "text": "<lora:a:1>",
    "values": "1,1",
    "on": True,
    "prompt": "<lora:a:1>",
    "picture": base64.b64encode(_PIXELS).decode(),
}
"""A value for each field that a body must have."""
PICTURES: Mapping[str, bytes] = {
    "nothing": b"",
    "no picture": b"\x00" * 3000,
    "cut": _PIXELS[:-20],
    "a head alone": _PIXELS[:8],
    "a sum that is wrong": _PIXELS[:-6] + b"\x00\x00" + _PIXELS[-4:],
    "as large as can be said": _PIXELS[:16] + b"\x7f\xff\xff\xff" * 2 + _PIXELS[24:],
    "of no size": _PIXELS[:16] + bytes(8) + _PIXELS[24:],
    "with a file behind it": _PIXELS + b"PK\x03\x04" * 100,
    "drawn by a program": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "a printer's": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
    "a cut GIF": b"GIF89a\xff\xff\xff\xff\x80\x00\x00",
    "a cut WebP": b"RIFF\xff\xff\xff\x7fWEBPVP8X",
}
METHODS = ("TRACE", "CONNECT", "PROPFIND", "OPTIONS", "PATCH", "DELETE", "PUT", "POST", "GET", "HEAD", "A B")


@dataclass(frozen=True)
class Asked:
    """One request of the table."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def key(self) -> tuple[object, ...]:
        return self.method, self.path, self.query, tuple(self.headers.items()), self.body


def written(body: object) -> bytes:
    return json.dumps(body).encode()


def query(route: Route, name: str, value: str) -> str:
    """Write a query in which one name has this value, and the other ones have a usual one."""
    usual = {"name": "a", "id": "", "since": "0", "cell": "0", "model": ""}
    values = {one: usual.get(one, "a") for one in route.query} | {name: value}
    return "&".join(f"{one}={quote(text, safe='', errors='surrogatepass')}" for one, text in values.items())


def usual_query(route: Route) -> str:
    return query(route, route.query[0], "a") if route.query else ""


def of_fields() -> Iterator[Asked]:
    """Put what it should not be into each field of each body."""
    for route in ROUTES:
        if route.takes is None or isinstance(route.takes.kind, str):
            continue
        fields = fields_of(route.takes.kind)
        whole = {name: USUAL[name] for name, (*_, needed) in fields.items() if needed}
        for name in fields:
            for value in (*WRONG_TYPES.values(), *TEXTS.values(), [*TEXTS.values()]):
                yield Asked(route.method, route.path, usual_query(route), JSON, written({**whole, name: value}))


def of_names() -> Iterator[Asked]:
    """Put what is no name into each part of each query."""
    for route in ROUTES:
        body = b"" if route.takes is None else b"{}"
        for name in route.query:
            for text in (*TEXTS.values(), "9" * 400, "-1", "0x10", "\u0661"):
                yield Asked(route.method, route.path, query(route, name, text), JSON if body else {}, body)
            yield Asked(route.method, route.path, f"{name}=a&{name}=../a&%00=%ff&{name}[]=a;{name}=b", {}, b"")


def of_bodies() -> Iterator[Asked]:
    for route in ROUTES:
        for body in BODIES.values():
            yield Asked(route.method, route.path, usual_query(route), JSON, body)


def of_pictures() -> Iterator[Asked]:
    for route in ROUTES:
        if route.takes is None or not isinstance(route.takes.kind, str):
            continue
        for kind in ("image/png", "image/svg+xml", "image/"):
            for picture in PICTURES.values():
                yield Asked(route.method, route.path, usual_query(route), {"content-type": kind}, picture)


def of_headers() -> Iterator[Asked]:
    for route in ROUTES:
        body = b"" if route.takes is None else b'{"name": "a", "text": "<lora:a:1>", "values": "1,1", "names": []}'
        for headers in HEADERS.values():
            yield Asked(route.method, route.path, usual_query(route), headers, body)


def of_methods() -> Iterator[Asked]:
    for path in dict.fromkeys(route.path for route in ROUTES):
        for method in METHODS:
            yield Asked(method, path, headers=JSON, body=b"{}")
        for suffix in ("/", "/..", "/../state", "//", "/%2e%2e/stack", ";a", "%00", "/\u202e"):
            yield Asked("GET", path + suffix)


KINDS: Mapping[str, Callable[[], Iterator[Asked]]] = {
    "fields": of_fields,
    "names": of_names,
    "bodies": of_bodies,
    "pictures": of_pictures,
    "headers": of_headers,
    "methods": of_methods,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("root")

    def below(name: str) -> Path:
        made = root / name
        made.mkdir()
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fuzz.targets.requests.folder", below)
        made = Served()
    yield made
    made.close()


def fault_of(served: Served, asked: Asked) -> str:
    """Send a request; return what is wrong with its answer, or an empty text."""
    try:
        status, headers, content = served.ask(asked.method, V1 + asked.path, asked.query, asked.headers, asked.body)
        demand(200 <= status < 500, f"the answer is {status}: {content[:200]!r}")
        for name, value in headers.items():
            demand("\n" not in value and "\r" not in value, f"the header {name} has two lines")
        kind = headers.get("content-type", "").partition(";")[0]
        if status >= 400 and asked.method != "HEAD" and kind == "application/json":
            detail = json.loads(content)["detail"]
            demand(isinstance(detail, str) and "\n" not in detail, f"the error is no sentence: {detail!r:.200}")
            demand(len(detail) <= 2003, f"the error has {len(detail)} characters")
            check_answer(detail)
        told = served.schema["paths"].get(V1 + asked.path, {}).get(asked.method.lower(), {})
        if status == 200 and kind == "application/json" and told:
            name = told["responses"]["200"]["content"][kind]["schema"]["$ref"].rpartition("/")[2]
            served.validators[name].validate(json.loads(content))
    except Exception as error:  # noqa: BLE001  # of the routes, or of the check: each is a fault, told with its request
        return (
            f"{asked.method} {asked.path}?{asked.query:.80} {asked.body[:80]!r}: {type(error).__name__}: {error!s:.300}"
        )
    return ""


DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def misplaced(served: Served) -> list[str]:
    """Return the files that no route should have made, or whose names some system cannot have."""
    found = []
    for path in [*served.folder.rglob("*"), *served.data.rglob("*")]:
        name = path.name
        if DEVICES.fullmatch(name) or re.search(r'[<>:"\\|?*\x00-\x1f]|[. ]$', name) or len(name.encode()) > 255:
            found.append(str(path))
    beside = {path.name for path in served.folder.rglob("*") if path.is_file()}
    mine = re.compile(r"(a|b|c)\.(safetensors|json|txt|png|preview\.png|jpe?g|webp)(\..*)?|\.remora\.lock")
    found += [name for name in beside if not mine.fullmatch(name)]
    return found


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_no_request_of_the_table_gets_through(served: Served, kind: str) -> None:
    faults = [fault for asked in KINDS[kind]() if (fault := fault_of(served, asked))]
    assert not faults, f"{len(faults)} requests got through:\n" + "\n".join(faults[:20])
    assert set(served.folder.parent.iterdir()) == {served.folder, served.data}
    assert not misplaced(served)
    for path in ("/state", "/loras", "/presets", "/regions", "/blocks", "/stack"):
        assert served.ask("GET", V1 + path)[0] == 200, f"{path} does not answer any more"


def test_the_table_has_hundreds_of_requests_to_every_route() -> None:
    table = [asked for make in KINDS.values() for asked in make()]
    assert len({asked.key for asked in table}) >= LEAST
    for route in ROUTES:
        assert sum(asked.method == route.method and asked.path == route.path for asked in table) >= 20, route.path


def test_writers_at_once_lose_nothing_and_a_stale_one_is_refused(served: Served) -> None:
    """Each writer saves presets of its own; of those that change one state, one wins and the others are told."""
    statuses: dict[str, int] = {}

    def send(name: str, asked: Asked) -> None:
        sent: list[int] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": asked.body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        headers = {"host": "localhost", "content-length": str(len(asked.body)), **asked.headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": asked.method,
            "scheme": "http",
            "path": V1 + asked.path,
            "raw_path": (V1 + asked.path).encode(),
            "root_path": "",
            "query_string": asked.query.encode(),
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }
        asyncio.run(served.app(scope, receive, send))
        statuses[name] = sent[0]

    def at_once(asked: Mapping[str, Asked]) -> None:
        threads = [threading.Thread(target=send, args=one) for one in asked.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    text = written({"text": "<lora:a:1>"})
    at_once({f"w{number}": Asked("PUT", "/preset", f"name=w{number}", JSON, text) for number in range(12)})
    assert statuses == dict.fromkeys(statuses, 200)
    listed = json.loads(served.ask("GET", f"{V1}/presets")[2])["presets"]
    assert {f"w{number}" for number in range(12)} <= {preset["name"] for preset in listed}
    statuses.clear()
    tag = served.ask("GET", f"{V1}/stack")[1]["etag"]
    stacks = [{"version": 1, "always_on": True, "entries": [{"name": "a", "unet": number}]} for number in range(1, 9)]
    headers = {**JSON, "if-match": tag}
    at_once({f"s{n}": Asked("PUT", "/stack", "", headers, written(stack)) for n, stack in enumerate(stacks)})
    assert sorted(statuses.values()) == [200, *[412] * 7]


@pytest.mark.parametrize("name", ["presets.json", "always_on.json", "block_presets.json"])
def test_a_file_that_a_power_cut_left_half_written_is_kept_and_said(served: Served, name: str) -> None:
    """The routes answer over half a file and what was written beside it, and a change sets the file aside."""
    for half in (b"", b"{", b'{"version": 1, "presets": [{"na', b"\x00" * 4096):
        path: Path = served.data / name
        path.write_bytes(half)
        (served.data / ".remora-0123456789abcdef.tmp").write_bytes(half)
        for route in ("/presets", "/stack", "/blocks", "/state"):
            assert served.ask("GET", V1 + route)[0] == 200
        status, _, content = served.ask("PUT", f"{V1}/preset", "name=after", JSON, written({"text": "<lora:a:1>"}))
        assert status == 200, content
        if name == "presets.json":
            assert half in [one.read_bytes() for one in served.data.glob(f"{name}.damaged-*")]
        path.unlink()
