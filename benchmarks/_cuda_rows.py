"""SDXL and FLUX.1 for `count.py --device cuda`: every phase of LoRAs on their linear layers, and other programs'.

Models have LoRA of rank 4, and bytes copied are in proportion to the rank. Of PEFT and of the code by hand, one layer
of each kind is counted, and multiplied by how often the model has it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _blocks import SMALL_FLUX, flux_step
from _common import Record
from _fake_cuda import FakeCuda, Figures, fake, to_fake
from _models import LoraFile, by_hand, kohya_key, peft_activate, peft_load, peft_scale, write_lora
from _sdxl import SMALL_UNET, UNET
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lib_lora import Curve, Engine, Entry, Moment, Stack, Strength

HALF = torch.bfloat16
STRENGTH, OTHER = 0.8, 0.5
CURVE = Strength(Curve(((0.0, 0.2), (1.0, 0.9))))
STEPS = 20
SHORT = {"transformer_layers_per_block": 1, "layers_per_block": 1}
RANK = 4
"""Of LoRAs on models: bytes are in proportion to it, and numbers do not depend on it."""
_NOTHING = Figures()


def row(what: str, loras: int, way: str, phase: str, figures: Figures, base: Figures = _NOTHING) -> Record:
    """Return one line: what a phase asked for, and what a step of the model alone asks for."""
    base = base if figures.kernels else _NOTHING
    own = figures.operations.copy()
    own.subtract(base.operations)
    lines = {name: dict(getattr(figures, name)) for name in ("waiting", "passing", "waits")}
    return {
        "what": what,
        "loras": loras,
        "way": way,
        "phase": phase,
        **figures.totals(),
        "kernels_beside": figures.kernels - base.kernels,
        "bytes_beside": figures.allocated - base.allocated,
        "operations_beside": {name: number for name, number in own.items() if number},
        "lines": lines,
    }


@dataclass(frozen=True, slots=True)
class Net:
    """A model on fake tensors."""

    name: str
    model: nn.Module
    step: Callable[[], object]
    layers: tuple[str, ...]


def sdxl(*, tiny: bool, dtype: torch.dtype = HALF, of_input: torch.dtype | None = None, short: bool = False) -> Net:
    """Return SDXL's UNet, at 1024 x 1024 with guidance; a short one has fewer transformers, of one block each."""
    config: dict[str, Any] = SMALL_UNET if tiny else UNET | SHORT if short else UNET
    with torch.device("meta"):
        unet = to_fake(UNet2DConditionModel(**config), dtype=dtype)
    side, own, size = (8 if tiny else 128), of_input or dtype, config["projection_class_embeddings_input_dim"]
    text = size - 6 * config["addition_time_embed_dim"]
    given = {
        "sample": fake((2, 4, side, side), own),
        "timestep": fake((2,), torch.int64),
        "encoder_hidden_states": fake((2, 77, config["cross_attention_dim"]), own),
        "added_cond_kwargs": {"text_embeds": fake((2, text), own), "time_ids": fake((2, 6), own)},
    }
    layers = [n for n, module in unet.named_modules() if isinstance(module, nn.Linear) and ".attentions." in n]
    return Net("SDXL", unet, partial(unet, **given, return_dict=False), tuple(layers))


def flux(*, tiny: bool) -> Net:
    """Return FLUX.1 [dev] at 1024 x 1024."""
    with torch.device("meta"):
        made = FluxTransformer2DModel(**(SMALL_FLUX if tiny else {}), guidance_embeds=True)
    made = to_fake(made, dtype=HALF)
    layers = [n for n, module in made.named_modules() if isinstance(module, nn.Linear) and "_blocks." in n]
    return Net("FLUX.1", made, partial(flux_step(made, 8 if tiny else 128, 1), made), tuple(layers))


def files_for(folder: Path, net: Net, number: int) -> list[LoraFile]:
    """Write LoRAs for a model."""
    return [write_lora(folder, f"{net.name}{i}", net.model, net.layers, RANK) for i in range(number)]


def stack_of(files: Iterable[LoraFile], *, alike: bool) -> Stack:
    """Return a stack of LoRAs of one strength, or each of its own."""
    return Stack([Entry(file.kohya, STRENGTH - 0.05 * i * (not alike)) for i, file in enumerate(files)])


