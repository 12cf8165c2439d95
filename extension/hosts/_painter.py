"""Pictures that a web UI of A1111's family makes for Remora, by its own processing and in its own queue."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ._webui_modules import module
from .txt2img import SIDE_STEP, RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

    from .txt2img import Txt2Img


_MAX_SIDE, _MAX_STEPS = 8192, 1000  # more is a typing error


class WebUIPainter:
    """Makes one picture at a time, see `base.Painter`; it is neither saved nor shown in the page."""

    def __init__(self) -> None:
        self._running = False  # not only waiting for the user's pictures

    def check(self, request: Txt2Img) -> None:
        for name, side in (("width", request.width), ("height", request.height)):
            if side % SIDE_STEP or not 64 <= side <= _MAX_SIDE:
                raise RequestError(f"{name} is {side}; it must be a multiple of {SIDE_STEP} from 64 to {_MAX_SIDE}")
        if not 1 <= request.steps <= _MAX_STEPS:
            raise RequestError(f"steps is {request.steps}; it must be from 1 to {_MAX_STEPS}")

    def paint(self, request: Txt2Img, cancelled: Callable[[], bool]) -> Image | None:
        shared = importlib.import_module("modules.shared")
        with importlib.import_module("modules.call_queue").queue_lock:
            if cancelled():
                return None
            job = shared.state.begin("Remora")
            self._running = True
            try:
                picture = _made(shared, request)
                if shared.state.interrupted:
                    return None
                if picture is None:
                    raise RequestError("the web UI made no picture; its log may say why")
                return picture
            finally:
                self._running = False
                _end(shared.state, job)

    def interrupt(self) -> None:
        if self._running:
            importlib.import_module("modules.shared").state.interrupt()

    @property
    def fraction(self) -> float:
        state = importlib.import_module("modules.shared").state
        steps = state.sampling_steps or 0
        return min(1.0, state.sampling_step / steps) if self._running and steps > 0 else 0.0

    @property
    def samplers(self) -> list[str]:
        found = module("modules.sd_samplers")
        return [] if found is None else [sampler.name for sampler in found.visible_samplers()]


def _made(shared: Any, request: Txt2Img) -> Image | None:
    processing = importlib.import_module("modules.processing")
    if shared.sd_model is None:
        raise RequestError("no model is loaded; choose one first")
    with closing(_processing(processing.StableDiffusionProcessingTxt2Img, shared.sd_model, request)) as p:
        images = getattr(processing.process_images(p), "images", None)
    return images[0] if images else None


def _processing(kind: Any, model: Any, request: Txt2Img) -> Any:
    values = {
        "sd_model": model,
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "seed": request.seed,
        "sampler_name": request.sampler,
        "steps": request.steps,
        "cfg_scale": request.cfg_scale,
        "width": request.width,
        "height": request.height,
        "do_not_save_samples": True,
        "do_not_save_grid": True,
    }
    known = {name for base in kind.__mro__ for name in inspect.signature(base.__init__).parameters}
    if request.schedule != "Automatic" and "scheduler" in known:
        values["scheduler"] = request.schedule
    return kind(**values)


def _end(state: Any, job: object) -> None:
    """End a job; SD.Next counts its jobs by the result of `begin`."""
    if job is not None and inspect.signature(state.end).parameters:
        state.end(job)
    else:
        state.end()
