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
from safetensors.torch import save_file
from torch import nn

SCRIPTS = ("resize_lora", "svd_merge_lora", "extract_lora_from_models", "merge_lora")


class NoSdxl:
    """The class of no model."""


def kohya(folder: Path) -> SimpleNamespace:
    """Return `resize`, `merge` and `extract` of kohya's scripts, from a copy of sd-scripts.

    Also return `bake_model` and `extract_model`, which have equal arguments. Models are read from diffusers folders,
    and the hashes of files are left out.
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
    resize, merge, extract, bake = (importlib.import_module(name) for name in SCRIPTS)
    extract.__dict__["args"] = argparse.Namespace(device=None)  # a global of its command line

    def bake_model(base: str, _: str, to: str, lora: str, strength: float, __: int) -> None:
        text_encoder, _none, unet = _load(None, base)
        bake.merge_to_sd_model(text_encoder, unet, [lora], [strength], unet.dtype)
        save_file(unet.state_dict(), to)

    def extract_model(base: str, tuned: str, to: str, _: str, __: float, rank: int) -> None:
        extract.svd(base, tuned, to, dim=rank, conv_dim=rank, v2=False, no_metadata=True)

    return SimpleNamespace(
        resize=resize.resize, merge=merge.merge, extract=extract.svd, bake_model=bake_model, extract_model=extract_model
    )


def _module(name: str, content: Mapping[str, object]) -> ModuleType:
    made = sys.modules[name] = ModuleType(name)
    made.__dict__.update(content)
    return made


def _load(_: object, path: str) -> tuple[nn.Module, None, nn.Module]:
    with safe_open(Path(path, "unet", "diffusion_pytorch_model.safetensors"), framework="pt") as file:
        dtype = file.get_tensor(next(iter(file.keys()))).dtype
    unet = UNet2DConditionModel.from_pretrained(path, subfolder="unet", torch_dtype=dtype)
    return nn.Module(), None, unet.requires_grad_(False)


def _metadata(path: str) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}
