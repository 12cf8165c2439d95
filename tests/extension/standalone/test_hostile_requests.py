"""Requests that nobody sends in good faith, over a real socket: each is refused or served, and the next is served."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from PIL import Image

from extension.standalone import protocol
from extension.standalone.jobs import MOST_WAITING, Runner
from extension.standalone.server import make_api

LOCAL = "127.0.0.1"
JSON = {"Content-Type": "application/json"}
PNG = {"Content-Type": "image/png"}
SMALL: dict[str, Any] = {"prompt": "a fox", "steps": 1, "width": 64, "height": 64, "seed": 7, "sampler_name": "Euler a"}
TXT2IMG, IMG2IMG, V1 = "/sdapi/v1/txt2img", "/sdapi/v1/img2img", "/remora/v1"
REFUSED = range(400, 500)
SOON = 5.0
"""Seconds of a plain request: the machine may have other work."""


class Server:
    """The embedded web UI without its page, as `python -m extension.standalone` serves it."""

    def __init__(self, runner: Runner, login: str = "") -> None:
        config = uvicorn.Config(
            make_api(runner, login=login), port=0, log_level="error", ws="none", http=protocol.TimedProtocol
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Server:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.client = httpx.Client(base_url=f"http://{LOCAL}:{self.port}", timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()

    def raw(self, sent: bytes, seconds: float = 2.0) -> bytes:
        """Send bytes; return the answer until the server closes the connection, or all that comes in some seconds."""
        answer = b""
        with socket.create_connection((LOCAL, self.port), timeout=seconds) as connection:
            connection.sendall(sent)
            try:
                while part := connection.recv(1 << 16):
                    answer += part
            except (TimeoutError, ConnectionError):
                pass
        return answer

    def answers(self) -> bool:
        """Tell whether a plain request is answered in time."""
        begun = time.monotonic()
        return self.client.get(f"{V1}/state").status_code == 200 and time.monotonic() - begun < SOON


@pytest.fixture(scope="module")
def server(runner: Runner) -> Iterator[Server]:
    with Server(runner) as server:
        yield server


def picture(**changed: object) -> dict[str, Any]:
    return {"method": "POST", "url": TXT2IMG, "json": {**SMALL, **changed}}


def small_file(width: int, height: int) -> str:
    """Return a picture of one colour as base64: its file is small, and its pixels are many."""
    stream = io.BytesIO()
    Image.new("L", (width, height)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def changed(*pictures: object, **more: object) -> dict[str, Any]:
    return {"method": "POST", "url": IMG2IMG, "json": {**SMALL, "init_images": pictures, **more}}


def extras(route: str, **fields: object) -> dict[str, Any]:
    return {"method": "POST", "url": f"/sdapi/v1/{route}", "json": fields}


def sent(method: str, path: str, body: object, **more: Any) -> dict[str, Any]:
    return {"method": method, "url": f"{V1}{path}", "json": body, **more}


def text(method: str, path: str, body: bytes | str, headers: dict[str, str] = JSON) -> dict[str, Any]:
    return {"method": method, "url": path, "content": body, "headers": headers}


LONG = "a" * 200_000
DEEP = "[" * 100_000
MANY_TAGS = "<lora:a:1>" * 5_000
PICTURES: dict[str, dict[str, Any]] = {
    "steps of no number": picture(steps="x"),
    "steps of infinity": text("POST", TXT2IMG, '{"steps": 1e999}'),
    "steps of a fraction": picture(steps=1.5),
    "steps of many digits": text("POST", TXT2IMG, f'{{"steps": {"1" * 5000}}}'),
    "too many steps": picture(steps=100_000),
    "no steps": picture(steps=0),
    "steps of a list": picture(steps=[1]),
    "steps that are true": picture(steps=True),
    "a huge width": picture(width=10**9),
    "a negative height": picture(height=-64),
    "an odd width": picture(width=65),
    "a huge batch": picture(batch_size=10**6),
    "an empty batch": picture(batch_size=0),
    "a huge count": picture(n_iter=10**6),
    "a huge seed": picture(seed=10**18 * 10),
    "a seed below -1": picture(seed=-2),
    "a huge scale": picture(cfg_scale=1e300),
    "a scale of a text": picture(cfg_scale="NaN"),
    "a prompt of a number": picture(prompt=1),
    "a prompt of a list": picture(prompt=["a"]),
    "a prompt of a megabyte": picture(prompt="a " * (1 << 19)),
    "a negative prompt of a megabyte": picture(negative_prompt="(" * (1 << 20)),
    "thousands of tags": picture(prompt=MANY_TAGS),
    "a tag of blanks": picture(prompt=f"<lora:a:{' ' * 40_000}-{' ' * 40_000}>"),
    "a tag of digits": picture(prompt=f"<lora:a:{'1' * 90_000}!>"),
    "a tag of colons": picture(prompt=f"<lora:a{':' * 90_000}>"),
    "a tag of points": picture(prompt=f"<lora:a:{'0@0,' * 20_000}1>"),
    "a tag of regions": picture(prompt=f"<lora:a:1:mask={'left+' * 15_000}left>"),
    "a tag that is not closed": picture(prompt="<lora:" + "a" * 90_000),
    "a tag of marks": picture(prompt=f"<lora:a{chr(0x315)}{chr(0x300)}".ljust(200, chr(0x315)) + ">"),
    "a name of another folder": picture(prompt="<lora:../../etc/passwd:1>"),
    "a name of a drive": picture(prompt="<lora:C\\:/x:1>"),
    "an unknown sampler": picture(sampler_name="x" * 10_000),
    "an unknown schedule": picture(scheduler="x"),
    "an unknown model": picture(override_settings={"sd_model_checkpoint": "x" * 10_000}),
    "an unknown setting": picture(override_settings={"x" * 10_000: 1}),
    "settings of a list": picture(override_settings=[1]),
    "a setting of another type": picture(override_settings={"remora_cache_mb": "x"}),
    "a script": picture(script_name="x"),
    "scripts": picture(alwayson_scripts={"x": {"args": [1]}}),
    "pictures to begin with": picture(init_images=["x" * 1000]),
    "a flag of a text": picture(send_images="no"),
}
DOT, LARGE = small_file(64, 64), small_file(5000, 5000)
HIRES = {"enable_hr": True}
FROM_PICTURES: dict[str, dict[str, Any]] = {
    "no pictures": changed(),
    "a picture of a number": changed(1),
    "a picture of a list": changed([DOT]),
    "a picture of no base64": changed("?" * 100_000),
    "a picture of blanks": changed(" " * (1 << 20)),
    "a picture at an address": changed("http://127.0.0.1/a.png"),
    "a picture with too many pixels": changed(small_file(6000, 5000)),
    "pictures with too many pixels": changed(*[LARGE] * 3, batch_size=3),
    "a mask with too many pixels": changed(LARGE, LARGE, mask=LARGE, batch_size=2),
    "latents of a large picture": changed(LARGE, resize_mode=3),
    "thousands of pictures": changed(*[DOT] * 5000),
    "a mask of a number": changed(DOT, mask=1),
    "a huge blur": changed(DOT, mask=DOT, mask_blur=10**9),
    "a huge padding": changed(DOT, mask=DOT, inpaint_full_res_padding=10**9),
    "a strength of infinity": changed(DOT, denoising_strength="inf"),
    "thousands of tags for a picture": changed(DOT, prompt=MANY_TAGS),
    "a hires prompt of a megabyte": picture(**HIRES, hr_prompt="a " * (1 << 19)),
    "a negative hires prompt of a megabyte": picture(**HIRES, hr_negative_prompt="(" * (1 << 20)),
    "thousands of tags in a hires prompt": picture(**HIRES, hr_prompt=MANY_TAGS),
    "a hires scale of infinity": picture(**HIRES, hr_scale="inf"),
    "a huge hires scale": picture(**HIRES, hr_scale=1e308),
    "a hires scale below zero": picture(**HIRES, hr_scale=-1),
    "a huge hires width": picture(**HIRES, hr_resize_x=10**18),
    "a hires size of another shape": picture(**{**HIRES, "height": 2048}, hr_resize_x=2048, hr_resize_y=64),
    "a tiny hires strength": picture(**HIRES, denoising_strength=1e-320),
    "an upscaled picture of infinity": extras(
        "extra-single-image", image=DOT, upscaling_resize="inf", upscaler_1="Lanczos"
    ),
    "a hugely upscaled picture": extras("extra-single-image", image=DOT, upscaling_resize=1e308, upscaler_1="Lanczos"),
    "a picture of a huge size": extras(
        "extra-single-image", image=DOT, resize_mode=1, upscaling_resize_w=10**18, upscaler_1="Lanczos"
    ),
    "pictures of a huge size": extras(
        "extra-batch-images", imageList=[{"data": DOT}] * 5, upscaling_resize=124, upscaler_1="Nearest"
    ),
    "pictures of nothing": extras("extra-batch-images", imageList=[{}]),
    "texts of no picture": extras("png-info", image="eA=="),
    "texts of a list": text("POST", "/sdapi/v1/png-info", "[]"),
    "texts of brackets": text("POST", "/sdapi/v1/png-info", DEEP),
    "a picture of brackets": text("POST", IMG2IMG, DEEP),
    "a picture of 40 MB for img2img": text("POST", IMG2IMG, b" " * (40 << 20)),
}
BODIES: dict[str, dict[str, Any]] = {
    "JSON of brackets": text("POST", TXT2IMG, DEEP),
    "JSON of objects": text("POST", TXT2IMG, '{"a":' * 50_000),
    "JSON of many values": text("POST", TXT2IMG, "[" + "1," * 300_000 + "1]"),
    "JSON of many objects": text("POST", TXT2IMG, "[" + "{}," * 300_000 + "{}]"),
    "JSON that ends": text("POST", TXT2IMG, '{"prompt": "'),
    "JSON of a constant": text("POST", TXT2IMG, '{"steps": NaN}'),
    "JSON of a number": text("POST", TXT2IMG, "1" * 100_000),
    "JSON of half a character": text("POST", TXT2IMG, '{"prompt": "\\ud800"}'),
    "JSON of no text": text("POST", TXT2IMG, b"\xff\xfe\x00"),
    "JSON in UTF-16": text("POST", TXT2IMG, '{"prompt": "a"}'.encode("utf-16")),
    "no body": text("POST", TXT2IMG, ""),
    "a list": text("POST", TXT2IMG, "[]"),
    "null": text("POST", TXT2IMG, "null"),
    "a body of another type": text("POST", TXT2IMG, "{}", {"Content-Type": "text/plain"}),
    "a form": text("POST", TXT2IMG, "a=1", {"Content-Type": "application/x-www-form-urlencoded"}),
    "a body of 20 MB": text("POST", TXT2IMG, b" " * (20 << 20)),
    "a picture of 40 MB": text("PUT", f"{V1}/picture?name=zorp", b" " * (33 << 20), PNG),
    "a picture of nothing": text("PUT", f"{V1}/picture?name=zorp", b"", PNG),
    "a picture of text": text("PUT", f"{V1}/picture?name=zorp", b"<svg>" * 1000, PNG),
    "an upload for the page": text(
        "POST", "/gradio_api/upload", b" " * (3 << 20), {"Content-Type": "multipart/form-data"}
    ),
    "an event for the page": text("POST", "/gradio_api/queue/join", b" " * (3 << 20)),
    "options of a megabyte": text("POST", "/sdapi/v1/options", json.dumps({LONG: 1})),
    "options of a list": text("POST", "/sdapi/v1/options", "[1]"),
    "options that are unknown": text("POST", "/sdapi/v1/options", '{"x": 1}'),
}
STORES: dict[str, dict[str, Any]] = {
    "a stack of a text": sent("PUT", "/stack", "x"),
    "a stack of a list": sent("PUT", "/stack", []),
    "a stack of many": sent("PUT", "/stack", {"entries": [{"name": "zorp"}] * 5000}),
    "a stack of another version": sent("PUT", "/stack", {"version": 99}),
    "a stack twice": sent("PUT", "/stack", {"entries": [{"name": "zorp"}, {"name": "zorp"}]}),
    "a stack of an unknown name": sent("PUT", "/stack", {"entries": [{"name": "nobody"}]}),
    "a stack of a long name": sent("PUT", "/stack", {"entries": [{"name": LONG}]}),
    "a stack of a path": sent("PUT", "/stack", {"entries": [{"name": "/etc/passwd"}]}),
    "a stack of a tag": sent("PUT", "/stack", {"entries": [{"name": "a>b"}]}),
    "a stack of a huge number": sent("PUT", "/stack", {"entries": [{"name": "zorp", "unet": 1e300}]}),
    "a stack of a number as a text": sent("PUT", "/stack", {"entries": [{"name": "zorp", "unet": "1"}]}),
    "a stack of fields": sent("PUT", "/stack", {"entries": [{"name": "zorp", "more": "1:" * 4_000}]}),
    "a stack of blanks": sent("PUT", "/stack", {"entries": [{"name": "zorp", "more": "step=1" + " " * 9_000 + "x"}]}),
    "a stack of other fields": sent("PUT", "/stack", {"entries": [{"name": "zorp", "x": 1}]}),
    "presets of nothing": sent("POST", "/presets", {"text": ""}),
    "presets of a number": sent("POST", "/presets", {"text": 1}),
    "presets of one name": sent("POST", "/presets", {"text": "# Remora preset 1: a\n<lora:zorp>\n" * 20_000}),
    "presets of a later version": sent("POST", "/presets", {"text": "# Remora preset 99: a\n<lora:zorp>"}),
    "presets of 2 MB": sent("POST", "/presets", {"text": "a" * (2 << 20)}),
    "presets of blanks": sent("POST", "/presets", {"text": "#" + " " * 90_000 + "x"}),
    "a preset without a name": sent("PUT", "/preset?name=", {"text": "<lora:zorp>"}),
    "a preset of a long name": sent("PUT", "/preset?name=" + "a" * 5000, {"text": "<lora:zorp>"}),
    "a preset of control characters": sent("PUT", "/preset?name=%00%1b", {"text": "<lora:zorp>"}),
    "a preset of words": sent("PUT", "/preset?name=a", {"text": "words alone"}),
    "a preset that is not there": sent("GET", "/preset?name=nobody", None),
    "a preset of another name": sent("PUT", "/preset?name=a", {"text": "<lora:zorp>", "former": "nobody"}),
    "block weights of a text": sent("PUT", "/blocks/presets", {"name": "a", "values": "x"}),
    "block weights of thousands": sent("PUT", "/blocks/presets", {"name": "a", "values": "1," * 20_000 + "1"}),
    "block weights of digits": sent("PUT", "/blocks/presets", {"name": "a", "values": "1,X+" + "1" * 90_000 + "!"}),
    "block weights of a number's name": sent("PUT", "/blocks/presets", {"name": "1", "values": "1,0"}),
    "block weights of our name": sent("PUT", "/blocks/presets", {"name": "ALL", "values": "1,0"}),
    "block weights of a long name": sent("PUT", "/blocks/presets", {"name": LONG, "values": "1,0"}),
    "a region of no picture": sent("PUT", "/regions", {"name": "a", "picture": "x"}),
    "a region of a path": sent("PUT", "/regions", {"name": "../a", "picture": "eA=="}),
    "a region of a device": sent("PUT", "/regions", {"name": "con", "picture": "eA=="}),
    "a region of our name": sent("PUT", "/regions", {"name": "left", "picture": "eA=="}),
    "a region of a long name": sent("PUT", "/regions", {"name": LONG, "picture": "eA=="}),
    "a region of blanks": sent("PUT", "/regions", {"name": "a" + " " * 9_000 + ".", "picture": "eA=="}),
    "a region of base64 alone": sent("PUT", "/regions", {"name": "a", "picture": base64.b64encode(b"x" * 99).decode()}),
    "a region that is not there": sent("DELETE", "/regions?name=nobody", None),
    "notes of a list": sent("PATCH", "/lora?name=zorp", []),
    "notes of other fields": sent("PATCH", "/lora?name=zorp", {"x": 1}),
    "notes of many stars": sent("PATCH", "/lora?name=zorp", {"rating": 10**6}),
    "notes of a megabyte": sent("PATCH", "/lora?name=zorp", {"notes": "a" * 900_000}),
    "notes of many tags": sent("PATCH", "/lora?name=zorp", {"tags": ["a"] * 5000}),
    "notes of an infinite strength": text("PATCH", f"{V1}/lora?name=zorp", '{"strength": 1e999}'),
    "notes on nothing": sent("PATCH", "/lora", {"notes": "a"}),
    "notes on a path": sent("PATCH", "/lora?name=..%2F..%2Fetc%2Fpasswd", {"notes": "a"}),
    "a comparison of nothing": sent("POST", "/compare", {}),
    "a comparison of blanks": sent("POST", "/compare", {**SMALL, "prompt": f"<lora:a:{' ' * 40_000}-x>"}),
    "a comparison of many": sent("POST", "/compare", {"names": ["zorp"] * 1000, "values": [1.0] * 1000}),
    "names of a text": sent("POST", "/resolve", {"names": "zorp"}),
    "thousands of names": sent("POST", "/resolve", {"names": ["x"] * 5000}),
    "names of numbers": sent("POST", "/resolve", {"names": [1]}),
}
QUERIES: dict[str, dict[str, Any]] = {
    "a list since a text": sent("GET", "/loras?since=x", None),
    "a list since many digits": sent("GET", "/loras?since=" + "9" * 5000, None),
    "a file of no name": sent("GET", "/lora", None),
    "a file of an unknown id": sent("GET", "/lora?id=" + "f" * 5000, None),
    "a file of a path": sent("GET", "/lora?name=/etc/passwd", None),
    "a file of a long name": sent("GET", "/lora?name=" + "a" * 20_000, None),
    "a file of marks": sent("GET", "/lora?name=a" + "%CC%95%CC%80" * 2_000, None),
    "a file of a zero": sent("GET", "/lora?name=%00", None),
    "a thumbnail of nothing": sent("GET", "/thumbnail?id=x", None),
    "a file for another model": sent("GET", "/inspect?name=zorp&model=x", None),
    "a cell of a text": sent("GET", "/compare/picture?cell=x", None),
    "a script of a path": {"method": "GET", "url": "/remora/app/..%2f..%2fguard.py"},
    "a route that is not there": {"method": "GET", "url": "/remora/v1/" + "x" * 5000},
    "another method": {"method": "DELETE", "url": TXT2IMG},
    "a page of another site": {"method": "GET", "url": f"{V1}/loras", "headers": {"Origin": "http://evil.example"}},
    "a name of another site": {"method": "GET", "url": f"{V1}/loras", "headers": {"Host": "evil.example"}},
    "a Host of many characters": {"method": "GET", "url": f"{V1}/loras", "headers": {"Host": "a." * 9_000}},
}
SERVED: dict[str, dict[str, Any]] = {
    "names that nobody has": sent("POST", "/resolve", {"names": [f"nobody {number}" for number in range(50)]}),
    "names of marks": sent("POST", "/resolve", {"names": ["a" + "\u0315\u0300" * 9_000 for _ in range(10)]}),
    "names like hashes": sent("POST", "/resolve", {"names": [f"{number:012x}" for number in range(50)]}),
    "an ETag of a megabyte": {"method": "GET", "url": f"{V1}/state", "headers": {"If-None-Match": '"x",' * 3000}},
    "languages": {"method": "GET", "url": f"{V1}/state", "headers": {"Accept-Language": "x;q=0.1," * 2000}},
    "fields that nobody reads": picture(**{f"x{number}": [] for number in range(1000)}),
    "a list of the files": sent("GET", "/loras?since=999999999999999", None),
}


@pytest.mark.quick
@pytest.mark.parametrize(
    "requests",
    [PICTURES, FROM_PICTURES, BODIES, STORES, QUERIES],
    ids=["pictures", "from pictures", "bodies", "stores", "queries"],
)
def test_each_is_refused_with_one_sentence(server: Server, requests: dict[str, dict[str, Any]]) -> None:
    for what, request in requests.items():
        answer = server.client.request(**request)
        assert answer.status_code in REFUSED, (what, answer.status_code, answer.text[:200])
        detail = answer.json()["detail"]
        assert isinstance(detail, str), what
        assert 0 < len(detail) < 3000, what
        assert "Traceback" not in detail, what
        assert "object at 0x" not in detail, what
    assert server.answers()


@pytest.mark.quick
def test_each_that_has_an_answer_gets_it(server: Server) -> None:
    for what, request in SERVED.items():
        answer = server.client.request(**request)
        assert answer.status_code == 200, (what, answer.status_code, answer.text[:200])
    assert server.answers()


@pytest.mark.quick
def test_what_is_no_request_is_refused_or_closed(server: Server) -> None:
    head = b"POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    tried = {
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00" * 100 + b"\r\n\r\n",
        "a line of another protocol": b"SSH-2.0-x\r\n\r\n",
        "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        "a long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
        "no Host": b"GET /remora/v1/state HTTP/1.1\r\n\r\n",
        "two Hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        "two lengths": head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "a negative length": head + b"Content-Length: -1\r\n\r\n",
        "a length of many digits": head + b"Content-Length: " + b"9" * 100 + b"\r\n\r\n",
        "a length of a text": head + b"Content-Length: x\r\n\r\n",
        "a chunk of no number": head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "another encoding": head + b"Transfer-Encoding: gzip\r\n\r\n",
        "a folded header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n\tb\r\n bad\r\n\r\n",
        "a target of control characters": b"GET /\x01\x02 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a chunked body for the page": b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    }
    for what, content in tried.items():
        answer = server.raw(content, 1.0)
        status = answer.split(b" ", 2)[1:2]
        assert not status or int(status[0]) in REFUSED, (what, answer[:200])
    assert server.answers()


@pytest.mark.quick
def test_a_request_that_does_not_arrive_ends_its_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.5)
    parts = {
        "nothing": b"",
        "half of a header": b"GET /remora/v1/state HTTP/1.1\r\nHost: local",
        "half of a body": b"POST /remora/v1/resolve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{",
        "half of a second header": b"GET /remora/v1/state HTTP/1.1\r\nHost: localhost\r\n\r\nGET ",
    }
    connections = [socket.create_connection((LOCAL, server.port), timeout=10) for _ in parts]
    for connection, part in zip(connections, parts.values(), strict=True):
        connection.sendall(part)
    begun = time.monotonic()
    drip = connections[1]
    try:
        while time.monotonic() - begun < 10:  # a byte now and then is no request
            time.sleep(0.1)
            drip.sendall(b"x")
    except OSError:
        pass
    for what, connection in zip(parts, connections, strict=True):
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            pytest.fail(f"the connection of {what} is kept")
        connection.close()
    assert server.answers()


@pytest.mark.quick
def test_waiting_jobs_leave_threads_to_other_requests_and_have_a_bound(
    server: Server, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = threading.Event()
    runner._worker.submit(ready.wait)
    answers: list[int] = []

    def ask(url: str, body: dict[str, Any]) -> None:
        answers.append(server.client.post(url, json=body, timeout=60).status_code)

    from_picture = {**SMALL, "init_images": [DOT], "steps": 2}
    kinds = [(TXT2IMG, SMALL), (IMG2IMG, from_picture)] * 23  # more than the server has threads
    asking = [threading.Thread(target=ask, args=kind) for kind in kinds]
    try:
        for thread in asking:
            thread.start()
        until = time.monotonic() + 20
        while len(runner._jobs) < len(asking) and time.monotonic() < until:
            time.sleep(0.02)
        assert len(runner._jobs) == len(asking)
        assert server.answers()
        assert server.client.get(f"{V1}/loras").status_code == 200
        full = [runner._jobs[0]] * (MOST_WAITING + 1)
        runner._jobs, kept = full, runner._jobs
        refused = [
            server.client.post(TXT2IMG, json=SMALL),
            server.client.post(IMG2IMG, json={**from_picture, "mask": 1}),
        ]
        runner._jobs = kept
        for answer in refused:
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
            assert "jobs are waiting already" in answer.json()["detail"], "before its pictures are read"
        monkeypatch.setattr("extension.standalone.jobs.MOST_PIXELS_WAITING", 24 * 64 * 64 - 1)
        too_large = server.client.post(IMG2IMG, json=from_picture)
        assert (too_large.status_code, too_large.headers["retry-after"]) == (503, "10")
        assert "too many large pictures" in too_large.json()["detail"]
    finally:
        for job in runner._jobs:
            job.cancel()
        ready.set()
        for thread in asking:
            thread.join()
    assert answers == [200] * len(asking)


@pytest.mark.quick
def test_guesses_of_a_password_are_slowed_down_and_logged(
    runner: Runner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(runner, "me:secret") as server:
        own = httpx.BasicAuth("me", "secret")
        assert server.client.get(f"{V1}/state", auth=own).status_code == 200
        answers = [server.client.get(f"{V1}/state", auth=("me", str(number))).status_code for number in range(15)]
        assert answers == [401] * 10 + [429] * 5
        refused = server.client.get(f"{V1}/state", auth=own)
        assert refused.status_code == 429, "or each answer would tell whether the password is right"
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert server.client.get(f"{V1}/state").status_code == 401, "a browser asks for the password"
        assert caplog.text.count("a wrong user or password from 127.0.0.1") == 10
        assert "passwords from 127.0.0.1 are refused for a minute" in caplog.text
        monkeypatch.setattr("extension.brake.SECONDS", 0.0)
        assert server.client.get(f"{V1}/state", auth=own).status_code == 200
