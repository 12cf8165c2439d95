"""Every route against requests that it must refuse; the routes are those that the application has."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from PIL import Image

from extension.api import add_routes
from extension.api.answers import LONGEST_BODY
from extension.generation.compare import ComparisonRun
from extension.generation.options import DEFAULT_MULTIPLIER
from extension.hosts.txt2img import RequestError
from extension.kept.always_on import AlwaysOn
from extension.standalone.jobs import Runner
from extension.standalone.pnginfo import encode_png
from extension.standalone.sdapi import REFUSED, UNCHANGED, SdApi
from extension.standalone.server import make_api

HERE = "http://localhost"
JSON = {"Content-Type": "application/json"}
PNG = {"Content-Type": "image/png"}
SMALL: dict[str, Any] = {"steps": 1, "width": 64, "height": 64, "seed": 7, "prompt": "<lora:zorp:1>"}
KEPT = {"params": {"name": "Kept"}}


def png() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(stream, "PNG")
    return stream.getvalue()


REGION = base64.b64encode(png()).decode()
# What each route that may change something takes; another one is tried with an empty object.
VALID: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/remora/v1/refresh"): {},
    ("PATCH", "/remora/v1/lora"): {"params": {"name": "zorp"}, "json": {"notes": "changed"}},
    ("PUT", "/remora/v1/picture"): {"params": {"name": "zorp"}, "content": png(), "headers": PNG},
    ("DELETE", "/remora/v1/picture"): {"params": {"name": "zorp"}},
    ("POST", "/remora/v1/resolve"): {"json": {"names": ["zorp"]}},
    ("PUT", "/remora/v1/grammar"): {"json": {"on": False}},
    ("PUT", "/remora/v1/stack"): {"json": {"always_on": True, "entries": [{"name": "zorp", "unet": 0.5}]}},
    ("POST", "/remora/v1/presets"): {"json": {"text": "# Remora preset 1: changed\n<lora:neon:1>"}},
    ("PUT", "/remora/v1/preset"): {"params": {"name": "changed"}, "json": {"text": "<lora:neon:1>"}},
    ("DELETE", "/remora/v1/preset"): KEPT,
    ("PUT", "/remora/v1/preset/thumbnail"): {**KEPT, "content": png(), "headers": PNG},
    ("POST", "/remora/v1/recipe"): {"json": {"text": "a fox <lora:neon:1>"}},
    ("POST", "/remora/v1/recipe/picture"): {
        "content": encode_png(Image.new("RGB", (4, 4)), "a fox <lora:neon:1>"),
        "headers": PNG,
    },
    ("PUT", "/remora/v1/blocks/presets"): {"json": {"name": "changed", "values": "1,0,1"}},
    ("DELETE", "/remora/v1/blocks/presets"): KEPT,
    ("PUT", "/remora/v1/regions"): {"json": {"name": "changed", "picture": REGION}},
    ("DELETE", "/remora/v1/regions"): KEPT,
    ("POST", "/remora/v1/compare"): {"json": {**SMALL, "names": ["zorp"], "values": [0, 1]}},
    ("DELETE", "/remora/v1/compare"): {},
    ("POST", "/remora/v1/save"): {"json": {"name": "saved", "tags": ["<lora:stripes:1>"]}},
    ("DELETE", "/remora/v1/save"): {},
    ("PUT", "/remora/v1/save/inputs"): {"json": {"on": False}},
    ("PATCH", "/remora/v1/files"): {"json": {"ids": []}},
    ("POST", "/remora/v1/files/move"): {"json": {"ids": [], "folder": "changed"}},
    ("POST", "/remora/v1/files/delete"): {"json": {"ids": []}},
    ("POST", "/remora/v1/files/restore"): {"json": {"ids": []}},
    ("POST", "/remora/v1/files/undo"): {"json": {"undo": "changed"}},
    ("DELETE", "/remora/v1/trash"): {"json": {"ids": []}},
    ("PUT", "/remora/v1/online"): {"json": {"on": False}},
    ("DELETE", "/remora/v1/online"): {},
    ("POST", "/remora/v1/online/lookup"): {"json": {"ids": []}},
    ("POST", "/remora/v1/online/download"): {"json": {"page": "https://civitai.com/models/1"}},
    ("POST", "/remora/v1/online/newer"): {"json": {"ids": []}},
    ("POST", "/sdapi/v1/txt2img"): {"json": SMALL},
    ("POST", "/sdapi/v1/img2img"): {"json": {**SMALL, "init_images": [REGION]}},
    ("POST", "/sdapi/v1/extra-single-image"): {"json": {"image": REGION}},
    ("POST", "/sdapi/v1/extra-batch-images"): {"json": {"imageList": [{"data": REGION, "name": "a"}]}},
    ("POST", "/sdapi/v1/png-info"): {"json": {"image": REGION}},
    ("POST", "/sdapi/v1/interrupt"): {},
    ("POST", "/sdapi/v1/skip"): {},
    ("POST", "/sdapi/v1/options"): {"json": {DEFAULT_MULTIPLIER: 0.5}},
    ("POST", "/sdapi/v1/refresh-loras"): {},
    **{("POST", f"/sdapi/v1/{name}"): {} for name in (*UNCHANGED, *REFUSED)},
}
NOT_NOW = {
    ("POST", "/remora/v1/files/undo"): 404,
    ("POST", "/remora/v1/online/lookup"): 409,
    ("POST", "/remora/v1/online/download"): 409,
    ("POST", "/remora/v1/online/newer"): 422,
}
"""Valid requests that cannot be met here: there is nothing to take back, and nothing is looked up unless turned on."""
SAFE = {"GET", "HEAD", "OPTIONS"}
OTHER_SITES: dict[str, dict[str, str]] = {
    "origin": {"Origin": "http://evil.example"},
    "origin of a sandboxed frame": {"Origin": "null"},
    "origin that is no address": {"Origin": "http://[evil"},
    "another port": {"Origin": f"{HERE}:8000"},
    "another name of this machine": {"Origin": "http://127.0.0.1"},
    "as the browser says": {"Sec-Fetch-Site": "cross-site", "Origin": HERE},
    "a picture or script of a page": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "a frame of a page": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    "as a proxy would, by another name than this machine's": {
        "Host": "192.168.1.5:7860",
        "Origin": "http://evil.example",
        "X-Forwarded-Host": "evil.example",
    },
    "a sister site": {"Sec-Fetch-Site": "same-site"},
}
OTHER_BODIES: dict[str, dict[str, str]] = {
    "plain text": {"Content-Type": "text/plain;charset=UTF-8"},
    "a form": {"Content-Type": "application/x-www-form-urlencoded"},
    "a form with files": {"Content-Type": "multipart/form-data; boundary=x"},
    "any bytes": {"Content-Type": "application/octet-stream"},
    "what looks like JSON": {"Content-Type": "text/plain; application/json"},
    "no type": {"Content-Type": ""},
}
NO_JSON = [b"{", b"\xff", b"\xed\xa0\x80", b"[" * 100_000, b'"', b"nul", '{"a": 1}'.encode("utf-16")]
NO_OBJECT = [b"[]", b"1", b'"x"', b"null", b"true", b"[{}]"]
# as they are written: Python writes none of them
NO_VALUE = [
    b"1e999",
    b"-1e999",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1" * 400,
    b"-" + b"9" * 5000,
    b'"\\ud800"',
    b'["a\\udfff"]',
    b'{"\\udfff": 1}',
    b"[" * 40 + b"]" * 40,
]
ODD_VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        2.5,
        1e308,
        10**19,
        "",
        "x",
        "\0",
        "a\nb",
        "x" * 20_000,
        [],
        [[]],
        [None],
        {},
        {"a": {"b": 1}},
    ),
    *(["x"] * 300, "<lora:" * 500, "7" * 400, "nan", "inf", "../../x", "20241105"),
]


class Routes:
    """The routes of an application, and requests to them."""

    def __init__(self, app: FastAPI, client: TestClient) -> None:
        self.client = client
        self.all: list[tuple[str, str]] = []
        paths: set[str] = set()
        for route in app.routes:
            path = getattr(route, "path", "").replace("{name:path}", "main.js")
            hidden = not getattr(route, "include_in_schema", True)
            if path and not (hidden and path in paths):  # else it answers 405 to the methods that a path does not have
                self.all += [(method, path) for method in sorted(getattr(route, "methods", None) or ())]
            paths.add(path)
        self.unsafe = [one for one in self.all if one[0] not in SAFE]

    def ask(self, route: tuple[str, str], **more: Any) -> Any:
        """Ask as an honest client does, but for what is given."""
        method, path = route
        valid = VALID.get(route, {} if method in SAFE else {"json": {}})
        if "json" in valid:
            valid = {**valid, "content": json.dumps(valid["json"]), "headers": JSON}
            del valid["json"]
        headers = {**valid.get("headers", {}), **more.pop("headers", {})}
        return self.client.request(method, path, **{**valid, **more, "headers": headers})

    def refuse(self, routes: list[tuple[str, str]], *statuses: int, **more: Any) -> None:
        """Check that all of these routes refuse a request."""
        assert routes
        for route in routes:
            answer = self.ask(route, **more)
            assert answer.status_code in statuses, (route, answer.status_code, answer.text[:300])
            if route[0] != "HEAD":  # which has no body
                one_sentence(answer)


def one_sentence(answer: Any) -> str:
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"detail"}
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    detail = answer.json()["detail"]
    assert isinstance(detail, str)
    assert 0 < len(detail) < 2500
    assert "\n" not in detail
    return detail


@pytest.fixture(scope="module")
def all_routes(runner: Runner) -> Iterator[Routes]:
    """Yield the routes of the embedded web UI."""
    app = make_api(runner)
    session = runner.studio.session
    with TestClient(app, base_url=HERE, raise_server_exceptions=False) as client:
        session.catalog.wait(60)
        session.presets.put("Kept", "<lora:zorp:1>")
        session.block_presets.put("Kept", "1,0,1")
        session.regions.put("Kept", png())
        yield Routes(app, client)
    session.presets.remove("Kept")
    session.block_presets.delete("Kept")
    session.regions.delete("Kept")


@pytest.fixture(scope="module")
def of_host(runner: Runner, all_routes: Routes) -> Iterator[Routes]:
    """Yield the same routes without Remora's middleware before the application."""
    app = FastAPI(openapi_url=None)
    add_routes(app, runner.studio.session)
    SdApi(runner).add_routes(app)
    with TestClient(app, base_url=HERE, raise_server_exceptions=False) as client:
        yield Routes(app, client)


