"""A1111's built-in Lora extension: module `networks`, its patches of torch's classes, and what its script registers.

Source: AUTOMATIC1111/stable-diffusion-webui at 82a973c, `extensions-builtin/Lora` and `modules/patches.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from .extra_networks import ExtraNetwork


def make_patches() -> ModuleType:
    """`modules.patches`: remembers what a class had, refuses to patch twice or to undo what is not patched."""
    module = ModuleType("modules.patches")
    originals: dict[str, dict[Any, Any]] = {}

    def patch(key: str, obj: type, field: str, replacement: Any) -> Any:
        own = originals.setdefault(key, {})
        if (obj, field) in own:
            raise RuntimeError(f"patch for {field} is already applied")
        own[obj, field] = getattr(obj, field)
        setattr(obj, field, replacement)
        return own[obj, field]

    def undo(key: str, obj: type, field: str) -> None:
        setattr(obj, field, originals[key].pop((obj, field)))

    vars(module).update(originals=originals, patch=patch, undo=undo)
    return module


def make_networks(host: Any, loras: Path) -> ModuleType:
    """Return the module with one layer class, which is enough to see its patches and its merging."""
    module = ModuleType("networks")
    patches = host.patches

    class LoraPatches:
        def __init__(self) -> None:
            self.Linear_forward = patches.patch("tests.lora_patches", nn.Linear, "forward", forward)
            self.Linear_load_state_dict = patches.patch("tests.lora_patches", nn.Linear, "_load_from_state_dict", load)

        def undo(self) -> None:
            self.Linear_forward = patches.undo("tests.lora_patches", nn.Linear, "forward")
            self.Linear_load_state_dict = patches.undo("tests.lora_patches", nn.Linear, "_load_from_state_dict")

    LoraPatches.__module__ = "tests.lora_patches"

    def apply_weights(layer: Any) -> None:
        if getattr(layer, "network_layer_name", None) is None:
            return
        wanted = tuple((net.name, net.multiplier) for net in module.loaded_networks)
        current = getattr(layer, "network_current_names", ())
        if wanted and getattr(layer, "network_weights_backup", None) is None:
            if current:
                raise RuntimeError("no backup weights found and current weights are not unchanged")
            module.backups += 1
            layer.network_weights_backup = layer.weight.detach().clone()
            layer.network_bias_backup = None if layer.bias is None else layer.bias.detach().clone()
        if current == wanted:
            return
        restore(layer)
        with torch.no_grad():
            for net in module.loaded_networks:
                delta = net.deltas.get(layer.network_layer_name)
                if delta is not None:
                    layer.weight += net.multiplier * delta
        layer.network_current_names = wanted

    def restore(layer: Any) -> None:
        weight, bias = (getattr(layer, f"network_{name}_backup", None) for name in ("weights", "bias"))
        if weight is None and bias is None:
            return
        with torch.no_grad():
            layer.weight.copy_(weight)
            if bias is None:
                layer.bias = None  # as if the layer had none
            else:
                layer.bias.copy_(bias)

    def forward(self: Any, x: Tensor) -> Tensor:
        apply_weights(self)
        return module.originals.Linear_forward(self, x)

    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.network_current_names, self.network_weights_backup, self.network_bias_backup = (), None, None
        return module.originals.Linear_load_state_dict(self, *args, **kwargs)

    def assign(model: Any) -> None:
        for part in (model.model, model.cond_stage_model.wrapped):
            for name, layer in part.named_modules():
                layer.network_layer_name = name.replace(".", "_")

    def load_networks(names: list[str], multipliers: list[float] | None = None) -> None:
        module.loaded_networks.clear()
        for i, name in enumerate(names):
            deltas = _deltas(loras / f"{name}.safetensors")
            net = SimpleNamespace(name=name, multiplier=(multipliers or [])[i], deltas=deltas)
            module.networks_in_memory[name] = net
            module.loaded_networks.append(net)

    mine = {function.__name__: _inside(function, module) for function in (forward, load, restore)}
    forward, load = mine["forward"], mine["load"]
    vars(module).update(
        LoraPatches=LoraPatches,
        originals=None,
        loaded_networks=[],
        networks_in_memory={},
        backups=0,
        load_networks=load_networks,
        network_restore_weights_from_backup=mine["restore"],
        assign_network_names_to_compvis_modules=assign,
    )
    return module


def _inside(function: FunctionType, module: ModuleType) -> FunctionType:
    """Return the function as if the module had defined it."""
    vars(module)[function.__name__] = function
    made = FunctionType(function.__code__, vars(module), function.__name__, function.__defaults__, function.__closure__)
    vars(module).update(torch=torch, Any=Any)
    return made


def _deltas(path: Path) -> dict[str, Tensor]:
    names = {"lora_unet": "diffusion_model", "lora_te_text_model": "transformer_text_model"}
    tensors, found = safetensors.torch.load_file(path), {}
    for key in tensors:
        if key.endswith(".lora_up.weight"):
            name = key.removesuffix(".lora_up.weight")
            up, down = tensors[key], tensors[f"{name}.lora_down.weight"]
            for theirs, ours in names.items():
                if name.startswith(theirs):
                    found[ours + name.removeprefix(theirs)] = up @ down  # alpha is the rank in these tests
    return found


def run_script(host: Any, loras: Path) -> None:
    """Do what `lora_script.py` does each time scripts are loaded; the module that it imports stays."""
    networks = sys.modules.get("networks") or make_networks(host, loras)
    sys.modules["networks"] = networks
    networks.originals = networks.LoraPatches()

    class ExtraNetworkLora(ExtraNetwork):
        def __init__(self) -> None:
            super().__init__("lora")

        def activate(self, p: Any, params_list: list[Any]) -> None:
            names = [params.items[0] for params in params_list]
            networks.load_networks(names, [float(params.items[1]) for params in params_list])

        def deactivate(self, p: Any) -> None:
            """Nothing: what is loaded stays merged until the next call."""

    def before_ui() -> None:
        network = ExtraNetworkLora()
        host.extra_networks.register_extra_network(network)
        host.extra_networks.register_extra_network_alias(network, "lyco")

    def pasted(infotext: str, params: dict[str, str]) -> None:
        params["Prompt"] += " (the built-in was here)"

    own = {"networks": networks}
    pasted = FunctionType(pasted.__code__, {**own, "__builtins__": __builtins__}, "infotext_pasted")
    add = host.callbacks
    add.on_model_loaded(networks.assign_network_names_to_compvis_modules)
    add.on_script_unloaded(lambda: networks.originals.undo())
    add.on_before_ui(before_ui)
    add.on_infotext_pasted(pasted)
