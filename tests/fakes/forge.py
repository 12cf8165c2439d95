"""Forge, Forge Neo, Forge Classic and reForge without a GPU, a page or a file: what an extension meets in them.

Made from what their sources do, in words of our own. What is faithful, because Remora has to live with it: callbacks
of `before_ui` run in reverse; the registry of extra networks is cleared before that; only the first prompt's tags of
a batch are passed on; exceptions of an activation are printed and forgotten; a batch begins with the model's original
patchers and goes on with those that have the built-in's LoRA; conditionings are cached by class, and equal texts of a
batch are encoded once; a model is built anew for another checkpoint, when a generation needs it, and Classic and
reForge then activate nothing for an object without prompts; layers cast or move their weights in their own forward; the
built-in merges into new parameters when its patcher goes to the device, in low bits at each call; conditions run in
reversed chunks of whole batches, as many in a call as memory allows; everything runs in inference mode.

Forge Neo was run with `python -m tests.real`: 2.26, as in exo101/sd-webui-forge-neo-v3 at 5692d2d. The others were
compared with their sources: lllyasviel/stable-diffusion-webui-forge at dfdcbab6, Haoming02/sd-webui-forge-classic at
1f95d717 and Panchovix/stable-diffusion-webui-reForge at 3b56b268.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

WIDTH, CHANNELS, SIDE = 8, 4, 4
KINDS = ("forge", "forge_neo", "forge_classic", "reforge")
WITH_BACKEND = ("forge", "forge_neo")
SAMPLING = 1 << 30
"""Bytes that sampling asks the loader for."""


class SamplerError(Exception):
    """Raised by a test in the middle of sampling."""


# --- layers ---


class ForgeOperations:
    """Forge's: `Linear` is no nn.Linear; weights are cast, moved, scaled and patched at each call."""

    class Linear(nn.Module):
        def __init__(self, inside: int, out: int, bias: bool = True) -> None:
            super().__init__()
            self.in_features, self.out_features = inside, out
            self.weight = nn.Parameter(torch.randn(out, inside) / inside**0.5, requires_grad=False)
            self.bias = nn.Parameter(torch.randn(out) / 10, requires_grad=False) if bias else None
            self.parameters_manual_cast = True

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight.to(x)
            for delta in getattr(self, "forge_online_loras", {}).get("weight", ()):
                weight = weight + delta.to(weight)
            for function in getattr(self, "weight_function", ()):
                weight = function(weight)
            return F.linear(x, weight, None if self.bias is None else self.bias.to(x))

    class Conv2d(nn.Conv2d):
        parameters_manual_cast = True

        def forward(self, x: Tensor) -> Tensor:
            return self._conv_forward(x, self.weight.to(x), self.bias.to(x))

    class ConvTranspose2d(nn.ConvTranspose2d):
        def forward(self, x: Tensor, output_size: Any = None) -> Tensor:
            return super().forward(x)


