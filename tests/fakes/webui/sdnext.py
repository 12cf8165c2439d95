"""SD.Next in small: its modules by name, its start, and the way of a picture through it, as they were measured.

What matters: scripts are loaded with the extension's folder on `sys.path` for that time only, and before the registry
of extra networks is cleared; `shared.sd_model` loads a model when asked for one; one activation serves base, hires and
detailer, whose own is passed over; nothing is deactivated after an interrupt; prompts are encoded one by one and copied
where equal; two caches of what was encoded; parameters texts come from one table for all images of a picture's object.

Source: vladmandic/sdnext at 058a7f0, run with `python -m tests.real`.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from fastapi import FastAPI
from torch import Tensor

from . import extra_networks
from .interrupts import JobState, Processed
from .sdnext_lora import OwnLora

_TEXT_ENCODERS = ["text_encoder", "text_encoder_2", "text_encoder_3"]
_CALLBACKS = (
    "ui_settings",
    "ui_tabs",
    "before_ui",
    "app_started",
    "model_loaded",
    "script_unloaded",
    "infotext_pasted",
    "before_process",
)


class StoppedError(Exception):
    """The user did not want the picture any more."""


class OptionInfo:
    def __init__(self, default: Any, label: str = "", component: Any = None, arguments: Any = None, **more: Any):
        self.default, self.label, self.component, self.section = default, label, component, more.get("section")

    def info(self, text: str) -> OptionInfo:
        return self


class Options:
    """Values that differ from their defaults, and the defaults."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(data=dict(values), data_labels={})

    def __getattr__(self, key: str) -> Any:
        if key in self.data:
            return self.data[key]
        if key in self.data_labels:
            return self.data_labels[key].default
        raise AttributeError(key)

    def __setattr__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def add_option(self, key: str, info: OptionInfo) -> None:
        self.data_labels[key] = info


class Processing:
    """One request; made anew by the detailer's change of class, which keeps what it does not know."""

    def __init__(self, prompts: list[str], **values: Any) -> None:
        self.all_prompts, self.prompt = prompts, prompts[0]
        self.reset()
        vars(self).update(values)

    def reset(self) -> None:
        self.iteration = self.batch_index = 0
        self.n_iter, self.batch_size, self.steps = 1, 1, 1
        self.disable_extra_networks = self.is_hr_pass = self.detailer_enabled = self.enable_hr = False
        self.lora_apply_te = None
        self.refiner_prompt = self.detailer_prompt = ""
        self.network_data: Any = {}
        self.extra_generation_params: dict[str, Any] = {}
        self.negative_prompts: list[str] = []
        self.faces = 1  # that the detailer finds


class Detailer:
    """Works on one image after the other, with the first prompt of all or one of its own."""

    def __init__(self, web: SDNext) -> None:
        self.web = web

    def restore(self, image: Tensor, p: Processing) -> Tensor:
        kept = dict(vars(p))
        p.reset()
        pc = copy(p)
        prompt = kept["detailer_prompt"] or kept["all_prompts"][0]
        pc.detailer_prompt, pc.lora_apply_te = kept["detailer_prompt"], kept["lora_apply_te"]
        for _ in range(kept["faces"]):
            pc.prompt, pc.all_prompts, pc.keep_prompts = prompt, [prompt], True
            networks = self.web.extra_networks
            pc.prompts, pc.network_data = networks.parse_prompts([prompt], pc.network_data)
            pc.disable_extra_networks = True  # so that the next line does nothing
            networks.activate_filtered(pc, pc.network_data)
            pc.recursion = True
            image = image + self.web.modules["modules.processing"].process_images_inner(pc).images[0]
            networks.deactivate(pc, force=True)
            del pc.recursion
        vars(p).update(kept)
        return image


