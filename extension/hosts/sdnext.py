"""SD.Next as a host: a diffusers pipeline whose parts are replaced, and one stack for all passes of a picture."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import lib_lora
from lib_lora import is_denoiser

from ._log_levels import LOGGERS, LogLevels
from ._nunchaku import is_of_nunchaku, why_not
from ._prompt_tags import Images
from ._sdnext_builtin import Merged, changed_parts, take_off
from ._sdnext_infotext import HASHES, Infotexts
from ._sdnext_prompts import Prompts
from ._webui import WebUIHost, attempt, batch_of, made_none, pictures_of
from ._webui_modules import module, shared
from .base import NotMadeError, Outcome, Remora

if TYPE_CHECKING:
    from torch import nn

    from ..text.tag import Pass

logger = logging.getLogger(__name__)

_ADAPTABLE = (
    "unet",
    "transformer",
    "transformer_2",
    "transformer_ref",
    "prior",
    "text_encoder",
    "text_encoder_2",
    "text_encoder_3",
    "text_encoder_4",
    "llm_adapter",
    "connectors",
)
# attributes of a processing object
_BATCH = "remora_batch"  # the arguments of the first pass of its present batch
_PLACE = "remora_place"  # the batch, and the image in it, that the detailer changes
_NOT_OURS = "whose layers Remora cannot change: the web UI's own LoRA gets the tags"
_TO_TEXT_ENCODERS = "turn on “LoRA native apply to text encoder” in SD.Next's settings"
_DIGITS = 8  # of a hash in a parameters text
_NEGATIVE = ("negative_prompts", "negative_prompts_2")  # arguments of a pass


class SDNextHost(WebUIHost):
    """SD.Next. Uses no Script classes, which its control tab drops."""

    name: ClassVar[str] = "sdnext"

    def __init__(self) -> None:
        super().__init__()
        self._prompts = Prompts(lambda: self._remora if self._serving else None)
        self._infotexts = Infotexts()
        self._log: _HostLog | None = None
        self._merged = Merged()
        self._serving = False  # whether Remora activated the present LoRA
        self._at: Pass = "base"  # the present pass
        self._generating = False

    def is_current(self) -> bool:
        data = module("modules.modeldata")
        return data is not None and hasattr(data, "model_data") and module("modules.sd_offload") is not None

    def components(self) -> Mapping[str, nn.Module]:
        return _parts(self._pipe(), _ADAPTABLE)

    def checkpoints(self) -> Mapping[str, Sequence[Path]]:
        written = getattr(getattr(self._pipe(), "sd_checkpoint_info", None), "filename", None)
        if not written:
            return {}
        path, names = Path(written), list(self.components())
        if path.is_dir():
            found = {name: sorted((path / name).glob("*.safetensors")) for name in names}
        elif path.suffix == ".safetensors" and path.is_file():
            found = {name: [path] for name in names}
        else:
            found = {}
        return {name: files for name, files in found.items() if files}

    def own_choice(self, files: Sequence[Path]) -> Path | None:
        return max(files, key=str)  # in the order of whole paths

    def add_callbacks(self, callbacks: ModuleType) -> None:
        super().add_callbacks(callbacks)
        callbacks.on_infotext_pasted(self._pasted)
        callbacks.on_before_process(self._before_process)

    def connect(self, remora: Remora) -> None:
        super().connect(remora)
        if self._log is None:
            self._log = _HostLog(importlib.import_module("modules.logger").log)
            self._log.take()

    def take_over(self) -> None:
        self.remora.clock(lib_lora.SchedulerClock(lambda: getattr(self._pipe(), "scheduler", None)))
        self._prompts.wrap(self.wraps)
        self._infotexts.wrap(self.wraps)
        passes = module("modules.processing_diffusers")
        if passes is not None and hasattr(passes, "set_pipeline_args"):
            self.wraps.put(passes, "set_pipeline_args", self._next_pass)
        else:
            logger.warning("remora: this SD.Next does not tell of a second pass with the first one's prompt")
        processing = module("modules.processing")
        if processing is not None and hasattr(processing, "process_images_inner"):
            self.wraps.put(processing, "process_images_inner", self._generation)
        detailer = getattr(shared(), "detailer", None)
        if hasattr(detailer, "restore"):
            self.wraps.put(type(detailer), "restore", self._detail)
        known = importlib.import_module("modules.infotext").mapping  # where it looks up the settings of pasted texts
        known.extend((key, key) for key in self._options if (key, key) not in known)
        super().take_over()
        self.wraps.put(importlib.import_module("modules.extra_networks"), "activate", self._activating)

    def unload(self) -> None:
        super().unload()
        if self._log is not None:
            self._log.give_back()
            self._log = None

    def cannot_serve(self) -> str:
        parts = self.components()
        for name in (one for one in parts if is_denoiser(one)):
            reason = why_not(parts[name]) if is_of_nunchaku(parts[name]) else ""
            if reason:
                return f"the {name} is {reason}, {_NOT_OURS}"
        values = shared().opts.data
        if values.get("cuda_compile_backend") == "openvino_fx" and "Model" in (values.get("cuda_compile") or ()):
            return f"the model is computed by OpenVINO, {_NOT_OURS}"
        return super().cannot_serve()

    def conflicts(self) -> Sequence[str]:
        return *super().conflicts(), *self._merged.told(self._of_builtin())

    def quiet_builtin(self) -> None:
        pipe = self._pipe()
        if pipe is not None:
            self._merged.note(self._of_builtin())
            take_off(pipe, self._of_builtin())

    def wake_builtin(self) -> None:
        self._serving = False
        self._merged.note(self._of_builtin())
        self._prompts.in_force()

    def pass_of(self, p: Any) -> Pass:
        return "hires" if p.is_hr_pass else "base"

    def run_batch(self, p: Any, images: Images, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self.tell_or_report(p, self._apply(p, images, include, exclude, self.pass_of(p)))
        if not p.is_hr_pass:  # the detailer uses the prompt and the LoRA of the first pass
            setattr(p, _BATCH, (images, include, exclude))

    def _activating(self, original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a pass for which the host activates no networks: the detailer's."""
        if getattr(p, "disable_extra_networks", False) and hasattr(p, "recursion") and not self.handed_back(p):
            self._apply_to_detail(p, kwargs.get("include") or (), kwargs.get("exclude") or ())
        return original(p, *args, **kwargs)

    def _apply_to_detail(self, p: Any, include: Sequence[str], exclude: Sequence[str]) -> None:
        """Activate the LoRA of the one image that the detailer changes, or the LoRA of the detailer's own prompt."""
        assert self._networks is not None, "the host calls `activate` of Remora while it has taken over"
        images: Images
        own = self._networks.tags.of(p.prompt)
        if hasattr(p, _BATCH):
            images, include, exclude = getattr(p, _BATCH)
            own = own if p.detailer_prompt else ()
        else:  # a picture made earlier
            images = ((),)
        batch, image = getattr(p, _PLACE, (p.iteration, p.batch_index))
        image = image if image < len(images) else 0
        outcome = self._apply(p, (own or images[image],), include, exclude, "detailer")
        if own:
            alone = tuple(outcome.images[0] if i == image else () for i in range(len(images)))
            self._infotexts.note(p, replace(outcome, images=alone), batch, further_pass=True)

    def _before_process(self, p: Any) -> None:
        """Handle a new picture, before its first use of the model; the host loads its checkpoint just before this."""
        if self._remora is not None and self.remora.enabled:
            self._merged.load_again(self._pipe(), self._of_builtin())

    def _next_pass(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Handle the encoding of a pass's prompts; a second pass with the prompts of the first has no callback."""
        p = kwargs.get("p", args[0] if args else None)
        if self._serving and getattr(p, "is_hr_pass", False) and self._at != "hires" and hasattr(p, _BATCH):
            self.run_batch(p, *getattr(p, _BATCH))
        elif p is not None and self._networks is not None and self.remora.enabled:
            self._networks.check_served(p)
        if self._networks is not None and self.remora.grammar is not None:
            for name in _NEGATIVE:
                if isinstance(kwargs.get(name), list):
                    kwargs[name] = self._networks.tags.without_negative(kwargs[name])
        return original(*args, **kwargs)

    def _generation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record the pictures of a generation; the detailer's, which are nested, are parts of these."""
        nested, self._generating = self._generating, True
        made: Any = None
        try:
            made = original(*args, **kwargs)
            return made
        except NotMadeError as error:
            return made_none(kwargs.get("p", args[0] if args else None), error)
        finally:
            self._generating = nested
            if not nested and self._remora is not None:
                attempt(partial(self.remora.pictures_made, pictures_of(made)))

    def _detail(self, original: Callable[..., Any], detailer: Any, image: Any, p: Any = None) -> Any:
        if p is not None:  # the detailer changes its class and numbers, and keeps unknown attributes
            setattr(p, _PLACE, (p.iteration, p.batch_index))
        return original(detailer, image, p)

    def _apply(self, p: Any, images: Images, include: Sequence[str], exclude: Sequence[str], at: Pass) -> Outcome:
        """Activate the LoRA of a batch, on the parts that the host includes."""
        self._serving, self._at = True, at
        left_alone = [*exclude, *(name for name in _ADAPTABLE if include and name not in include)]
        try:
            default = float(shared().opts.data.get("extra_networks_default_multiplier", 1.0))
            advice = _TO_TEXT_ENCODERS if "text_encoder" in exclude else ""
            outcome = self.remora.batch(replace(batch_of(p, images, left_alone, at), default=default, advice=advice))
        except BaseException:
            shared().state.end()  # the host would count the job as running for ever
            raise
        self._prompts.in_force(self.remora.text_key())
        return outcome

    def tell(self, p: Any, outcome: Outcome) -> None:
        self._infotexts.note(p, outcome, p.iteration, further_pass=bool(p.is_hr_pass))

    def _of_builtin(self) -> Mapping[str, nn.Module]:
        """Return the parts that the built-in may have changed, more than Remora's in later versions."""
        return _parts(self._pipe(), dict.fromkeys((*_ADAPTABLE, *changed_parts())))

    def _pipe(self) -> Any:
        """Return the pipeline with the model's parts, or None; the host's own accessor would load one."""
        data = module("modules.modeldata")
        pipe = None if data is None else data.model_data.sd_model
        return getattr(pipe, "pipe", pipe)

    def _pasted(self, infotext: str, parameters: dict[str, Any]) -> None:
        """Handle a parameters text; the host continues with the changed parameters."""
        texts = {name: str(value) for name, value in parameters.items() if value is not None}
        if isinstance(parameters.get(HASHES), int):  # the host reads digits as a number
            texts[HASHES] = texts[HASHES].zfill(_DIGITS)
        prompt, settings = self.remora.pasted(texts)
        if prompt:
            parameters["Prompt"] = prompt
        parameters.update(settings)


class _HostLog(logging.Handler):
    """Sends the log of Remora and its library to the host's log, which its page shows."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log
        self._levels = LogLevels()

    def take(self) -> None:
        """Install the handler."""
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        self._levels.set(logging.INFO)

    def give_back(self) -> None:
        """Remove the handler."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self._levels.restore()

    def emit(self, record: logging.LogRecord) -> None:
        self._log.handle(record)


def _parts(pipe: Any, names: Iterable[str]) -> dict[str, nn.Module]:
    """Return those parts of a pipeline that it has."""
    return {name: part for name in names if (part := _module(getattr(pipe, name, None))) is not None}


def _module(part: object) -> nn.Module | None:
    """Return a component without the wrapper of a compiler."""
    from torch import nn

    while isinstance(inner := getattr(part, "_orig_mod", None), nn.Module):
        part = inner
    return part if isinstance(part, nn.Module) else None


SDNEXT = SDNextHost()
