"""A local server that answers as Civitai's and Hugging Face's documented APIs do, and wrongly where a test wants it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HASHES = "/api/v1/model-versions/by-hash/"
_MOST_HASHES = 100  # of a request; Civitai refuses more


@dataclass
class Answer:
    """One answer."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    """Bytes of the body after which the connection ends."""
    pause: float = 0.0
    """Seconds between two parts of the body."""
    has_ranges: bool = True


def json_answer(data: object, status: int = 200, **more: Any) -> Answer:
    return Answer(json.dumps(data).encode(), status, **more)


@dataclass(frozen=True)
class Request:
    """One request that came."""

    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class FakeSites:
    """What the server has, by path; a list is answered one after the other, its last answer from then on."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.log: list[Request] = []
        self.answers: dict[str, Answer | list[Answer]] = {}

    def answer(self, path: str) -> Answer:
        found = self.answers.get(path)
        if found is None:
            return json_answer({"error": "Not found"}, 404)
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found

    def by_hashes(self, body: bytes) -> Answer:
        """Answer as Civitai does to the SHA-256 of many files: with the versions that it has, in any order."""
        if HASHES[:-1] in self.answers:
            return self.answer(HASHES[:-1])
        hashes = json.loads(body)
        if len(hashes) > _MOST_HASHES or any(len(one) != 64 for one in hashes):
            return json_answer({"error": "Request must include an array of SHA256 Hashes."}, 400)
        found = [self.answer(HASHES + one.lower()) for one in reversed(hashes)]
        return json_answer([json.loads(one.body) for one in found if one.status == 200])

    def civitai(self, content: bytes, model: int = 11, version: int = 22, **changes: Any) -> dict[str, Any]:
        """Publish a file as a version of a model on Civitai; return the version, as the API shows it."""
        digest = hashlib.sha256(content).hexdigest()
        path = f"/api/download/models/{version}"
        told: dict[str, Any] = {
            "id": version,
            "modelId": model,
            "name": f"v{version}",
            "description": "<p>Best at <b>0.8</b></p>",
            "baseModel": "SD 1.5",
            "status": "Published",
            "createdAt": f"2025-01-{version % 28 + 1:02}T00:00:00.000Z",
            "publishedAt": f"2025-01-{version % 28 + 1:02}T00:00:00.000Z",
            "trainedWords": ["zorp style", "purple"],
            "model": {"name": "Zorp", "type": "LORA", "nsfw": False, "poi": False},
            "files": [
                {
                    "id": version * 10,
                    "name": f"zorp_v{version}.safetensors",
                    "type": "Model",
                    "sizeKB": len(content) / 1024,
                    "hashes": {"SHA256": digest.upper(), "AutoV3": short_of(content).upper()},
                    "downloadUrl": f"https://civitai.com{path}",
                    "primary": True,
                }
            ],
            "images": [{"url": f"{self.url}/images/{version}.png", "type": "image", "nsfwLevel": 1}],
            "downloadUrl": f"https://civitai.com{path}",
            **changes,
        }
        about = self.model(model)
        about["modelVersions"].insert(0, told)
        self.answers[f"/api/v1/models/{model}"] = json_answer(about)
        self.answers[f"/api/v1/model-versions/{version}"] = json_answer(told)
        self.answers[f"{HASHES}{digest}"] = json_answer(told)
        self.answers[path] = Answer(b"", 307, headers={"Location": f"/files/{version}"})
        self.answers[f"/files/{version}"] = Answer(content, kind="application/octet-stream")
        return told

    def model(self, model: int) -> dict[str, Any]:
        known = self.answers.get(f"/api/v1/models/{model}")
        if isinstance(known, Answer):
            about: dict[str, Any] = json.loads(known.body)
            return about
        return {
            "id": model,
            "name": "Zorp",
            "type": "LORA",
            "description": "A purple being",
            "tags": ["style", "purple"],
            "creator": {"username": "ann"},
            "allowNoCredit": False,
            "allowCommercialUse": "{Image,RentCivit}",
            "allowDerivatives": True,
            "allowDifferentLicense": False,
            "modelVersions": [],
        }

    def hugging_face(self, content: bytes, repository: str = "ann/zorp", path: str = "zorp.safetensors") -> None:
        """Publish a file in a repository of Hugging Face."""
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        self.answers[f"/api/models/{repository}/revision/main?blobs=true"] = json_answer(
            {
                "id": repository,
                "author": "ann",
                "lastModified": "2025-03-01T00:00:00.000Z",
                "tags": ["lora"],
                "cardData": {"license": "apache-2.0", "base_model": ["some/model"], "instance_prompt": "a zorp"},
                "siblings": [
                    {"rfilename": "README.md", "size": 20, "blobId": "0" * 40},
                    {"rfilename": path, "size": len(content), "blobId": "1" * 40, "lfs": lfs},
                ],
            }
        )
        self.answers[f"/{repository}/resolve/main/{path}"] = Answer(b"", 302, headers={"Location": "/hub/file"})
        self.answers["/hub/file"] = Answer(content, kind="application/octet-stream")

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.log]


def short_of(content: bytes) -> str:
    """Return the hash of everything after the header of a safetensors file."""
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()[:12]


@contextmanager
def serving_sites() -> Iterator[FakeSites]:
    """Yield a server on this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            sites.log.append(Request(self.path, dict(self.headers.items())))
            self.send(sites.answer(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sites.log.append(Request(self.path, dict(self.headers.items()), body))
            is_known = self.path == HASHES[:-1] and self.headers.get("Content-Type") == "application/json"
            self.send(sites.by_hashes(body) if is_known else json_answer({"error": "Not found"}, 404))

        def send(self, answer: Answer) -> None:
            body, status, headers = answer.body, answer.status, dict(answer.headers)
            begin = self.headers.get("Range", "").removeprefix("bytes=").rstrip("-")
            if begin and answer.has_ranges and status == 200:
                start = int(begin)
                status = 206 if start < len(body) else 416
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                body = body[start:]
            self.send_response(status)
            for name, value in {"Content-Type": answer.kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.send_body(body if answer.cut is None else body[: answer.cut], answer)

        def send_body(self, body: bytes, answer: Answer) -> None:
            try:
                for start in range(0, len(body), 1 << 14):
                    self.wfile.write(body[start : start + (1 << 14)])
                    self.wfile.flush()
                    time.sleep(answer.pause)
            except OSError:  # the client has gone
                self.close_connection = True
            if answer.cut is not None:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sites = FakeSites(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield sites
    finally:
        server.shutdown()
        server.server_close()
