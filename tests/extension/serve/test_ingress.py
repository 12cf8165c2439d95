"""The routes of the served application over a model in this process: what each user gets, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from PIL import Image

from extension.client import Client, ClientError
from extension.serve.ingress import RETRIED, TIMEOUT, Ingress, IngressSettings
from extension.serve.keys import read_keys
from extension.serve.model import Message, Model, ModelSettings, first_lora
from tests.fakes.coroutines import completed

DEMO = Path(__file__).resolve().parents[3] / "demo" / "loras"
ANN, BOB = "0123456789abcdef", "fedcba9876543210"
SMALL: dict[str, Any] = {"steps": 2, "width": 64, "height": 64, "seed": 1}
LONG = {**SMALL, "steps": 150}


class LocalModels:
    """One model in this process, which may be lost once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.losses = 0
        self.ended = 0
        self.refreshed = 0

    async def generate(self, payload: dict[str, Any], **how: Any) -> AsyncGenerator[Message, None]:
        if self.losses:
            self.losses -= 1
            yield "retried", None
        made = self.model.generate(payload, **how)
        try:
            async for message in made:
                yield message
        finally:
            await made.aclose()
            self.ended += 1

    async def listing(self, name: str) -> Any:
        return await self.model.listing(name)

    async def refresh(self) -> None:
        self.refreshed += 1
        self.model.refresh()


