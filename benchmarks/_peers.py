"""kohya's scripts from a folder that the user has, with stand-ins for what they call in the rest of that project."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

from diffusers import UNet2DConditionModel
from safetensors import safe_open
from torch import nn

SCRIPTS = ("resize_lora", "svd_merge_lora", "extract_lora_from_models")


class NoSdxl:
    """The class of no model."""


def kohya(folder: Path) -> SimpleNamespace:
    """Return `resize`, `merge` and `extract` of kohya's scripts, from a copy of sd-scripts.

    Models are read from diffusers folders, and the hashes of files are left out.
    """
    made: dict[str, dict[str, object]] = {
        "utils": {"setup_logging": lambda *_, **__: logging.disable(logging.INFO)},
        "sai_model_spec": {},
        "sdxl_model_util": {},
        "sdxl_original_unet": {"SdxlUNet2DConditionModel": NoSdxl},
        "model_util": {
            "is_safetensors": lambda name: str(name).endswith(".safetensors"),
            "load_models_from_stable_diffusion_checkpoint": _load,
            "get_model_version_str_for_sd1_sd2": lambda *_: "sd_v1",
        },
        "train_util": {
            "SS_METADATA_KEY_V2": "ss_v2",
            "SS_METADATA_KEY_BASE_MODEL_VERSION": "ss_base_model_version",
            "load_metadata_from_safetensors": _metadata,
            "precalculate_safetensors_hashes": lambda *_: ("", ""),
            "build_minimum_network_metadata": lambda *_: {},
        },
    }
    _module("library", {name: _module(f"library.{name}", content) for name, content in made.items()})
    sys.path.insert(0, str(folder / "networks"))
    resize, merge, extract = (importlib.import_module(name) for name in SCRIPTS)
    extract.__dict__["args"] = argparse.Namespace(device=None)  # a global of its command line
    return SimpleNamespace(resize=resize.resize, merge=merge.merge, extract=extract.svd)


def _module(name: str, content: Mapping[str, object]) -> ModuleType:
    made = sys.modules[name] = ModuleType(name)
    made.__dict__.update(content)
    return made


def _load(_: object, path: str) -> tuple[nn.Module, None, nn.Module]:
    return nn.Module(), None, UNet2DConditionModel.from_pretrained(path, subfolder="unet").requires_grad_(False)


def _metadata(path: str) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}
