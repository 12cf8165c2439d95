"""Other ways to serve many LoRA, in the same replicas: what `serve.py` compares mixed batches with."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from extension.hosts.txt2img import Result, Txt2Img
from extension.serve import queue
from extension.serve.mixed import Mixed, batch_key
from extension.serve.service import ModelReplica
from extension.standalone.demo import find_demo
from extension.standalone.model import load_model
from extension.standalone.render import picture_of, plan_of

if TYPE_CHECKING:
    from extension.standalone.render import Watch
    from extension.standalone.studio import Studio

_TAG = re.compile(r"<lora:([^:>]+):([^:>]+)>")
_LOADED = 64
"""LoRA that PEFT keeps beside the model; the oldest goes first."""


class Grouped(ModelReplica):
    """A batch has requests of the same LoRA and strength only, as most servers of pictures do."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        vars(queue)["batch_key"] = _grouped_key  # in this process only
        super().__init__(settings)


def _grouped_key(studio: Studio, request: Txt2Img) -> Hashable | None:
    key = batch_key(studio, request)
    return None if key is None else (key, tuple(_TAG.findall(request.prompt)))


class _OneByOne(ModelReplica):
    """A pipeline of diffusers, which makes one picture at a time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.folder = Path(settings["lora_dirs"][0])
        self.pipeline = load_model(find_demo().model, torch.float32).pipeline
        self.pipeline.set_progress_bar_config(disable=True)
        vars(queue).update(batch_key=lambda studio, request: None, render_mixed=self._made)

    def use(self, name: str, strength: float) -> None:
        """Apply one LoRA."""
        raise NotImplementedError

    def _made(self, studio: Studio, requests: Sequence[Txt2Img], watches: Sequence[Watch]) -> Mixed:
        (request,) = requests
        for name, strength in _TAG.findall(request.prompt):
            self.use(name, float(strength))
        plan = plan_of(studio, request)
        self.pipeline.scheduler = plan.first.sampling.make(self.pipeline.scheduler.config)
        (image,) = self.pipeline(
            _TAG.sub("", request.prompt),
            num_inference_steps=request.steps,
            guidance_scale=request.cfg_scale,
            width=request.width,
            height=request.height,
            generator=torch.Generator().manual_seed(plan.seed),
        ).images
        return Mixed((Result((picture_of(request, image, plan.seed, {}),), plan.seed),), 1, 1)


class SetAdapters(_OneByOne):
    """PEFT's `set_adapters` on LoRA that are kept beside the model."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._loaded = OrderedDict[str, None]()

    def use(self, name: str, strength: float) -> None:
        """Load the LoRA unless it is there, and make it the active one."""
        if name not in self._loaded:
            self.pipeline.load_lora_weights(self.folder, weight_name=f"{name}.safetensors", adapter_name=name)
        self._loaded[name] = None
        self._loaded.move_to_end(name)
        self.pipeline.set_adapters([name], [strength])
        while len(self._loaded) > _LOADED:
            self.pipeline.delete_adapters(self._loaded.popitem(last=False)[0])


class Hotswap(_OneByOne):
    """diffusers' `hotswap`: the weights of one adapter are replaced."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._present = ""

    def use(self, name: str, strength: float) -> None:
        """Replace the weights, unless they are there."""
        if name != self._present:
            arguments = {"weight_name": f"{name}.safetensors", "adapter_name": "one", "hotswap": bool(self._present)}
            self.pipeline.load_lora_weights(self.folder, **arguments)
        self._present = name
        self.pipeline.set_adapters(["one"], [strength])


WAYS: Mapping[str, type[ModelReplica]] = {
    "mixed": ModelReplica,
    "grouped": Grouped,
    "set_adapters": SetAdapters,
    "hotswap": Hotswap,
}
