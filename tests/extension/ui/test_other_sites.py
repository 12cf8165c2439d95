"""Pages of other sites in a real browser against the web UI as a user starts it; and its page behind a login."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import find_chromium
from tests.extension.ui.serving import LONG, Served, fill, infotext_with, opened, serving
from tests.extension.ui.tab import Tab

EVIL = "evil.example"
BIG = "big-machine.example"
"""Both names mean this machine to the browser: one of a site, one by which other machines know this one."""
# Tries all that a page may try, and waits for what comes of it.
ATTACK = """
async target => {
    const outcomes = {};
    const json = JSON.stringify;
    const stack = {always_on: true, entries: [{name: "zorp"}]};
    const small = {prompt: "a fox <lora:zorp:1>", steps: 1, width: 64, height: 64, save_images: true};
    const bodies = {
        "/remora/v1/presets": json({text: "# Remora preset 1: attacked\\n<lora:neon:1>"}),
        "/remora/v1/compare": json({...small, save_images: undefined, names: ["zorp"], values: [0, 1]}),
        "/remora/v1/refresh": "",
        "/sdapi/v1/txt2img": json(small),
        "/sdapi/v1/options": json({remora_default_multiplier: 0.5}),
        "/sdapi/v1/interrupt": "",
    };
    const note = async (name, asked) => {
        try {
            const answer = await asked;
            outcomes[name] = answer.type === "opaque" ? "opaque" : `read ${answer.status}`;
        } catch (error) { outcomes[name] = "blocked"; }
    };
    for (const [path, body] of Object.entries(bodies)) {
        const plain = {method: "POST", body, mode: "no-cors", credentials: "include"};
        await note(`plain ${path}`, fetch(target + path, {...plain, headers: {"Content-Type": "text/plain"}}));
        await note(`json ${path}`, fetch(target + path, {
            method: "POST", body, credentials: "include", headers: {"Content-Type": "application/json"}}));
        await note(`untyped ${path}`, fetch(target + path, {...plain, body: new Blob([body])}));
        navigator.sendBeacon(target + path, new Blob([body], {type: "text/plain"}));
        const frame = document.createElement("iframe");
        frame.name = `frame${path}`;
        document.body.append(frame);
        const form = document.body.appendChild(document.createElement("form"));
        Object.assign(form, {method: "POST", action: target + path, target: frame.name, enctype: "text/plain"});
        const field = form.appendChild(document.createElement("input"));
        // which is sent as name=value, and is JSON all the same
        [field.name, field.value] = [body.slice(0, -1) + ', "x": "', '"}'];
        form.submit();
    }
    const sent = {credentials: "include", headers: {"Content-Type": "application/json"}};
    await note("put", fetch(`${target}/remora/v1/stack`, {...sent, method: "PUT", body: json(stack)}));
    const notes = {...sent, method: "PATCH", body: json({notes: "attacked"})};
    await note("patch", fetch(`${target}/remora/v1/lora?name=zorp`, notes));
    await note("delete", fetch(`${target}/remora/v1/preset?name=Kept`, {...sent, method: "DELETE"}));
    await note("get", fetch(`${target}/remora/v1/state`, {credentials: "include"}));
    await note("page", fetch(`${target}/config`, {credentials: "include"}));
    await new Promise(resolve => setTimeout(resolve, 700)); // in which forms and beacons arrive
    return outcomes;
}
"""


@pytest.fixture(scope="module")
def fooled(browser: Any) -> Iterator[Any]:
    """Yield a browser that resolves the names of sites to this machine."""
    rules = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1, MAP {BIG} 127.0.0.1"
    arguments = ["--no-sandbox", "--disable-gpu", rules]
    found = browser.browser_type.launch(executable_path=find_chromium(), args=arguments)
    yield found
    found.close()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """Yield the port of another web server with an empty page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>Another site</title><body></body>")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def shared(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield the web UI as it serves other machines without a login."""
    folder = tmp_path_factory.mktemp("shared")
    model = served.loras.parent / "remora-shapes"
    arguments = [f"--model={model}", f"--lora-dir={served.loras}", "--host=0.0.0.0", "--without-login"]
    with serving(folder, served.loras, arguments) as found:
        yield found


def everything(served: Served) -> dict[str, Any]:
    """Return everything that a page could change."""
    paths = ("stack", "presets", "blocks", "regions", "compare")
    found = {path: httpx.get(f"{served.url}/remora/v1/{path}").json() for path in paths}
    lora = httpx.get(f"{served.url}/remora/v1/lora", params={"name": "zorp"}).json()
    found["notes"] = lora["notes"], lora["sidecars"]
    found["options"] = httpx.get(f"{served.url}/sdapi/v1/options").json()
    found["jobs"] = httpx.get(f"{served.url}/sdapi/v1/progress").json()["state"]["job_count"]
    found["pictures"] = sorted(path.name for path in served.pictures.glob("*.png"))
    return found