def models(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count every phase of LoRAs on all linear layers of the blocks of SDXL and FLUX.1; of tiny ones, of SDXL alone."""
    for build in (sdxl,) if options.tiny else (sdxl, flux):
        net = build(tiny=options.tiny)
        files = files_for(folder, net, max(options.counts) + 1)
        base = count.counted(net.step)
        yield row(net.name, 0, "base", "steady step", base)
        counts = options.counts if build is sdxl else options.counts[:: max(len(options.counts) - 1, 1)]
        for number in counts:
            for alike in (True, False)[number < max(counts) or number == 1 :]:
                strengths = "" if number == 1 else ", equal" if alike else ", unlike"
                every = number in (1, max(options.counts)) and not (alike and number > 1)
                for phase, figures in ours(count, net, files, number, alike=alike, every=every):
                    yield row(net.name, number, f"ours{strengths}", phase, figures, base)
        yield from beside(count, net, files, counts, base)
        for file in files:
            file.kohya.unlink()
            file.peft.unlink()


def ours(
    count: FakeCuda, net: Net, files: Sequence[LoraFile], number: int, *, alike: bool, every: bool
) -> Iterator[tuple[str, Figures]]:
    """Count the phases of a stack; `every` of them, or those up to a steady step."""
    stack, other = stack_of(files[:number], alike=alike), stack_of(files[1 : number + 1], alike=alike)
    with Engine({"unet": net.model}) as engine:

        def switch(new: Stack) -> None:
            engine.activate(new)
            net.step()

        yield "activation", count.counted(partial(engine.activate, stack))
        first = count.counted(net.step)
        if every:
            yield "first step", first
        yield "steady step", count.counted(net.step)
        if every:
            yield "another file and a step", count.counted(partial(switch, other))
            yield "the former again and a step", count.counted(partial(switch, stack))
            yield "change of strength", count.counted(partial(engine.set_multiplier, 0, OTHER))
            yield "step after it", count.counted(net.step)
            engine.set_multiplier(0, CURVE)
            engine.set_moment(Moment(0, STEPS))
            yield "moment of a schedule", count.counted(partial(engine.set_moment, Moment(STEPS // 2, STEPS)))
            yield "step of a schedule", count.counted(net.step)


def dora(count: FakeCuda, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Count runs with a DoRA on SDXL: each with a stack of its own in force, as ComfyUI's are, or one that stays."""
    net = sdxl(tiny=options.tiny)
    (file,) = files_for(folder, net, 1)
    norms = {f"{kohya_key(path)}.dora_scale": net.model.get_parameter(f"{path}.weight").shape[0] for path in net.layers}
    save_file(load_file(file.kohya) | {key: torch.ones(out, 1) for key, out in norms.items()}, file.kohya)
    base = count.counted(net.step)
    with Engine({"unet": net.model}) as engine:

        def run(strength: float) -> None:
            with engine.active(Stack([Entry(file.kohya, strength)])):
                net.step()

        def step_again() -> None:
            engine.activate(engine.stack)
            net.step()

        phases = {"first run": STRENGTH, "run with another strength": OTHER, "run with the same strength": OTHER}
        for phase, strength in phases.items():
            yield row(net.name, 1, "DoRA", phase, count.counted(partial(run, strength)), base)
        engine.activate(Stack([Entry(file.kohya, STRENGTH)]))
        net.step()
        yield row(net.name, 1, "DoRA", "the stack in force again and a step", count.counted(step_again), base)


class _Layers(nn.Module):
    """One layer of each kind that a model has, called as the model calls it."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.inputs: list[Tensor] = []
        self.numbers: Counter[int] = Counter()
        self.config, self.dtype = dict[str, object](), HALF  # which PEFT asks for
        self._known: dict[object, int] = {}
        every = [net.model.get_submodule(path) for path in net.layers]
        hooks = [one.register_forward_pre_hook(self._note) for one in every]
        net.step()
        for hook in hooks:
            hook.remove()

    def _note(self, layer: Any, given: tuple[Tensor, ...]) -> None:
        (x,) = given
        key = type(layer), layer.weight.shape, layer.bias is None, x.shape, x.stride(), x.dtype
        if key not in self._known:
            self._known[key] = len(self.layers)
            self.layers.append(_shared(layer))
            self.inputs.append(x)
        self.numbers[self._known[key]] += 1

    def counted(self, count: FakeCuda) -> Figures:
        """Count each layer once, times the number of its like."""
        total = Figures()
        for i, (layer, x) in enumerate(zip(self.layers, self.inputs, strict=True)):
            found = count.counted(partial(layer, x))
            for name, one in found.operations.items():
                total.operations[name] += one * self.numbers[i]
            total.allocated += found.allocated * self.numbers[i]
        return total


def _shared(layer: nn.Linear) -> nn.Linear:
    with torch.device("meta"):
        made = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    made.weight, made.bias = layer.weight, layer.bias
    return made


def beside(
    count: FakeCuda, net: Net, files: Sequence[LoraFile], numbers: Sequence[int], base: Figures
) -> Iterator[Record]:
    """Count steady steps by PEFT and by hand: one layer of each kind, times the number of its like."""
    for number in numbers:
        for way in ("PEFT", "by hand"):
            layers = _Layers(net)
            alone = layers.counted(count)
            paths = [f"layers.{i}" for i in range(len(layers.layers))]
            folder = files[0].kohya.parent
            own = [write_lora(folder, f"{net.name}-{i}", layers, paths, files[0].rank) for i in range(number)]
            if way == "PEFT":
                for i, file in enumerate(own):
                    peft_load(layers, file, f"lora{i}")
                    peft_scale(layers, f"lora{i}", STRENGTH)
                peft_activate(layers, [f"lora{i}" for i in range(number)])
            else:
                by_hand(layers, paths, own, STRENGTH)
            yield row(net.name, number, way, "steady step", _plus(base, layers.counted(count), alone), base)


def _plus(base: Figures, own: Figures, alone: Figures) -> Figures:
    """Return the figures of a model with other figures for its layers."""
    operations = base.operations + own.operations
    operations.subtract(alone.operations)
    return Figures(operations=operations, allocated=base.allocated + own.allocated - alone.allocated)
