"""AUTOMATIC1111's web UI 1.10.1 in small: what its source and the running program were seen to do.

Of the order of things: scripts load built-in first; the registry of extra networks is cleared after that; `before_ui`
and `script_unloaded` run backwards; what a callback raises is printed. Of a generation: the first prompt's tags count;
`deactivate` comes only if they were any, and not after an exception; conditionings are cached by a key; the hires pass
activates anew, a refiner does not; rows reach the UNet at once, trimmed, split or in chunks. Of models: another
checkpoint is written into the same modules; one that is kept in memory comes back without a word; one of another
configuration has its empty prompt encoded in the middle of it all.

Source: AUTOMATIC1111/stable-diffusion-webui at 82a973c, run with `python -m tests.real`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from fastapi import FastAPI
from torch import Tensor, nn

from . import a1111_lora, extra_networks
from .a1111_model import LATENT, Model, checkpoint
from .interrupts import JobState, Processed

_CATEGORIES = ("app_started", "model_loaded", "ui_settings", "ui_tabs", "cfg_denoiser", "infotext_pasted")
_BACKWARDS = ("script_unloaded", "before_ui")


class SdConditioning(list[str]):
    """Prompts, and what an encoder may want to know besides."""

    def __init__(self, prompts: Sequence[str], is_negative_prompt: bool = False, width: int | None = None) -> None:
        super().__init__(prompts)
        self.is_negative_prompt = is_negative_prompt or getattr(prompts, "is_negative_prompt", False)
        self.width = width or getattr(prompts, "width", None)


class MulticondLearnedConditioning:
    def __init__(self, shape: tuple[int, ...], batch: list[list[Any]]) -> None:
        self.shape = shape
        self.batch = batch


class Processing:
    """`StableDiffusionProcessing` and the class for txt2img in one."""

    host: A1111Fake
    cached_c: list[Any]
    cached_uc: list[Any]

    def __init__(self, prompt: str | list[str] | None = None, **more: Any) -> None:
        self.prompt = prompt
        self.negative_prompt = ""
        self.batch_size, self.n_iter, self.steps, self.seed = 1, 1, 2, 1
        self.enable_hr, self.hr_prompt, self.refiner, self.is_hr_pass = False, "", None, False
        self.override_settings: dict[str, Any] = {}
        self.extra_generation_params: dict[str, Any] = {}
        self.comments: dict[str, int] = {}
        self.disable_extra_networks = False
        self.sampler_options: dict[str, Any] = {}
        self.prompts: Any = None
        self.scripts: Any = None
        self.all_prompts: list[str] = []
        self.iteration = 0
        self.during: Callable[[int], None] = lambda step: None
        vars(self).update(more)

    def comment(self, text: str) -> None:
        self.comments[text] = 1

    def cached_params(
        self, prompts: Any, steps: int, extra_network_data: Any, hires_steps: Any = None, old: bool = False
    ) -> Any:
        return (
            prompts,
            steps,
            hires_steps,
            old,
            self.host.models.model_data.sd_model.sd_checkpoint_info,
            extra_network_data,
        )

    def get_conds_with_caching(
        self, function: Any, prompts: Any, steps: int, caches: list[list[Any]], data: Any, hires_steps: Any = None
    ) -> Any:
        key = self.cached_params(prompts, steps, data, hires_steps, False)
        for cache in caches:
            if cache[0] is not None and cache[0] == key:
                return cache[1]
        caches[0][1] = function(self.host.models.model_data.sd_model, prompts, steps, hires_steps, False)
        caches[0][0] = key
        return caches[0][1]

    def setup_conds(self) -> None:
        texts, data = (self.hr_prompts, self.hr_data) if self.is_hr_pass else (self.prompts, self.extra_network_data)
        prompts, negative = SdConditioning(texts, width=64), SdConditioning(self.negative_prompts, True)
        get = self.get_conds_with_caching
        self.uc = get(_learned, negative, self.steps, [self.cached_uc], data)
        self.c = get(_multicond, prompts, self.steps, [self.cached_c], data)


def _learned(model: Any, prompts: Any, steps: int, hires_steps: Any = None, old: bool = False) -> list[Any]:
    encoded: dict[str, Any] = {}  # the same text is encoded once
    for text in prompts:
        if text not in encoded:
            encoded[text] = [SimpleNamespace(end_at_step=steps, cond=model.get_learned_conditioning([text])[0])]
    return [encoded[text] for text in prompts]


def _multicond(model: Any, prompts: Any, steps: int, hires_steps: Any = None, old: bool = False) -> Any:
    parts = [text.split(" AND ") for text in prompts]
    flat = SdConditioning([part for text in parts for part in text])
    learned = iter(_learned(model, flat, steps))
    batch = [[SimpleNamespace(schedules=next(learned), weight=1.0) for _ in text] for text in parts]
    return MulticondLearnedConditioning((len(prompts),), batch)


class Denoiser:
    """`CFGDenoiser` with its sampler."""

    def __init__(self, host: A1111Fake, p: Processing) -> None:
        self.host, self.p, self.step = host, p, 0
        self.sampler = SimpleNamespace(
            sampler_extra_args={"cond": p.c, "uncond": p.uc}, config=SimpleNamespace(options=p.sampler_options)
        )

    def __call__(self, x: Tensor) -> Tensor:
        if self.host.interrupted:
            raise InterruptedError
        self.p.during(self.step)
        if self.p.refiner is not None and self.step == 1:
            self.p.extra_generation_params["Refiner"] = self.p.refiner
            self.host.reload_model_weights(self.p.refiner)
            self.p.refiner_checkpoint_info = self.host.models.model_data.sd_model.sd_checkpoint_info
            self.p.setup_conds()
            self.sampler.sampler_extra_args.update(cond=self.p.c, uncond=self.p.uc)
        conds, uncond = self.sampler.sampler_extra_args["cond"].batch, self.sampler.sampler_extra_args["uncond"]
        owners = [image for image, parts in enumerate(conds) for _ in parts]
        contexts = [part.schedules[0].cond for parts in conds for part in parts]
        negative = [schedule[0].cond for schedule in uncond]
        x_in = torch.cat([x[owners], x])
        params = SimpleNamespace(
            x=x_in, denoiser=self, sampling_step=max(self.step - 1, 0), total_sampling_steps=self.p.steps
        )
        self.host.callbacks.run("cfg_denoiser", params)
        out = self._call(x_in, contexts, negative)
        guided = out[len(owners) :].clone() if len(out) > len(owners) else out[[owners.index(i) for i in range(len(x))]]
        base = guided.clone()
        for row, image in enumerate(owners):
            guided[image] += (out[row] - base[image]) * 2.0
        self.step += 1
        return x - 0.1 * guided

    def _call(self, x: Tensor, contexts: list[Tensor], negative: list[Tensor]) -> Tensor:
        unet, opts = self.host.models.model_data.sd_model.unet, self.host.shared.opts
        call = lambda rows, texts: unet(rows, torch.zeros(len(rows)), context=torch.stack(texts))  # noqa: E731
        if opts.data["skip_uncond"]:
            return call(x[: len(contexts)], contexts)
        images = len(negative)
        if contexts[0].shape == negative[0].shape:
            every = [*contexts, *negative]
            size = len(every) if opts.data["batch_cond_uncond"] else images
            return torch.cat([call(x[a : a + size], every[a : a + size]) for a in range(0, len(every), size)])
        size = 2 * images if opts.data["batch_cond_uncond"] else images
        starts = range(0, len(contexts), size)
        ends = [min(a + size, len(contexts)) for a in starts]
        parts = [call(x[a:b], contexts[a:b]) for a, b in zip(starts, ends, strict=True)]
        return torch.cat([*parts, call(x[-images:], negative)])


class Callbacks(ModuleType):
    """`modules.script_callbacks`."""

    def __init__(self) -> None:
        super().__init__("modules.script_callbacks")
        self.callback_map: dict[str, list[Any]] = {}
        self.printed: list[BaseException] = []
        self.clear()
        for category in (*_CATEGORIES, *_BACKWARDS):
            setattr(self, f"on_{category}", self._adder(category))

    def clear(self) -> None:
        for category in (*_CATEGORIES, *_BACKWARDS):
            self.callback_map.setdefault(f"callbacks_{category}", []).clear()

    def _adder(self, category: str) -> Callable[..., None]:
        def on(callback: Any, *, name: str | None = None) -> None:
            self.callback_map[f"callbacks_{category}"].append(SimpleNamespace(callback=callback, name=name))

        return on

    def run(self, category: str, *args: Any) -> None:
        callbacks = list(self.callback_map[f"callbacks_{category}"])
        for one in reversed(callbacks) if category in _BACKWARDS else callbacks:
            try:
                one.callback(*args)
            except Exception as error:  # noqa: BLE001  # printed, and the next one runs
                self.printed.append(error)


class Options:
    """`shared.opts`."""

    def __init__(self) -> None:
        self.data_labels: dict[str, Any] = {}
        self.data: dict[str, Any] = {
            "sd_lora": "None",
            "extra_networks_default_multiplier": 1.0,
            "skip_uncond": False,
            "batch_cond_uncond": True,
            "sd_checkpoints_limit": 1,
        }

    def add_option(self, key: str, info: Any) -> None:
        self.data_labels[key] = info
        self.data.setdefault(key, info.default)

    def set(self, key: str, value: Any) -> bool:
        self.data[key] = value
        return True

    def save(self, filename: str) -> None:
        Path(filename).write_text(json.dumps(self.data))


class OptionInfo:
    def __init__(self, default: Any, label: str, component: Any, component_args: Any, section: Any = None) -> None:
        self.default, self.label, self.section = default, label, section
        self.component, self.component_args, self.infotext, self.comment_after = component, component_args, None, ""

    def info(self, text: str) -> OptionInfo:
        self.comment_after += text
        return self


class Database:
    """The host's textual inversions."""

    def __init__(self) -> None:
        self.word_embeddings: dict[str, Any] = {}
        self.expected_shape = -1

    def register_embedding(self, embedding: Any, model: Any) -> None:
        self.register_embedding_by_name(embedding, model, embedding.name)

    def register_embedding_by_name(self, embedding: Any, model: Any, name: str) -> None:
        if embedding is None:
            self.word_embeddings.pop(name, None)
        else:
            self.word_embeddings[name] = embedding


