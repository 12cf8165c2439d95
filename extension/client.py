"""A client of the embedded web UI's API, alone or served by Ray: one file, which needs the standard library alone.

client = Client("http://127.0.0.1:8000", key="...")
made = client.txt2img("a square <lora:stars:0.8>", steps=20, progress=print)
Path("square.png").write_bytes(made.images[0])
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_TICK = 0.3  # seconds between two looks at the progress
_GRACE = 10.0  # seconds, so that the service's own word on the end of the time arrives
_MOST_TRIES = 5
_BUSY = 503


class ClientError(Exception):
    """The service refused a request, or cannot be reached; the message is its sentence."""

    def __init__(self, status: int, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        """Of HTTP; 0 if the service cannot be reached."""
        self.retry_after = retry_after
        """Seconds after which another try makes sense; None if it makes none."""


@dataclass(frozen=True)
class Generated:
    """The answer to a request for pictures."""

    images: tuple[bytes, ...]
    """PNG files, with their parameters text."""
    info: Mapping[str, Any]
    """As A1111's; below `remora` it has the reports on each LoRA."""
    retried: bool = False
    """Whether the process that made them first was lost, and they were begun again."""


class Client:
    """A service at an address.

    Args:
        address: such as `http://127.0.0.1:8000`.
        key: of the user; empty sends none.
        timeout: seconds that a request may take.
        tries: how often a request is sent while the service has too many.
    """

    def __init__(self, address: str, key: str = "", timeout: float = 600.0, tries: int = _MOST_TRIES) -> None:
        if not address.startswith(("http://", "https://")):
            raise ValueError(f"an address begins with http:// or https://, not {address!r}")
        self._address, self._timeout, self._tries = address.rstrip("/"), timeout, tries
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def txt2img(self, prompt: str, *, progress: Callable[[float], object] | None = None, **fields: Any) -> Generated:
        """Make pictures from a text.

        Args:
            prompt: with LoRA tags.
            progress: called with a number from 0 to 1, from another thread.
            fields: others of A1111's request.

        Raises:
            ClientError: the service refuses, or cannot be reached.
        """
        return self._pictures("txt2img", {"prompt": prompt, **fields}, progress)

    def img2img(
        self, prompt: str, images: list[bytes], *, progress: Callable[[float], object] | None = None, **fields: Any
    ) -> Generated:
        """Make pictures from pictures, see `txt2img`."""
        sent = [base64.b64encode(image).decode() for image in images]
        return self._pictures("img2img", {"prompt": prompt, "init_images": sent, **fields}, progress)

    async def txt2img_async(
        self, prompt: str, *, progress: Callable[[float], object] | None = None, **fields: Any
    ) -> Generated:
        """Make pictures from a text, see `txt2img`; a task that is cancelled ends the request."""
        task = uuid.uuid4().hex
        asked = {"prompt": prompt, "force_task_id": task, **fields}
        try:
            return await asyncio.to_thread(self._pictures, "txt2img", asked, progress)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(self.interrupt, task))
            raise

    def loras(self) -> list[dict[str, Any]]:
        """Return name, alias, file and metadata of each LoRA."""
        found: list[dict[str, Any]] = self._ask("GET", "loras")[0]
        return found

    def progress(self, task: str = "") -> float:
        """Return the progress of the user's request of this task, or of the oldest one, from 0 to 1."""
        return float(self._ask("GET", f"progress?id_task={task}&skip_current_image=true")[0]["progress"])

    def interrupt(self, task: str = "") -> None:
        """End the user's request of this task, or the oldest one."""
        self._ask("POST", f"interrupt?id_task={task}", {})

    def _pictures(self, route: str, fields: dict[str, Any], progress: Callable[[float], object] | None) -> Generated:
        asked = {"force_task_id": uuid.uuid4().hex, **fields}
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(str(asked["force_task_id"]), progress, over), daemon=True)
        if progress is not None:
            watcher.start()
        try:
            made, headers = self._tried(route, asked)
        finally:
            over.set()
            if progress is not None:
                watcher.join()
        images = tuple(map(base64.b64decode, made["images"]))
        return Generated(images, json.loads(made["info"]), headers.get("X-Remora-Retried") == "1")

    def _watch(self, task: str, progress: Callable[[float], object] | None, over: threading.Event) -> None:
        last = None
        while progress is not None and not over.wait(_TICK):
            with suppress(ClientError):  # the request itself tells
                if (now := self.progress(task)) != last:
                    progress(now)
                    last = now

    def _tried(self, route: str, fields: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
        for left in reversed(range(self._tries)):
            try:
                return self._ask("POST", route, fields)
            except ClientError as error:
                if error.status != _BUSY or error.retry_after is None or not left:
                    raise
                time.sleep(error.retry_after)
        raise ValueError("a request needs at least one try")

    def _ask(self, method: str, route: str, fields: Mapping[str, Any] | None = None) -> tuple[Any, Mapping[str, str]]:
        body = None if fields is None else json.dumps(fields).encode()
        headers = {**self._headers, "Content-Type": "application/json", "X-Remora-Timeout": f"{self._timeout:g}"}
        request = urllib.request.Request(f"{self._address}/sdapi/v1/{route}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout + _GRACE) as answer:
                return json.loads(answer.read() or b"null"), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                after = error.headers.get("Retry-After")
                raise ClientError(error.code, _detail(error.read()), None if after is None else float(after)) from error
        except OSError as error:
            raise ClientError(0, f"{self._address} does not answer: {error}") from error


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
