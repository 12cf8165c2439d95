"""The common part of web UIs that descend from AUTOMATIC1111's, as a host: callbacks, settings, folders, tags.

The files beside this one hold the differences: where the model's parts are, which rows of a call belong to which image,
how text encoders are called, what the parameters text looks like. Features are detected by attributes, not by version.
"""

from __future__ import annotations

import importlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from . import _conflicts
from ._access import access_of
from ._axes import add_axes
from ._extra_networks import ExtraNetworks
from ._painter import WebUIPainter
from ._prompt_tags import Images
from ._webui_modules import module, shared
from ._wraps import Wraps
from .base import Access, Batch, Host, NotMadeError, Option, Outcome, Remora

if TYPE_CHECKING:
    from ..text.tag import Pass

logger = logging.getLogger(__name__)

_SECTION = ("remora", "Remora")
_EXPERT_SECTION = ("remora_experts", "Remora for experts")
_CATEGORY = "sd"
_OUTPUTS = tuple(f"outdir_{one}_samples" for one in ("txt2img", "img2img", "extras", "control"))
_MODELS = ("modules.sd_models", "modules.sd_checkpoint")
"""Modules that have the list of models; SD.Next has the second one."""
_TAB = ("Remora", "remora")  # its title, and what its element is called


class WebUIHost(Host):
    """A web UI with `modules.script_callbacks`, `modules.shared` and `modules.extra_networks`."""

    lora_dir_flags: ClassVar[tuple[str, ...]] = ("lora_dir", "lyco_dir", "lyco_dir_backcompat")
    """Names of the options with the LoRA folders, in the command line or in the settings."""

    shows_info_of_options: ClassVar[bool] = False
    """Whether `OptionInfo.info` is used; SD.Next does not show it."""

    def __init__(self) -> None:
        self._options: dict[str, Option] = {}
        self._remora: Remora | None = None
        self._networks: ExtraNetworks | None = None
        self.wraps = Wraps()
        """Applied while the host is connected."""
        self.painter = WebUIPainter()
        self._fault = ""  # why Remora is not connected
        self.woken = True
        """Whether the built-in works, as far as Remora knows; meaningful while it applies the tags."""
        self._connected = False  # the host never removes callbacks, so register them once per load of scripts

    # --- what a subclass defines ---

    @abstractmethod
    def quiet_builtin(self) -> None:
        """Remove the built-in's LoRA from the model, and stop it from changing layers; idempotent."""

    @abstractmethod
    def wake_builtin(self) -> None:
        """Let the built-in work as without Remora; idempotent."""

    @abstractmethod
    def tell(self, p: Any, outcome: Outcome) -> None:
        """Report the outcome of a batch: in its parameters texts, and its problems to the user."""

    @abstractmethod
    def run_batch(self, p: Any, images: Images, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        """Activate the LoRA of a batch and report the outcome."""

    @abstractmethod
    def pass_of(self, p: Any) -> Pass:
        """Return the present pass of a picture."""

    # --- Host ---

    def add_options(self, options: Sequence[Option]) -> None:
        self._options = {option.key: option for option in options}
        opts = shared().opts
        for option in options:
            saved = opts.data.get(option.key)
            if saved in option.removed:  # newer gradio saves no settings while one is not among its choices
                opts.data[option.key] = option.default
                logger.warning("remora: %s: %r was removed and is %r now", option.label, saved, option.default)
            opts.add_option(option.key, _info(option, info_is_shown=self.shows_info_of_options))

    def option(self, key: str) -> object:
        option = self._options[key]
        return shared().opts.data.get(key, option.default)

    def set_option(self, key: str, value: object) -> None:
        host = shared()
        if key not in self._options:
            raise KeyError(key)
        for flag in ("freeze_settings", "freeze"):
            if getattr(host.cmd_opts, flag, False):  # SD.Next does nothing then, and only logs it
                raise PermissionError(f"the web UI was started with --{flag.replace('_', '-')}")
        try:
            host.opts.set(key, value)
        except AssertionError as error:  # the setting or its section is frozen
            raise PermissionError(str(error)) from error
        host.opts.save(host.config_filename)

    def adapter_dirs(self) -> Sequence[Path]:
        host = shared()
        found = []
        for flag in self.lora_dir_flags:
            for values in (host.opts.data, vars(host.cmd_opts)):
                written = values.get(flag) or ()
                several = written if isinstance(written, list | tuple) else (written,)
                found += [Path(one).absolute() for one in several if one and Path(one).is_dir()]
        return tuple(dict.fromkeys(found))

    def models(self) -> Mapping[str, Path]:
        lists = [getattr(module(name), "checkpoints_list", {}) for name in _MODELS]
        found = {one.name: Path(one.filename) for known in lists for one in list(known.values())}
        return {name: path for name, path in found.items() if path.suffix == ".safetensors" or path.is_dir()}

    def output_dirs(self) -> Sequence[Path]:
        """Return the folders of the host's settings; a relative one is below its working folder."""
        opts = shared().opts
        common, kept, *own = (
            str(getattr(opts, name, "") or "") for name in ("outdir_samples", "outdir_save", *_OUTPUTS)
        )
        if hasattr(opts, "outdir_control_samples"):  # SD.Next puts the others below the common one
            written = [str(Path(common, one)) for one in (*own, kept) if one]
        else:
            written = [*([common] if common else own), kept]
        return tuple(dict.fromkeys(Path(one).absolute() for one in written if one))

    def block_preset_files(self) -> Sequence[Path]:
        data = getattr(shared().cmd_opts, "data_dir", None) or getattr(module("modules.paths"), "data_path", None)
        if not data:
            return ()
        names = ("lbwpresets.txt", "elempresets.txt")  # sorted, as a folder has no order
        return tuple(file for name in names for file in sorted(Path(data).glob(f"extensions/*/scripts/{name}")))

    def data_dir(self) -> Path | None:
        return Path(shared().config_filename).absolute().parent / "remora"

    def access(self, app: Any) -> Access:
        return access_of(app, shared().cmd_opts)

    def conflicts(self) -> Sequence[str]:
        own = () if self._networks is None else self._networks.conflicts
        return (*([self._fault] if self._fault else []), *_conflicts.found(), *own)

    def connect(self, remora: Remora) -> None:
        self._remora = remora
        if self._connected:
            return
        self._connected = True
        callbacks = importlib.import_module("modules.script_callbacks")
        # A1111 asks `inspect` for each caller of each callback; for a frame of importlib, as a script's loading has,
        # `inspect` looks through every module of the process. A new thread has no such frames.
        with ThreadPoolExecutor(1) as apart:
            apart.submit(self.add_callbacks, callbacks).result()

    def add_callbacks(self, callbacks: ModuleType) -> None:
        """Register the host's callbacks."""

        def app_started(demo: Any, app: Any) -> None:
            self.begin()  # here too: some hosts register the built-in after `before_ui` of others
            attempt(partial(self.remora.app_started, app))

        callbacks.on_ui_settings(lambda: self.add_options(tuple(self._options.values())))
        callbacks.on_ui_tabs(lambda: [(self.remora.tab(), *_TAB)])
        callbacks.on_before_ui(self.begin)
        callbacks.on_app_started(app_started)
        callbacks.on_model_loaded(lambda model: self.remora.model_changed())
        callbacks.on_script_unloaded(self.unload)

    def begin(self) -> None:
        """Take over; on an error the web UI is as without Remora, and the log and the tab say so."""
        self._fault = ""
        try:
            self.take_over()
        except Exception as error:
            logger.exception("remora: could not take over from the web UI")
            self._fault = (
                f"Remora could not take over from the web UI ({type(error).__name__}: {error}) and is not connected: "
                "the web UI's own LoRA gets the tags, until its page is reloaded"
            )
            self.restore()

    def restore(self) -> None:
        """Undo `take_over`, or any part of it; an error in one part does not keep the others from it."""
        networks, self._networks = self._networks, None
        own = () if self._remora is None else (self._remora.generation_ended,)
        given = () if networks is None else (networks.give_back,)
        attempt(self.wraps.give_back, *own, *given, partial(add_axes, ()), self.wake_builtin)

    def take_over(self) -> None:
        """Apply the tags from now on, if the setting says so."""
        if self._networks is None:
            self._networks = ExtraNetworks(
                importlib.import_module("modules.extra_networks"),
                batch=self.run_batch,
                handed_back=self.handed_back,
                ended=lambda p: self.remora.generation_ended(),
                not_applied=self.not_applied,
                grammar=lambda: self.remora.grammar,
                has_parts=self.has_parts,
            )
        self._networks.take_over()
        add_axes(self.remora.axes() if self.remora.enabled else ())
        if self.remora.enabled:
            self.handed_back(None)

    def unload(self) -> None:
        """Restore the host; an error in one part does not keep the others from it."""
        self._connected, self._fault = False, ""
        self.restore()
        if self._remora is not None:
            attempt(self._remora.unloaded)
            self._remora = None

    @property
    def remora(self) -> Remora:
        """Return the object to report events to."""
        assert self._remora is not None, "the host calls Remora after `connect` only"
        return self._remora

    def tell_or_report(self, p: Any, outcome: Outcome) -> None:
        """Report the outcome of a batch; an error in that is one of the parameters text only.

        Raises:
            LoraError: it failed, and the settings stop the generation.
        """
        try:
            self.tell(p, outcome)
        except Exception as error:
            logger.debug("remora: the outcome of a batch", exc_info=error)
            self.remora.failed(f"the parameters text does not have the LoRA ({type(error).__name__}: {error})")

    def not_applied(self, p: Any, images: Images, failure: str) -> None:
        """Report tags that Remora does not apply: the built-in does, or nothing does, with a sentence about that.

        Raises:
            LoraError: nothing applies them, and the settings stop the generation.
        """
        if failure:
            self.remora.generation_ended()  # a LoRA of the picture before may be active still
            self.tell_or_report(p, self.remora.failed(failure, images, self.pass_of(p)))
        elif any(images) or getattr(p, "prompts", None) is not None:  # a model that loads encodes an empty prompt
            outcome = self.remora.handed_over(images, self.pass_of(p))
            if any(images) and outcome.warnings():
                self.tell_or_report(p, outcome)

    def handed_back(self, p: Any) -> bool:
        """Tell whether the built-in applies the next batch; switches over if the setting changed.

        Raises:
            LoraError: its LoRA cannot be taken off, a picture is being made, and the settings stop the generation.
        """
        if self.remora.enabled:
            try:
                self.quiet_builtin()
            except Exception as error:  # noqa: BLE001  # whatever the host raises; it is logged and told
                attempt(self.remora.generation_ended, self.wake_builtin)
                # a model that is loading encodes an empty prompt, which is no picture
                self.remora.cannot_apply(error, in_picture=getattr(p, "prompts", None) is not None)
                return True
            return False
        errors = attempt(self.remora.generation_ended, self.wake_builtin)
        self.woken = not errors
        for one in errors:
            self.remora.failed(f"the web UI's own LoRA may not work ({type(one).__name__}: {one})")
        return True


def attempt(*steps: Callable[[], object]) -> Sequence[Exception]:
    """Call all of these functions, whatever the ones before raise; log and return the errors."""
    errors = []
    for step in steps:
        try:
            step()
        except Exception as error:
            logger.exception("remora: %s failed", getattr(step, "__qualname__", step))
            errors.append(error)
    return errors


def pictures_of(result: Any) -> list[tuple[int, Any]]:
    """Return seed and image of each picture in the result of the host's processing, without its grid."""
    images = list(getattr(result, "images", None) or ())[getattr(result, "index_of_first_image", 0) or 0 :]
    seeds = getattr(result, "all_seeds", None) or ()
    return [(seed, image) for seed, image in zip(seeds, images, strict=False) if isinstance(seed, int)]


def goes_on(text: str) -> bool:
    """Show a text beside the progress of the present job; tell whether the user lets it go on."""
    state = shared().state
    state.textinfo = text or None
    return not (state.interrupted or state.skipped)


def made_none(p: Any, why: NotMadeError) -> Any:
    """Return the host's result of a generation that the user interrupted before its first step."""
    logger.info("remora: %s", why)
    return importlib.import_module("modules.processing").Processed(p, [], info=str(why))


def batch_of(p: Any, images: Images, exclude: Sequence[str], at: Pass) -> Batch:
    """Make the batch that a processing object runs next; its seeds as far as the host has drawn them."""
    seeds = getattr(p, "seeds", None) or getattr(p, "all_seeds", None) or ()
    whole = tuple(seed for seed in seeds if isinstance(seed, int))
    found = Batch(images, without=frozenset(exclude), seeds=whole, at=at, goes_on=goes_on)
    if at != "base":
        return found
    steps, cfg = getattr(p, "steps", None), getattr(p, "cfg_scale", None)
    known = steps if isinstance(steps, int) else None
    return replace(found, steps=known, cfg=float(cfg) if isinstance(cfg, int | float) else None)


def _info(option: Option, *, info_is_shown: bool) -> Any:
    """Return the host's description of a setting."""
    component, arguments = _component(option)
    # gradio's own `info` is above a checkbox, as if it were the former one's, and pale in themes of SD.Next
    label = f"{option.label} ({option.info})" if option.info and not info_is_shown else option.label
    section = _EXPERT_SECTION if option.expert else _SECTION
    info = shared().OptionInfo(option.default, label, component, arguments, section=section)
    if option.info and info_is_shown:
        info.info(option.info)
    if hasattr(info, "infotext"):
        info.infotext = option.label  # the name under which a parameters text overrides the setting
    if hasattr(info, "category_id"):
        info.category_id = _CATEGORY  # where hosts sort their sections
    return info


def _component(option: Option) -> tuple[Any, Mapping[str, Any]]:
    """Return the gradio component of a setting and its arguments, as `OptionInfo` takes them."""
    import gradio

    match option.default:
        case bool():
            return gradio.Checkbox, {}
        case int() | float():
            arguments: dict[str, Any] = {"minimum": option.minimum, "maximum": option.maximum}
            finite = {name: value for name, value in arguments.items() if abs(value) != float("inf")}
            return gradio.Number, finite | ({"precision": 0} if isinstance(option.default, int) else {})
        case _:
            return gradio.Radio, {"choices": list(option.choices)}
