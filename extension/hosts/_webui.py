"""The common part of web UIs that descend from AUTOMATIC1111's, as a host: callbacks, settings, folders, tags.

The files beside this one hold the differences: where the model's parts are, which rows of a call belong to which image,
how text encoders are called, what the parameters text looks like. Features are detected by attributes, not by version.
"""

from __future__ import annotations

import importlib
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from . import _conflicts
from ._access import access_of
from ._axes import add_axes
from ._extra_networks import ExtraNetworks, written
from ._painter import WebUIPainter
from ._prompt_tags import Images
from ._webui_modules import module
from .base import Access, Batch, Host, Option, Outcome, Painter, Remora

if TYPE_CHECKING:
    from torch import nn

    from ..text.tag import Pass

logger = logging.getLogger(__name__)

State: TypeAlias = Literal["applied", "handed back", "not connected"]
"""Remora applies the tags; the built-in does, as Remora is off or cannot; the built-in does, without Remora."""

_SECTION = ("remora", "Remora")
_EXPERT_SECTION = ("remora_experts", "Remora for experts")
_CATEGORY = "sd"
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
        self._painter = WebUIPainter()
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
    def tell(self, p: Any, outcome: Outcome, images: Images) -> None:
        """Report the outcome of a batch: in its parameters texts, and its problems to the user."""

    def batch_of(self, p: Any, images: Images, include: Sequence[str], exclude: Sequence[str]) -> Batch:
        """Make the batch that a processing object runs next."""
        at, cfg = self.pass_of(p), getattr(p, "cfg_scale", None)
        found = Batch(images, without=frozenset(exclude), seeds=_seeds(p), at=at)
        if at != "base":
            return found
        steps = getattr(p, "steps", None)
        known = steps if isinstance(steps, int) else None
        return replace(found, steps=known, cfg=float(cfg) if isinstance(cfg, int | float) else None)

    def pass_of(self, p: Any) -> Pass:
        """Return the present pass of a picture."""
        return "base"

    # --- Host ---

    def add_options(self, options: Sequence[Option]) -> None:
        self._options = {option.key: option for option in options}
        self._show_options()

    def option(self, key: str) -> object:
        option = self._options[key]
        return self._shared().opts.data.get(key, option.default)

    def set_option(self, key: str, value: object) -> None:
        shared = self._shared()
        if key not in self._options:
            raise KeyError(key)
        for flag in ("freeze_settings", "freeze"):
            if getattr(shared.cmd_opts, flag, False):  # SD.Next does nothing then, and only logs it
                raise PermissionError(f"the web UI was started with --{flag.replace('_', '-')}")
        try:
            shared.opts.set(key, value)
        except AssertionError as error:  # the setting or its section is frozen
            raise PermissionError(str(error)) from error
        shared.opts.save(shared.config_filename)

    def adapter_dirs(self) -> Sequence[Path]:
        shared = self._shared()
        found = []
        for flag in self.lora_dir_flags:
            for values in (shared.opts.data, vars(shared.cmd_opts)):
                written = values.get(flag) or ()
                several = written if isinstance(written, list | tuple) else (written,)
                found += [Path(one).absolute() for one in several if one and Path(one).is_dir()]
        return tuple(dict.fromkeys(found))

    def own_choice(self, files: Sequence[Path]) -> Path | None:
        """Return the last file in the order of the built-in's list, where a later file replaces an earlier one."""
        folders = self.adapter_dirs()

        def order(file: Path) -> tuple[object, ...]:
            folder = next((i for i, one in enumerate(folders) if file.is_relative_to(one)), len(folders))
            return folder, sort_key(str(file.parent)), sort_key(file.name)

        return max(files, key=order)

    def painter(self) -> Painter:
        return self._painter

    def block_preset_files(self) -> Sequence[Path]:
        data = getattr(self._shared().cmd_opts, "data_dir", None) or getattr(module("modules.paths"), "data_path", None)
        if not data:
            return ()
        names = ("lbwpresets.txt", "elempresets.txt")  # sorted, as a folder has no order
        return tuple(file for name in names for file in sorted(Path(data).glob(f"extensions/*/scripts/{name}")))

    def data_dir(self) -> Path | None:
        return Path(self._shared().config_filename).absolute().parent / "remora"

    def access(self, app: Any) -> Access:
        return access_of(app, self._shared().cmd_opts)

    def layer_classes(self) -> Sequence[type[nn.Module]]:
        return ()

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
        callbacks.on_ui_settings(self._show_options)
        callbacks.on_ui_tabs(self._tabs)
        callbacks.on_before_ui(self.begin)
        callbacks.on_app_started(self._app_started)
        callbacks.on_model_loaded(self._model_loaded)
        callbacks.on_script_unloaded(self.unload)

    @property
    def state(self) -> State:
        """Return who applies the tags."""
        if self._networks is None or not self._networks.in_force:
            return "not connected"
        return "applied" if self.remora.enabled else "handed back"

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
            attempt(self.remora.generation_ended, *self.restoring())

    def restoring(self) -> Sequence[Callable[[], object]]:
        """Return the functions that undo `take_over`; each may be called after any part of it."""
        return self._give_back_networks, partial(add_axes, ()), self.wake_builtin

    def take_over(self) -> None:
        """Apply the tags from now on, if the setting says so."""
        if self._networks is None:
            self._networks = ExtraNetworks(
                importlib.import_module("modules.extra_networks"),
                batch=self.run_batch,
                handed_back=self._handed_back,
                ended=self.ended,
                passed_over=self.passed_over,
                unserved=self.unserved,
                passed_on=self.passed_on,
                grammar=self.grammar,
                has_parts=self.has_parts,
            )
        self._networks.take_over()
        add_axes(self.remora.axes() if self.remora.enabled else ())
        if self.remora.enabled:
            self._quiet(in_picture=False)

    def _quiet(self, *, in_picture: bool) -> bool:
        """Take the built-in's LoRA off; after an error the built-in applies the tags.

        Raises:
            LoraError: it failed, a picture is being made, and the settings stop the generation.
        """
        try:
            self.quiet_builtin()
        except Exception as error:  # noqa: BLE001  # whatever the host raises; it is logged and told
            attempt(self.remora.generation_ended, self.wake_builtin)
            self.remora.cannot_apply(error, in_picture=in_picture)
            return False
        return True

    def unload(self) -> None:
        """Restore the host; an error in one part does not keep the others from it."""
        self._connected, self._fault = False, ""
        attempt(self._give_back_networks, partial(add_axes, ()))
        if self._remora is not None:
            attempt(self._remora.unloaded)
            self._remora = None
        attempt(self.wake_builtin)

    def _give_back_networks(self) -> None:
        networks, self._networks = self._networks, None
        if networks is not None:
            networks.give_back()

    @property
    def remora(self) -> Remora:
        """Return the object to report events to."""
        assert self._remora is not None, "the host calls Remora after `connect` only"
        return self._remora

    def run_batch(self, p: Any, images: Images, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        """Activate the LoRA of a batch and report the outcome."""
        outcome = self.remora.batch(self.batch_of(p, images, include, exclude))
        self.tell_or_report(p, outcome, images)

    def tell_or_report(self, p: Any, outcome: Outcome, images: Images) -> None:
        """Report the outcome of a batch; an error in that is one of the parameters text only.

        Raises:
            LoraError: it failed, and the settings stop the generation.
        """
        try:
            self.tell(p, outcome, images)
        except Exception as error:
            logger.debug("remora: the outcome of a batch", exc_info=error)
            self.remora.failed(f"the parameters text does not have the LoRA ({type(error).__name__}: {error})")

    def grammar(self) -> bool | None:
        """Return whether brackets around tags mean something; None while Remora applies no tags."""
        return self.remora.grammar if self.remora.enabled else None

    def ended(self, p: Any, *args: Any, **kwargs: Any) -> None:
        """Handle the end of a generation."""
        self.remora.generation_ended()

    def passed_over(self, p: Any, include: Sequence[str], exclude: Sequence[str]) -> None:
        """Handle a pass for which the host activates no networks."""

    def check_served(self, p: Any) -> None:
        """Report tags of a picture that is about to be made, if the host never asked for their LoRA.

        Raises:
            LoraError: there are such tags, and the settings stop the generation.
        """
        images = () if self._networks is None or not self.remora.enabled else self._networks.bypassed(p)
        if images:
            self.remora.generation_ended()  # a LoRA of the picture before may be active still
            why = f"nothing applied {written(images)}: something makes the web UI skip its extra networks"
            self.unserved(p, images, why)

    def passed_on(self, p: Any, images: Images) -> None:
        """Handle that the built-in applies the tags of a batch; tell why, unless Remora is turned off."""
        if getattr(p, "prompts", None) is None and not any(images):
            return  # a model that is loading encodes an empty prompt
        outcome = self.remora.handed_over(images, self.pass_of(p))
        if any(images) and outcome.warnings():
            self.tell_or_report(p, outcome, ((),))

    def unserved(self, p: Any, images: Images, sentence: str) -> None:
        """Report tags that nothing applied.

        Raises:
            LoraError: the settings stop the generation.
        """
        self.tell_or_report(p, self.remora.failed(sentence, images, self.pass_of(p)), ((),))

    def _handed_back(self, p: Any) -> bool:
        """Tell whether the built-in applies the next batch; switches over if the setting changed."""
        if self.remora.enabled:
            # a model that is loading encodes an empty prompt, which is no picture
            return not self._quiet(in_picture=getattr(p, "prompts", None) is not None)
        errors = attempt(self.remora.generation_ended, self.wake_builtin)
        self.woken = not errors
        for error in errors:
            self.remora.failed(f"the web UI's own LoRA may not work ({type(error).__name__}: {error})")
        return True

    def _app_started(self, demo: Any, app: Any) -> None:
        self.begin()  # here too: some hosts register the built-in after `before_ui` of others
        attempt(partial(self.remora.app_started, app), self._log_conflicts)

    def _log_conflicts(self) -> None:
        if self.remora.enabled:
            for sentence in self.conflicts():
                logger.warning("remora: %s", sentence)

    def _tabs(self) -> list[tuple[Any, str, str]]:
        return [(self.remora.tab(), *_TAB)]

    def _model_loaded(self, model: Any) -> None:
        self.remora.model_changed()

    def _show_options(self) -> None:
        opts = self._shared().opts
        for option in self._options.values():
            saved = opts.data.get(option.key)
            if saved in option.removed:  # newer gradio saves no settings while one is not among its choices
                opts.data[option.key] = option.default
                logger.warning("remora: %s: %r was removed and is %r now", option.label, saved, option.default)
            opts.add_option(option.key, self._info(option))

    def _info(self, option: Option) -> Any:
        """Return the host's description of a setting."""
        component, arguments = _component(option)
        # gradio's own `info` is above a checkbox, as if it were the former one's, and pale in themes of SD.Next
        in_label = option.info and not self.shows_info_of_options
        label = f"{option.label} ({option.info})" if in_label else option.label
        section = _EXPERT_SECTION if option.expert else _SECTION
        info = self._shared().OptionInfo(option.default, label, component, arguments, section=section)
        if option.info and self.shows_info_of_options:
            info.info(option.info)
        if hasattr(info, "category_id"):
            info.category_id = _CATEGORY  # where hosts sort their sections
        return info

    @staticmethod
    def _shared() -> Any:
        return importlib.import_module("modules.shared")


def sort_key(text: str) -> Sequence[object]:
    """Return what the built-in sorts folders and file names by: numbers in them by their value."""
    return [int(part) if part.isdecimal() else part.lower() for part in re.split(r"([0-9]+)", text)]


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


def _seeds(p: Any) -> tuple[int, ...]:
    """Return the seeds of the present batch, as far as the host has drawn them."""
    seeds = getattr(p, "seeds", None) or getattr(p, "all_seeds", None) or ()
    return tuple(seed for seed in seeds if isinstance(seed, int))


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
