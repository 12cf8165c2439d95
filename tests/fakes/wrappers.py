"""torch's wrappers around a model with an adapter, in two processes, and the gradients that a kind defines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from lib_lora import Engine, Entry, Stack
from tests.fakes.contract import CASES, FILE, worst, write
from tests.fakes.kinds.base import Sample, Tensors
from tests.fakes.layers import WEIGHTS, Model, make, weight_of

STRENGTH = 1.3
BIASES = {"attention out": "out_proj.bias", "attention q": "in_proj_bias"}
PREFERRED = ("linear", "conv 3x3, stride", "embedding", "layer norm", "attention q", "linear, many tokens")


def one_of_each() -> list[tuple[Sample, str]]:
    """Return a sample of every kind, with a layer for it."""
    found: dict[str, dict[str, Sample]] = {}
    for case in CASES:
        sample, layer = case.values
        found.setdefault(sample.recipe, {}).setdefault(layer, sample)
    chosen = []
    for layers in found.values():
        layer = next((one for one in PREFERRED if one in layers), next(iter(layers)))
        chosen.append((layers[layer], layer))
    return chosen


def defined(model: Model, layer: str, sample: Sample, tensors: Tensors, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output that a sample defines, and the gradients of its squares by parameter, and by `x`."""
    own = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    path, rows = WEIGHTS.get(layer, ("weight", None))
    weight, bias_name = own[f"layer.{path}"], f"layer.{BIASES.get(layer, 'bias')}"
    window, bias = slice(*(rows or (None,))), own.get(bias_name)
    changed = sample.weight(tensors, weight[window], STRENGTH).reshape(weight[window].shape)
    params = {f"layer.{path}": torch.cat([changed, weight[len(changed) :]])}
    delta = sample.bias_delta(tensors, STRENGTH, None if bias is None else bias[window])
    if bias is not None and delta is not None:
        params[bias_name] = torch.cat([bias[window] + delta, bias[len(delta) :]])
    y = functional_call(model, own | params, (x,))
    if bias is None and delta is not None:  # a layer without a bias
        y = y + delta.view(-1, *(1,) * (len(changed.shape) - 2))
    y.square().sum().backward()
    grads = {name: value.grad for name, value in {**own, "x": x}.items() if value.grad is not None}
    return y.detach(), grads


def differences(model: nn.Module, x: Tensor, y: Tensor, want: Tensor, grads: Mapping[str, Tensor]) -> list[str]:
    """Name what differs of an output, whose gradients were computed: the output, and gradients that it should have."""
    got = {name.removeprefix("module."): parameter.grad for name, parameter in model.named_parameters()}
    wrong = ["output"] if worst(y.detach(), want) > FILE else []
    for name, grad in {**got, "x": x.grad}.items():
        whole: Any = grad
        if hasattr(whole, "full_tensor"):
            whole = whole.full_tensor()
        expected = grads.get(name)
        if expected is None or expected.abs().max() < FILE:
            wrong += [name] if whole is not None and whole.abs().max() > FILE else []
        elif whole is None or worst(whole, expected) > FILE:
            wrong.append(name)
    return wrong


def _ddp(model: Model, mesh: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _fsdp2(model: Model, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    if not isinstance(model.layer, nn.Linear):  # else the whole model is one group
        fully_shard(model.layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _columns(model: Model, mesh: Any) -> nn.Module:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"layer": ColwiseParallel(output_layouts=Replicate())})


def _rows(model: Model, mesh: Any) -> nn.Module:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"layer": RowwiseParallel(input_layouts=Replicate())})


WRAPPERS: dict[str, tuple[Callable[[Model, Any], nn.Module], frozenset[str] | None]] = {
    "DistributedDataParallel": (_ddp, None),
    "fully_shard": (_fsdp2, None),
    "ColwiseParallel": (_columns, frozenset({"linear", "embedding"})),
    "RowwiseParallel": (_rows, frozenset({"linear", "embedding"})),
}
"""What wraps a model, and the layers that it takes; None is all."""


def work(rank: int, processes: int, folder: str) -> None:
    """Run every wrapper with every kind in one of several processes, and write what differs into the folder."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    mesh = dist.device_mesh.init_device_mesh("cpu", (processes,))
    found: dict[str, dict[str, str]] = {name: {} for name in WRAPPERS}
    for i, (sample, layer) in enumerate(one_of_each()):
        for j, (name, (wrap, layers)) in enumerate(WRAPPERS.items()):
            if layers is None or layer in layers:
                own = Path(folder) / f"{rank} {i} {j}"
                own.mkdir()
                found[name][sample.recipe] = _tried(sample, layer, wrap, mesh, own, is_first=bool((i + j) % 2))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _tried(
    sample: Sample, layer: str, wrap: Callable[[Model, Any], nn.Module], mesh: Any, folder: Path, *, is_first: bool
) -> str:
    """Return what differs; empty where nothing does. `is_first` activates before the model is wrapped."""
    model, x = make(layer)
    path, tensors = write(folder, sample, layer, tuple(weight_of(model, layer).shape))
    stack = Stack([Entry(path, STRENGTH)])
    # in data parallel, each process has a batch of its own, and gradients are averaged
    shares = 1 if wrap in (_columns, _rows) else mesh.size()
    batches = [x if layer == "embedding" else x * (1 + place) for place in range(shares)]
    wanted = [defined(model, layer, sample, tensors, batch) for batch in batches]
    place = mesh.get_rank() % shares
    want, grads = wanted[place]
    mean = {name: torch.stack([one[name] for _, one in wanted]).mean(0) for name in grads}
    model.requires_grad_()
    x = batches[place].detach().clone().requires_grad_(x.is_floating_point())
    engine = Engine({"unet": model})
    try:
        if is_first:
            engine.activate(stack)
        wrapped = wrap(model, mesh)
        if not is_first:
            engine.components = {"unet": wrapped}
            engine.activate(stack)
        if wrap is _fsdp2:  # its weights are other objects in the second call
            wrapped(batches[place]).square().sum().backward()
            model.zero_grad()
        y = wrapped(x)
        y.square().sum().backward()
        wrong = differences(model, x, y, want, {**mean, "x": grads["x"]} if "x" in grads else mean)
        with torch.no_grad():
            wrapped(x)  # after which FSDP2 leaves the root its whole weights
            if wrap is not _ddp and engine.activate(replace(stack, mode="merged")).merged:
                wrong.append("merged")
            engine.set_multiplier(0, 0.0)
            off = wrapped(x)
            engine.deactivate()
            if worst(off, wrapped(x)) > FILE:
                wrong.append("strength 0")
        return ", ".join(wrong)
    except Exception as error:  # noqa: BLE001  # a report to the other process
        return f"{type(error).__name__}: {error}"
    finally:
        engine.close()
