"""Forge Classic: the first Forge, on ComfyUI's model management of its time. SD 1, 2, XL and the refiner.

Source: Haoming02/sd-webui-forge-classic ldm_patched/, modules_forge/ and extensions-builtin/Lora.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

from ._forge import ForgeFamilyHost, attributes, defines, unload_from_device

_OPS = "ldm_patched.modules.ops"


class ForgeClassicHost(ForgeFamilyHost):
    """A Forge on `ldm_patched` whose layers have no functions that change their weight at each call."""

    name: ClassVar[str] = "forge_classic"
    conditions = "modules_forge.forge_sampler", "cond_from_a1111_to_patched_ldm_weighted"
    joins = "ldm_patched.modules.samplers", "cond_cat"
    loader = "ldm_patched.modules.model_management"

    def is_current(self) -> bool:
        return self.has_ldm_patched() and not defines(_OPS, "CastWeightBiasOp")

    @staticmethod
    def has_ldm_patched() -> bool:
        """Tell whether the host's models come from the first Forge's loader."""
        return defines("modules_forge.forge_loader", "load_model_for_a1111") and defines(_OPS, "disable_weight_init")

    def layer_classes_of(self) -> Iterator[object]:
        yield from attributes(_OPS, "disable_weight_init", "manual_cast", "fp8_ops", "cublas_ops")

    def unmerge(self, model: Any) -> None:
        """Unload the model: a patcher restores its merged weights when the model leaves the device."""
        objects = model.forge_objects_original
        parts = [objects.unet.model, *([] if objects.clip is None else [objects.clip.cond_stage_model])]
        unload_from_device(importlib.import_module("ldm_patched.modules.model_management"), parts)


FORGE_CLASSIC = ForgeClassicHost()