@pytest.fixture
def unchanged(runner: Runner, all_routes: Routes) -> Iterator[None]:
    """Fails where a test has changed anything."""
    before = everything(runner)
    yield
    assert everything(runner) == before


@pytest.fixture
def restored(runner: Runner, all_routes: Routes) -> Iterator[None]:
    """Undo the changes of the requests in `VALID`."""
    folder = Path(runner.studio.host.adapter_dirs()[0])
    before = set(folder.iterdir())
    yield
    session = runner.studio.session
    session.always_on.put(AlwaysOn())
    for name in [preset.name for preset in session.presets.all]:
        session.presets.remove(name)
    session.presets.put("Kept", "<lora:zorp:1>")
    for name in session.block_presets.own:
        session.block_presets.delete(name)
    session.block_presets.put("Kept", "1,0,1")
    for name in session.regions.all:
        session.regions.delete(name)
    session.regions.put("Kept", png())
    runner.studio.host.set_option(DEFAULT_MULTIPLIER, 1.0)
    all_routes.client.delete("/remora/v1/compare")
    all_routes.client.delete("/remora/v1/save")
    while runner.current is not None or (all_routes.client.get("/remora/v1/save").json()["job"] or {}).get("running"):
        time.sleep(0.01)
    for path in set(folder.iterdir()) - before:
        path.unlink()
    session.catalog.refresh()


