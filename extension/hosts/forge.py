"""Forge: `backend.patcher`, its own layer classes, and models that are built again for every checkpoint.

Source: lllyasviel/stable-diffusion-webui-forge backend/, modules/sd_models.py and extensions-builtin/sd_forge_lora.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ._forge import ForgeFamilyHost, attributes, defines


class ForgeHost(ForgeFamilyHost):
    """Forge, and forks that keep its backend."""

    name: ClassVar[str] = "forge"
    conditions = "backend.sampling.sampling_function", "compile_weighted_conditions"
    shows_info_of_options = True
    joins = "backend.sampling.sampling_function", "cond_cat"
    loader = "backend.memory_management"

    def is_current(self) -> bool:
        return defines("modules.sd_models", "forge_model_reload") and defines("backend.operations", "ForgeOperations")

    def layer_classes_of(self) -> Iterator[object]:
        yield from attributes(
            "backend.operations",
            "ForgeOperations",
            "ForgeOperationsBNB4bits",  # only where bitsandbytes is
            "ForgeOperationsGGUF",
        )

    def additional_files(self) -> Sequence[str]:
        parameters = importlib.import_module("modules.sd_models").model_data.forge_loading_parameters
        return tuple(parameters.get("additional_modules") or ())

    def unmerge(self, model: Any) -> None:
        """Refresh each model's LoRA loader, which restores its weights when a patcher without LoRA comes."""
        objects = model.forge_objects_original
        for patcher in (objects.unet, getattr(objects.clip, "patcher", None)):
            if patcher is not None:
                patcher.refresh_loras()


FORGE = ForgeHost()
