"""Trains the LoRAs by their algorithms' own trainers, PEFT and LyCORIS, and writes them as kohya's sd-scripts does."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lycoris import LycorisNetwork
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from .denoiser import noise_loss
from .draw import draw
from .ideas import Idea, lessons
from .latents import coded
from .loop import Plan, Trainer

_BATCH = 16
_TEXT_ENCODER = "lora_te_text_model"  # transformers 5.6 flattened the model; the files kept the name


class Trained(NamedTuple):
    """A trained LoRA."""

    tensors: Mapping[str, Tensor]
    """Under kohya's keys, in half precision."""
    pipeline: Any
    """The model with the trainer's own layers in it."""


def train_adapter(folder: Path, pipeline: Any, idea: Idea) -> Trained:
    """Train one LoRA on a copy of the model, or go on where it stopped."""
    seed = seed_of(idea)
    torch.manual_seed(seed)
    examples = ((draw(lesson.scene, lesson.looks), lesson.caption) for lesson in lessons(idea, seed))
    latents = coded(folder / f"{idea.name}.pt", pipeline.vae, pipeline.tokenizer, idea.pictures, examples)
    trained = copy.copy(pipeline)
    trained.unet, trained.text_encoder = copy.deepcopy(pipeline.unet), copy.deepcopy(pipeline.text_encoder)
    parts = {"lora_unet": trained.unet} if idea.unet else {}
    if idea.text_encoder:
        parts[_TEXT_ENCODER] = trained.text_encoder
    attach = _attach_peft if idea.algorithm in ("lora", "dora") else _attach_lycoris
    attached = {prefix: attach(prefix, module, idea) for prefix, module in parts.items()}
    plan = Plan(idea.name, idea.steps, idea.rate, warmup=30, average=0.98, seed=seed)
    Trainer(plan, list(attached.values()), folder).run(noise_loss(trained, latents, _BATCH))
    read = _read_peft if idea.algorithm in ("lora", "dora") else _read_lycoris
    tensors = {key: value for prefix, module in attached.items() for key, value in read(prefix, module, idea)}
    halves = {key: value.detach().half().contiguous() for key, value in sorted(tensors.items())}
    return Trained(halves, trained)


def seed_of(idea: Idea) -> int:
    """Return the seed an idea is trained from."""
    return zlib.crc32(idea.name.encode()) % 10_000


def _targets(module: nn.Module, idea: Idea) -> list[str]:
    """Return the layers that trainers take by default: attention, and for some all convolutions of the blocks."""
    linear = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
        and (".attentions." in name or "layers." in name)
        and (idea.feed_forward or ".ff." not in name)
    ]
    if not idea.convolutions:
        return linear
    inside = (".resnets.", ".downsamplers.", ".upsamplers.")
    return linear + [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and any(part in name for part in inside)
    ]


def _attach_peft(prefix: str, module: nn.Module, idea: Idea) -> nn.Module:
    config = LoraConfig(
        r=idea.rank,
        lora_alpha=idea.rank,
        target_modules=_targets(module, idea),
        use_dora=idea.algorithm == "dora",
        **idea.extra,
    )
    module.requires_grad_(False)
    injected: nn.Module = inject_adapter_in_model(config, module)
    return injected


def _read_peft(prefix: str, module: nn.Module, idea: Idea) -> Iterator[tuple[str, Tensor]]:
    for path, layer in module.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        name = f"{prefix}_{path.replace('.', '_')}"
        yield f"{name}.lora_down.weight", layer.lora_A["default"].weight
        yield f"{name}.lora_up.weight", layer.lora_B["default"].weight
        yield f"{name}.alpha", torch.tensor(float(layer.lora_alpha["default"]))
        if idea.algorithm == "dora":
            yield f"{name}.dora_scale", layer.lora_magnitude_vector["default"].weight.reshape(-1, 1)


def _attach_lycoris(prefix: str, module: nn.Module, idea: Idea) -> nn.Module:
    module.requires_grad_(False)
    preset: Mapping[str, object] = {
        "target_module": [],
        "target_name": _targets(module, idea),
        "lora_prefix": prefix,
        "enable_conv": True,
    }
    LycorisNetwork.apply_preset(preset)
    network = LycorisNetwork(
        module,
        lora_dim=idea.rank,
        conv_lora_dim=idea.rank,
        alpha=idea.rank,
        conv_alpha=idea.rank,
        network_module=idea.algorithm,
        **idea.extra,
    )
    network.apply_to()
    attached: nn.Module = network
    return attached


def _read_lycoris(prefix: str, network: nn.Module, idea: Idea) -> Iterator[tuple[str, Tensor]]:
    yield from network.state_dict().items()