def everything(runner: Runner) -> dict[str, Any]:
    session, host = runner.studio.session, runner.studio.host
    folder = Path(host.adapter_dirs()[0])
    return {
        "stack": session.always_on.stack,
        "presets": session.presets.all,
        "blocks": session.block_presets.own,
        "regions": dict(session.regions.all),
        "multiplier": host.option(DEFAULT_MULTIPLIER),
        "files": {path.name: path.stat().st_mtime_ns for path in folder.iterdir()},
        "jobs": runner.current,
    }


def test_the_table_has_all_routes_and_each_takes_what_this_file_sends(
    runner: Runner, all_routes: Routes, restored: None
) -> None:
    """Or the attacks would be refused for another reason."""
    assert set(all_routes.unsafe) == set(VALID), "tell in VALID what a new route takes"
    assert {("GET", "/remora/v1/state"), ("GET", "/remora/app/main.js"), ("GET", "/openapi.json")} < set(all_routes.all)
    for route in all_routes.unsafe:
        runner.studio.session.presets.put("Kept", "<lora:zorp:1>")  # which one of them forgets
        answer = all_routes.ask(route)
        wanted = 501 if route[1].removeprefix("/sdapi/v1/") in REFUSED else NOT_NOW.get(route, 200)
        assert answer.status_code == wanted, (route, answer.text)


