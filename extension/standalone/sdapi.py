"""The picture part of A1111's HTTP API, so that its clients work unchanged."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from lib_lora import LoraError

from ..api import add_route, object_of
from ..api.answers import LONGEST_BODY
from ..generation.options import TABLE, checked
from ..hosts import Access
from ..hosts.txt2img import MAX_COUNT, RequestError, Result, Txt2Img
from ..text.infotext import parse_infotext
from .extras import read_extras
from .jobs import MOST_WAITING, BusyError, Job, Runner
from .model import LoadedModel
from .parameters import hires_parameters, source_parameters
from .pnginfo import read_infotext, read_picture, read_texts, to_base64
from .sdapi_lists import SdLists, hashed, title
from .txt2img_fields import Asked, names_model, read_flag, read_number, read_request

_UNPROCESSABLE, _NOT_IMPLEMENTED, _UNAVAILABLE = 422, 501, 503
_LATER = "10"  # seconds
_AT_ONCE = 2  # requests whose pictures are decoded: a small file can take hundreds of megabytes
_MOST_UPSCALED = 256_000_000  # pixels of all pictures of an answer
_CLIP_SKIP = "CLIP_stop_at_last_layers"
_MODEL = "sd_model_checkpoint"
_HASH = "sd_checkpoint_hash"
_FIXED: Mapping[str, Any] = {"sd_vae": "Automatic", "samples_format": "png"}
"""Settings that clients read, and that have one value here."""
# A1111's answers for features that are off.
_ABSENT: Mapping[str, Any] = {
    "subseed_strength": 0,
    "restore_faces": False,
    "face_restoration_model": None,
    "sd_vae_name": None,
    "sd_vae_hash": None,
    "seed_resize_from_w": -1,
    "seed_resize_from_h": -1,
    "index_of_first_image": 0,
    "job_timestamp": "0",
    "is_using_inpainting_conditioning": False,
}
REFUSED: Mapping[str, str] = {
    "interrogate": "no model that describes pictures is loaded",
    "unload-checkpoint": "the model is loaded as long as the program runs",
    "create/embedding": "the embedded web UI does not train",
    "create/hypernetwork": "the embedded web UI does not train",
    "train/embedding": "the embedded web UI does not train",
    "train/hypernetwork": "the embedded web UI does not train",
}
"""Routes of A1111 that cannot do here what they are for."""
UNCHANGED = ("refresh-checkpoints", "refresh-vae", "refresh-embeddings", "reload-checkpoint")
"""Routes of A1111 without effect here: the model is chosen at the start, and nothing else is read from folders."""
_SIZE = re.compile(r"(\d+)x(\d+)")
OWN = tuple(option.key for option in TABLE)
T = TypeVar("T")


class PictureRequests:
    """Requests with pictures; answers only a few at once."""

    def __init__(self) -> None:
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0
        """Requests that wait for their turn, or have it."""

    async def answer(self, work: Callable[[], T]) -> T:
        """Return what a function makes of a request's pictures, in another thread."""
        if self._waiting >= MOST_WAITING:
            detail = f"{MOST_WAITING} requests with pictures are waiting already; try again when some are done"
            raise HTTPException(_UNAVAILABLE, detail, {"Retry-After": _LATER})
        self._waiting += 1
        try:
            async with self._few:
                return await run_in_threadpool(tried, work)
        finally:
            self._waiting -= 1


