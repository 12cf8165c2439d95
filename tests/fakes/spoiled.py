"""Copies of LoRA files, changed on purpose in known degrees: kohya's keys, plain LoRA, LoHa, LoKr and OFT.

Each function changes a copy of the tensors and returns it; all that is random comes from the generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

Tensors = dict[str, Tensor]

_LINEAR = {"lora_up.weight": 1.0, "hada_w1_a": 1.0, "lokr_w1": 1.0, "lokr_w1_a": 1.0}
"""Parameters that the change is proportional to."""


def layers(tensors: Tensors) -> list[str]:
    """Return the names of the layers, before the first dot of their keys."""
    return sorted({key.partition(".")[0] for key in tensors})


def some(names: Iterable[str], count: int, generator: torch.Generator) -> list[str]:
    """Return some of the names."""
    listed = sorted(names)
    return [listed[i] for i in torch.randperm(len(listed), generator=generator)[:count].tolist()]


def is_plain(tensors: Tensors) -> bool:
    """Return whether all layers are plain LoRA."""
    return all(key.endswith(("lora_up.weight", "lora_down.weight", "alpha", "dora_scale")) for key in tensors)


def cast(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    """Save in another precision."""
    return {key: value.float().to(dtype) if value.ndim else value for key, value in tensors.items()}


def scaled(tensors: Tensors, factor: float, names: Iterable[str] = ()) -> Tensors:
    """Multiply the change of some layers, or of all, by a number; of OFT, what it turns by."""
    chosen = set(names) or set(layers(tensors))
    found = dict(tensors)
    for key, value in tensors.items():
        name, _, param = key.partition(".")
        if name in chosen and (param in _LINEAR or param == "oft_blocks"):
            found[key] = (value.float() * factor).to(value.dtype if value.abs().max() * factor < 6e4 else torch.float32)
    return found


def with_alpha(tensors: Tensors, factor: float) -> Tensors:
    """Multiply alpha by a number."""
    return {key: value * factor if key.endswith("alpha") else value for key, value in tensors.items()}


def noisy(tensors: Tensors, share: float, generator: torch.Generator) -> Tensors:
    """Add normal noise to each matrix, of a share of its root mean square."""
    found = dict(tensors)
    for key, value in tensors.items():
        if value.ndim and not key.endswith(("dora_scale", "rescale")):
            rms = value.float().square().mean().sqrt()
            noise = torch.randn(value.shape, generator=generator) * rms * share
            found[key] = (value.float() + noise).to(value.dtype)
    return found


def zeroed(tensors: Tensors, names: Iterable[str]) -> Tensors:
    """Set the change of some layers to zero."""
    return scaled(tensors, 0.0, names)


def clipped(tensors: Tensors, names: Iterable[str], factor: float) -> Tensors:
    """Move size from one factor to the other until the largest numbers are beyond fp16, which cuts them."""
    found = dict(tensors)
    for key, value in tensors.items():
        name, _, param = key.partition(".")
        if name in names and param in _LINEAR:
            large = value.float() / value.float().abs().max().clamp_min(1e-9) * 65504 * factor
            found[key] = large.clamp(-65504, 65504).half()
    return found


def with_nan(tensors: Tensors, names: Iterable[str], value: float) -> Tensors:
    """Set one number of some layers to NaN or infinity."""
    found = dict(tensors)
    for key in tensors:
        name, _, param = key.partition(".")
        if name in names and param in (*_LINEAR, "oft_blocks"):
            found[key] = tensors[key].clone()
            found[key].view(-1)[0] = value
    return found


def spiked(tensors: Tensors, names: Iterable[str], size: float) -> Tensors:
    """Make the first rank component of some plain LoRA so large that it has a spectral norm."""
    found = dict(tensors)
    for name in names:
        up, down = (tensors[f"{name}.lora_{side}.weight"].float() for side in ("up", "down"))
        present = up[:, 0].norm() * down[0].norm() * float(tensors[f"{name}.alpha"]) / up.shape[1]
        up = up.clone()
        up[:, 0] *= size / present
        found[f"{name}.lora_up.weight"] = up
    return found


def delta(tensors: Tensors, name: str) -> Tensor:
    """Return the change of one layer of plain LoRA, LoHa or LoKr of full matrices, in fp64, (out, in, *kernel)."""
    own = {key.partition(".")[2]: value.double() for key, value in tensors.items() if key.startswith(f"{name}.")}
    if "lora_up.weight" in own:
        up, down = own["lora_up.weight"].flatten(1), own["lora_down.weight"]
        return (up @ down.flatten(1)).reshape(-1, *down.shape[1:]) * (float(own["alpha"]) / up.shape[1])
    if "hada_w1_a" in own:
        halves = []
        for i in "12":
            a, b, t = own[f"hada_w{i}_a"], own[f"hada_w{i}_b"], own.get(f"hada_t{i}")
            halves.append(a @ b if t is None else torch.einsum("ij...,ip,jq->pq...", t, a, b))
        return halves[0] * halves[1] * (float(own["alpha"]) / own["hada_w1_b"].shape[0])
    first = own["lokr_w1"] if "lokr_w1" in own else own["lokr_w1_a"] @ own["lokr_w1_b"]
    second, scale = own.get("lokr_w2"), 1.0
    if second is None:
        second = own["lokr_w2_a"] @ own["lokr_w2_b"]
        scale = float(own["alpha"]) / own["lokr_w2_b"].shape[0]
    whole = torch.kron(first, second.flatten(1)) * scale
    return whole.reshape(whole.shape[0], -1, *second.shape[2:])


def as_lora(change: Tensor, name: str, rank: int, dtype: torch.dtype = torch.float32) -> Tensors:
    """Return the plain LoRA of a rank that is closest to a change."""
    u, s, vh = torch.linalg.svd(change.flatten(1), full_matrices=False)
    rank = min(rank, len(s))
    root = s[:rank].sqrt()
    down = (root.unsqueeze(1) * vh[:rank]).reshape(rank, *change.shape[1:])
    up = (u[:, :rank] * root).reshape(-1, rank, *(1,) * (change.ndim - 2))
    return {
        f"{name}.lora_up.weight": up.to(dtype),
        f"{name}.lora_down.weight": down.to(dtype),
        f"{name}.alpha": torch.tensor(float(rank), dtype=dtype),
    }


def resized(tensors: Tensors, rank: int) -> Tensors:
    """Convert plain LoRA, LoHa and LoKr to LoRA of a rank."""
    found: Tensors = {}
    for name in layers(tensors):
        found |= as_lora(delta(tensors, name), name, rank)
    return found


def padded(tensors: Tensors, times: int) -> Tensors:
    """Give plain LoRA more rank components, which are zero, and the alpha that keeps their scale."""
    found = dict(tensors)
    for name in layers(tensors):
        up, down = (tensors[f"{name}.lora_{side}.weight"] for side in ("up", "down"))
        found[f"{name}.lora_up.weight"] = torch.cat([up, *[torch.zeros_like(up)] * (times - 1)], 1)
        found[f"{name}.lora_down.weight"] = torch.cat([down, *[torch.zeros_like(down)] * (times - 1)])
        found[f"{name}.alpha"] = tensors[f"{name}.alpha"] * times
    return found


def turned(tensors: Tensors, generator: torch.Generator) -> Tensors:
    """Share the change of plain LoRA otherwise among the rank components: up R, R^-1 down."""
    found = dict(tensors)
    for name in layers(tensors):
        up, down = (tensors[f"{name}.lora_{side}.weight"].float() for side in ("up", "down"))
        turn, _ = torch.linalg.qr(torch.randn(up.shape[1], up.shape[1], generator=generator))
        found[f"{name}.lora_up.weight"] = (up.flatten(1) @ turn).reshape(up.shape)
        found[f"{name}.lora_down.weight"] = (turn.T @ down.flatten(1)).reshape(down.shape)
    return found


def redrawn(tensors: Tensors, generator: torch.Generator) -> Tensors:
    """Draw each matrix again, with its singular values and directions at random; vectors stay."""
    found = dict(tensors)
    for key, value in tensors.items():
        if value.ndim > 1 and not key.endswith(("dora_scale", "rescale")):
            values = torch.linalg.svdvals(value.float().flatten(1))
            rows, columns = value.shape[0], value[0].numel()
            left, right = (
                torch.linalg.qr(torch.randn(side, len(values), generator=generator))[0] for side in (rows, columns)
            )
            found[key] = ((left * values) @ right.T).reshape(value.shape).to(value.dtype)
    return found


def merged(parts: Iterable[tuple[float, Tensors]], rank: int) -> Tensors:
    """Merge files to plain LoRA of a rank, at strengths."""
    listed = list(parts)
    found: Tensors = {}
    for name in sorted({name for _, tensors in listed for name in layers(tensors)}):
        own = [
            (strength, tensors) for strength, tensors in listed if any(key.startswith(f"{name}.") for key in tensors)
        ]
        deltas = [strength * delta(tensors, name) for strength, tensors in own]
        shape = max([one.shape for one in deltas], key=len)  # LoHa has the kernel among the columns
        found |= as_lora(sum([one.flatten(1) for one in deltas], torch.zeros(())).reshape(shape), name, rank)
    return found


def spelled(tensors: Tensors) -> Tensors:
    """Spell plain LoRA of kohya as PEFT does, with the scale in the factors and the names of another model's blocks."""
    found: Tensors = {}
    for name in layers(tensors):
        up, down = (tensors[f"{name}.lora_{side}.weight"].float() for side in ("up", "down"))
        scale = math.sqrt(float(tensors[f"{name}.alpha"]) / up.shape[1])
        dotted = name.removeprefix("lora_unet_").replace("blocks_", "sections.")
        found[f"unet.{dotted}.lora_A.weight"] = down * scale
        found[f"unet.{dotted}.lora_B.weight"] = up * scale
    return found