class ForgeOperationsGGUF(ForgeOperations):
    """Packed weights: the layer declares no sizes."""

    class Linear(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError


def cast(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    weight = layer.weight.to(x)
    for function in getattr(layer, "weight_function", ()):
        weight = function(weight)
    return weight, layer.bias.to(x)


class Ops:
    """Classic's: torch's classes, cast at each call where told so."""

    class Linear(nn.Linear):
        ldm_patched_cast_weights = False

        def forward(self, x: Tensor) -> Tensor:
            if self.ldm_patched_cast_weights or getattr(self, "weight_function", ()):
                return F.linear(x, *cast(self, x))
            return super().forward(x)

    class Conv2d(nn.Conv2d):
        ldm_patched_cast_weights = False

        def forward(self, x: Tensor) -> Tensor:
            return self._conv_forward(x, *cast(self, x)) if self.ldm_patched_cast_weights else super().forward(x)


class ManualCast(Ops):
    class Linear(Ops.Linear):
        ldm_patched_cast_weights = True

    class Conv2d(Ops.Conv2d):
        ldm_patched_cast_weights = True


class CastWeightBiasOp:
    """reForge's: functions that change a weight at each call; here only for being there."""


# --- models ---


def _module(**children: nn.Module) -> nn.Module:
    made = nn.Module()
    for name, child in children.items():
        made.add_module(name, child)
    return made


class UNet(nn.Module):
    """Named as ldm's; each row by itself, as pictures are."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        attention = _module(to_q=ops.Linear(CHANNELS, CHANNELS), to_k=ops.Linear(WIDTH, CHANNELS))
        transformer = _module(transformer_blocks=nn.ModuleList([_module(attn2=attention)]))
        stem = nn.ModuleList([ops.Conv2d(CHANNELS, CHANNELS, 3, padding=1)])
        self.input_blocks = nn.ModuleList([stem, nn.ModuleList([nn.Identity(), transformer])])
        self.calls: list[int] = []

    def forward(self, x: Tensor, t: Tensor, context: Tensor, transformer_options: Any = None) -> Tensor:
        self.calls.append(len(x))
        attention = self.input_blocks[1][1].transformer_blocks[0].attn2
        h = self.input_blocks[0][0](x).movedim(1, -1)
        h = torch.tanh(attention.to_q(h) + attention.to_k(context).mean(1)[:, None, None])
        return h.movedim(-1, 1)


class CLIP(nn.Module):
    """Named as transformers'; a text's numbers are those of its characters."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        mlp = _module(fc1=ops.Linear(WIDTH, WIDTH))
        layers = nn.ModuleList([_module(mlp=mlp)])
        self.transformer = _module(text_model=_module(encoder=_module(layers=layers)))
        self.texts: list[list[str]] = []

    def encode(self, texts: list[str]) -> Tensor:
        self.texts.append(list(texts))
        numbers = [[(sum(map(ord, text)) * (i + 3) % 17) / 17 for i in range(WIDTH)] for text in texts]
        encoded: Tensor = self.transformer.text_model.encoder.layers[0].mlp.fc1(torch.tensor(numbers))
        return encoded[:, None]


class ModelPatcher:
    """What all have: clones share the module, LoRA are merged when it is loaded."""

    def __init__(self, model: nn.Module, host: FakeForge) -> None:
        self.model, self.host, self.patches, self.backup = model, host, {}, {}
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        if not hasattr(model, "lora_loader"):
            model.lora_loader = SimpleNamespace(loaded=str([]), backup={}, online=[])

    @property
    def lora_patches(self) -> dict[str, Any]:
        return self.patches

    def clone(self) -> ModelPatcher:
        made = type(self)(self.model, self.host)
        made.patches = dict(self.patches)
        return made

    def add(self, name: str, patches: dict[str, Tensor]) -> None:
        self.patches[name] = patches

    def patch_model(self) -> None:
        """Return the patcher of Forge Classic and reForge."""
        for patches in self.patches.values():
            for path, delta in patches.items():
                _merge(self.model.get_submodule(path), delta, self.backup)

    def unpatch_model(self) -> None:
        _put_back(self.backup)


class Patcher(ModelPatcher):
    """That of Forge, Classic and reForge."""

    def refresh_loras(self) -> None:
        """Forge's only."""
        loader = self.model.lora_loader
        if loader.loaded == str(list(self.patches)):
            return
        for layer in loader.online:
            del layer.forge_online_loras
        _put_back(loader.backup)
        loader.online = []
        for name, patches in self.patches.items():
            for path, delta in patches.items():
                layer = self.model.get_submodule(path)
                if name.endswith("online"):
                    layer.forge_online_loras = {"weight": [delta]}
                    loader.online.append(layer)
                else:
                    _merge(layer, delta, loader.backup)
        loader.loaded = str(list(self.patches))


class NeoPatcher(ModelPatcher):
    """Forge Neo's, from ComfyUI: an identity of its patches, and original weights that all clones share.

    Another identity than the loaded one makes a load restore the weights and merge the patches. There is no
    `refresh_loras`. What the built-in applies at each call is a function of the layer, which a load removes.
    """

    def __init__(self, model: nn.Module, host: FakeForge) -> None:
        self.identity = object()
        super().__init__(model, host)
        if not hasattr(model, "current_identity"):
            model.current_identity = None

    def clone(self) -> NeoPatcher:
        made = NeoPatcher(self.model, self.host)
        made.patches, made.backup, made.identity = dict(self.patches), self.backup, self.identity
        return made

    def add(self, name: str, patches: dict[str, Tensor]) -> None:
        self.patches[name] = patches
        self.identity = object()

    def partially_load(self) -> None:
        if self.model.current_identity is self.identity:
            return
        if self.model.current_identity is not None:
            self.unpatch_model()
        for layer in self.model.modules():
            vars(layer).pop("weight_function", None)
        for name, patches in self.patches.items():
            for path, delta in patches.items():
                layer = self.model.get_submodule(path)
                if name.endswith("online"):
                    layer.weight_function = [lambda weight, delta=delta: weight + delta.to(weight)]
                else:
                    _merge(layer, delta, self.backup)
        self.model.current_identity = self.identity

    def unpatch_model(self) -> None:
        super().unpatch_model()
        self.model.current_identity = None

    def detach(self) -> nn.Module:
        self.unpatch_model()
        return self.model


def _merge(layer: Any, delta: Tensor, backup: dict[Any, Any]) -> None:
    backup.setdefault(layer, layer.weight)
    layer.weight = nn.Parameter(layer.weight + delta.to(layer.weight), requires_grad=False)


def _put_back(backup: dict[Any, Any]) -> None:
    for layer, weight in backup.items():
        layer.weight = weight
    backup.clear()


@dataclass
class Loaded:
    model: Patcher

    def model_unload(self) -> None:
        self.model.unpatch_model()


@dataclass
class Objects:
    unet: Any
    clip: Any

    def shallow_copy(self) -> Objects:
        return Objects(self.unet, self.clip)


class Model:
    """What `model_data.sd_model` is."""

    def __init__(self, host: FakeForge, name: str) -> None:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(sum(map(ord, name)))
            unet, clip = UNet(host.ops), CLIP(host.ops)
        self.current_lora_hash = str([])
        self.sd_checkpoint_info = SimpleNamespace(title=name, filename=f"{name}.safetensors")
        joint, patcher = _module(clip_l=clip), NeoPatcher if host.kind == "forge_neo" else Patcher
        objects = Objects(
            patcher(_module(diffusion_model=unet), host),
            SimpleNamespace(cond_stage_model=joint, patcher=patcher(joint, host)),
        )
        self.forge_objects = objects
        self.forge_objects_original = objects.shallow_copy()
        self.forge_objects_after_applying_lora = objects.shallow_copy()
        self.host = host

    def get_learned_conditioning(self, texts: list[str]) -> Tensor:
        self.host.load(self.forge_objects.clip.patcher)
        return self.forge_objects.clip.cond_stage_model.clip_l.encode(texts)


class NoModel:
    """Forge's before the first generation."""

    cond_stage_model = None


# --- the host's modules ---


@dataclass
class Params:
    """`ExtraNetworkParams`."""

    items: list[str]

    @property
    def positional(self) -> list[str]:
        return [one for one in self.items if "=" not in one]


class ExtraNetwork:
    def __init__(self, name: str) -> None:
        self.name = name


class Prompts(list[str]):
    """`SdConditioning`."""

    def __init__(self, prompts: list[str], is_negative_prompt: bool = False, width: int | None = None) -> None:
        super().__init__(prompts)
        self.is_negative_prompt, self.width = is_negative_prompt, width


class OptionInfo:
    def __init__(self, default: Any, label: str, component: Any = None, arguments: Any = None, section: Any = None):
        self.default, self.label, self.section = default, label, section

    def info(self, text: str) -> OptionInfo:
        return self


@dataclass
class FakeForge:
    """One of the three; `script` runs an extension's script, `start` goes on to the running web UI."""

    kind: str
    lora_dir: Path
    checkpoint: str = "one"
    chunks: int = 9
    """How many chunks of a step fit in memory."""
    online: bool = False
    """Whether the built-in works at each call, which Forge does for low bits and an option."""
    printed: list[BaseException] = field(default_factory=list)
    on_step: Callable[[int], None] = lambda step: None
    areas: int = 0
    """Conditions of parts of the picture beside each prompt."""

    def __post_init__(self) -> None:
        self.ops: Any = ForgeOperations if self.kind in WITH_BACKEND else ManualCast
        self.callbacks: dict[str, list[Callable[..., Any]]] = defaultdict(list)
        self.loaded: list[Loaded] = []
        self.reserved: list[float] = []
        """The memory for which sampling asked the loader, in bytes."""
        self.cached: dict[str, list[Any]] = {}
        self.modules = self._modules()

    # the parts

    @property
    def samples(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What makes conditions of a prompt's parts and what joins them, looked up as the host's sampling does."""
        if self.kind in WITH_BACKEND:
            both = self.modules["backend.sampling.sampling_function"]
            return both.compile_weighted_conditions, both.cond_cat
        makes, joins = self.modules["modules_forge.forge_sampler"], self.modules["ldm_patched.modules.samplers"]
        return makes.cond_from_a1111_to_patched_ldm_weighted, joins.cond_cat

    def _modules(self) -> dict[str, ModuleType]:
        modules = {
            "modules": {},
            "modules.script_callbacks": {
                f"on_{name}": self.callbacks[name].append
                for name in ("ui_settings", "ui_tabs", "before_ui", "app_started", "model_loaded", "script_unloaded")
            }
            | {f"on_{name}": self.callbacks[name].append for name in ("infotext_pasted", "cfg_denoiser")},
            "modules.shared": self._shared(),
            "modules.extra_networks": {},
            "modules.sd_models": {"model_data": SimpleNamespace(sd_model=NoModel(), forge_loading_parameters={})},
            "modules.processing": {
                "StableDiffusionProcessing": _processing(self),
                "process_images_inner": lambda p: p.process(),
            },
            "modules.scripts": {"scripts_data": []},
            "networks": {
                "load_networks": self.load_networks_of_neo if self.kind == "forge_neo" else self.load_networks,
                "loaded_networks": [],
            },
        }
        if self.kind in WITH_BACKEND:
            patcher = NeoPatcher if self.kind == "forge_neo" else Patcher
            modules["backend.patcher"], modules["backend.patcher.base"] = {}, {"ModelPatcher": patcher}
            modules["modules.sd_models"]["forge_model_reload"] = self.reload
            modules["backend"] = {}
            modules["backend.memory_management"] = {"load_models_gpu": self.load_models_gpu}
            modules["backend.args"] = {"dynamic_args": SimpleNamespace(nunchaku=False)}
            operations = {"ForgeOperations": ForgeOperations, "ForgeOperationsGGUF": ForgeOperationsGGUF}
            modules["backend.operations"] = operations
            modules["backend.sampling"] = {}
            sampling = {"compile_weighted_conditions": _weighted, "cond_cat": _cond_cat}
            modules["backend.sampling.sampling_function"] = sampling
        else:
            modules["modules_forge"] = {}
            modules["modules_forge.forge_loader"] = {"load_model_for_a1111": Model}
            modules["modules_forge.forge_sampler"] = {"cond_from_a1111_to_patched_ldm_weighted": _weighted}
            modules["ldm_patched"] = modules["ldm_patched.modules"] = {}
            modules["ldm_patched.modules.samplers"] = {"cond_cat": _cond_cat}
            modules["ldm_patched.modules.ops"] = {"disable_weight_init": Ops, "manual_cast": ManualCast}
            modules["ldm_patched.modules.model_management"] = {
                "current_loaded_models": self.loaded,
                "load_models_gpu": self.load_models_gpu,
            }
        if self.kind == "reforge":
            modules["ldm_patched.modules.ops"]["CastWeightBiasOp"] = CastWeightBiasOp
        made = {}
        for name, content in modules.items():
            made[name] = ModuleType(name)
            vars(made[name]).update(content)
        for name in made:
            parent, _, leaf = name.rpartition(".")
            if parent:
                setattr(made[parent], leaf, made[name])
        self._fill_extra_networks(made["modules.extra_networks"])
        return made

    def _shared(self) -> dict[str, Any]:
        opts = SimpleNamespace(data={"sd_lora": "None"}, added={})
        opts.add_option = opts.added.__setitem__
        cmd_opts = SimpleNamespace(lora_dir=str(self.lora_dir))
        if self.kind == "forge_neo":
            cmd_opts.lora_dirs, cmd_opts.loglevel = [], None
        config = str(self.lora_dir.parent / "config.json")
        return {"opts": opts, "cmd_opts": cmd_opts, "OptionInfo": OptionInfo, "config_filename": config}

    def _fill_extra_networks(self, module: ModuleType) -> None:
        """Its functions find each other in the module, so that a wrapper is found."""
        module.ExtraNetwork, module.ExtraNetworkParams = ExtraNetwork, Params
        module.extra_network_registry, module.extra_network_aliases = {}, {}

        def register(network: Any) -> None:
            module.extra_network_registry[network.name] = network

        def parse_prompt(prompt: str) -> tuple[str, Any]:
            found: dict[str, list[Params]] = defaultdict(list)
            text, *rest = prompt.split("<")
            for part in rest:
                tag, _, after = part.partition(">")
                kind, _, items = tag.partition(":")
                found[kind].append(Params(items.split(":")))
                text += after
            return text, found

        def parse_prompts(prompts: list[str]) -> tuple[list[str], Any]:
            parsed = [module.parse_prompt(prompt) for prompt in prompts]
            return [text for text, _ in parsed], parsed[0][1] if parsed else None

        def lookup(data: Any) -> dict[Any, list[Params]]:
            named: dict[Any, list[Params]] = {}
            for kind, params in list(data.items()):
                network = module.extra_network_registry.get(kind) or module.extra_network_aliases.get(kind)
                if network is not None:
                    named.setdefault(network, []).extend(params)
            return named

        def attempt(function: Callable[..., None], *args: Any) -> bool:
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001  # as the host does
                self.printed.append(error)
                return False
            return True

        def activate(p: Any, data: Any) -> None:
            done = [network for network, params in lookup(data).items() if attempt(network.activate, p, params)]
            for network in module.extra_network_registry.values():
                if network not in done:  # one that failed, too
                    attempt(network.activate, p, [])
            for script in p.scripts or ():
                script.after_extra_networks_activate(p, extra_network_data=data)

        def deactivate(p: Any, data: Any) -> None:
            named = lookup(data)
            for network in (*named, *(one for one in module.extra_network_registry.values() if one not in named)):
                attempt(network.deactivate, p)

        for function in (register, parse_prompt, parse_prompts, activate, deactivate):
            setattr(module, {"register": "register_extra_network"}.get(function.__name__, function.__name__), function)

    # the built-in

    def load_networks(self, names: Any, te: Any = None, unet: Any = None, dyn: Any = None) -> None:
        model = self.model_data.sd_model
        targets = str([[name, u, t] for name, u, t in zip(names, unet or (), te or (), strict=True)])
        if model is None or model.current_lora_hash == targets:
            return
        model.current_lora_hash = targets
        model.forge_objects.unet = model.forge_objects_original.unet
        model.forge_objects.clip = model.forge_objects_original.clip
        for name, strength, of_texts in zip(names, unet or (), te or (), strict=True):
            end = " online" if self.online else ""
            patched = model.forge_objects.unet.clone()
            path = "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_q"
            patched.add(f"{name} {strength}{end}", {path: torch.full((CHANNELS, CHANNELS), float(strength) / 10)})
            clip = model.forge_objects.clip
            clip = SimpleNamespace(cond_stage_model=clip.cond_stage_model, patcher=clip.patcher.clone())
            path = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1"
            clip.patcher.add(f"{name} {of_texts}{end}", {path: torch.full((WIDTH, WIDTH), float(of_texts) / 10)})
            model.forge_objects.unet, model.forge_objects.clip = patched, clip
        model.forge_objects_after_applying_lora = model.forge_objects.shallow_copy()

    def load_networks_of_neo(self, names: Any, te_multipliers: Any = None, unet_multipliers: Any = None) -> None:
        for _ in zip(names, unet_multipliers, te_multipliers, strict=True):
            pass  # it takes lists only, whatever its defaults say
        self.load_networks(names, te_multipliers, unet_multipliers)

    def _builtin_before_ui(self) -> None:
        host = self

        class ExtraNetworkLora(ExtraNetwork):
            activated: ClassVar[list[list[str]]] = []

            def activate(self, p: Any, params: list[Params]) -> None:
                self.activated.append([one.items[0] for one in params])
                strengths = [float((*one.positional, 1.0)[1]) for one in params]
                sys.modules["networks"].load_networks([one.items[0] for one in params], strengths, strengths)

            def deactivate(self, p: Any) -> None:
                pass

        host.builtin = ExtraNetworkLora("lora")
        self.modules["modules.extra_networks"].register_extra_network(host.builtin)

    # the life of the host

    @property
    def model_data(self) -> Any:
        return self.modules["modules.sd_models"].model_data

    @property
    def opts(self) -> Any:
        return self.modules["modules.shared"].opts

    @property
    def model(self) -> Any:
        return self.model_data.sd_model

    def start(self, app: Any = None) -> None:
        """Go on from where all scripts are loaded; `app` is its FastAPI application."""
        networks = self.modules["modules.extra_networks"]
        networks.extra_network_registry.clear()
        self.callbacks["before_ui"].insert(0, self._builtin_before_ui)  # its script is loaded first
        for callback in reversed(self.callbacks["before_ui"]):
            callback()
        for callback in self.callbacks["ui_settings"]:
            callback()
        if self.kind not in WITH_BACKEND:
            self.reload()  # a thread does, there
        for callback in self.callbacks["app_started"]:
            callback(None, app)

    def unload(self) -> None:
        for callback in reversed(self.callbacks["script_unloaded"]):
            callback()

    @torch.inference_mode()
    def reload(self) -> Any:
        """Build the model of the chosen checkpoint, if it is not the present one."""
        if getattr(self.model, "sd_checkpoint_info", None) is None or self.model.sd_checkpoint_info.title != (
            self.checkpoint
        ):
            self.loaded.clear()
            self.model_data.sd_model = Model(self, self.checkpoint)
            for callback in self.callbacks["model_loaded"]:
                callback(self.model)
            if self.kind not in WITH_BACKEND:
                bare = self.modules["modules.processing"].StableDiffusionProcessing(self)
                self.modules["modules.extra_networks"].activate(bare, {})
                self.model.get_learned_conditioning([""])
        return self.model

    @property
    def management(self) -> ModuleType:
        """Where `load_models_gpu` is, looked up as the host's sampling does."""
        return self.modules[
            "backend.memory_management" if self.kind in WITH_BACKEND else "ldm_patched.modules.model_management"
        ]

    def load_models_gpu(self, models: Sequence[Patcher], memory_required: float = 0) -> None:
        self.reserved.append(memory_required)
        for patcher in models:
            self.load(patcher)

    def load(self, patcher: Patcher) -> None:
        """One model of `load_models_gpu`: another patcher of the same module is another model."""
        if isinstance(patcher, NeoPatcher):
            patcher.partially_load()
            return
        if any(one.model is patcher for one in self.loaded):
            return
        for other in [one for one in self.loaded if one.model.model is patcher.model]:
            self.loaded.remove(other)
            if self.kind not in WITH_BACKEND:
                other.model_unload()
        if self.kind == "forge":
            patcher.refresh_loras()
        else:
            patcher.patch_model()
        self.loaded.append(Loaded(patcher))

    def generate(self, *prompts: str, **settings: Any) -> Any:
        """One picture for each prompt; returns the processing object."""
        p = self.modules["modules.processing"].StableDiffusionProcessing(self)
        p.prompt, p.batch_size = list(prompts), settings.pop("batch_size", len(prompts))
        vars(p).update(settings)
        self.modules["modules.processing"].process_images_inner(p)
        return p


def _processing(host: FakeForge) -> type:
    class StableDiffusionProcessing:
        cached_c: ClassVar[list[Any]] = [None, None]
        cached_uc: ClassVar[list[Any]] = [None, None]
        cached_hr_c: ClassVar[list[Any]] = [None, None]

        def __init__(self, _: Any = None) -> None:
            self.prompt: list[str] = []
            self.prompts = self.scripts = self.all_prompts = None
            self.negative_prompt, self.hr_prompt = "bad", None
            self.steps, self.batch_size, self.iteration, self.refine_at = 2, 1, 0, None
            self.is_hr_pass, self.cfg_scale, self.disable_extra_networks = False, 5.0, False
            self.extra_generation_params: dict[str, Any] = {}
            self.comments: list[str] = []
            self.images: list[Tensor] = []
            self.infotexts: list[dict[str, Any]] = []

        @property
        def n_iter(self) -> int:
            return -(-len(self.prompt) // self.batch_size)

        def comment(self, text: str) -> None:
            self.comments.append(text)

        def cached_params(
            self, required_prompts: Any, steps: int, extra_network_data: Any, hires_steps: Any = None
        ) -> Any:
            return (list(required_prompts), steps, hires_steps, host.model.sd_checkpoint_info.title, extra_network_data)

        def get_conds_with_caching(
            self, function: Any, required_prompts: Any, steps: int, caches: Any, extra_network_data: Any
        ) -> Any:
            params = self.cached_params(required_prompts, steps, extra_network_data)
            for cache in caches:
                if cache[0] is not None and cache[0] == params:
                    return cache[1]
            caches[0][1] = function(host.model, required_prompts, steps, None, False)
            caches[0][0] = params
            return caches[0][1]

        def setup_conds(self) -> None:
            prompts = self.hr_prompts if self.is_hr_pass else self.prompts
            data = self.hr_extra_network_data if self.is_hr_pass else self.extra_network_data
            cache = self.cached_hr_c if self.is_hr_pass else self.cached_c
            negative = Prompts(self.negative_prompts, True, width=SIDE)
            self.uc = self.get_conds_with_caching(_learned, negative, self.steps, [self.cached_uc], data)
            self.c = self.get_conds_with_caching(_multicond, Prompts(prompts, width=SIDE), self.steps, [cache], data)

        @torch.inference_mode()
        def process(self) -> None:
            networks = host.modules["modules.extra_networks"]
            host.reload()
            self.all_prompts = list(self.prompt)
            for script in self.scripts or ():
                script.process(self)
            for iteration in range(self.n_iter):
                self.iteration = iteration
                host.model.forge_objects = host.model.forge_objects_original.shallow_copy()
                here = slice(self.iteration * self.batch_size, (self.iteration + 1) * self.batch_size)
                self.prompts = self.all_prompts[here]
                self.negative_prompts = [self.negative_prompt] * len(self.prompts)
                self.prompts, self.extra_network_data = networks.parse_prompts(self.prompts)
                if self.hr_prompt is not None:
                    self.hr_prompts, self.hr_extra_network_data = networks.parse_prompts([*self.hr_prompt][here])
                if not self.disable_extra_networks:
                    networks.activate(self, self.extra_network_data)
                host.model.forge_objects = host.model.forge_objects_after_applying_lora.shallow_copy()
                self.setup_conds()
                x = torch.cat([_noise(image) for image in range(len(self.prompts))])
                x = self.sample(x)
                if self.hr_prompt is not None:
                    x = self.second_pass(x)
                self.images += list(x.unbind())
                self.prompts = self.all_prompts[here]
                self.infotexts += [self.infotext(i) for i in range(len(self.prompts))]
            if not self.disable_extra_networks and self.extra_network_data:
                networks.deactivate(self, self.extra_network_data)

        def second_pass(self, x: Tensor) -> Tensor:
            networks = host.modules["modules.extra_networks"]
            self.is_hr_pass = True
            networks.activate(self, self.hr_extra_network_data)
            self.setup_conds()
            host.model.forge_objects = host.model.forge_objects_after_applying_lora.shallow_copy()
            x = self.sample(x)
            self.is_hr_pass = False
            return x

        def sample(self, x: Tensor) -> Tensor:
            host.management.load_models_gpu([host.model.forge_objects.unet], memory_required=SAMPLING)
            for step in range(self.steps):
                if step == self.refine_at:
                    host.checkpoint = "refiner"
                    host.reload()
                    if not self.disable_extra_networks:
                        host.modules["modules.extra_networks"].activate(self, self.extra_network_data)
                    self.setup_conds()
                    host.load(host.model.forge_objects.unet)
                host.on_step(step)
                denoiser = SimpleNamespace(p=self, step=step)
                for callback in host.callbacks["cfg_denoiser"]:
                    callback(SimpleNamespace(denoiser=denoiser, sampling_step=step, total_sampling_steps=self.steps))
                x = x + 0.5 * self.denoised(x)
            return x

        def denoised(self, x: Tensor) -> Tensor:
            unet = host.model.forge_objects.unet.model.diffusion_model
            parts = list(zip(*self.c.batch, strict=True))  # those of AND; one of each image
            weighted = host.samples[0]([torch.stack(part) for part in parts])
            conditions = [one["model_conds"]["c_crossattn"].process_cond() for one in weighted]
            to_run = [(condition, slice(0, SIDE), 0) for condition in conditions]
            to_run += [(conditions[0], slice(0, SIDE // 2), 0)] * host.areas
            to_run.append((Condition(torch.stack(self.uc)), slice(0, SIDE), 1))
            out = [torch.zeros_like(x), torch.zeros_like(x)]
            while to_run:
                alike = [i for i, one in enumerate(to_run) if one[1] == to_run[0][1]]
                chunks = [to_run.pop(i) for i in reversed(alike[-host.chunks :])]
                ran = self.run(unet, x, chunks)
                for (_, area, half), result in zip(chunks, ran, strict=True):
                    out[half][:, :, area] += result
            return out[1] + (out[0] - out[1]) * self.cfg_scale / 10

        def run(self, unet: nn.Module, x: Tensor, chunks: Any) -> Any:
            context = host.samples[1]([{"c_crossattn": one[0]} for one in chunks])["c_crossattn"]
            rows = torch.cat([x[:, :, one[1]] for one in chunks])
            options = {"cond_or_uncond": [one[2] for one in chunks], "patches": getattr(self, "patches", {})}
            return unet(rows, torch.ones(len(rows)), context=context, transformer_options=options).chunk(len(chunks))

        def infotext(self, index: int) -> dict[str, Any]:
            """Return the settings of a picture's parameters text; a value may be a function or a list."""
            told = {}
            for name, value in self.extra_generation_params.items():
                value = value(p=self, index=index, all_prompts=self.prompts) if callable(value) else value
                told[name] = value[index] if isinstance(value, list) else value
            return {name: value for name, value in told.items() if value is not None}

    return StableDiffusionProcessing


class Condition:
    """Goes through the sampling as copies of its class."""

    def __init__(self, cond: Tensor) -> None:
        self.cond = cond

    def process_cond(self) -> Any:
        return self.__class__(self.cond)


def _weighted(parts: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [{"strength": 1.0, "model_conds": {"c_crossattn": Condition(part)}} for part in parts]


def _cond_cat(chunks: Sequence[dict[str, Condition]]) -> dict[str, Tensor]:
    return {name: torch.cat([chunk[name].cond for chunk in chunks]) for name in chunks[0]}


def _noise(_: int) -> Tensor:
    return torch.randn(1, CHANNELS, SIDE, SIDE, generator=torch.Generator().manual_seed(100))


def _learned(model: Any, prompts: Any, steps: int, hires_steps: Any, old: bool) -> list[Tensor]:
    """Each distinct text is encoded once."""
    assert prompts.width == SIDE  # the host's own kind of list, with what it knows besides
    known: dict[str, Tensor] = {}
    for prompt in prompts:
        if prompt not in known:
            known[prompt] = model.get_learned_conditioning([prompt])[0]
    return [known[prompt] for prompt in prompts]


def _multicond(model: Any, prompts: Any, steps: int, hires_steps: Any, old: bool) -> Any:
    """Prompts with AND: parts of all prompts together, then put back to each."""
    parts = [prompt.split("AND") for prompt in prompts]
    flat = Prompts(list(dict.fromkeys(part for one in parts for part in one)), width=prompts.width)
    encoded = dict(zip(flat, _learned(model, flat, steps, hires_steps, old), strict=True))
    return SimpleNamespace(shape=(len(prompts),), batch=[[encoded[part] for part in one] for one in parts])


@contextlib.contextmanager
def running(host: FakeForge, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in the process of this host."""
    with monkeypatch.context() as patch:
        for name, module in host.modules.items():
            patch.setitem(sys.modules, name, module)
        yield
