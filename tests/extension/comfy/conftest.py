"""Stand-ins of ComfyUI: what Remora's nodes use of its MODEL, CLIP, wrappers and folders, and no more.

Source: comfy/model_patcher.py, comfy/patcher_extension.py, comfy/sd.py, comfy/samplers.py of Comfy-Org/ComfyUI.
"""

from __future__ import annotations

import copy
import math
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.fakes import comfy_api
from tests.fakes.files import save


class WrappersMP:
    PREPARE_SAMPLING = "prepare_sampling"
    SAMPLER_SAMPLE = "sampler_sample"
    APPLY_MODEL = "apply_model"


class CallbacksMP:
    ON_DETACH = "on_detach_after"


class Executor:
    """Calls one wrapper after the other, and the original last."""

    def __init__(self, original: Callable[..., Any], wrappers: Sequence[Callable[..., Any]]) -> None:
        self.original, self.wrappers = original, list(wrappers)

    def __call__(self, *args: Any) -> Any:
        if not self.wrappers:
            return self.original(*args)
        return self.wrappers[0](Executor(self.original, self.wrappers[1:]), *args)


class GGMLTensor(Tensor):
    """Numbers of a byte."""

    tensor_type, tensor_shape = "Q8_0", (8, 8)


class GGMLLinear(nn.Linear):
    """A layer of ComfyUI-GGUF, which decodes its weight in its forward."""

    @classmethod
    def of(cls, layer: nn.Linear) -> GGMLLinear:
        packed = cls(8, 8, bias=False)
        numbers = (layer.weight.detach() * 127).round().to(torch.int8)
        packed.weight = nn.Parameter(numbers.as_subclass(GGMLTensor), requires_grad=False)
        return packed

    def get_weight(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.as_subclass(Tensor).to(dtype) / 127

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.get_weight(self.weight, x.dtype))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn1 = nn.ModuleDict({"to_q": nn.Linear(8, 8, bias=False)})
        self.attn2 = nn.ModuleDict({"to_k": nn.Linear(8, 8, bias=False)})


class Denoiser(nn.Module):
    """One attention layer of an ldm UNet by name, which changes the rows of its input."""

    def __init__(self) -> None:
        super().__init__()
        attention = nn.ModuleDict({"transformer_blocks": nn.ModuleList([Block()])})
        self.input_blocks = nn.ModuleList([nn.Module(), nn.ModuleList([nn.Module(), attention])])

    def forward(self, x: Tensor, timesteps: Tensor, context: Tensor | None = None) -> Tensor:
        rows, channels, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        out = self.input_blocks[1][1]["transformer_blocks"][0].attn1["to_q"](tokens)
        return out.transpose(1, 2).reshape(rows, channels, height, width)


class ModelSampling(nn.Module):
    def timestep(self, sigmas: Tensor) -> Tensor:
        """Return a timestep for each sigma: the larger the noise, the larger."""
        return sigmas * 100


class BaseModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.diffusion_model, self.model_sampling = Denoiser(), ModelSampling()
        self.estimated: list[float] = []
        self.loaded: Any = None
        self.current_patcher: Any = None

    def memory_required(self, input_shape: Sequence[int]) -> float:
        """Return how many bytes a run needs beside the weights."""
        return 4.0 * math.prod(input_shape)


Sampler = Callable[[Callable[[Tensor], None], Tensor], None]
"""Calls a function with the noise of each call; its second argument is the schedule."""


def euler(predict: Callable[[Tensor], None], sigmas: Tensor) -> None:
    """Call once in a step, as comfy/k_diffusion/sampling.py does."""
    for i in range(len(sigmas) - 1):
        predict(sigmas[i])


def heun(predict: Callable[[Tensor], None], sigmas: Tensor) -> None:
    """Call twice in a step but the last; the second time with the noise of the next step."""
    for i in range(len(sigmas) - 1):
        predict(sigmas[i])
        if sigmas[i + 1] > 0:
            predict(sigmas[i + 1])