@pytest.fixture(scope="module")
def loras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of LoRA that nobody should use."""
    folder = tmp_path_factory.mktemp("loras")
    whole = (DEMO / "night.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    (folder / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "pickled.pt").write_bytes(b"\x80\x04cposix\nsystem\n(S'true'\ntR.")
    (folder / "renamed.safetensors").write_bytes(b"\x80\x04cposix\nsystem\n(S'true'\ntR.")
    (folder / "long.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + whole[8:])
    (folder / "endless.safetensors").write_bytes(whole[: 8 + length] + b"\xff" * (len(whole) - 8 - length))
    (folder / "out.safetensors").symlink_to("/proc/self/environ")
    return folder


@pytest.fixture(scope="module")
def models(loras: Path) -> Iterator[LocalModels]:
    model = Model(ModelSettings.of({"gather": 0.0, "lora_dirs": [str(loras)]}))
    yield LocalModels(model)
    model.close()


@pytest.fixture(scope="module")
def address(models: LocalModels) -> Iterator[str]:
    """Serve the routes with keys for two users."""
    settings = IngressSettings(logins=(f"ann:{ANN}", f"bob:{BOB}"))
    config = uvicorn.Config(Ingress(models, settings).app(), port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def ann(address: str) -> Client:
    return Client(address, ANN)


@pytest.fixture
def raw(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{address}/sdapi/v1/", auth=("ann", ANN), timeout=60) as client:
        yield client


def wait_until(holds: Any) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_pictures_are_made_with_their_lora(ann: Client, raw: httpx.Client) -> None:
    seen: list[float] = []
    made = ann.txt2img("a square <lora:stars:0.8>", progress=seen.append, **SMALL)
    image = Image.open(io.BytesIO(made.images[0]))
    assert image.size == (64, 64)
    assert "<lora:stars:0.8>" in image.info["parameters"]
    assert made.info["remora"]["loras"][0].startswith("stars")
    assert not made.retried
    told = raw.post("png-info", json={"image": base64.b64encode(made.images[0]).decode()}).json()
    assert told["parameters"]["Prompt"] == "a square <lora:stars:0.8>"
    assert raw.post("png-info", json={"image": "no picture"}).status_code == 422
    again = ann.img2img("a circle", [made.images[0]], denoising_strength=0.5, **SMALL)
    assert Image.open(io.BytesIO(again.images[0])).size == (64, 64)


def test_clients_of_a1111_log_in_with_user_and_key(raw: httpx.Client) -> None:
    assert {one["name"] for one in raw.get("loras").json()} >= {"stars", "zorp"}
    assert raw.get("sd-models").json()[0]["model_name"] == "remora-shapes"
    assert "Euler a" in {one["name"] for one in raw.get("samplers").json()}
    assert "remora-shapes" in raw.get("options").json()["sd_model_checkpoint"]
    made = raw.post("txt2img", json={"prompt": "a square", **SMALL}).json()
    assert base64.b64decode(made["images"][0])[:4] == b"\x89PNG"


def test_lists_do_not_tell_where_files_are(raw: httpx.Client) -> None:
    assert all("/" not in one["path"] for one in raw.get("loras").json())
    assert raw.get("cmd-flags").status_code == 404


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YW5uOmFubg=="}])
def test_without_a_key_nothing_is_told(address: str, headers: dict[str, str]) -> None:
    for method, route in (("GET", "loras"), ("POST", "txt2img"), ("GET", "progress"), ("POST", "interrupt")):
        answer = httpx.request(method, f"{address}/sdapi/v1/{route}", headers=headers)
        assert (answer.status_code, list(answer.json())) == (401, ["detail"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "elsewhere.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({TIMEOUT: "soon"}, 422),
        ({TIMEOUT: "-1"}, 422),
    ],
)
def test_other_sites_and_other_bodies_are_refused(raw: httpx.Client, headers: dict[str, str], status: int) -> None:
    answer = raw.post("txt2img", content=b"{}", headers={"Content-Type": "application/json", **headers})
    assert (answer.status_code, list(answer.json())) == (status, ["detail"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "a <lora:nobody:1>"}, "nobody"),
        ({"prompt": 3}, "prompt must be a text"),
        ({"steps": 0}, "steps is 0"),
        ({"override_settings": {"sd_model_checkpoint": "another"}}, "is not loaded"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_why(ann: Client, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError, match=said) as refused:
        ann.txt2img(**{"prompt": "", **SMALL, **fields})
    assert refused.value.status == 422


@pytest.mark.parametrize(
    "name",
    [
        *("half", "pickled", "renamed", "long", "endless", "out"),
        *("../half", "..\\half", "/etc/passwd", str(DEMO.parent / "judge"), "a\0b", "x" * 100_000),
    ],
)
def test_a_lora_that_must_not_be_read_costs_its_own_request(ann: Client, loras: Path, name: str) -> None:
    with pytest.raises(ClientError) as refused:
        ann.txt2img(f"a square <lora:{name}:1>", **SMALL)
    assert refused.value.status == 422
    assert str(loras) not in str(refused.value)
    assert len(str(refused.value)) < 2000
    assert ann.txt2img("a square <lora:night:1>", **SMALL).images


def bomb() -> str:
    """Return a small file of a large picture."""
    stream = io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 10**9},
        {"n_iter": 10**9},
        {"width": 10**6, "height": 10**6},
        {"steps": 10**9},
        {"cfg_scale": float("nan")},
        {"seed": 10**40},
        {"width": "64; rm -rf"},
        {"sampler_name": {"a": 1}},
        {"script_name": "x", "script_args": ["import os"]},
        {"override_settings": {"remora_folder": "/etc"}},
        {"init_images": ["/etc/passwd"]},
        {"init_images": ["http://127.0.0.1:1/x.png"]},
        {"init_images": bomb},
    ],
)
def test_a_request_that_asks_for_too_much_is_refused(raw: httpx.Client, fields: dict[str, Any]) -> None:
    fields = {key: [value()] if callable(value) else value for key, value in fields.items()}
    route = "img2img" if "init_images" in fields else "txt2img"
    body = json.dumps({"prompt": "a", **SMALL, **fields})
    answer = raw.post(route, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (422, ["detail"])
    assert "Traceback" not in answer.text
    assert len(answer.text) < 2000


@pytest.mark.parametrize("body", [b"[" * 100_000, b"[]", b"null", b"\xff\xfe", b'{"prompt":'])
def test_a_body_that_is_no_request_is_refused(raw: httpx.Client, body: bytes) -> None:
    answer = raw.post("txt2img", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert list(answer.json()) == ["detail"]


def test_after_ten_wrong_keys_no_key_is_looked_at(models: LocalModels) -> None:
    """The right one neither, so that who guesses is not told when it is found."""
    app = Ingress(models, IngressSettings(logins=(f"ann:{ANN}",))).app()

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            keys = [*(f"guess{i}" for i in range(10)), ANN]
            url = "/sdapi/v1/samplers"
            return [(await client.get(url, headers={"Authorization": f"Bearer {key}"})).status_code for key in keys]

    assert completed(statuses()) == [401] * 10 + [429]


def test_a_body_has_a_bound(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        head = f"POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 999999999999\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_settings_of_others_cannot_be_changed(raw: httpx.Client, models: LocalModels) -> None:
    before = raw.get("options").json()
    assert raw.post("options", json={"remora_enabled": False}).status_code == 403
    fields = {"prompt": "a square <lora:stars:1>", **SMALL, "override_settings_restore_afterwards": False}
    assert raw.post("txt2img", json={**fields, "override_settings": {"remora_enabled": False}}).status_code == 200
    assert raw.get("options").json() == before


def test_a_request_is_not_made_after_its_time(address: str) -> None:
    with pytest.raises(ClientError, match="not done in the time") as refused:
        Client(address, ANN, timeout=0.3)._ask("POST", "txt2img", {"prompt": "", **LONG})
    assert (refused.value.status, refused.value.retry_after) == (504, 5)


def test_a_client_that_leaves_ends_its_request(address: str, models: LocalModels) -> None:
    ended = models.ended
    with pytest.raises(httpx.ReadTimeout), httpx.Client(auth=("ann", ANN), timeout=0.5) as client:
        client.post(f"{address}/sdapi/v1/txt2img", json={"prompt": "a square", **LONG})
    wait_until(lambda: models.ended == ended + 1)
    wait_until(lambda: models.model.runner.current is None)


def test_a_user_sees_and_ends_only_their_own_requests(address: str, ann: Client) -> None:
    bob, made = Client(address, BOB), []
    thread = threading.Thread(target=lambda: made.append(ann.txt2img("a square", force_task_id="t", **LONG)))
    thread.start()
    wait_until(lambda: ann.progress("t") > 0)
    assert bob.progress("t") == bob.progress() == 0
    bob.interrupt("t")
    bob.interrupt()
    assert thread.is_alive()
    ann.interrupt("t")
    thread.join(30)
    assert made[0].images == ()
    assert made[0].info["remora"]["cancelled"]


def test_a_task_that_is_cancelled_ends_its_request(ann: Client, models: LocalModels) -> None:
    ended = models.ended

    async def begin_and_cancel() -> None:
        task = asyncio.ensure_future(ann.txt2img_async("a square", **LONG))
        while ann.progress() == 0:
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    completed(begin_and_cancel())
    wait_until(lambda: models.ended == ended + 1)


def test_a_retry_is_told(ann: Client, raw: httpx.Client, models: LocalModels) -> None:
    models.losses = 2
    assert ann.txt2img("a square", **SMALL).retried
    assert raw.post("txt2img", json={"prompt": "a <lora:nobody:1>", **SMALL}).headers[RETRIED] == "1"


def test_too_many_requests_are_told_when_to_come_again(
    raw: httpx.Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.standalone.jobs.MOST_WAITING", -1)
    answer = raw.post("txt2img", json={"prompt": "a square", **SMALL})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
    slept: list[float] = []

    def free(seconds: float) -> None:
        slept.append(seconds)
        monkeypatch.setattr("extension.standalone.jobs.MOST_WAITING", 100)

    monkeypatch.setattr("extension.client.time.sleep", free)
    assert Client(address, ANN).txt2img("a square", **SMALL).images
    assert slept[0] == 10


def test_a_new_file_is_found_after_a_refresh(raw: httpx.Client, models: LocalModels) -> None:
    assert raw.post("refresh-loras").status_code == 200
    assert models.refreshed == 1


def test_a_new_file_is_used_though_nobody_tells_of_it(ann: Client, models: LocalModels, loras: Path) -> None:
    """As on a network drive, where the system reports no changes."""
    catalog = models.model.studio.session.catalog
    catalog.close()
    (loras / "fresh.safetensors").write_bytes((DEMO / "night.safetensors").read_bytes())
    try:
        assert ann.txt2img("a square <lora:fresh:1>", **SMALL).info["remora"]["loras"][0].startswith("fresh")
    finally:
        catalog.start()


def test_prompts_are_not_in_the_log(ann: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        ann.txt2img("a secretive square <lora:stars:1>", negative_prompt="hushed", **SMALL)
    assert "secretive" not in caplog.text
    assert "hushed" not in caplog.text


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# users\n\nann:{ANN}\nbob:{BOB}\n")
    assert read_keys(path) == (f"ann:{ANN}", f"bob:{BOB}")
    for text, said in (("ann:short", "line 1"), (f"ann:{ANN}\nbob:{ANN}", "another user"), ("", "no keys")):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_keys(path)


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        ({"prompt": "a <lora:stars:1> <lora:zorp:1>"}, "stars"),
        ({"prompt": "<lora:stars>"}, "stars"),
        ({"prompt": "a"}, ""),
        ({"prompt": 3}, ""),
        ({}, ""),
    ],
)
def test_requests_are_known_by_their_first_lora(payload: dict[str, Any], name: str) -> None:
    assert first_lora(payload) == name