@pytest.mark.browser
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", EVIL])
@pytest.mark.parametrize("where", ["served", "shared"])
def test_a_page_of_another_site_reads_nothing_and_changes_nothing(
    request: pytest.FixtureRequest, fooled: Any, elsewhere: int, where: str, host: str
) -> None:
    target: Served = request.getfixturevalue(where)
    port = target.url.rpartition(":")[2]
    httpx.put(f"{target.url}/remora/v1/preset", params={"name": "Kept"}, json={"text": "<lora:zorp:1>"})
    before = everything(target)
    page = fooled.new_page()
    try:
        page.goto(f"http://{host}:{elsewhere}/")
        for name in ("127.0.0.1", "localhost", EVIL, BIG):
            outcomes = page.evaluate(ATTACK, f"http://{name}:{port}")
            assert {kind for kind in outcomes.values() if kind.startswith("read")} == set(), (name, outcomes)
            assert outcomes["put"] == "blocked"
            assert everything(target) == before, name
    finally:
        page.close()
        httpx.delete(f"{target.url}/remora/v1/preset", params={"name": "Kept"})


@pytest.mark.browser
def test_a_name_of_another_site_that_means_this_machine_shows_nothing(fooled: Any, served: Served) -> None:
    port = served.url.rpartition(":")[2]
    page = fooled.new_page()
    try:
        for path in ("", "config", "remora/v1/state", "remora/app/main.js", "sdapi/v1/options", "openapi.json"):
            answer = page.goto(f"http://{EVIL}:{port}/{path}")
            assert answer.status == 403, path
            assert str(served.loras) not in answer.text()
    finally:
        page.close()


@pytest.mark.parametrize("where", ["served", "shared"])
def test_no_answer_of_the_page_or_a_route_lets_another_site_in(request: pytest.FixtureRequest, where: str) -> None:
    """Asked as gradio is fooled: by a name of this machine that is not localhost."""
    target: Served = request.getfixturevalue(where)
    routes = httpx.get(f"{target.url}/openapi.json").json()["paths"]
    paths = [*routes, "/", "/config", "/gradio_api/info", "/gradio_api/upload", "/remora/app/main.js", "/nowhere"]
    with httpx.Client(base_url=target.url) as client:
        for path in paths:
            for method in ("OPTIONS", "GET", "POST", "PUT", "PATCH", "DELETE"):
                for host in ("192.168.1.5:7860", "localhost:7860"):
                    headers = {"Host": host, "Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
                    answer = client.request(method, path, headers=headers)
                    assert answer.status_code == 403, (method, path)
                    assert [name for name in answer.headers if name.startswith("access-control-")] == []


def test_no_page_of_the_api_takes_scripts_from_other_sites(served: Served) -> None:
    for path in ("docs", "redoc"):
        assert "cdn." not in httpx.get(f"{served.url}/{path}").text


@pytest.mark.browser
def test_with_a_login_the_page_works_and_nobody_else_sees_anything(
    served: Served, browser: Any, tmp_path: Path
) -> None:
    model = served.loras.parent / "remora-shapes"
    arguments = [f"--model={model}", f"--lora-dir={served.loras}", "--host=0.0.0.0", "--auth=me:se:cret"]
    with serving(tmp_path, served.loras, arguments) as target:
        for path in ("", "config", "remora/v1/state", "remora/app/main.js", "remora/remora.js", "sdapi/v1/options"):
            assert httpx.get(f"{target.url}/{path}").status_code == 401, path
            assert httpx.get(f"{target.url}/{path}", auth=("me", "secret")).status_code == 401
            assert httpx.get(f"{target.url}/{path}", auth=("me", "se:cret")).status_code == 200, path
        # as a browser does it: only where it is asked for
        credentials = {"username": "me", "password": "se:cret", "send": "unauthorized"}
        with opened(target, browser, http_credentials=credentials) as page:
            Tab(page).ready().insert("zorp")
            for name, value in (("width", "64"), ("height", "64"), ("steps", "1")):
                fill(page, f"#{name} input[type=number]", value)
            page.click("#generate")
            assert "zorp" in infotext_with(page, "Lora hashes")
            page.wait_for_function("document.querySelector('#gallery img')?.naturalWidth === 64", timeout=LONG)
