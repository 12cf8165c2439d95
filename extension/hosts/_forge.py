"""The common part of the hosts Forge, Forge Classic and reForge.

All three wrap a model in `forge_objects`, a set of patchers that are cloned for each change, around modules that stay
the same: `unet.model.diffusion_model` and the parts of `clip.cond_stage_model`. Their layers cast or move their weights
in their own forward, and their LoRA are patches that are merged when a model moves to its device. Remora adds no patch,
so there is nothing to merge or to restore; it only removes the built-in's.

Rows: `calc_cond_uncond_batch`, or `calc_cond_batch`, runs conditions in chunks, each of which has one row for every
image of the batch, whatever its area, its weight and its prompt; as many chunks as fit in memory are one call. So
row % images is always the image, and only a prompt with parts needs a rule; see `_chunk_parts`.

Source: backend/ and modules/ of lllyasviel's Forge; ldm_patched/ and modules_forge/ of the other two.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from ._a1111_family import A1111FamilyHost
from ._chunk_parts import ChunkParts
from ._webui_modules import module
from .base import Batch, Outcome

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

_NUMBERED = {"clip_l": 1, "clip_h": 1, "clip_g": 2}
"""Number of each text encoder in diffusers; the refiner of SDXL has only the second."""
_FAMILIES = {
    "Anima": "anima",
    "Chroma": "chroma",
    "ErnieImage": "ernie_image",
    "Flux": "flux",
    "Flux2": "flux2",
    "Krea2": "krea2",
    "Lumina2": "lumina2",
    "Mugen": "sdxl",
    "PiD": "",  # no family of ours
    "QwenImage": "qwen_image",
    "StableDiffusion": "sd1",
    "StableDiffusion2": "sd2",
    "StableDiffusion3": "sd3",
    "StableDiffusionXL": "sdxl",
    "StableDiffusionXLRefiner": "sdxl_refiner",
    "Wan": "wan",
    "ZImage": "z_image",
}
"""Class of backend/diffusion_engine -> the family of its models."""
_MOST_LISTS = 4
"""Names, and multipliers of text encoders, of the UNet, and the rank."""
_NO_LORA = str([])
"""The built-in's state without LoRA."""


