"""The picture part of A1111's HTTP API, so that its clients work unchanged."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from lib_lora import LoraError

from ..api import add_route, object_of
from ..generation.options import TABLE, checked
from ..hosts import Access
from ..hosts.txt2img import Picture, RequestError, Result, Txt2Img
from ..text.infotext import parse_infotext
from .jobs import Job, Runner
from .model import LoadedModel
from .parameters import text_of_picture
from .pnginfo import encode_png
from .sampling import SAMPLERS, schedules
from .txt2img_fields import read_number, read_request

logger = logging.getLogger(__name__)

_UNPROCESSABLE = 422
_MAX_BODY = 16 << 20  # bytes: clients send pictures in fields that are refused by name
_MAX_PICTURE = 48 << 20  # bytes of base64
_CLIP_SKIP = "CLIP_stop_at_last_layers"
_MODEL = "sd_model_checkpoint"
# A1111's answers for features that are off.
_ABSENT: Mapping[str, Any] = {
    "subseed_strength": 0,
    "restore_faces": False,
    "face_restoration_model": None,
    "sd_vae_name": None,
    "sd_vae_hash": None,
    "seed_resize_from_w": -1,
    "seed_resize_from_h": -1,
    "denoising_strength": None,
    "extra_generation_params": {},
    "index_of_first_image": 0,
    "styles": [],
    "job_timestamp": "0",
    "is_using_inpainting_conditioning": False,
}
OWN = tuple(option.key for option in TABLE)


class SdApi:
    """The routes, over one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._clip_skip = 1
        self._interrupted = False

    def add_routes(self, app: FastAPI) -> None:
        """Add the routes under `/sdapi/v1`."""
        for method, name, endpoint in (
            ("POST", "txt2img", self.txt2img),
            ("POST", "png-info", self.png_info),
            ("GET", "progress", self.progress),
            ("POST", "interrupt", self.interrupt),
            ("POST", "skip", self.skip),
            ("GET", "samplers", self.samplers),
            ("GET", "schedulers", self.schedulers),
            ("GET", "sd-models", self.models),
            ("GET", "options", self.options),
            ("POST", "options", self.set_options),
            ("GET", "scripts", self.scripts),
        ):
            add_route(app, f"/sdapi/v1/{name}", endpoint, Access(), methods=[method])

    async def txt2img(self, request: Request) -> dict[str, Any]:
        """Make pictures; answers when they are done."""
        payload = await object_of(request, _MAX_BODY, "a request for pictures")
        return await run_in_threadpool(self._txt2img, payload)

    async def png_info(self, request: Request) -> dict[str, Any]:
        """Return the parameters text of a picture, which is sent as base64 or as a data URL."""
        image = (await object_of(request, _MAX_PICTURE, "a picture")).get("image")
        if not isinstance(image, str):
            raise HTTPException(_UNPROCESSABLE, "image must be a picture's file as base64")
        try:
            content = base64.b64decode(image.rpartition("base64,")[2], validate=True)
            info = await run_in_threadpool(text_of_picture, content)
        except ValueError as error:
            raise HTTPException(_UNPROCESSABLE, f"the picture cannot be used: {error}") from error
        found = parse_infotext(info)
        parameters = {"Prompt": found.prompt, "Negative prompt": found.negative_prompt, **found.settings}
        return {"info": info, "items": {"parameters": info} if info else {}, "parameters": parameters if info else {}}

    def _txt2img(self, payload: dict[str, Any]) -> dict[str, Any]:
        try:
            asked = read_request(payload, self._clip_skip, self._is_current)
            job = self._runner.submit(asked.request, save=asked.save_images)
            result = job.result()
        except (RequestError, LoraError) as error:
            raise HTTPException(_UNPROCESSABLE, str(error)) from error
        self._interrupted = result.cancelled
        images = [encode_png(picture.image, picture.infotext) for picture in result.pictures]
        return {
            "images": [base64.b64encode(image).decode("ascii") for image in images] if asked.send_images else [],
            "parameters": payload,
            "info": json.dumps(info(asked.request, result, self._runner.studio.model)),
        }

    def progress(self, skip_current_image: bool = Query(default=False)) -> dict[str, Any]:
        """Return the progress of the running job, with a preview."""
        job = self._runner.current
        image = None
        if job is not None and job.progress.preview is not None and not skip_current_image:
            image = base64.b64encode(encode_png(job.progress.preview, "")).decode("ascii")
        return {
            "progress": job.progress.fraction if job is not None else 0.0,
            "eta_relative": job.seconds_left if job is not None else 0.0,
            "state": self._state(job),
            "current_image": image,
            "textinfo": None,
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

    def samplers(self) -> list[dict[str, Any]]:
        return [{"name": name, "aliases": [], "options": {}} for name in SAMPLERS]

    def schedulers(self) -> list[dict[str, Any]]:
        shared = {"aliases": None, "default_rho": -1, "need_inner_model": False}
        return [{"name": name.lower(), "label": name, **shared} for name in schedules()]

    def models(self) -> list[dict[str, Any]]:
        model = self._runner.studio.model
        return [
            {
                "title": title(model),
                "model_name": model.name,
                "hash": model.shorthash,
                "sha256": model.sha256.result(),
                "filename": str(model.path),
                "config": None,
            }
        ]

    def scripts(self) -> dict[str, list[str]]:
        return {"txt2img": [], "img2img": []}

    def options(self) -> dict[str, Any]:
        model = self._runner.studio.model
        own = {key: self._runner.studio.host.option(key) for key in OWN}
        return {
            _MODEL: title(model),
            "sd_checkpoint_hash": model.sha256.result(),
            _CLIP_SKIP: self._clip_skip,
            "samples_format": "png",
            **own,
        }

    async def set_options(self, request: Request) -> None:
        """Change settings; one invalid setting changes none."""
        values = await object_of(request, _MAX_BODY, "the settings")
        await run_in_threadpool(self._set_options, values)

    def _set_options(self, values: dict[str, Any]) -> None:
        known = {_MODEL, _CLIP_SKIP, "samples_format", "sd_checkpoint_hash", *OWN}
        if unknown := sorted(values.keys() - known):
            raise HTTPException(_UNPROCESSABLE, f"unknown settings: {', '.join(unknown):.200}")
        if _MODEL in values and not self._is_current(values[_MODEL]):
            raise HTTPException(_UNPROCESSABLE, "the model is chosen when the program starts, by --model")
        try:
            clip_skip = read_number(values, _CLIP_SKIP, self._clip_skip, int)
            Txt2Img("", clip_skip=clip_skip).check()
            own = {key: checked(key, value) for key, value in values.items() if key in OWN}
        except ValueError as error:  # RequestError is one
            raise HTTPException(_UNPROCESSABLE, str(error)) from error
        self._clip_skip = clip_skip
        for key, value in own.items():
            self._runner.studio.host.set_option(key, value)

    def _is_current(self, name: object) -> bool:
        model = self._runner.studio.model
        return name in (title(model), model.name, model.path.name, str(model.path), model.shorthash)

    def _state(self, job: Job | None) -> dict[str, Any]:
        progress = job.progress if job is not None else None
        count = job.request.n_iter if job is not None else 0
        steps = progress.steps // count if progress is not None and count else 0
        return {
            "skipped": job is not None and job.skipped,
            "interrupted": job.interrupted if job is not None else self._interrupted,
            "stopping_generation": False,
            "job": "txt2img" if job is not None else "",
            "job_count": count,
            "job_timestamp": "0",
            "job_no": progress.step // steps if progress is not None and steps else 0,
            "sampling_step": progress.step % steps if progress is not None and steps else 0,
            "sampling_steps": steps,
        }


def title(model: LoadedModel) -> str:
    """Return a model's name as A1111 lists it."""
    return f"{model.path.name} [{model.shorthash}]"


def info(request: Txt2Img, result: Result, model: LoadedModel) -> Mapping[str, Any]:
    """Return A1111's info on finished pictures, plus `remora`: reports and notes."""
    pictures: tuple[Picture, ...] = result.pictures
    seeds = [picture.seed for picture in pictures]
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
        "version": "remora",
        "remora": {
            "loras": list(result.lora_reports),
            "warnings": list(result.warnings),
            "notes": list(result.notes),
            "cancelled": result.cancelled,
        },
    }
