"""A small pipeline, a stack of mixed kinds, and what other code does to a model while the stack is on it.

Each change is made twice with the same numbers: to the pipeline with the stack, and to a shadow that no engine has
seen. The right picture is computed from the shadow, in fp64 and from the bytes of the files alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.fakes.files import save
from tests.fakes.kinds import SAMPLES

WIDTH, ENTRIES = 8, 10
KINDS = {
    "unet.enter": "dora around loha",
    "unet.attn.to_q": "lora",
    "unet.attn.to_k": "lora",
    "unet.attn.to_v": "dora by rows",
    "unet.attn.to_out": "full",
    "unet.norm": "norm",
    "unet.mix": "dora by columns",
    "unet.again": "lora",
    "unet.leave": "full with bias",
    "text_encoder.tokens": "lora",
    "text_encoder.proj": "dora by rows",
}
"""Layer -> the name of its sample, all in kohya's spelling."""
_SAMPLES = {sample.name: sample for sample in SAMPLES}
_PREFIXES = {"unet": "lora_unet_", "text_encoder": "lora_te_"}


class Attention(nn.Module):
    """Attention that can be fused, as diffusers' can."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.to_out = nn.Linear(WIDTH, WIDTH)
        self.fused_projections = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).chunk(3, -1) if self.fused_projections else (self.to_q(x), self.to_k(x), self.to_v(x))
        result: Tensor = self.to_out((q @ k.mT / WIDTH).softmax(-1) @ v)
        return result

    def fuse_projections(self) -> None:
        parts = [self.to_q, self.to_k, self.to_v]
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        for name in ("weight", "bias"):
            getattr(self.to_qkv, name).data = torch.cat([getattr(part, name).data for part in parts])
        self.fused_projections = True

    def unfuse_projections(self) -> None:
        del self.to_qkv
        self.fused_projections = False


class Unet(nn.Module):
    """A denoiser of a few layers of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn, self.norm = Attention(), nn.LayerNorm(WIDTH)
        self.mix, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        x = self.enter(sample) + encoder_hidden_states.mean(1, keepdim=True)
        x = x + self.attn(self.norm(x))
        result: Tensor = self.leave(self.again(self.mix(x).sin()))
        return result


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.proj = nn.Embedding(ENTRIES, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.proj(self.tokens(ids))
        return result


class Pipeline:
    """As diffusers', as far as an engine reads it."""

    def __init__(self, seed: int) -> None:
        self.unet, self.text_encoder = seeded(Unet(), seed), seeded(Encoder(), seed + 1)

    @property
    def components(self) -> dict[str, nn.Module]:
        return {"unet": self.unet, "text_encoder": self.text_encoder}

    def picture(self) -> Tensor:
        dtype = next(self.unet.parameters()).dtype
        words = self.text_encoder(torch.arange(6).reshape(2, 3)).to(dtype)
        some = torch.Generator().manual_seed(3)
        with torch.no_grad():
            result: Tensor = self.unet(torch.randn(2, 5, WIDTH, generator=some).to(dtype), torch.ones(2), words)
        return result


def seeded(module: nn.Module, seed: int) -> Any:
    """Return a module with weights of a seed, frozen."""
    some = torch.Generator().manual_seed(seed)
    for name, parameter in module.requires_grad_(False).named_parameters():
        parameter.data = torch.randn(parameter.shape, generator=some, dtype=torch.float32) * 0.4
        if name.endswith("norm.weight"):
            parameter.data += 1.0
    return module.eval()


def write_files(folder: Path) -> list[Path]:
    """Write two files: one of a kind for each layer, and a LoRA of every linear layer."""
    plain, mixed = dict[str, Tensor](), dict[str, Tensor]()
    pipeline = Pipeline(0)
    for number, (name, kind) in enumerate(KINDS.items()):
        for tensors, own in ((mixed, kind), (plain, "lora")):
            shape = tuple(_layer(pipeline.components, name).weight.shape)
            if own == "lora" and len(shape) < 2:
                continue
            made = _SAMPLES[own].make(shape, torch.Generator().manual_seed(number + 50 * (tensors is plain)))
            tensors |= {f"{_key(name)}.{param}": value for param, value in made.items()}
    return [save(folder / "mixed.safetensors", mixed), save(folder / "plain.safetensors", plain)]


def right_picture(shadow: Pipeline, files: Mapping[Path, float]) -> tuple[Tensor, list[str]]:
    """Return the picture with these files at their strengths, in fp64; and the layers of theirs that have no place."""
    exact, lost = copy.deepcopy(shadow), list[str]()
    exact.unet, exact.text_encoder = _double(exact.unet), _double(exact.text_encoder)
    changes = dict[int, tuple[Any, Tensor, Tensor | None]]()
    for path, strength in files.items():
        tensors = load_file(path)
        for name, kind in KINDS.items():
            own = {
                key.removeprefix(f"{_key(name)}."): one for key, one in tensors.items() if key.startswith(_key(name))
            }
            if own and not _change(exact, name, "lora" if path.stem == "plain" else kind, own, strength, changes):
                lost.append(name)
    for layer, delta, delta_of_bias in changes.values():
        layer.weight.data += delta
        if delta_of_bias is not None:
            layer.bias.data += delta_of_bias
    return exact.picture(), lost


def _change(
    exact: Pipeline, name: str, kind: str, own: dict[str, Tensor], strength: float, changes: dict[int, Any]
) -> bool:
    """Add the change of one layer to `changes`; tell whether the layer is there."""
    layer, rows = _layer(exact.components, name), slice(None)
    parent = _layer(exact.components, name.rpartition(".")[0])
    part = ("to_q", "to_k", "to_v").index(name[-4:]) if name[-4:] in ("to_q", "to_k", "to_v") else None
    if part is not None and parent.fused_projections:
        layer, rows = parent.to_qkv, slice(part * WIDTH, (part + 1) * WIDTH)
    if getattr(layer, "weight", None) is None:
        return False
    if isinstance(layer, nn.Embedding):
        rows = slice(ENTRIES)
    sample, own = _SAMPLES[kind], {key: value.double() for key, value in own.items()}
    weight = layer.weight.data[rows]
    zeros = torch.zeros_like(layer.weight.data)
    _, total, of_bias = changes.setdefault(id(layer), (layer, zeros, None))
    total[rows] += sample.effective(own, weight, strength) - weight
    if sample.bias is not None:
        change = sample.bias(own, strength)
        changes[id(layer)] = layer, total, change if of_bias is None else of_bias + change
    return True


def _double(module: nn.Module) -> Any:
    """Convert to fp64; packed weights become the ones that they stand for, and computed ones what they are now."""
    made = dict[int, nn.Module]()
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, nn.Linear):
                if id(child) not in made:
                    made[id(child)] = plain = nn.Linear(*reversed(child.weight.shape))
                    own = [one.detach().to(torch.float64, copy=True) for one in (child.weight, child.bias)]
                    plain.weight, plain.bias = (nn.Parameter(one, False) for one in own)
                parent._modules[name] = made[id(child)]
    return module.double()