class SdApi:
    """The routes, over one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._clip_skip = 1
        self._interrupted = False
        self._pictures = PictureRequests()

    def add_routes(self, app: FastAPI) -> None:
        """Add the routes under `/sdapi/v1`."""
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("POST", "txt2img", self.txt2img),
            ("POST", "img2img", self.img2img),
            ("POST", "extra-single-image", self.extra_single_image),
            ("POST", "extra-batch-images", self.extra_batch_images),
            ("POST", "png-info", self.png_info),
            ("GET", "progress", self.progress),
            ("POST", "interrupt", self.interrupt),
            ("POST", "skip", self.skip),
            ("GET", "options", self.options),
            ("POST", "options", self.set_options),
            *(("GET", name, answer) for name, answer in SdLists(self._runner).routes.items()),
            *(("POST", name, _nothing) for name in UNCHANGED),
            *(("POST", name, _Refusal(name, why).answer) for name, why in REFUSED.items()),
        ]
        for method, name, endpoint in routes:
            add_route(app, f"/sdapi/v1/{name}", endpoint, Access(), methods=[method])

    async def txt2img(self, request: Request) -> dict[str, Any]:
        """Make pictures from a text; answers when they are done."""
        return await self._make(request, from_images=False)

    async def img2img(self, request: Request) -> dict[str, Any]:
        """Make pictures from pictures; answers when they are done."""
        return await self._make(request, from_images=True)

    async def _make(self, request: Request, *, from_images: bool) -> dict[str, Any]:
        payload = await object_of(request, LONGEST_BODY, "a request for pictures")
        if names_model(payload):
            await hashed(self._runner.studio.model)
        submit = partial(self._submitted, payload, from_images=from_images)
        asked, job = await (self._pictures.answer(submit) if from_images else run_in_threadpool(tried, submit))
        await job.over().wait()  # without a thread: waiting jobs must leave some to other requests
        return await run_in_threadpool(self.answered, payload, asked, job)

    def _submitted(self, payload: dict[str, Any], *, from_images: bool) -> tuple[Asked, Job]:
        self._runner.refuse_if_busy()  # before pictures are decoded
        asked = read_request(payload, self._clip_skip, self.is_current, from_images=from_images)
        stays = not read_flag(payload, "override_settings_restore_afterwards", True)
        job = self._runner.submit(asked.request, save=asked.save_images)
        if stays and (overrides := payload.get("override_settings")):
            self._set_options({key: value for key, value in overrides.items() if key in (_CLIP_SKIP, *OWN)})
        return asked, job

    def answered(self, payload: dict[str, Any], asked: Asked, job: Job) -> dict[str, Any]:
        """Return the answer to a request whose job is done.

        Raises:
            HTTPException: the job failed.
        """
        result = tried(job.result)
        self._interrupted = result.cancelled
        told = info(asked.request, result, self._runner.studio.model)
        told["remora"]["notes"] += asked.notes
        images = [to_base64(picture.image, picture.infotext) for picture in result.pictures]
        echoed = payload
        if asked.request.source is not None and not read_flag(payload, "include_init_images", False):
            echoed = {**payload, "init_images": None, "mask": None}
        return {
            "images": images if asked.send_images else [],
            "parameters": echoed,
            "info": json.dumps({**told, "styles": payload.get("styles") or []}),
        }

    async def extra_single_image(self, request: Request) -> dict[str, Any]:
        """Upscale a picture."""
        payload = await object_of(request, LONGEST_BODY, "a request for a picture")
        return await self._pictures.answer(partial(_upscale_one, payload))

    async def extra_batch_images(self, request: Request) -> dict[str, Any]:
        """Upscale pictures."""
        payload = await object_of(request, LONGEST_BODY, "a request for pictures")
        return await self._pictures.answer(partial(_upscale_all, payload))

    async def png_info(self, request: Request) -> dict[str, Any]:
        """Return the parameters text of a picture, also by name."""
        payload = await object_of(request, LONGEST_BODY, "a request about a picture")
        return await self._pictures.answer(partial(picture_info, payload))

    def progress(self, skip_current_image: bool = Query(default=False)) -> dict[str, Any]:
        """Return the progress of the running job, with a preview."""
        job = self._runner.current
        image = None
        if job is not None and job.progress.preview is not None and not skip_current_image:
            image = to_base64(job.progress.preview)
        return {
            "progress": job.progress.fraction if job is not None else 0.0,
            "eta_relative": job.seconds_left if job is not None else 0.0,
            "state": self._state(job),
            "current_image": image,
            "textinfo": job.progress.text if job is not None else None,
        }

    def interrupt(self) -> dict[str, Any]:
        """Stop the running job at its next step; it answers with what it has, the unfinished picture included."""
        if (job := self._runner.current) is not None:
            job.interrupt()
        return {}

    def skip(self) -> None:
        """Stop the picture that is being made at its next step, and go on with the next one of the job."""
        if (job := self._runner.current) is not None:
            job.skip()

    async def options(self) -> dict[str, Any]:
        await hashed(self._runner.studio.model)
        own = {key: self._runner.studio.host.option(key) for key in OWN}
        return {_MODEL: title(self._runner.studio.model), _CLIP_SKIP: self._clip_skip, **self._fixed(), **own}

    def _fixed(self) -> dict[str, Any]:
        """Return the settings that clients read and that have one value here; wait until the model is hashed."""
        return {_HASH: self._runner.studio.model.sha256.result(), **_FIXED}

    async def set_options(self, request: Request) -> None:
        """Change settings; one invalid setting changes none."""
        values = await object_of(request, LONGEST_BODY, "the settings")
        if not values.keys().isdisjoint((_MODEL, _HASH)):
            await hashed(self._runner.studio.model)
        await run_in_threadpool(self._set_options, values)

    def _set_options(self, values: dict[str, Any]) -> None:
        fixed = self._fixed() if _HASH in values else _FIXED
        known = {_MODEL, _CLIP_SKIP, _HASH, *_FIXED, *OWN}
        if unknown := sorted(values.keys() - known):
            raise HTTPException(_UNPROCESSABLE, f"unknown settings: {', '.join(unknown):.200}")
        if _MODEL in values and not self.is_current(values[_MODEL]):
            raise HTTPException(_UNPROCESSABLE, "the model is chosen when the program starts, by --model")
        for key in fixed.keys() & values.keys():
            if values[key] != fixed[key]:
                raise HTTPException(_UNPROCESSABLE, f"{key} is {fixed[key]!r} here and cannot be changed")
        try:
            clip_skip = read_number(values, _CLIP_SKIP, self._clip_skip, int)
            Txt2Img("", clip_skip=clip_skip).check()
            own = {key: checked(key, value) for key, value in values.items() if key in OWN}
        except ValueError as error:  # RequestError is one
            raise HTTPException(_UNPROCESSABLE, str(error)) from error
        self._clip_skip = clip_skip
        for key, value in own.items():
            self._runner.studio.host.set_option(key, value)

    def is_current(self, name: object) -> bool:
        """Tell whether a name means the loaded model."""
        model = self._runner.studio.model
        return name in (title(model), model.name, model.path.name, str(model.path), model.shorthash)

    def _state(self, job: Job | None) -> dict[str, Any]:
        request, progress = (None, None) if job is None else (job.request, job.progress)
        return {
            "skipped": job is not None and job.skipped,
            "interrupted": job.interrupted if job is not None else self._interrupted,
            "stopping_generation": False,
            "job": "" if request is None else "txt2img" if request.source is None else "img2img",
            "job_count": 0 if request is None else request.n_iter * (1 if request.hires is None else 2),
            "job_timestamp": "0",
            "job_no": 0 if progress is None else progress.run,
            "sampling_step": 0 if progress is None else progress.run_step,
            "sampling_steps": 0 if progress is None else progress.run_steps,
        }


@dataclass(frozen=True)
class _Refusal:
    """The answer of a route that cannot do here what it is for."""

    name: str
    why: str

    def answer(self) -> None:
        raise HTTPException(_NOT_IMPLEMENTED, f"{self.name} is not possible here: {self.why}")


def _nothing() -> None:
    """Do nothing, as there is nothing to do."""


def tried(work: Callable[[], T]) -> T:
    """Return what a function returns; a request that cannot be served has one sentence as its answer.

    Raises:
        HTTPException: the request cannot be served.
    """
    try:
        return work()
    except BusyError as error:
        raise HTTPException(_UNAVAILABLE, str(error), {"Retry-After": _LATER}) from error
    except (RequestError, LoraError) as error:
        raise HTTPException(_UNPROCESSABLE, str(error)) from error


def _upscale_one(payload: dict[str, Any]) -> dict[str, Any]:
    extras, picture = read_extras(payload), read_picture(payload.get("image"), "image")
    made = to_base64(extras.upscaled(picture), read_infotext(picture))
    return {"html_info": "", "image": made if read_flag(payload, "show_extras_results", True) else ""}


def _upscale_all(payload: dict[str, Any]) -> dict[str, Any]:
    extras, sent = read_extras(payload), payload.get("imageList")
    if not isinstance(sent, list) or not all(isinstance(entry, dict) for entry in sent):
        raise RequestError('imageList must be a list of pictures, each as {"data": base64, "name": text}')
    if len(sent) > MAX_COUNT:
        raise RequestError(f"imageList has {len(sent)} pictures; send at most {MAX_COUNT} at once")
    images, pixels = [], 0
    for number, entry in enumerate(sent):
        picture = read_picture(entry.get("data"), f"imageList[{number}]")
        made = extras.upscaled(picture)
        pixels += made.width * made.height
        if pixels > _MOST_UPSCALED:
            raise RequestError(f"the pictures have more than {_MOST_UPSCALED:,} pixels together; send fewer at once")
        images.append(to_base64(made, read_infotext(picture)))
    return {"html_info": "", "images": images if read_flag(payload, "show_extras_results", True) else []}


def picture_info(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters text of a request's picture, also by name, and its other texts.

    Raises:
        RequestError: it is no picture, or too large.
    """
    image = read_picture(payload.get("image"), "image")
    text = read_infotext(image)
    parsed = parse_infotext(text)
    parameters = {"Prompt": parsed.prompt, "Negative prompt": parsed.negative_prompt}
    for name, value in parsed.settings.items():
        size = _SIZE.fullmatch(value)
        parameters |= {name: value} if size is None else {f"{name}-1": size[1], f"{name}-2": size[2]}
    return {"info": text, "items": read_texts(image), "parameters": {"Clip skip": "1", **parameters}}