class ForgeFamilyHost(A1111FamilyHost):
    """A web UI with `forge_objects`."""

    before: ClassVar[tuple[str, ...]] = ("a1111",)
    conditions: ClassVar[tuple[str, str]]
    """Module and function that make conditions of a prompt's parts, where the host's sampling looks it up."""
    joins: ClassVar[tuple[str, str]]
    """The same for the function that joins conditions for one call."""
    loader: ClassVar[str]
    """The module whose `load_models_gpu` moves models to the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = ChunkParts()

    @abstractmethod
    def layer_classes_of(self) -> Iterator[object]:
        """Yield the objects that have layer classes as attributes."""

    # --- the model ---

    @property
    def families(self) -> frozenset[str] | None:
        names = [one.__name__ for one in getattr(module("backend.loader"), "possible_models", ())]
        found = [_FAMILIES.get(name) for name in names]
        return None if not found or None in found else frozenset(filter(None, found))

    def model(self) -> Any:
        """Return the host's present model, or None; does not load one."""
        model = importlib.import_module("modules.sd_models").model_data.sd_model
        return model if getattr(model, "forge_objects", None) is not None else None

    def components(self) -> Mapping[str, nn.Module]:
        model = self.model()
        if model is None:
            return {}
        objects, found = model.forge_objects, {}
        if objects.unet is not None:
            denoiser = _uncompiled(objects.unet.model.diffusion_model)
            found["unet" if hasattr(denoiser, "input_blocks") else "transformer"] = denoiser
        if objects.clip is not None:
            found.update(text_encoders(objects.clip.cond_stage_model))
        return found

    def checkpoints(self) -> Mapping[str, Sequence[Path]]:
        info = getattr(self.model(), "sd_checkpoint_info", None)
        files = [Path(name) for name in (getattr(info, "filename", None), *self.additional_files()) if name]
        files = [file for file in files if file.suffix == ".safetensors" and file.is_file()]
        return dict.fromkeys(self.components(), files) if files else {}

    def additional_files(self) -> Sequence[str]:
        """Return the files of the model's parts beside its checkpoint."""
        return ()

    def layer_classes(self) -> Sequence[type[nn.Module]]:
        from torch import nn

        transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        found = [value for holder in self.layer_classes_of() for value in vars(holder).values()]
        classes = [one for one in found if isinstance(one, type) and issubclass(one, nn.Module)]
        own = [one for one in classes if "forward" in vars(one) and not issubclass(one, transposed)]
        return tuple(dict.fromkeys(own))

    # --- a generation ---

    def take_over(self) -> None:
        super().take_over()
        for (name, function), around in ((self.conditions, self._parts.mark), (self.joins, self._parts.joined)):
            owner = module(name)
            if owner is not None and hasattr(owner, function):
                self.wraps.put(owner, function, around)
            else:
                logger.warning("remora: without %s.%s, regions do not know the parts of a prompt", name, function)
        management = module(self.loader)
        if management is not None and hasattr(management, "load_models_gpu"):
            self.wraps.put(management, "load_models_gpu", self._leaving_room)

    def _leaving_room(
        self, load: Callable[..., Any], models: Sequence[Any], memory_required: float = 0, *args: Any, **kwargs: Any
    ) -> Any:
        """Load models, and leave room for LoRA beside a denoiser, which the host would fill with its weights."""
        needed = self.remora.bytes_to_place() if any(map(_has_denoiser, models)) else 0
        least = kwargs.get("minimum_memory_required")
        if needed and least is not None:
            kwargs["minimum_memory_required"] = least + needed
        return load(models, memory_required + needed, *args, **kwargs)

    def put_in_force(self, batch: Batch) -> Outcome:
        outcome = super().put_in_force(batch)
        self._parts.begin(len(outcome.images))
        self.remora.rows(self._parts)
        return outcome

    def nothing_in_force(self) -> None:
        super().nothing_in_force()
        self.remora.rows(None)

    # --- the built-in ---

    def quiet_builtin(self) -> None:
        model = self.model()
        networks = sys.modules.get("networks")
        if model is None or networks is None or getattr(model, "current_lora_hash", _NO_LORA) == _NO_LORA:
            return
        self.unmerge(model)  # first: the built-in's record of its LoRA makes a failure here be tried again
        _load_none(networks)

    def wake_builtin(self) -> None:
        """Do nothing: the built-in has no active LoRA, and its state says so."""

    @abstractmethod
    def unmerge(self, model: Any) -> None:
        """Make the host restore the weights that its own LoRA are merged into."""


def _has_denoiser(patcher: object) -> bool:
    return hasattr(getattr(patcher, "model", None), "diffusion_model")


def _load_none(networks: ModuleType) -> None:
    """Make the built-in load no network: names, and a list for each multiplier that its version takes."""
    takes = inspect.signature(networks.load_networks).parameters.values()
    several = any(one.kind is one.VAR_POSITIONAL for one in takes)
    networks.load_networks(*[[] for _ in range(_MOST_LISTS if several else len(takes))])


def text_encoders(joint: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a `cond_stage_model` by names in diffusers, each with the names that LoRA files use."""
    parts = {name: part for name, part in joint.named_children() if not name.startswith("vae")}
    numbers: dict[str, int] = {name: _NUMBERED[name] for name in parts if name in _NUMBERED}
    for name, part in parts.items():
        if name not in numbers and hasattr(part, "transformer"):  # T5 and others come after CLIP
            numbers[name] = max(numbers.values(), default=0) + 1
    return {
        "text_encoder" if number == 1 else f"text_encoder_{number}": getattr(parts[name], "transformer", parts[name])
        for name, number in sorted(numbers.items(), key=lambda one: one[1])
    }


def unload_from_device(management: ModuleType, parts: Sequence[object]) -> None:
    """Make ComfyUI's memory management move these modules off their device, where patches are merged."""
    for loaded in list(management.current_loaded_models):
        if getattr(loaded.model, "patches", None) and any(loaded.model.model is part for part in parts):
            management.current_loaded_models.remove(loaded)
            loaded.model_unload()


def defines(name: str, *wanted: str) -> bool:
    """Tell whether the host has a module of that name with all of these."""
    return len(list(attributes(name, *wanted))) == len(wanted)


def attributes(name: str, *wanted: str) -> Iterator[object]:
    """Yield these attributes of the host's module, as far as it has them."""
    found = module(name)
    yield from (getattr(found, one) for one in wanted if hasattr(found, one))


def _uncompiled(denoiser: nn.Module) -> nn.Module:
    """Return the module itself, which the host may wrap in a compiled one."""
    inner: nn.Module = getattr(denoiser, "_orig_mod", denoiser)
    return inner
