"""Our routes demand what the host's own do: its API's name and password, or the login of its page."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from secrets import compare_digest
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from fastapi.testclient import TestClient

from extension.api.guard import add_route
from extension.hosts import Access
from extension.hosts._access import access_of
from extension.hosts.a1111 import A1111

ROOT = Path(__file__).resolve().parents[3]
GRADIO = """
import gradio as gr
from fastapi.testclient import TestClient
from extension.api.guard import add_route
from extension.hosts._access import access_of
with gr.Blocks(analytics_enabled=False) as demo:
    gr.HTML("x")
app, _, _ = demo.launch(auth=[("me", "secret")], prevent_thread_lock=True, quiet=True)
add_route(app, "/ours", lambda: 1, access_of(app))
route = app.router.routes.pop()
app.router.routes.insert(0, route)  # before gradio's own, which take every address
with TestClient(app, base_url="http://127.0.0.1") as client:
    print(client.get("/ours").status_code, client.get("/config").status_code)
    print(client.post("/login", data={"username": "me", "password": "secret"}).status_code)
    print(client.get("/ours").status_code, client.get("/config").status_code)
demo.close()
"""


class FakeApi:
    """A host's API, as A1111 and SD.Next have it: each route depends on the check where there are passwords."""

    def __init__(self, app: FastAPI, passwords: dict[str, str]) -> None:
        self.passwords = passwords
        dependencies = [Depends(self.auth)] if passwords else []
        app.add_api_route("/sdapi/v1/options", lambda: 1, methods=["GET"], dependencies=dependencies)
        app.add_api_route("/sdapi/v1/options", lambda: 1, methods=["POST"], dependencies=dependencies)

    def auth(self, credentials: HTTPBasicCredentials = Depends(HTTPBasic())) -> bool:  # noqa: B008
        known = self.passwords.get(credentials.username)
        if known is not None and compare_digest(credentials.password, known):
            return True
        raise HTTPException(status_code=401, detail="no")


def add_login(app: Any, *, awaited: bool = False) -> None:
    """Give an application the login of a gradio page, with the one token `good`."""
    app.auth = {"me": "secret"}

    def user(request: Request) -> str | None:
        return "me" if request.cookies.get("access-token") == "good" else None

    async def later(request: Request) -> str | None:
        return user(request)

    current: Any = Depends(later if awaited else user)

    def login_check(user: str | None = current) -> None:
        if user is None:
            raise HTTPException(401, "Not authenticated")

    app.add_api_route("/config", lambda: 1, dependencies=[Depends(login_check)])


def status(app: FastAPI, auth: tuple[str, str] | None = None, token: str = "") -> int:
    add_route(app, "/ours", lambda: 1, access_of(app))
    with TestClient(app, cookies={"access-token": token} if token else {}) as client:
        return client.get("/ours", auth=auth).status_code


@pytest.fixture
def app() -> FastAPI:
    return FastAPI()


def test_a_host_that_demands_nothing(app: FastAPI) -> None:
    FakeApi(app, {})
    assert access_of(app) == Access()
    assert status(app) == 200


def test_a_host_without_an_api(app: FastAPI) -> None:
    assert status(app) == 200


@pytest.mark.parametrize(
    ("auth", "wanted"), [(None, 401), (("u", "p"), 200), (("u", "x"), 401), (("v", "p"), 401), (("", ""), 401)]
)
def test_the_password_of_its_api(app: FastAPI, auth: tuple[str, str] | None, wanted: int) -> None:
    FakeApi(app, {"u": "p"})
    assert status(app, auth) == wanted


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(("token", "wanted"), [("", 401), ("bad", 401), ("good", 200)])
def test_the_login_of_its_page(app: FastAPI, token: str, wanted: int, awaited: bool) -> None:
    FakeApi(app, {})
    add_login(app, awaited=awaited)
    assert status(app, token=token) == wanted


@pytest.mark.parametrize(("auth", "token", "wanted"), [(None, "", 401), (("u", "p"), "", 200), (None, "good", 200)])
def test_either_where_there_are_both(app: FastAPI, auth: tuple[str, str] | None, token: str, wanted: int) -> None:
    FakeApi(app, {"u": "p"})
    add_login(app)
    assert status(app, auth, token) == wanted