def info(request: Txt2Img, result: Result, model: LoadedModel) -> dict[str, Any]:
    """Return A1111's info on finished pictures, plus `remora`: reports and notes."""
    pictures, seeds = result.pictures, [picture.seed for picture in result.pictures]
    more = {} if request.source is None else source_parameters(request.source)
    more |= {} if request.hires is None else hires_parameters(request, request.hires)
    second = request.source or request.hires
    return {
        **_ABSENT,
        "prompt": request.prompt,
        "all_prompts": [request.prompt] * len(pictures),
        "negative_prompt": request.negative_prompt,
        "all_negative_prompts": [request.negative_prompt] * len(pictures),
        "seed": result.seed,
        "all_seeds": seeds,
        "subseed": result.seed,
        "all_subseeds": seeds,
        "width": request.width,
        "height": request.height,
        "sampler_name": request.sampler,
        "cfg_scale": request.cfg_scale,
        "steps": request.steps,
        "batch_size": request.batch_size,
        "sd_model_name": model.name,
        "sd_model_hash": model.shorthash,
        "infotexts": [picture.infotext for picture in pictures],
        "clip_skip": request.clip_skip,
        "denoising_strength": None if second is None else second.denoising,
        "extra_generation_params": more,
        "version": "remora",
        "remora": {
            "loras": list(result.lora_reports),
            "warnings": list(result.warnings),
            "notes": list(result.notes),
            "cancelled": result.cancelled,
        },
    }
