"""One model with its queue, as the ingress asks it: plain values in and out, so that it may be in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fastapi import HTTPException

from lib_lora import LoraError

from ..api import list_loras
from ..standalone.demo import find_demo
from ..standalone.jobs import Job
from ..standalone.sdapi import SdApi, tried
from ..standalone.sdapi_lists import SdLists, hashed
from ..standalone.txt2img_fields import Asked, names_model, read_request
from ..store import open_regular
from .queue import MOST_PICTURES, BatchReport, BatchRunner, DeadlineError

Kind: TypeAlias = Literal["progress", "answer", "refused", "retried"]
Message: TypeAlias = "tuple[Kind, Any]"
"""`progress` with a number from 0 to 1; `answer` with what the client gets; `refused` with a status, a sentence and
headers; `retried` if the request begins again."""
LISTS = (
    *("samplers", "schedulers", "upscalers", "latent-upscale-modes", "sd-models", "scripts", "embeddings", "sd-vae"),
    *("hypernetworks", "face-restorers", "realesrgan-models", "prompt-styles", "script-info", "extensions"),
)
"""Of A1111's API; what else the embedded web UI tells is about one process and its folders."""
LATER = "5"  # seconds
_UNAVAILABLE, _TOO_LATE = 503, 504
_TICK = 0.25  # seconds between two looks at a job


@dataclass(frozen=True)
class ModelSettings:
    """What one replica serves."""

    model: str = ""
    """A folder or file; empty is the demo's model."""
    lora_dirs: tuple[str, ...] = ()
    """The demo's LoRA come with its model."""
    device: str = "auto"
    dtype: str = "auto"
    most_pictures: int = MOST_PICTURES
    """Of one batch."""
    gather: float = 0.02
    """Seconds that the first request after a pause waits for others."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ModelSettings:
        """Return the settings with these values, as `serve.yaml` has them.

        Raises:
            TypeError: there is no such setting.
        """
        given = dict(values)
        return cls(**{**given, "lora_dirs": tuple(given.get("lora_dirs", ()))})


class Model:
    """A loaded model, and the requests that wait for it.

    Raises:
        OSError, ValueError, LoraError: the model cannot be loaded.
    """

    def __init__(self, settings: ModelSettings, report: Callable[[BatchReport], None] = lambda _: None) -> None:
        from ..standalone.model import load_model, pick_device, pick_dtype
        from ..standalone.studio import open_studio

        path, loras = Path(settings.model), [Path(folder).expanduser() for folder in settings.lora_dirs]
        if not settings.model:
            demo = find_demo()
            path, loras = demo.model, [*loras, demo.loras]
        device = pick_device(settings.device)
        loaded = load_model(path.expanduser(), pick_dtype(settings.dtype, device))
        self.studio = open_studio(loaded, device, loras)
        self.studio.session.catalog.start()
        self.runner = BatchRunner(self.studio, settings.most_pictures, settings.gather, report)
        self._api = SdApi(self.runner)
        self._lists = SdLists(self.runner).routes

    async def generate(
        self, payload: dict[str, Any], *, from_images: bool, user: str, seconds: float
    ) -> AsyncGenerator[Message, None]:
        """Make the pictures of a request of A1111's API; the last message is its answer, or why it is refused.

        A generator that is closed, or whose task is cancelled, cancels the request.
        """
        job: Job | None = None
        try:
            if names_model(payload):
                await hashed(self.studio.model)
            asked, submitted = await asyncio.to_thread(self._submitted, payload, from_images, user, seconds)
            job = submitted
            over = job.over()
            while not job.done:
                if not job.progress.waiting:
                    yield "progress", job.progress.fraction
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(over.wait(), _TICK)
            yield "answer", await asyncio.to_thread(self._answered, payload, asked, job)
        except HTTPException as error:
            yield "refused", (error.status_code, error.detail, dict(error.headers or {}))
        finally:
            if job is not None:
                job.cancel()  # without effect on a job that is done

    def _submitted(self, payload: dict[str, Any], from_images: bool, user: str, seconds: float) -> tuple[Asked, Job]:
        tried(self.runner.refuse_if_busy)  # before pictures are decoded
        asked = tried(partial(read_request, payload, 1, self._api.is_current, from_images=from_images))
        return asked, tried(partial(self.runner.submit, asked.request, user=user, seconds=seconds))

    def _answered(self, payload: dict[str, Any], asked: Asked, job: Job) -> dict[str, Any]:
        try:
            job.result()
        except DeadlineError as error:
            raise HTTPException(_TOO_LATE, str(error), {"Retry-After": LATER}) from error
        except Exception as error:
            if not isinstance(error, (ValueError, LoraError)):
                detail = f"the pictures could not be made ({type(error).__name__}); the log has the reason"
                raise HTTPException(500, detail) from error
        return self._api.answered(payload, asked, job)

    async def listing(self, name: str) -> Any:
        """Return one of `LISTS`, `loras`, or `options`."""
        if name == "loras":
            return await asyncio.to_thread(self._loras)
        if name == "options":
            return await self._api.options()
        found = self._lists[name]()
        return await found if asyncio.iscoroutine(found) else found

    def _loras(self) -> list[dict[str, Any]]:
        # without the folder: where files lie is nobody's business but the owner's
        return [{**one, "path": Path(one["path"]).name} for one in list_loras(self.studio.session)]

    def refresh(self) -> None:
        """Scan the LoRA folders again."""
        self.studio.session.catalog.refresh()

    def read_ahead(self, name: str) -> int:
        """Read the file of a LoRA into the system's cache while a batch runs; return its bytes, 0 if there is none."""
        size = 0
        with suppress(LoraError, OSError), open_regular(self.studio.session.catalog.find(name).path) as stream:
            while chunk := stream.read(1 << 20):
                size += len(chunk)
        return size

    def close(self) -> None:
        """Cancel all requests, and take Remora off the model."""
        self.runner.close()
        self.studio.close()


def first_lora(payload: Mapping[str, Any]) -> str:
    """Return the name in the first tag of a request, by which requests are sent where this LoRA was used before."""
    prompt = payload.get("prompt")
    _, _, tag = prompt.partition("<lora:") if isinstance(prompt, str) else ("", "", "")
    return tag.partition(">")[0].partition(":")[0][:200]