def test_a_login_that_cannot_be_asked_lets_nobody_in(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    app.auth = {"me": "secret"}  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        assert status(app, token="good") == 401
    assert "cannot check" in caplog.text


def test_a_refusal_is_one_sentence_and_asks_for_the_password_only_where_there_is_one(app: FastAPI) -> None:
    FakeApi(app, {"u": "p"})
    add_route(app, "/ours", lambda: 1, access_of(app))
    with TestClient(app) as client:
        answer = client.get("/ours")
    assert answer.json() == {"detail": "the user and password of the web UI's API are needed"}
    assert answer.headers["WWW-Authenticate"] == "Basic"


def test_a_check_that_breaks_is_not_taken_for_a_refusal(app: FastAPI) -> None:
    def breaks(credentials: Any = None) -> None:
        raise RuntimeError("the host's fault")

    app.add_api_route("/sdapi/v1/options", lambda: 1, dependencies=[Depends(breaks)])
    password = access_of(app).password
    assert password is not None
    with pytest.raises(RuntimeError, match="the host's fault"):
        password("u", "p")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"api_auth": "u:p", "api": True}, 401),
        ({"api_auth": "u:p", "nowebui": True, "api": False}, 401),
        ({"api_auth": "u:p", "api": False}, 200),  # the host has no API, and asks nobody
        ({"gradio_auth": "u:p"}, 401),
        ({"gradio_auth_path": "users.txt"}, 401),
        ({"auth": "u:p"}, 401),
        ({"auth_file": "users.txt"}, 401),
        ({"api_auth": None, "gradio_auth": "", "api": True}, 200),
    ],
)
def test_where_a_login_is_set_and_not_found_nobody_is_let_in(
    app: FastAPI, options: dict[str, object], wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    add_route(app, "/ours", lambda: 1, access_of(app, SimpleNamespace(**options)))
    with TestClient(app) as client:
        answer = client.get("/ours", auth=("u", "p"))
    assert answer.status_code == wanted
    assert ("is set, but Remora cannot find what checks it" in caplog.text) == (wanted == 401)


def test_a_login_that_is_set_and_found_is_as_it_was(app: FastAPI) -> None:
    FakeApi(app, {"u": "p"})
    options = SimpleNamespace(api_auth="u:p", gradio_auth="x:y", api=True)
    add_route(app, "/ours", lambda: 1, access_of(app, options))
    with TestClient(app) as client:
        assert [client.get("/ours", auth=auth).status_code for auth in (None, ("u", "p"))] == [401, 200]


def test_the_password_of_an_api_whose_routes_are_in_a_router(app: FastAPI) -> None:
    inner, router = APIRouter(prefix="/v1"), APIRouter(prefix="/sdapi")

    def auth(credentials: HTTPBasicCredentials = Depends(HTTPBasic())) -> None:  # noqa: B008
        if credentials.password != "p":
            raise HTTPException(401, "no")

    inner.add_api_route("/options", lambda: 1, dependencies=[Depends(auth)])
    router.include_router(inner)
    app.include_router(router)
    add_route(app, "/ours", lambda: 1, access_of(app))
    with TestClient(app) as client:
        assert [client.get("/ours", auth=auth).status_code for auth in (None, ("u", "x"), ("u", "p"))] == [
            401,
            401,
            200,
        ]


def test_hosts_tell_what_their_command_line_demands(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Any = ModuleType("modules.shared")
    shared.cmd_opts = SimpleNamespace(gradio_auth="u:p")
    monkeypatch.setitem(sys.modules, "modules", ModuleType("modules"))
    monkeypatch.setitem(sys.modules, "modules.shared", shared)
    login = A1111.access(app).login
    assert login is not None
    assert login(None) is None


def test_a_real_page_with_a_login() -> None:
    # in a process of its own: gradio leaves event loops open, and warnings are errors here
    done = subprocess.run([sys.executable, "-c", GRADIO], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:5] == ["401", "401", "200", "200", "200"]
