"""SD.Next's own LoRA in small: what it leaves on layers and on the pipeline, and how it takes that off again.

A network adds one number to each weight of the linear layers.

Source: vladmandic/sdnext, modules/lora at 058a7f0 for `OwnLora`. For `LaterLora`, of August 2026 and later: `networks`,
`lora_sdnq`, `lora_mask` and `extra_networks_lora` at c5f2dc2, `lora_stack` at 0b64697, `network_pdd` at 059ccba. None
of these calls `network_pdd.reconcile`; here the handler of tags does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

BASE_OF_SVD = "sdnq_lora_svd_stash"


def network(name: str, amount: float, **more: Any) -> Any:
    """Return a network of the built-in: `masked` has hooks, `heads` has an output layer for each step."""
    return SimpleNamespace(name=name, amount=amount, **{"masked": False, "heads": (), **more})


class OwnLora:
    """Bakes by adding: without a copy, which is undone by subtracting, or from a copy."""

    walked: ClassVar[tuple[str, ...]] = (
        *("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4"),
        *("unet", "transformer", "transformer_2", "llm_adapter"),
    )
    subtracted: ClassVar[tuple[str, ...]] = (
        *("text_encoder", "text_encoder_2", "text_encoder_3", "unet", "transformer", "llm_adapter"),
    )

    def __init__(self, web: Any) -> None:
        self.web = web

    def modules(self) -> dict[str, dict[str, Any]]:
        """Return its modules by name, each with its functions."""
        return {
            "lora.lora_common": {"loaded_networks": [], "previously_loaded_networks": []},
            "lora.lora_apply": {"network_apply_weights": self.apply_weights},
            "lora.networks": {
                "default_components": list(self.walked),
                "network_deactivate": self.deactivate,
                "network_activate": self.activate,
            },
            "lora.lora_load": {"lora_cache": {}},
            "lora.lora_diffusers": {"diffuser_loaded": [], "diffuser_scales": []},
            "lora.extra_networks_lora": {"unload_diffusers": lambda: None},
        }

    @property
    def common(self) -> Any:
        return self.web.modules["modules.lora.lora_common"]

    def layers(self, names: Any) -> Iterator[tuple[Any, torch.device]]:
        for name in names:
            part = getattr(self.web.data.sd_model, name, None)
            if part is not None:
                device = part.device  # diffusers looks for hooks in all modules each time
                yield from ((layer, device) for layer in part.modules() if isinstance(layer, nn.Linear))

    def serve(self, *networks: Any) -> None:
        """Apply networks in place of the present ones, as when a picture with their tags begins."""
        common = self.common
        common.loaded_networks = list(networks)
        self.deactivate()
        self.activate()
        common.previously_loaded_networks = list(networks)

    def fuses(self) -> bool:
        return bool(self.web.opts.lora_fuse_native)

    def deactivate(self, include: Any = None, exclude: Any = None) -> None:
        before = self.common.previously_loaded_networks
        if not self.fuses() or not before:
            return
        for layer, _ in self.layers(include or self.subtracted):
            if not self.remove_beside(layer) and getattr(layer, "network_weights_backup", None) is not None:
                _add(layer, -sum(one.amount for one in before))
            layer.network_current_names = ()

    def activate(self, include: Any = None, exclude: Any = None) -> None:
        loaded = self.common.loaded_networks
        wanted, fuse = tuple((one.name, one.amount) for one in loaded), self.fuses()
        for layer, device in self.layers(include or self.walked):
            if getattr(layer, "network_current_names", ()) == wanted:
                continue
            if not self.put_beside(layer, loaded):
                self.weight_path(layer, loaded, fuse, device)
            layer.network_current_names = wanted

    def weight_path(self, layer: Any, loaded: list[Any], fuse: bool, device: torch.device) -> None:
        copy = getattr(layer, "network_weights_backup", None)
        if loaded and (copy is None or isinstance(copy, bool) is not fuse):  # none yet, or of the other setting
            layer.network_weights_backup = True if fuse else layer.weight.detach().clone()
        elif not loaded and not isinstance(copy, Tensor):
            return
        if not fuse:
            self.apply_weights(layer, sum(one.amount for one in loaded) if loaded else None, None, device)
        elif loaded:
            _add(layer, sum(one.amount for one in loaded))

    @staticmethod
    def apply_weights(layer: Any, updown: float | None, ex_bias: Any, device: Any, deactivate: bool = False) -> None:
        """Set a layer's weight to its copy plus a difference."""
        copy = getattr(layer, "network_weights_backup", None)
        if isinstance(copy, Tensor):
            layer.weight = nn.Parameter(copy.to(device, copy=True), requires_grad=False)
            _add(layer, updown or 0)

    def put_beside(self, layer: Any, loaded: list[Any]) -> bool:
        """Tell whether the layer's weight stays as it is."""
        return False

    def remove_beside(self, layer: Any) -> bool:
        """Tell whether there was something to remove beside the layer's weight."""
        return False

    def after_step(self, step: int) -> None:
        """Do what the callback of each step does."""