class SDNext:
    """The web UI.

    Args:
        pipe: what it loads when it starts.
        loras: its folder.
        lora: its own LoRA.
    """

    def __init__(self, pipe: Any, loras: Path, lora: type[OwnLora] = OwnLora, **options: Any) -> None:
        self.callbacks: dict[str, list[Callable[..., Any]]] = {name: [] for name in _CALLBACKS}
        self.opts = Options(lora_dir=str(loras), lora_apply_te=False, lora_force_reload=False, **options)
        self.opts.extra_networks_default_multiplier = 1.0
        self.extra_networks = extra_networks.sdnext(self.opts.data)
        self.state = JobState()
        self.data = SimpleNamespace(sd_model=None)
        self.pipe = pipe
        self.asked_for_model = self.loads = 0
        self.encoded: list[str] = []
        self.interrupt_at_step = False
        self.steps = 1
        self.each_step: list[Tensor] = []
        self.builtin = extra_networks.BuiltinOfSdNext()
        self.lora = lora(self)
        self.modules = self._modules()

    def start(self, load_scripts: Callable[[], None]) -> None:
        """Start as the program does, with one extension whose scripts `load_scripts` runs."""
        path = list(sys.path)
        sys.path.insert(0, "extension")
        try:
            load_scripts()
        finally:
            sys.path[:] = path
        self.extra_networks.initialize()
        self.extra_networks.register_extra_network(self.builtin)
        self._call("before_ui", backwards=True)
        self._call("ui_settings")
        self._call("app_started", None, FastAPI())
        self.load(self.pipe)

    def load(self, pipe: Any) -> None:
        """Load another model."""
        self.data.sd_model = pipe
        self.modules["modules.prompt_parser_diffusers"].cache.clear()
        self._call("model_loaded", pipe)

    def save_checkpoint(self, file: Path) -> None:
        """Let the loaded model come from this file, which need not exist."""
        self._saved = deepcopy(self.data.sd_model)
        self.data.sd_model.sd_checkpoint_info = SimpleNamespace(filename=str(file))

    def _reload_model_weights(self, info: Any = None, force: bool = False) -> None:
        if not force:
            return  # it is loaded
        common = self.modules["modules.lora.lora_common"]
        common.loaded_networks.clear()
        common.previously_loaded_networks.clear()
        self.modules["modules.lora.lora_load"].lora_cache.clear()
        self.loads += 1
        pipe = deepcopy(self._saved)
        pipe.sd_checkpoint_info = info
        self.load(pipe)

    def paste(self, text: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the values for the page, with the settings that it would override under `overrides`."""
        self._call("infotext_pasted", text, parameters)
        mapping = self.modules["modules.infotext"].mapping
        return {**parameters, "overrides": {key: parameters[name] for name, key in mapping if name in parameters}}

    def generate(self, *prompts: str, **values: Any) -> Any:
        """Make a picture, or several; what comes back has images, infotexts and comments."""
        p = Processing(list(prompts), **{"batch_size": len(prompts), **values})
        self.state.begin("txt2img")
        self._call("before_process", p)
        result = self.modules["modules.processing"].process_images_inner(p)
        self.state.end()
        return result

    def process_images_inner(self, p: Processing) -> Any:
        networks, processing = self.extra_networks, self.modules["modules.processing"]
        images, infotexts = [], []
        seeds = [1 + i for i in range(len(p.all_prompts))]
        for n in range(p.n_iter):
            p.iteration = n
            batch = slice(p.iteration * p.batch_size, (p.iteration + 1) * p.batch_size)
            if not hasattr(p, "keep_prompts"):
                p.prompts, p.seeds = p.all_prompts[batch], seeds[batch]
            p.prompts, p.network_data = networks.parse_prompts(p.prompts)
            try:
                made = self._process_diffusers(p)
            except StoppedError:
                break
            p.prompts = p.all_prompts[batch]
            for i, image in enumerate(made):
                p.batch_index = i
                shown = self.shared.detailer.restore(image, p) if p.detailer_enabled else image
                images.append(shown)
                infotexts.append(processing.create_infotext(p, p.prompts, index=i))
        result = processing.get_processed(p, images_list=images, infotexts=infotexts, comments="", all_seeds=seeds)
        result.p = p
        return result

    @property
    def shared(self) -> Any:
        return self.modules["modules.shared"]

    def _process_diffusers(self, p: Processing) -> Tensor:
        networks = self.extra_networks
        p.prompts, p.network_data = networks.parse_prompts(p.prompts, p.network_data)
        networks.activate_filtered(p)
        latents = self._denoise(p, p.prompts)
        if p.enable_hr or p.refiner_prompt:
            p.is_hr_pass, prompts = True, p.prompts
            if p.refiner_prompt:
                prompts, p.network_data = networks.parse_prompts(len(latents) * [p.refiner_prompt])
                networks.activate_filtered(p)  # without a prompt of its own, nothing is activated for it
            latents = latents + self._denoise(p, prompts)
            p.is_hr_pass = False
        networks.deactivate(p, force=self.opts.lora_force_reload)
        return latents

    def _denoise(self, p: Processing, prompts: list[str]) -> Tensor:
        negative = p.negative_prompts or [""] * len(prompts)
        args = self.modules["modules.processing_diffusers"].set_pipeline_args
        texts = args(p=p, prompts=prompts, negative_prompts=negative)
        noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1)).repeat(len(texts), 1, 1, 1)
        pipe = self.data.sd_model
        pipe.scheduler.set_timesteps(self.steps)
        self.each_step = []

        def __call__(self: Any, latents: Tensor, *, do_classifier_free_guidance: bool) -> Tensor:  # noqa: N807
            for t in self.scheduler.timesteps:  # always of one timestep: only what is in force makes a difference
                found = self.unet(noise, t, encoder_hidden_states=texts).sample
                web.each_step.append(found[len(latents) :])
                web.lora.after_step(len(web.each_step) - 1)
                self.scheduler.step(found, t, noise)
            return found

        web = self
        with torch.no_grad():
            found = __call__(pipe, noise[: len(prompts)], do_classifier_free_guidance=True)
        if self.interrupt_at_step:
            self.state.interrupted, self.interrupt_at_step = True, False
            raise StoppedError
        return found[len(prompts) :]  # what depends on the positive prompts

    def _set_pipeline_args(self, p: Processing, prompts: list[str], negative_prompts: list[str]) -> Tensor:
        embedder = self.modules["modules.prompt_parser_diffusers"].PromptEmbedder(prompts, negative_prompts, p)
        return torch.cat([*embedder.negatives, *embedder.positives])

    def _encode(self, prompt: str) -> Tensor:
        self.encoded.append(prompt)
        tokens = torch.tensor([[1 + ord(letter) % 97 for letter in f"{prompt:<8}"[:8]]])
        with torch.no_grad():
            return self.data.sd_model.text_encoder(tokens).last_hidden_state

    def _call(self, name: str, *args: Any, backwards: bool = False) -> None:
        for callback in reversed(self.callbacks[name]) if backwards else self.callbacks[name]:
            callback(*args)  # the program prints what is raised and goes on; here it fails the test

    def _modules(self) -> dict[str, ModuleType]:
        made = {name: ModuleType(name) for name in ("modules", "modules.lora", "modules.sd_offload")}
        made["modules.extra_networks"] = self.extra_networks
        made["modules.shared"] = self._shared()
        self._add(made, "modeldata", model_data=self.data)
        self._add(made, "script_callbacks", **{f"on_{name}": found.append for name, found in self.callbacks.items()})
        self._add(made, "infotext", mapping=[("Model", "sd_model_checkpoint")])
        self._add(made, "logger", log=_logger())
        self._add(
            made,
            "sd_models",
            set_diffuser_offload=lambda pipe, op: None,
            reload_model_weights=self._reload_model_weights,
        )
        self._add(
            made, "sd_hijack_te", prompt_cache=SimpleNamespace(cache={}), hijack_encode_prompt=lambda prompt: prompt
        )
        self._add(made, "processing_diffusers", set_pipeline_args=self._set_pipeline_args)
        self._add(
            made,
            "processing",
            Processed=Processed,
            create_infotext=create_infotext,
            get_processed=get_processed,
            process_images_inner=self.process_images_inner,
        )
        self._add(made, "prompt_parser_diffusers", cache=OrderedDict(), PromptEmbedder=None)
        made["modules.prompt_parser_diffusers"].PromptEmbedder = _embedder_class(self, made)
        for name, values in self.lora.modules().items():
            self._add(made, name, **values)
        gradio = made["gradio"] = ModuleType("gradio")  # which takes seconds to import, for a name of each component
        vars(gradio).update({name: name for name in ("Checkbox", "Number", "Radio")})
        return made

    def _shared(self) -> ModuleType:
        web = self

        class Shared(ModuleType):
            """Has no model of its own: to ask for one loads it."""

            @property
            def sd_model(self) -> Any:
                web.asked_for_model += 1
                return web.data.sd_model or web.pipe

            @property
            def sd_loaded(self) -> bool:
                return web.data.sd_model is not None

        shared = Shared("modules.shared")
        vars(shared).update(opts=self.opts, state=self.state, cmd_opts=SimpleNamespace(lora_dir=None))
        shared.config_filename = str(Path(self.opts.data["lora_dir"]).parent / "config.json")  # type: ignore[attr-defined]
        vars(shared).update(OptionInfo=OptionInfo, detailer=Detailer(self))
        return shared

    @staticmethod
    def _add(made: dict[str, ModuleType], name: str, **values: Any) -> None:
        module = made.setdefault(f"modules.{name}", ModuleType(f"modules.{name}"))
        vars(module).update(values)

    @contextlib.contextmanager
    def running(self) -> Iterator[SDNext]:
        """Install the program's modules, so that they can be imported."""
        before = dict(sys.modules)
        sys.modules.update(self.modules)
        try:
            yield self
        finally:
            for name in self.modules:
                sys.modules.pop(name, None)
            sys.modules.update({name: module for name, module in before.items() if name in self.modules})


def create_infotext(
    p: Any,
    all_prompts: Any = None,
    comments: Any = None,
    iteration: int = 0,
    position_in_batch: int = 0,
    index: int | None = None,
    grid: Any = None,
) -> str:
    """Return a text from one table; lists are joined."""
    index = position_in_batch + iteration * p.batch_size if index is None else index
    prompts = p.all_prompts if all_prompts is None else all_prompts
    table = {"Steps": p.steps, "Grid": grid, **p.extra_generation_params}
    return f"{prompts[index]}\n" + "; ".join(f"{name}: {value}" for name, value in table.items() if value is not None)


def get_processed(*args: Any, **kwargs: Any) -> Any:
    return SimpleNamespace(images=kwargs.pop("images_list"), **kwargs)


def _embedder_class(web: SDNext, modules: dict[str, ModuleType]) -> type:
    parser = modules["modules.prompt_parser_diffusers"]

    class PromptEmbedder:
        """What the prompts of a batch are to the model."""

        scheduled_prompt = False

        def __init__(self, prompts: list[str], negative_prompts: list[str], p: Any) -> None:
            self.prompts, self.negative_prompts = prompts, negative_prompts
            self.positives: list[Any] = [None] * len(prompts)
            self.negatives: list[Any] = [None] * len(prompts)
            self.pipe = web.data.sd_model
            if self.checkcache(p):
                return
            seen: dict[str, int] = {}
            for i, prompt in enumerate(prompts):
                if prompt in seen:
                    self.clone_embeds(i, seen[prompt])
                    continue
                self.encode(self.pipe, prompt, negative_prompts[i], i)
                seen[prompt] = i
            self.checkcache(p)

        def checkcache(self, p: Any) -> bool:
            tags = [params.items for found in p.network_data.values() for params in found]
            apply_te = web.opts.lora_apply_te if p.lora_apply_te is None else p.lora_apply_te
            key = str([self.prompts, self.negative_prompts, tags, apply_te])
            if key in parser.cache:
                vars(self).update(parser.cache[key])
                return True
            if self.positives[0] is not None:
                parser.cache[key] = {"positives": self.positives, "negatives": self.negatives}
            return False

        def encode(self, pipe: Any, positive: str, negative: str, i: int) -> None:
            self.positives[i], self.negatives[i] = web._encode(positive), web._encode(negative)

        def clone_embeds(self, i: int, like: int) -> None:
            self.positives[i], self.negatives[i] = self.positives[like], self.negatives[like]

    return PromptEmbedder


def _logger() -> Any:
    import logging

    logger = logging.getLogger("fake-sdnext")
    logger.propagate = False
    return logger


def signature_of(web: SDNext) -> inspect.Signature:
    """Of what stands in the registry for LoRA tags."""
    return inspect.signature(web.extra_networks.extra_network_registry["lora"].activate)