def other_loop(predict: Callable[[Tensor], None], schedule: Tensor) -> None:
    """Call once in a step, in a loop that does not count."""
    for sigma in schedule[:-1]:
        predict(sigma)


class HookGroup:
    """Hooks of conditioning; each makes one weight so many times what it was."""

    def __init__(self, layer: nn.Module, factor: float) -> None:
        self.layer, self.hooks = layer, [SimpleNamespace(strength=factor)]


class Patcher:
    """A MODEL: its clones share the module."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.wrappers: dict[str, dict[str, list[Any]]] = {}
        self.callbacks: dict[str, dict[str, list[Any]]] = {}
        self.attachments: dict[str, Any] = {}
        self.object_patches: dict[str, Any] = {}
        self.object_patches_backup: dict[str, Any] = {}
        self.hook_backup: dict[nn.Module, Tensor] = {}
        self.current_hooks: HookGroup | None = None
        self.forced_hooks: HookGroup | None = None

    def clone(self) -> Patcher:
        clone = Patcher(self.model)
        clone.wrappers = {kind: {key: list(one) for key, one in own.items()} for kind, own in self.wrappers.items()}
        clone.callbacks = {kind: {key: list(one) for key, one in own.items()} for kind, own in self.callbacks.items()}
        clone.attachments = dict(self.attachments)
        clone.object_patches = dict(self.object_patches)
        clone.object_patches_backup = self.object_patches_backup
        clone.hook_backup, clone.forced_hooks = self.hook_backup, self.forced_hooks
        return clone

    def patch_hooks(self, hooks: HookGroup | None) -> None:
        """Merge hooks in place of the former ones, as `copy_to_param` writes: torch does not count it."""
        for layer, weight in self.hook_backup.items():
            layer.get_parameter("weight").data.copy_(weight)
        self.hook_backup.clear()
        self.current_hooks = hooks
        if hooks is not None:
            weight = hooks.layer.get_parameter("weight")
            self.hook_backup[hooks.layer] = weight.clone()
            weight.data.copy_(weight * hooks.hooks[0].strength)

    def get_model_object(self, name: str) -> Any:
        return self.object_patches.get(name, self.object_patches_backup.get(name, getattr(self.model, name)))

    def patch_model(self) -> None:
        """Put the object patches of this clone into the model, in place of another's; they stay after sampling."""
        for name, original in self.object_patches_backup.items():
            setattr(self.model, name, original)
        self.object_patches_backup.clear()
        for name, patch in self.object_patches.items():
            self.object_patches_backup[name] = getattr(self.model, name)
            setattr(self.model, name, patch)

    def add_wrapper_with_key(self, kind: str, key: str, wrapper: Any) -> None:
        self.wrappers.setdefault(kind, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, kind: str, key: str) -> None:
        self.wrappers.get(kind, {}).pop(key, None)

    def add_callback_with_key(self, kind: str, key: str, callback: Any) -> None:
        self.callbacks.setdefault(kind, {}).setdefault(key, []).append(callback)

    def remove_callbacks_with_key(self, kind: str, key: str) -> None:
        self.callbacks.get(kind, {}).pop(key, None)

    def set_attachments(self, key: str, attachment: Any) -> None:
        self.attachments[key] = attachment

    def get_attachment(self, key: str) -> Any:
        return self.attachments.get(key)

    def all_wrappers(self, kind: str) -> list[Any]:
        return [one for own in self.wrappers.get(kind, {}).values() for one in own]

    def detach(self, unpatch_all: bool = True) -> None:
        for own in self.callbacks.get(CallbacksMP.ON_DETACH, {}).values():
            for callback in own:
                callback(self, unpatch_all)

    def load(self) -> None:
        """Become the clone that is loaded: the former one is detached, and no weight is moved."""
        former, self.model.loaded = getattr(self.model, "loaded", None), self
        if former is not None and former is not self:
            former.detach(False)
            former.patch_hooks(None)
        if self.forced_hooks is not None:
            self.patch_hooks(self.forced_hooks)

    def prepare(self, shape: Sequence[int]) -> None:
        """Load the model beside what a run needs, as comfy/sampler_helpers.py does."""

        def prepare_sampling(patcher: Patcher, shape: Sequence[int]) -> None:
            self.model.estimated.append(patcher.model.memory_required(input_shape=shape))
            self.load()

        Executor(prepare_sampling, self.all_wrappers(WrappersMP.PREPARE_SAMPLING))(self, shape)

    def sample(
        self,
        x: Tensor,
        sigmas: Tensor,
        chunks: Sequence[int] = (0, 1),
        sampler: Sampler | None = None,
        prompts: Sequence[str] = ("positive", "negative"),
    ) -> list[Tensor]:
        """Return the output of each call of the denoiser by a sampler, for a batch of each chunk.

        Args:
            x: the latents, (images, channels, height, width).
            sigmas: the schedule.
            chunks: numbers of prompts, in the order in which the model is called.
            sampler: calls with each noise; euler if absent.
            prompts: the names of the guider's prompts, in the order of their numbers.
        """
        self.prepare(x.shape)
        self.patch_model()
        self.model.current_patcher = self
        # ComfyUI deep-copies the options, and the wrappers in them
        wrappers = copy.deepcopy(self.all_wrappers(WrappersMP.APPLY_MODEL))

        def call(x: Tensor, t: Tensor, concat: Any, context: Any, control: Any, options: dict[str, Any]) -> Tensor:
            return self.model.diffusion_model(x, t)

        out: list[Tensor] = []
        ids, conds = [uuid.uuid4() for _ in prompts], dict[str, list[dict[str, object]]]()
        for name, one in zip(prompts, ids, strict=True):
            conds.setdefault(name, []).append({"uuid": one})
        guider = SimpleNamespace(conds=conds)

        def predict(sigma: Tensor) -> None:
            uuids = [ids[number] for number in chunks]
            options = {"cond_or_uncond": list(chunks), "sigmas": sigma.reshape(1), "uuids": uuids}
            t = sigma.repeat(len(x) * len(chunks))
            out.append(Executor(call, wrappers)(torch.cat([x] * len(chunks)), t, None, None, None, options))

        def sample(guider: Any, sigmas: Tensor, extra: Any) -> list[Tensor]:
            (sampler or euler)(predict, sigmas)
            return out

        return Executor(sample, self.all_wrappers(WrappersMP.SAMPLER_SAMPLE))(guider, sigmas, {})


class TextModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.ModuleDict({"self_attn": nn.ModuleDict({"q_proj": nn.Linear(8, 8, bias=False)})})
        self.text_model = nn.ModuleDict({"encoder": nn.ModuleDict({"layers": nn.ModuleList([layer])})})

    def forward(self, x: Tensor) -> Tensor:
        return self.text_model["encoder"]["layers"][0]["self_attn"]["q_proj"](x)


class ClipPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = TextModel()


class CondStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.clip_l = ClipPart()

    def encode_token_weights(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.clip_l.transformer(tokens)
        return out


class Clip:
    def __init__(self, model: nn.Module) -> None:
        self.cond_stage_model, self.patcher = model, Patcher(model)

    def clone(self) -> Clip:
        clone = Clip(self.cond_stage_model)
        clone.patcher = self.patcher.clone()
        return clone

    def tokenize(self, text: str) -> Tensor:
        return torch.full((1, 8), float(len(text)))

    def encode_from_tokens(self, tokens: Tensor) -> Tensor:
        self.patcher.load()
        return self.cond_stage_model.encode_token_weights(tokens)

    def encode_from_tokens_scheduled(self, tokens: Tensor) -> list[list[Any]]:
        return [[self.encode_from_tokens(tokens), {}]]


UNET, TEXT = (
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
    "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
)


def lora(path: Path, seed: int = 0, layers: Sequence[str] = (UNET, TEXT)) -> Path:
    """Save a LoRA of rank 2 for these layers."""
    draw, tensors = torch.Generator().manual_seed(seed), {}
    for layer in layers:
        tensors[f"{layer}.lora_down.weight"] = torch.randn(2, 8, generator=draw)
        tensors[f"{layer}.lora_up.weight"] = torch.randn(8, 2, generator=draw)
        tensors[f"{layer}.alpha"] = torch.tensor(2.0)
    return save(path, tensors)


def save_path(prefix: str, output: str) -> tuple[str, str, int, str, str]:
    """Return where ComfyUI saves the next file of a name."""
    path = Path(output, prefix)
    path.parent.mkdir(parents=True, exist_ok=True)
    return str(path.parent), path.name, len(list(path.parent.iterdir())) + 1, "", prefix


class InterruptProcessingException(Exception):  # noqa: N818
    pass


class Interrupts:
    """Whether the user interrupts, and what the bars have shown."""

    wanted = False
    shown: ClassVar[list[tuple[int, int | None]]] = []

    @classmethod
    def check(cls) -> None:
        if cls.wanted:
            raise InterruptProcessingException


class ProgressBar:
    def __init__(self, total: int) -> None:
        pass

    def update_absolute(self, value: int, total: int | None = None) -> None:
        Interrupts.shown.append((value, total))


class PromptServer:
    """Sends texts to the page, which shows them on a node."""

    instance = SimpleNamespace(routes=SimpleNamespace(static=lambda prefix, folder: None))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the texts that are shown on nodes."""
    texts: dict[str, str] = {}
    send = lambda text, node: texts.update({node: text})  # noqa: E731
    monkeypatch.setattr(PromptServer.instance, "send_progress_text", send, raising=False)
    return texts


@pytest.fixture
def model() -> Patcher:
    torch.manual_seed(0)
    return Patcher(BaseModel())


@pytest.fixture
def clip() -> Clip:
    torch.manual_seed(1)
    return Clip(CondStage())


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the nodes with the stand-ins in the place of ComfyUI; `tmp_path` has the LoRA files."""
    import importlib

    lora(tmp_path / "a.safetensors")
    lora(tmp_path / "b.safetensors", 1)
    folders, comfy, extension = ModuleType("folder_paths"), ModuleType("comfy"), ModuleType("comfy.patcher_extension")
    folders.get_filename_list = lambda kind: sorted(path.name for path in tmp_path.iterdir())  # type: ignore[attr-defined]
    folders.get_full_path_or_raise = lambda kind, name: str(tmp_path / name)  # type: ignore[attr-defined]
    folders.get_output_directory = lambda: str(tmp_path / "output")  # type: ignore[attr-defined]
    folders.get_save_image_path = save_path  # type: ignore[attr-defined]
    folders.get_temp_directory = lambda: str(tmp_path / "temp")  # type: ignore[attr-defined]
    monkeypatch.setattr(Interrupts, "shown", [])
    utils, management = ModuleType("comfy.utils"), ModuleType("comfy.model_management")
    utils.ProgressBar = ProgressBar  # type: ignore[attr-defined]
    management.throw_exception_if_processing_interrupted = Interrupts.check  # type: ignore[attr-defined]
    for module in (utils, management):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    server = ModuleType("server")
    server.PromptServer = PromptServer  # type: ignore[attr-defined]
    extension.WrappersMP, extension.CallbacksMP = WrappersMP, CallbacksMP  # type: ignore[attr-defined]
    for module in (folders, comfy, extension, server, *comfy_api.modules().values()):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("extension.comfy", "extension.comfy.combining", "extension.comfy.nodes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("extension.comfy.nodes")
