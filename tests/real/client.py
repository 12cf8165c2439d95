"""A client of a running web UI: A1111's HTTP API and Remora's."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

PATIENCE = 900.0  # seconds for an answer: a large model on a CPU takes minutes for a picture
_ASK_AGAIN = 0.02  # seconds
_TOO_MANY = 429  # SD.Next takes so many requests of a kind in a minute
_AXIS = "{} type"
_VALUES = "{} values"
_REPLACE = ("Prompt S/R", "[Prompt] Search & replace")
_UPSCALERS = ("latent", "nearest", "lanczos")


class WebUIError(Exception):
    """An answer that is an error: its status, and what it says."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class WebUI:
    """One running web UI.

    Args:
        url: such as http://127.0.0.1:7860.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def ask(self, path: str, body: object = None, method: str = "") -> Any:
        """Send a request and return the JSON of its answer.

        Raises:
            WebUIError: the answer is an error.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        request.method = method or ("GET" if body is None else "POST")
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != _TOO_MANY or time.monotonic() > until:
                    raise WebUIError(error.code, error.read().decode(errors="replace")) from None
            time.sleep(1)

    def has(self, path: str) -> bool:
        """Tell whether there is a route that answers a GET."""
        try:
            self.ask(path)
        except WebUIError:
            return False
        return True

    def pictures(self, prompt: str, fields: Mapping[str, object]) -> tuple[list[np.ndarray], Mapping[str, Any]]:
        """Make pictures: int16 arrays (height, width, 3), without those that show several, and their info.

        Raises:
            WebUIError: the answer is an error, or has no picture.
        """
        answer = self.ask("/sdapi/v1/txt2img", {**fields, "prompt": prompt})
        if not answer["images"]:  # SD.Next's answer to a picture that failed
            raise WebUIError(200, f"no picture: {answer['info']}")
        info = json.loads(answer["info"]) if isinstance(answer["info"], str) else answer["info"]
        first = info.get("index_of_first_image", 0)
        return [decoded(image) for image in answer["images"][first:]], info

    def picture(self, prompt: str, fields: Mapping[str, object]) -> np.ndarray:
        """Make one picture: int16 (height, width, 3)."""
        return self.pictures(prompt, fields)[0][0]

    def state(self) -> Mapping[str, Any]:
        """Return what became of the LoRA of the latest picture."""
        state: Mapping[str, Any] = self.ask("/remora/v1/state")
        return state

    def set(self, **options: object) -> None:
        """Change settings."""
        self.ask("/sdapi/v1/options", options)

    def interrupt(self, prompt: str, fields: Mapping[str, object]) -> int:
        """Begin a picture and interrupt it after its first step.

        Returns:
            the step at which it was interrupted; 0 where it ended before.

        Raises:
            WebUIError: it failed before its first step.
        """
        errors: list[Exception] = []

        def paint() -> None:
            try:
                self.pictures(prompt, fields)
            except WebUIError as error:  # some web UIs answer an interrupted request with an error
                errors.append(error)

        painting = threading.Thread(target=paint)
        painting.start()
        step = 0
        while painting.is_alive() and not step:
            step = int(self.ask("/sdapi/v1/progress?skip_current_image=true")["state"].get("sampling_step") or 0)
            time.sleep(_ASK_AGAIN)
        if step:
            self.ask("/sdapi/v1/interrupt", {})
        painting.join()
        if errors and not step:
            raise errors[0]
        return step

    def script(self, name: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the arguments of a script for txt2img; None where the web UI has none of that name."""
        if not self.has("/sdapi/v1/script-info"):
            return None
        found = [
            one for one in self.ask("/sdapi/v1/script-info") if one["name"].lower() == name and not one["is_img2img"]
        ]
        return found[0]["args"] if found else None

    def upscaler(self) -> str:
        """Return an upscaler that needs no file: one of latents where there is one."""
        found: list[str] = []
        for route in ("/sdapi/v1/latent-upscale-modes", "/sdapi/v1/upscalers"):
            found += [one["name"] for one in self.ask(route)] if self.has(route) else []
        wanted = [name for word in _UPSCALERS for name in found if name and word in name.lower()]
        return wanted[0] if wanted else "None"

    def plot_fields(self, values: str) -> Mapping[str, object] | None:
        """Return the fields of a request for an X/Y/Z plot that replaces words; None where the web UI has no plots."""
        for name in ("x/y/z plot", "xyz grid script"):
            described = self.script(name)
            if described is not None:
                break
        else:
            return None
        arguments = []
        for one in described:
            value, label, choices = one.get("value"), one.get("label") or "", one.get("choices") or []
            if label == _AXIS.format("X"):
                value = next(i for i, choice in enumerate(choices) if choice in _REPLACE)
            elif label in (_AXIS.format("Y"), _AXIS.format("Z")):
                value = choices.index("Nothing")
            elif label == _VALUES.format("X"):
                value = values
            elif label.lower() in ("include sub images", "include images"):  # the cells, beside the picture of all
                value = True
            arguments.append(value)
        return {"script_name": name, "script_args": arguments}


def decoded(image: str) -> np.ndarray:
    """Return the pixels of an image in base64: int16 (height, width, 3)."""
    content = base64.b64decode(image.partition(",")[2] or image)
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(np.int16)