class LaterLora(OwnLora):
    """Puts factors beside SDNQ's weights, exchanges the networks of a layer at a step, hooks masks, replaces heads."""

    walked: ClassVar[tuple[str, ...]] = (*OwnLora.walked[:-1], "transformer_ref", "llm_adapter")
    subtracted: ClassVar[tuple[str, ...]] = walked

    def __init__(self, web: Any) -> None:
        super().__init__(web)
        self.handles: list[Any] = []
        self.scheduled: dict[Any, list[Any]] = {}
        """Layers that are exchanged at a step, and both networks."""

    def modules(self) -> dict[str, dict[str, Any]]:
        return {
            **super().modules(),
            "lora.lora_mask": {"remove": self.unmask},
            "lora.lora_stack": {"clear": self.scheduled.clear},
            "lora.network_pdd": {"restore": _restore_heads},
        }

    def fuses(self) -> bool:
        quantized = any(hasattr(layer, "sdnq_dequantizer") for layer, _ in self.layers(self.walked))
        return super().fuses() and not (self.selects() or self.scheduled or quantized)

    def selects(self) -> bool:
        """Tell whether each layer has one of two networks, the second from some step on."""
        return len(self.common.loaded_networks) == 2 and self.web.opts.data.get("lora_stack_mode") == "klora"

    def serve(self, *networks: Any) -> None:
        super().serve(*networks)
        for one in (one for one in networks if one.masked):
            for layer, _ in self.layers(["unet"]):
                self.handles.append(layer.register_forward_hook(lambda layer, x, y, size=one.amount: y - size))
        _restore_heads(self.web.data.sd_model)
        for one in (one for one in networks if one.heads):
            _install_heads(self.web.data.sd_model, one.heads)

    def deactivate(self, include: Any = None, exclude: Any = None) -> None:
        self.unmask()
        super().deactivate(include, exclude)

    def activate(self, include: Any = None, exclude: Any = None) -> None:
        self.unmask()
        super().activate(include, exclude)

    def unmask(self) -> None:
        while self.handles:
            self.handles.pop().remove()

    def weight_path(self, layer: Any, loaded: list[Any], fuse: bool, device: torch.device) -> None:
        self.scheduled.pop(layer, None)
        both = self.selects()
        super().weight_path(layer, loaded[:1] if both else loaded, fuse, device)
        if both:
            self.scheduled[layer] = loaded

    def after_step(self, step: int) -> None:
        for layer, (first, second) in self.scheduled.items():
            self.apply_weights(layer, second.amount if step else first.amount, None, layer.weight.device)

    def put_beside(self, layer: Any, loaded: list[Any]) -> bool:
        if not hasattr(layer, "sdnq_dequantizer"):
            return False
        removed = self.remove_beside(layer)
        if loaded:
            setattr(layer, BASE_OF_SVD, (layer.svd_up, layer.svd_down))
            amounts = torch.tensor([[one.amount for one in loaded]])
            layer.svd_up = nn.Parameter(amounts.expand(layer.out_features, -1), requires_grad=False)
            layer.svd_down = nn.Parameter(torch.ones(len(loaded), layer.in_features), requires_grad=False)
            layer.sdnq_lora_segments = {one.name: (i, i + 1, "exact") for i, one in enumerate(loaded)}
        return removed or bool(loaded)

    def remove_beside(self, layer: Any) -> bool:
        if not hasattr(layer, BASE_OF_SVD):
            return False
        layer.svd_up, layer.svd_down = getattr(layer, BASE_OF_SVD)
        delattr(layer, BASE_OF_SVD)
        layer.sdnq_lora_segments = {}
        return True


class SDNQLinear(nn.Linear):
    """A layer whose weight is read with a correction of low rank, as SDNQ's; the weight itself is not packed here."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features, bias=like.bias is not None)
        self.load_state_dict(like.state_dict())
        self.requires_grad_(False)
        self.svd_up: nn.Parameter | None = None
        self.svd_down: nn.Parameter | None = None

    def sdnq_dequantizer(self, weight: Tensor, svd_up: Any = None, svd_down: Any = None) -> Tensor:
        return weight if svd_up is None else weight + svd_up @ svd_down

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.sdnq_dequantizer(self.weight, self.svd_up, self.svd_down), self.bias)


class ParallelHead(nn.Module):
    """An output layer that is another one at each step; it holds the model's own outside the tree."""

    def __init__(self, base: nn.Module, heads: tuple[Callable[[Tensor], Tensor], ...], scheduler: Any) -> None:
        super().__init__()
        object.__setattr__(self, "base", base)
        self.heads, self.scheduler = heads, scheduler

    def forward(self, x: Tensor) -> Tensor:
        step = getattr(self.scheduler, "step_index", None) or 0
        return self.heads[min(step, len(self.heads) - 1)](self.base(x))


def _install_heads(pipe: Any, heads: tuple[Callable[[Tensor], Tensor], ...]) -> None:
    """Replace the UNet's last layer, and the values of a parameter before it."""
    norm, own = pipe.unet.conv_norm_out.weight, pipe.unet.conv_out
    pipe.unet.conv_out = ParallelHead(own, heads, pipe.scheduler)
    pipe.sdnext_pdd = own, norm.data
    norm.data = norm.data * 1.5


def _restore_heads(pipe: Any) -> bool:
    if not hasattr(pipe, "sdnext_pdd"):
        return False
    pipe.unet.conv_out, pipe.unet.conv_norm_out.weight.data = pipe.sdnext_pdd
    del pipe.sdnext_pdd
    return True


def _add(layer: Any, amount: float) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() + amount, requires_grad=False)