@pytest.mark.parametrize("headers", OTHER_SITES.values(), ids=OTHER_SITES)
def test_a_page_of_another_site_gets_nothing_and_changes_nothing(
    all_routes: Routes, headers: dict[str, str], unchanged: None
) -> None:
    all_routes.refuse(all_routes.all, 403, headers=headers)


@pytest.mark.parametrize("headers", OTHER_SITES.values(), ids=OTHER_SITES)
def test_in_a_host_it_reads_nothing_and_changes_nothing(
    of_host: Routes, headers: dict[str, str], unchanged: None
) -> None:
    ours = [route for route in of_host.all if route[1].startswith(("/remora/", "/sdapi/"))]
    assert {("GET", "/remora/v1/state"), ("GET", "/remora/v1/loras"), ("GET", "/sdapi/v1/loras")} < set(ours)
    of_host.refuse(ours, 403, headers=headers)


@pytest.mark.parametrize(
    "name", ["big-machine.example", "192.168.1.5:7860", "localhost.evil.example", "", "x@localhost"]
)
def test_by_a_name_that_other_machines_use_no_page_can_say_that_it_came_by_a_proxy(
    of_host: Routes, name: str, unchanged: None
) -> None:
    headers = {"Host": name, "Origin": "http://evil.example", "X-Forwarded-Host": "evil.example"}
    of_host.refuse(of_host.unsafe, 403, headers=headers)


@pytest.mark.parametrize("name", ["localhost:7860", "127.0.0.1:7860", "[::1]:7860", "127.3.2.1"])
def test_a_proxy_on_this_machine_may_have_another_name(of_host: Routes, name: str) -> None:
    headers = {"Host": name, "Origin": "https://behind.a.proxy", "X-Forwarded-Host": "behind.a.proxy"}
    assert of_host.ask(("POST", "/remora/v1/resolve"), headers=headers).status_code == 200
    of_host.refuse(of_host.unsafe, 403, headers={**headers, "Origin": "http://evil.example"})


@pytest.mark.parametrize("more", [{}, {"Sec-Fetch-Dest": "document"}], ids=["old browser", "new browser"])
@pytest.mark.parametrize("where", ["all_routes", "of_host"])
def test_a_page_of_another_site_may_link_here(
    request: pytest.FixtureRequest, where: str, more: dict[str, str], unchanged: None
) -> None:
    routes: Routes = request.getfixturevalue(where)
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", **more}
    assert routes.ask(("GET", "/remora/v1/state"), headers=headers).status_code == 200
    routes.refuse(routes.unsafe, 403, headers=headers)  # a form navigates, too


def test_no_other_site_may_frame_what_is_served(all_routes: Routes) -> None:
    for path in ("/remora/v1/state", "/remora/app/main.js", "/nowhere"):
        assert all_routes.client.get(path).headers["content-security-policy"] == "frame-ancestors 'self'", path
    refused = all_routes.client.get("/remora/v1/state", headers={"Host": "evil.example"})
    assert refused.headers["content-security-policy"] == "frame-ancestors 'self'"


@pytest.mark.parametrize("asked", ["PUT", "POST", "DELETE", "GET"])
def test_no_browser_is_told_that_another_site_may_ask(all_routes: Routes, asked: str, unchanged: None) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": asked}
    all_routes.refuse([("OPTIONS", path) for _, path in all_routes.all], 403, headers=headers)


