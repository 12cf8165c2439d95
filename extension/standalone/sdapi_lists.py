"""A1111's lists, for clients that fill their menus with them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch

from . import offload
from .latents import LATENT_UPSCALERS, UPSCALERS
from .sampling import SAMPLERS, aliases, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .jobs import Runner
    from .model import LoadedModel


def title(model: LoadedModel) -> str:
    """Return a model's name as A1111 lists it."""
    return f"{model.path.name} [{model.shorthash}]"


async def hashed(model: LoadedModel) -> str:
    """Return the hash of the model's file, which is read in the background, without a thread that waits."""
    return await asyncio.shield(asyncio.wrap_future(model.sha256))


class SdLists:
    """The answers, over one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def routes(self) -> Mapping[str, Callable[[], Any]]:
        """Return the answer of each name under `/sdapi/v1`."""
        return {
            "samplers": self.samplers,
            "schedulers": self.schedulers,
            "upscalers": self.upscalers,
            "latent-upscale-modes": self.latent_upscale_modes,
            "sd-models": self.models,
            "scripts": self.scripts,
            "embeddings": self.embeddings,
            "cmd-flags": self.cmd_flags,
            "memory": self.memory,
            **dict.fromkeys(
                (
                    "sd-vae",
                    "hypernetworks",
                    "face-restorers",
                    "realesrgan-models",
                    "prompt-styles",
                    "script-info",
                    "extensions",
                ),
                self.nothing,
            ),
        }

    def nothing(self) -> list[dict[str, Any]]:
        """List nothing: the embedded web UI has none of these."""
        return []

    def samplers(self) -> list[dict[str, Any]]:
        return [{"name": name, "aliases": aliases(name), "options": {}} for name in SAMPLERS]

    def schedulers(self) -> list[dict[str, Any]]:
        shared = {"aliases": None, "default_rho": -1, "need_inner_model": False}
        return [{"name": name.lower(), "label": name, **shared} for name in schedules()]

    def upscalers(self) -> list[dict[str, Any]]:
        shared = {"model_name": None, "model_path": None, "model_url": None}
        return [{"name": name, **shared, "scale": 1 if name == "None" else 4} for name in UPSCALERS]

    def latent_upscale_modes(self) -> list[dict[str, str]]:
        return [{"name": name} for name in LATENT_UPSCALERS]

    async def models(self) -> list[dict[str, Any]]:
        model = self._runner.studio.model
        sha256 = await hashed(model)  # the title needs it, too
        return [
            {
                "title": title(model),
                "model_name": model.name,
                "hash": model.shorthash,
                "sha256": sha256,
                "filename": str(model.path),
                "config": None,
            }
        ]

    def scripts(self) -> dict[str, list[str]]:
        return {"txt2img": [], "img2img": []}

    def embeddings(self) -> dict[str, dict[str, Any]]:
        """Return no embeddings: those that a LoRA brings along are there for its pictures only."""
        return {"loaded": {}, "skipped": {}}

    def cmd_flags(self) -> dict[str, Any]:
        """Return what the program was started with, by A1111's names."""
        studio = self._runner.studio
        folders = [str(folder) for folder in studio.host.adapter_dirs()]
        data = studio.host.data_dir()
        return {
            "api": True,
            "ckpt": str(studio.model.path),
            "lora_dir": folders[0] if folders else None,
            "data_dir": None if data is None else str(data),
            "medvram": studio.offload_mode in (offload.MODEL, offload.GROUP),
            "lowvram": studio.offload_mode == offload.SEQUENTIAL,
            "no_half": studio.model.pipeline.unet.dtype == torch.float32,
            "use_cpu": ["all"] if studio.device.type == "cpu" else [],
            "share": False,
        }

    def memory(self) -> dict[str, dict[str, Any]]:
        """Return the bytes of main memory and of the GPU, free and taken."""
        return {"ram": _main_memory(), "cuda": _gpu_memory(self._runner.studio.device)}


def _main_memory() -> dict[str, Any]:
    if importlib.util.find_spec("psutil") is None:
        return {"error": "psutil is not installed"}
    import psutil

    used, total = psutil.Process(os.getpid()).memory_info().rss, psutil.virtual_memory().total
    return {"free": total - used, "used": used, "total": total}  # as A1111 counts: of this program alone


def _gpu_memory(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"error": "unavailable"}
    free, total = torch.cuda.mem_get_info(device)
    told = torch.cuda.memory_stats(device)
    kinds = {"active": "active", "allocated": "allocated", "reserved": "reserved", "inactive": "inactive_split"}
    return {
        "system": {"free": free, "used": total - free, "total": total},
        **{
            name: {when: told.get(f"{kind}_bytes.all.{when}", 0) for when in ("current", "peak")}
            for name, kind in kinds.items()
        },
        "events": {"retries": told.get("num_alloc_retries", 0), "oom": told.get("num_ooms", 0)},
    }
