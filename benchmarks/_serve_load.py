"""The load, for Locust: users who ask for one picture after the other; `serve.py` starts it.

`REMORA_LOAD` names a JSON file, see `Load`. Each request becomes a line of the file `out`.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from locust import User, constant, task  # first of all, as it replaces the sockets

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from PIL import Image

from extension.client import Client, ClientError, Generated

_PATIENCE = 120.0  # seconds for which a service that cannot be reached is tried again
_BOUND = 1  # of 255, see docs/serve.md


class Load:
    """What is asked for.

    Args:
        path: of a JSON file with `address`; `wishes`, each with the fields of a request, `chance`, and `status`, the
            one that is expected; `references`, a file of pictures by the number of a wish, or null; and `out`.
    """

    def __init__(self, path: Path) -> None:
        told = json.loads(path.read_text("utf-8"))
        self.address: str = told["address"]
        self.wishes: list[dict[str, Any]] = told["wishes"]
        self._chances = list(itertools.accumulate(wish["chance"] for wish in self.wishes))
        self.references = np.load(told["references"]) if told["references"] else {}
        self.out = Path(told["out"]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # open to the end

    def draw(self) -> int:
        """Return the number of a wish."""
        (number,) = random.choices(range(len(self.wishes)), cum_weights=self._chances)
        return number

    def differs(self, number: int, made: Generated) -> int:
        """Return by how much a picture differs from that of its request alone, of 255."""
        if str(number) not in self.references:
            return 0
        pixels = np.asarray(Image.open(io.BytesIO(made.images[0])).convert("RGB")).astype(int)
        return int(np.abs(pixels - self.references[str(number)]).max())


class Visitor(User):  # type: ignore[misc]  # Locust is not read by mypy
    """One user."""

    wait_time = constant(0)
    load: Load

    def on_start(self) -> None:
        """Read the load, once for all users."""
        if "load" not in vars(Visitor):
            Visitor.load = Load(Path(os.environ["REMORA_LOAD"]))
        self._client = Client(self.load.address, timeout=120, tries=30)

    @task  # type: ignore[untyped-decorator]
    def picture(self) -> None:
        """Ask for a picture, and note what came."""
        number = self.load.draw()
        wish = self.load.wishes[number]
        began, tries, retried, differs = time.time(), 0, False, 0
        while True:
            tries += 1
            try:
                made = self._client.txt2img(**wish["fields"])
                status, said, retried = 200, "", made.retried
                differs = self.load.differs(number, made)
            except ClientError as error:
                status, said = error.status, str(error)
            if status != 0 or time.time() - began > _PATIENCE:
                break
            time.sleep(1)
        self._note(number, began, {"status": status, "said": said, "retried": retried, "differs": differs}, tries)

    def _note(self, number: int, began: float, outcome: dict[str, Any], tries: int) -> None:
        seconds = time.time() - began
        lost = outcome["status"] != self.load.wishes[number]["status"]
        line = {"wish": number, "began": began, "seconds": seconds, "tries": tries, "lost": lost, **outcome}
        self.load.out.write(json.dumps({**line, "wrong": outcome["differs"] > _BOUND}) + "\n")
        failure = ClientError(outcome["status"], outcome["said"]) if lost else None
        self.environment.events.request.fire(
            request_type="POST", name="txt2img", response_time=seconds * 1000, response_length=0, exception=failure
        )