@pytest.mark.parametrize("headers", OTHER_BODIES.values(), ids=OTHER_BODIES)
@pytest.mark.parametrize("where", ["all_routes", "of_host"])
def test_a_body_that_any_page_can_send_is_refused(
    request: pytest.FixtureRequest, where: str, headers: dict[str, str], unchanged: None
) -> None:
    routes: Routes = request.getfixturevalue(where)
    routes.refuse(routes.unsafe, 415, headers=headers, content=json.dumps(SMALL))


def test_a_body_of_the_others_type_is_refused(all_routes: Routes, unchanged: None) -> None:
    for route, valid in VALID.items():
        if "json" in valid:
            all_routes.refuse([route], 415, headers=PNG)
        elif "content" in valid:
            all_routes.refuse([route], 415, headers=JSON)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", "evil@localhost"),
        *("localhost@evil.example", "localhost:80:80", "evillocalhost", "127.1.evil", "[::1", "localhost/", ""),
    ],
)
def test_a_name_of_another_site_that_means_this_machine_gets_nothing(
    all_routes: Routes, host: str, unchanged: None
) -> None:
    same = {"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}  # as such a page is no other site
    all_routes.refuse(all_routes.all, 403, headers={"Host": host, **same})


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:7860", "remora.localhost", "127.0.0.1:80", "127.3.2.1", "[::1]:7"]
)
def test_names_of_this_machine_are_its_own(all_routes: Routes, host: str) -> None:
    assert all_routes.ask(("GET", "/remora/v1/state"), headers={"Host": host}).status_code == 200
    assert all_routes.ask(("POST", "/sdapi/v1/refresh-loras"), headers={"Host": host}).status_code == 200