def _embedding(data: dict[str, Tensor], name: str, filename: str) -> Any:
    return SimpleNamespace(name=name, shape=sum(tensor.shape[-1] for tensor in data.values()), vec=data)


class A1111Fake:
    """The whole program. `load_script` is the extension's script."""

    def __init__(self, loras: Path, load_script: Callable[[], object], *, builtin: bool = True) -> None:
        self._loras, self._load_script, self._builtin = loras, load_script, builtin
        self.interrupted = False
        self.checkpoints = {name: checkpoint(name, seed) for seed, name in enumerate("AB")}
        self.checkpoints["other"] = checkpoint("other", 9, "other configuration")
        self.callbacks = Callbacks()
        self.patches = a1111_lora.make_patches()
        self.extra_networks = extra_networks.a1111()
        self.processing, self.models, self.shared, self.hijack, self.inversion = (
            ModuleType(f"modules.{name}")
            for name in ("processing", "sd_models", "shared", "sd_hijack", "textual_inversion.textual_inversion")
        )
        self.app = FastAPI()
        self._fill()

    def _fill(self) -> None:
        self.shared.opts, self.shared.OptionInfo = Options(), OptionInfo  # type: ignore[attr-defined]
        self.shared.cmd_opts = SimpleNamespace(lora_dir=str(self._loras))  # type: ignore[attr-defined]
        self.shared.config_filename = str(self._loras.parent / "config.json")  # type: ignore[attr-defined]
        data = SimpleNamespace(sd_model=None, loaded_sd_models=[], lock=threading.Lock())
        vars(self.models).update(model_data=data, load_model_weights=self.load_model_weights)
        own = {"host": self, "cached_c": [None, None], "cached_uc": [None, None]}
        inherited = {name: value for name, value in vars(Processing).items() if name not in ("__dict__", "__weakref__")}
        cls = type("StableDiffusionProcessing", (), {**inherited, **own})  # of this start alone: functions are wrapped
        vars(self.processing).update(StableDiffusionProcessing=cls, process_images_inner=self.process_images_inner)
        self.processing.Processed, self.shared.state = Processed, JobState()  # type: ignore[attr-defined]
        self.hijack.model_hijack = SimpleNamespace(embedding_db=Database())  # type: ignore[attr-defined]
        self.inversion.create_embedding_from_data = _embedding  # type: ignore[attr-defined]

    @contextmanager
    def running(self) -> Iterator[A1111Fake]:
        """Install the program's modules and start it."""
        package = ModuleType("modules")
        package.__spec__ = ModuleSpec("modules", None)
        own = {
            "modules": package,
            "modules.script_callbacks": self.callbacks,
            "modules.patches": self.patches,
            "modules.extra_networks": self.extra_networks,
            **{module.__name__: module for module in (self.processing, self.models, self.shared, self.hijack)},
            self.inversion.__name__: self.inversion,
        }
        before = {name: sys.modules.get(name) for name in (*own, "networks")}
        sys.modules.update(own)
        try:
            self.start()
            yield self
            self.callbacks.run("script_unloaded")
        finally:
            for name, module in before.items():
                sys.modules.pop(name, None) if module is None else sys.modules.update({name: module})
            inherited = "_load_from_state_dict"  # the program's `undo` leaves it on the class; other tests replace it
            if nn.Linear.__dict__.get(inherited) is getattr(nn.Module, inherited):
                delattr(nn.Linear, inherited)

    def start(self) -> None:
        """Scripts, model, page, API; a reload of the page does it again, but for the model."""
        if self._builtin:
            a1111_lora.run_script(self, self._loras)
        self._load_script()
        if self.models.model_data.sd_model is None:
            self.reload_model_weights("A")
        self.extra_networks.initialize()
        self.callbacks.run("before_ui")
        self.callbacks.run("ui_settings")
        self.callbacks.run("app_started", None, self.app)

    def reload_ui(self) -> None:
        self.callbacks.run("script_unloaded")
        self.callbacks.clear()
        self.start()

    # --- models ---

    def reload_model_weights(self, name: str) -> None:
        info, data = self.checkpoints[name], self.models.model_data
        if data.sd_model is not None and data.sd_model.sd_checkpoint_info is info:
            return
        known = next((model for model in data.loaded_sd_models if model.sd_checkpoint_info is info), None)
        if known is not None:
            data.sd_model = known  # and nobody is told
            return
        another = data.sd_model is None or len(data.loaded_sd_models) < self.shared.opts.data["sd_checkpoints_limit"]
        if another or data.sd_model.sd_checkpoint_info.config != info.config:
            self._load_model(info, another)
            return
        self.models.load_model_weights(data.sd_model, info)
        self.callbacks.run("model_loaded", data.sd_model)

    def _load_model(self, info: Any, another: bool) -> None:
        data = self.models.model_data
        if not another:
            data.loaded_sd_models.remove(data.sd_model)
            data.sd_model.to("meta")
        model = Model()
        self.models.load_model_weights(model, info)
        data.sd_model = model
        data.loaded_sd_models.insert(0, model)
        self.callbacks.run("model_loaded", model)
        bare = self.new()
        self.extra_networks.activate(bare, {})
        with torch.no_grad():
            model.empty_prompt = model.get_learned_conditioning([""])

    def load_model_weights(self, model: Any, info: Any) -> None:
        model.load_state_dict(info.weights)
        model.sd_checkpoint_info = info

    # --- pictures ---

    def new(self, prompt: str | list[str] | None = None, **more: Any) -> Any:
        return self.processing.StableDiffusionProcessing(prompt, **more)

    def generate(self, prompt: str | list[str], **more: Any) -> SimpleNamespace:
        """As the API does: latents and parameters texts of every image."""
        return self.process_images(self.new(prompt, **more))

    def process_images(self, p: Any) -> SimpleNamespace:
        data = self.shared.opts.data
        stored = {key: data[key] for key in p.override_settings if key in data}
        try:
            self.reload_model_weights(getattr(p, "checkpoint", self.models.model_data.sd_model.sd_checkpoint_info.name))
            data.update(p.override_settings)
            return self.processing.process_images_inner(p)
        finally:
            data.update(stored)  # one that nobody had set stays as the request wanted it

    def process_images_inner(self, p: Any) -> SimpleNamespace:
        count = p.batch_size * p.n_iter
        p.all_prompts = p.prompt if isinstance(p.prompt, list) else [p.prompt] * count
        p.all_negative_prompts = [p.negative_prompt] * len(p.all_prompts)
        if p.enable_hr:
            p.all_hr_prompts = [p.hr_prompt or p.prompt] * count if not isinstance(p.hr_prompt, list) else p.hr_prompt
        p.all_seeds = [p.seed + i for i in range(len(p.all_prompts))]
        found = SimpleNamespace(images=[], infotexts=[], p=p, all_seeds=p.all_seeds, index_of_first_image=0)
        for number in range(p.n_iter):
            p.iteration, rows = number, slice(number * p.batch_size, (number + 1) * p.batch_size)
            p.prompts, p.negative_prompts = p.all_prompts[rows], p.all_negative_prompts[rows]
            p.seeds = p.all_seeds[rows]
            p.prompts, p.extra_network_data = self.extra_networks.parse_prompts(p.prompts)
            if p.enable_hr:
                p.hr_prompts, p.hr_data = self.extra_networks.parse_prompts(p.all_hr_prompts[rows])
            if not p.disable_extra_networks:
                self.extra_networks.activate(p, p.extra_network_data)
            with torch.no_grad():
                p.setup_conds()
                self.create_infotext(p, p.all_prompts, index=rows.start)  # params.txt
                found.images += list(self._sample(p, number))
            p.prompts = p.all_prompts[rows]
            found.infotexts += [self.create_infotext(p, p.prompts, index=i) for i in range(len(p.prompts))]
        found.grid = self.create_infotext(p, p.prompts, index=0, use_main_prompt=True)
        if not p.disable_extra_networks and p.extra_network_data:
            self.extra_networks.deactivate(p, p.extra_network_data)
        return found

    def _sample(self, p: Any, number: int) -> Tensor:
        seeds = [p.seed + number * p.batch_size + i for i in range(len(p.prompts))]
        x = torch.stack([torch.randn(LATENT, 2, 2, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        x = self._steps(p, x)
        if p.enable_hr and not self.interrupted:
            p.is_hr_pass = True
            self.extra_networks.activate(p, p.hr_data)
            p.setup_conds()
            x = self._steps(p, x)
            p.is_hr_pass = False
        return x

    def _steps(self, p: Any, x: Tensor) -> Tensor:
        denoise = Denoiser(self, p)
        try:
            for _ in range(p.steps):
                x = denoise(x)
        except InterruptedError:
            pass  # the picture as far as it came
        return x

    @staticmethod
    def create_infotext(p: Any, all_prompts: Any, index: int, use_main_prompt: bool = False) -> str:
        params = {"Steps": p.steps, **p.extra_generation_params}
        for key, value in params.items():
            if callable(value):
                params[key] = value(**locals())
        prompt = p.all_prompts[0] if use_main_prompt else all_prompts[index]
        return f"{prompt}\n" + ", ".join(f"{key}: {value}" for key, value in params.items() if value is not None)

    def paste(self, parameters: dict[str, str]) -> dict[str, str]:
        self.callbacks.run("infotext_pasted", "", parameters)
        return parameters
