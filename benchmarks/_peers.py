"""kohya's scripts from a folder that the user has; only what they call of the rest of that project is made here."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from diffusers import UNet2DConditionModel
from safetensors import safe_open
from torch import nn


class NoSdxl:
    """A class that no model is of."""


def kohya(folder: Path) -> SimpleNamespace:
    """Return `resize`, `merge` and `extract` of kohya's scripts, and its module `lora`, from a copy of sd-scripts.

    Models are read from diffusers folders, and the hashes of files are left out.
    """
    utils, models, training = (_module(f"library.{name}") for name in ("utils", "model_util", "train_util"))
    described, sdxl, unets = (_module(f"library.{name}") for name in ("sai_model_spec", "sdxl_model_util", "unets"))
    library = _module("library", utils=utils, model_util=models, train_util=training)
    library.__dict__.update(sai_model_spec=described, sdxl_model_util=sdxl)
    utils.setup_logging = lambda *_, **__: logging.disable(logging.INFO)  # type: ignore[attr-defined]
    unets.SdxlUNet2DConditionModel = NoSdxl  # type: ignore[attr-defined]
    sys.modules["library.sdxl_original_unet"] = unets
    models.__dict__.update(
        is_safetensors=lambda name: str(name).endswith(".safetensors"),
        load_models_from_stable_diffusion_checkpoint=_load,
        get_model_version_str_for_sd1_sd2=lambda *_: "sd_v1",
    )
    training.__dict__.update(
        SS_METADATA_KEY_V2="ss_v2",
        SS_METADATA_KEY_BASE_MODEL_VERSION="ss_base_model_version",
        load_metadata_from_safetensors=_metadata,
        precalculate_safetensors_hashes=lambda *_: ("", ""),
        build_minimum_network_metadata=lambda *_: {},
    )
    sys.path.insert(0, str(folder / "networks"))
    found: dict[str, Any] = {name: importlib.import_module(name) for name in (*SCRIPTS.values(), "lora")}
    found[SCRIPTS["extract"]].args = argparse.Namespace(device=None)  # a global of its command line
    functions = {name: getattr(found[module], CALLS[name]) for name, module in SCRIPTS.items()}
    return SimpleNamespace(**functions, lora=found["lora"])


SCRIPTS = {"resize": "resize_lora", "merge": "svd_merge_lora", "extract": "extract_lora_from_models"}
CALLS = {"resize": "resize", "merge": "merge", "extract": "svd"}


def _module(name: str, **content: object) -> ModuleType:
    made = sys.modules[name] = ModuleType(name)
    made.__dict__.update(content)
    return made


def _load(_: object, path: str) -> tuple[nn.Module, None, nn.Module]:
    return nn.Module(), None, UNet2DConditionModel.from_pretrained(path, subfolder="unet").requires_grad_(False)


def _metadata(path: str) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}