def test_where_other_machines_are_let_in_any_name_may_be_this_machines(runner: Runner) -> None:
    with TestClient(make_api(runner, "0.0.0.0"), base_url="http://the-big-one:7860") as client:
        assert client.get("/remora/v1/state").status_code == 200
        same = {"Origin": "http://the-big-one:7860"}
        assert client.post("/sdapi/v1/refresh-loras", headers=same).status_code == 200
        assert client.post("/sdapi/v1/refresh-loras", headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("where", ["all_routes", "of_host"])
def test_too_large_a_body_is_refused(request: pytest.FixtureRequest, where: str, unchanged: None) -> None:
    routes: Routes = request.getfixturevalue(where)
    for headers in (JSON, PNG):
        routes.refuse(routes.unsafe, 413, content=b" " * (LONGEST_BODY + 1), headers=headers)
    for length in ("99999999999999999999999", "-1", "x"):
        routes.refuse(routes.unsafe, 400, 413, headers={"Content-Length": length})


def test_a_body_of_no_told_length_is_read_no_further_than_it_may_be(all_routes: Routes, unchanged: None) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(2 * LONGEST_BODY >> 20):
            sent += 1
            yield b" " * (1 << 20)

    for route, valid in VALID.items():
        if "json" in valid or "content" in valid:
            all_routes.refuse([route], 413, content=parts())


@pytest.fixture
def nothing_made(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture is made of a request that is taken after all."""

    def refuse(*_: object, **__: object) -> None:
        raise RequestError("enough")

    monkeypatch.setattr(runner, "submit", refuse)
    monkeypatch.setattr(ComparisonRun, "start", lambda one: setattr(one, "running", False))


@pytest.mark.parametrize("body", [*NO_JSON, *NO_OBJECT], ids=lambda body: repr(body[:12]))
def test_a_body_that_is_no_object_is_refused(all_routes: Routes, body: bytes, unchanged: None) -> None:
    # deep nesting takes more than the few bytes that some routes take
    statuses = (422, 413) if len(body) > 1 << 16 else (422,)
    all_routes.refuse([route for route, valid in VALID.items() if "json" in valid], *statuses, content=body)


@pytest.mark.parametrize("value", NO_VALUE, ids=lambda value: repr(value[:12]))
def test_what_no_number_and_no_text_can_hold_is_refused_wherever_it_stands(
    all_routes: Routes, value: bytes, unchanged: None, nothing_made: None
) -> None:
    for route, valid in VALID.items():
        body = valid.get("json", {})
        for field in [*body, "another"] if body else ():
            written = json.dumps({**body, field: "HERE"}).encode().replace(b'"HERE"', value)
            all_routes.refuse([route], 422, content=written)


@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: repr(value)[:20])
def test_values_of_other_types_are_a_sentence_at_worst(
    all_routes: Routes, value: object, restored: None, nothing_made: None
) -> None:
    for route, valid in VALID.items():
        for field in valid.get("json", {}):
            before = all_routes.client.get("/remora/v1/stack").json()
            answer = all_routes.ask(route, content=json.dumps({**valid["json"], field: value}))
            assert answer.status_code < 500, (route, field, answer.text)
            if answer.status_code >= 400:
                one_sentence(answer)
                assert all_routes.client.get("/remora/v1/stack").json() == before


@pytest.mark.parametrize(
    "written",
    [
        *(
            "%00",
            "%ed%a0%80",
            "%ff",
            "%F0%9F%90%9F",
            "a" * 5000,
            "1" * 400,
            "%0aINFO%20forged",
            "-1",
            "1e999",
            "..%2f..%2fx",
        ),
        *("%3Cscript%3E", "/etc/passwd", "C%3A%5Cx", "nan", "", "zorp%00.safetensors"),
    ],
)
def test_queries_of_any_text_are_a_sentence_at_worst(all_routes: Routes, written: str, unchanged: None) -> None:
    for method, path in all_routes.all:
        if method not in SAFE and "json" in VALID[method, path]:
            continue
        for field in ("name", "id", "cell", "since", "model", "skip_current_image"):
            if method in SAFE or path.endswith(("picture", "thumbnail", "preset", "presets", "regions")):
                answer = all_routes.client.request(method, f"{path}?{field}={written}", headers=PNG, content=b"x")
                assert answer.status_code < 500, (method, path, field, answer.text)
                if answer.status_code >= 400:
                    one_sentence(answer)


def test_with_a_login_nothing_is_served_without_it(
    runner: Runner, unchanged: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.brake.ALLOWED", 10**6)  # this test sends hundreds of wrong ones
    app = make_api(runner, "0.0.0.0", "mé:se:cret")
    with TestClient(app, base_url=HERE) as client:
        routes = Routes(app, client)
        wrong = [
            {},
            *({"Authorization": text} for text in ("Basic", "Basic x", "Bearer x", "Basic bcOpOg==", "x" * 9999)),
        ]
        for headers in wrong:
            routes.refuse(routes.all, 401, headers=headers)
        assert client.get("/remora/app/main.js").headers["www-authenticate"].startswith("Basic")
        assert client.get("/any/other/address").status_code == 401
        known = {"Authorization": f"Basic {base64.b64encode('mé:se:cret'.encode()).decode()}"}
        for route in routes.all:
            if route[0] in SAFE:
                assert routes.ask(route, headers=known).status_code in (200, 404, 422), route
        # a browser sends the password with what other sites ask for as well
        routes.refuse(routes.all, 403, headers={**known, "Origin": "http://evil.example"})


@pytest.mark.parametrize("where", ["all_routes", "of_host"])
def test_a_fault_of_ours_is_a_sentence_with_the_number_of_its_line_in_the_log(
    runner: Runner, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_api(runner) if where == "all_routes" else FastAPI(openapi_url=None)
    if where == "of_host":
        add_routes(app, runner.studio.session)
        SdApi(runner).add_routes(app)

    def breaks(**_: object) -> None:
        raise RuntimeError("what nobody\nthought of")

    for route in app.routes:
        if isinstance(route, APIRoute):
            route.dependant.call = breaks
    with TestClient(app, base_url=HERE, raise_server_exceptions=False) as client:
        routes = Routes(app, client)
        for route in routes.all:
            if route[1] in ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"):
                continue  # fastapi's own
            caplog.clear()
            with caplog.at_level(logging.ERROR):
                answer = routes.ask(route, **({"params": {"name": "zorp"}} if route[0] in SAFE else {}))
            assert answer.status_code == 500, (route, answer.text)
            number = re.search(r"\(number (\d{6}); the log has it\)", one_sentence(answer))
            assert number is not None
            assert f"(number {number[1]})" in caplog.text
            assert "RuntimeError: what nobody" in caplog.text
            assert "nobody" not in answer.text


def test_the_page_of_the_api_with_scripts_of_other_sites_is_not_there(all_routes: Routes) -> None:
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert all_routes.client.get(path).status_code == 404