def _layer(components: Mapping[str, nn.Module], name: str) -> Any:
    component, _, path = name.partition(".")
    return components[component].get_submodule(path)


def _key(name: str) -> str:
    component, _, path = name.partition(".")
    return _PREFIXES[component] + path.replace(".", "_")


class Spelled(nn.Linear):
    """A class that other code gives a layer: it computes the same in its own way."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT + self.bias


class Packed(nn.Linear):
    """A layer that keeps its weight in fp8."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias)


@dataclass(frozen=True)
class Change:
    """What other code does to one layer, named in `KINDS`, or to a component.

    Args:
        name: for messages.
        make: the pipeline, the component, the name of the layer in it, and a seed.
        layers: for which layers it is.
    """

    name: str
    make: Callable[[Pipeline, str, str, int], None]
    layers: tuple[str, ...] = tuple(KINDS)


def _replace(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    root, (above, _, name) = pipeline.components[component], path.rpartition(".")
    old = root.get_submodule(path)
    new = nn.LayerNorm(WIDTH) if isinstance(old, nn.LayerNorm) else nn.Linear(WIDTH, WIDTH)
    if isinstance(old, nn.Embedding):
        new = nn.Embedding(old.num_embeddings + seed % 3, WIDTH)
    setattr(root.get_submodule(above), name, seeded(new, seed).to(_dtype(root)))


def _dtype(root: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in root.parameters() if parameter.is_floating_point())


def _attention(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    pipeline.unet.attn = seeded(Attention(), seed).to(_dtype(pipeline.unet))


def _take_out(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    root, (above, _, name) = pipeline.components[component], path.rpartition(".")
    setattr(root.get_submodule(above), name, nn.Identity())


def _grow(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    """As transformers' `resize_token_embeddings` does."""
    tokens = pipeline.text_encoder.tokens
    more = torch.randn(1 + seed % 3, WIDTH, generator=torch.Generator().manual_seed(seed)).to(tokens.weight.dtype)
    tokens.weight.data = torch.cat([tokens.weight.data, more])
    tokens.num_embeddings = len(tokens.weight)


def _quantize(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    """Keep a weight in fp8: in a new layer, as quanto does, or in the same one, as torchao does."""
    root, (above, _, name) = pipeline.components[component], path.rpartition(".")
    layer = root.get_submodule(path)
    if type(layer) is not nn.Linear or type(weight := layer._parameters.get("weight")) is not nn.Parameter:
        return
    if seed % 2:
        layer.__class__ = Packed
    else:
        former, layer = layer, Packed(WIDTH, WIDTH).requires_grad_(False)
        layer.bias = former.bias
        setattr(root.get_submodule(above), name, layer)
    layer.weight = nn.Parameter(weight.to(torch.float8_e4m3fn), requires_grad=False)


def _fuse(pipeline: Pipeline, *_: Any) -> None:
    attention = pipeline.unet.attn
    if not all(type(attention._modules[name]) is nn.Linear for name in ("to_q", "to_k", "to_v")):
        return
    (attention.unfuse_projections if attention.fused_projections else attention.fuse_projections)()


def _cast(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    root = pipeline.components[component]
    if not any(isinstance(layer, Packed) for layer in root.modules()):
        root.to(torch.float64 if _dtype(root) is torch.float32 else torch.float32)


def _share(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    pipeline.unet.again = pipeline.unet.mix


def _tie(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    one, other = pipeline.unet.again, pipeline.unet.mix
    if type(one) is type(other) is nn.Linear:
        one.weight = other.weight


def _move(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    pipeline.components[component]._apply(lambda tensor: tensor.clone())


def _state(root: nn.Module, seed: int) -> dict[str, Tensor]:
    some = torch.Generator().manual_seed(seed)
    state = {name: one for name, one in root.state_dict().items() if type(one) is Tensor}
    plain = {name: one for name, one in state.items() if one.is_floating_point() and "." in name}
    return {name: (torch.randn(one.shape, generator=some) * 0.4).to(one.dtype) for name, one in plain.items()}


def _load(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    root = pipeline.components[component]
    root.load_state_dict(_state(root, seed), strict=False)


def _assign(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    root = pipeline.components[component]
    root.load_state_dict(_state(root, seed), strict=False, assign=True)
    root.requires_grad_(False)


def _load_one(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    layer = pipeline.components[component].get_submodule(path)
    layer.load_state_dict({name[2:]: one for name, one in _state(nn.ModuleDict({"a": layer}), seed).items()}, False)


def _write(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    weight = pipeline.components[component].get_submodule(path)._parameters.get("weight")
    if type(weight) is nn.Parameter:
        with torch.no_grad():
            weight.mul_(1.5)


def _parameter(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    layer = pipeline.components[component].get_submodule(path)
    if type(weight := layer._parameters.get("weight")) is nn.Parameter:
        new = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight.dtype)
        layer.weight = nn.Parameter(new, requires_grad=False)


def _normalize(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    layer = pipeline.components[component].get_submodule(path)
    if type(layer) is nn.Linear and type(layer._parameters.get("weight")) is nn.Parameter:
        parametrizations.weight_norm(layer).requires_grad_(False)


def _class(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    layer = pipeline.components[component].get_submodule(path)
    if type(layer) in (nn.Linear, Spelled):
        layer.__class__ = nn.Linear if type(layer) is Spelled else Spelled


def _exchange(pipeline: Pipeline, component: str, path: str, seed: int) -> None:
    setattr(pipeline, component, seeded(type(pipeline.components[component])(), seed))


LINEAR = tuple(name for name in KINDS if name not in ("unet.norm", "text_encoder.tokens"))
CHANGES = (
    Change("a layer is replaced", _replace),
    Change("a block is replaced", _attention, ("unet.enter",)),
    Change("a layer is taken out", _take_out, LINEAR),
    Change("an embedding is resized in place", _grow, ("text_encoder.tokens",)),
    Change("a layer is quantized", _quantize, LINEAR),
    Change("projections are fused, or not any more", _fuse, ("unet.enter",)),
    Change("a component is cast", _cast),
    Change("two names share a layer", _share, ("unet.mix",)),
    Change("two layers share a weight", _tie, ("unet.mix",)),
    Change("a component is moved", _move),
    Change("a state dict is loaded", _load),
    Change("a state dict is assigned", _assign),
    Change("the state dict of a layer is loaded", _load_one),
    Change("a weight is written to", _write),
    Change("a parameter is replaced", _parameter),
    Change("a layer is parametrized", _normalize, LINEAR),
    Change("a layer gets another class", _class, LINEAR),
    Change("a component is exchanged", _exchange),
)
