"""What the offload tests share: expected numbers, and looks at slots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline
from diffusers.hooks import apply_layerwise_casting
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from tests.fakes.schemes import (
    CPU,
)

IDS = torch.tensor([[98, 1, 2, 3, 4, 99, 99, 99]])


ORDERS = ("adapters first", "hooks first")


CAPTURING = ("sequential", "group-leaf", "dispatched", "balanced-spilled")


"""Schemes that keep the forward of each leaf."""


@dataclass(frozen=True)
class Expected:
    """What the un-offloaded model gives on the CPU, and the file that was used."""

    file: Path
    inputs: Mapping[str, object]
    base: Tensor
    full: Tensor
    half: Tensor

    @property
    def stack(self) -> Stack:
        return Stack([Entry(self.file, multiplier=1.0)])


def fingerprint(module: nn.Module) -> str:
    """Hash every weight, with its name and dtype."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype}".encode())
        digest.update(tensor.to(CPU).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def assert_same(got: Tensor, want: Tensor) -> None:
    """Compare bit for bit; a failure says by how much, without printing the tensors."""
    __tracebackhide__ = True
    assert got.dtype == want.dtype
    if not torch.equal(got, want):
        pytest.fail(f"differs by {(got - want).abs().max():.3g}, of {want.abs().max():.3g}")


def ways(module: nn.Module) -> dict[str, LowRankExecutor]:
    """Find what serves each layer."""
    slots = {path: slot_of(layer) for path, layer in module.named_modules()}
    return {
        path: slot.executor
        for path, slot in slots.items()
        if slot is not None and isinstance(slot.executor, LowRankExecutor)
    }


def placed_on(module: nn.Module) -> set[torch.device | None]:
    return {way.account.device for way in ways(module).values()}


def same_function(bound: Callable[..., object], function: Callable[..., object]) -> bool:
    return getattr(bound, "__func__", None) is function


def cast_layerwise(unet: nn.Module) -> None:
    apply_layerwise_casting(unet, torch.float8_e4m3fn, torch.float32)


PIPELINE_MODES: dict[str, Callable[[StableDiffusionPipeline, torch.device], object]] = {
    "model": lambda pipe, where: pipe.enable_model_cpu_offload(device=where),
    "sequential": lambda pipe, where: pipe.enable_sequential_cpu_offload(device=where),
    "group": lambda pipe, where: pipe.enable_group_offload(onload_device=where, offload_type="leaf_level"),
}


def picture(pipe: StableDiffusionPipeline, where: torch.device, engine: Engine | None = None) -> Tensor:
    """Make two latents in three steps, the text encoded under the adapters; with an engine, halve in the middle."""

    def halve(_: object, step: int, __: object, state: dict[str, Tensor]) -> dict[str, Tensor]:
        if engine is not None and step == 1:
            engine.set_multiplier(0, 0.5)
        return state

    prompt = pipe.text_encoder(IDS.repeat(2, 1).to(where))[0]
    output = pipe(
        prompt_embeds=prompt,
        negative_prompt_embeds=torch.zeros_like(prompt),
        num_inference_steps=3,
        height=8,
        width=8,
        latents=torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1)),
        output_type="latent",
        callback_on_step_end=halve,
    )
    images: Tensor = output.images.to(CPU)
    return images


def counted(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Count placements from now on."""
    placements: list[torch.device] = []
    place = LowRankExecutor._place

    def noting(self: LowRankExecutor, layer: nn.Module, where: torch.device, *dtypes: torch.dtype) -> object:
        placements.append(where)
        return place(self, layer, where, *dtypes)

    monkeypatch.setattr(LowRankExecutor, "_place", noting)
    return placements
