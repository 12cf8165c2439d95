"""Every way in which hosts move a model about, on any device: what users switch on under the name of offloading.

Each scheme is a context manager around a UNet: it attaches the real hooks of accelerate or diffusers (or our
re-creation of a web UI's own), and takes them off again. A UNet inside is called with inputs on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from accelerate import cpu_offload, cpu_offload_with_hook, dispatch_model
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from diffusers.hooks import HookRegistry, apply_group_offloading
from torch import Tensor, nn

CPU = torch.device("cpu")

Scheme = Callable[[nn.Module, torch.device], AbstractContextManager[None]]


@contextmanager
def resident(unet: nn.Module, where: torch.device) -> Iterator[None]:
    """No offloading: there with `.to()`, and back."""
    unet.to(where)
    yield
    unet.to(CPU)


@contextmanager
def model_offload(unet: nn.Module, where: torch.device) -> Iterator[None]:
    """diffusers' `enable_model_cpu_offload`: the whole component goes over when it is called."""
    _, hook = cpu_offload_with_hook(unet, where)
    yield
    hook.offload()
    hook.remove()


@contextmanager
def sequential_offload(unet: nn.Module, where: torch.device) -> Iterator[None]:
    """diffusers' `enable_sequential_cpu_offload`: outside a leaf's own call its parameters are on meta."""
    cpu_offload(unet, where)
    yield
    remove_hook_from_module(unet, recurse=True)


@contextmanager
def group_offload(unet: nn.Module, where: torch.device, level: str, *, stream: bool = False) -> Iterator[None]:
    """diffusers' `enable_group_offload`: `param.data` is swapped, and `.to()` called on the way back."""
    blocks = 1 if level == "block_level" else None
    apply_group_offloading(unet, where, CPU, level, num_blocks_per_group=blocks, use_stream=stream)
    yield
    for name in ("lazy_prefetch_group_offloading", "layer_execution_tracker", "group_offloading"):
        HookRegistry.check_if_exists_or_initialize(unet).remove_hook(name, recurse=True)
    unet.to(CPU)


@contextmanager
def lowvram(unet: nn.Module, where: torch.device) -> Iterator[None]:
    """A1111's `--lowvram`: forward pre-hooks fetch a block and send away the one before; the rest stays there."""
    here: list[nn.Module] = []

    def fetch(module: nn.Module, _: object) -> None:
        if here and here[0] is module:
            return
        for previous in here:
            previous.to(CPU)
        here[:] = [module.to(where)]

    blocks = [unet.time_embedding, *unet.down_blocks, unet.mid_block, *unet.up_blocks]
    unet.to(where)
    for block in blocks:
        block.to(CPU)
    handles = [block.register_forward_pre_hook(fetch) for block in blocks]
    yield
    for handle in handles:
        handle.remove()
    unet.to(CPU)


@contextmanager
def dispatched(unet: nn.Module, *devices: torch.device | str, offload_dir: str | None = None) -> Iterator[None]:
    """accelerate's `device_map`: children are dealt out; what goes to "cpu" is spilled, so on meta between calls.

    What goes to "disk" is written to `offload_dir`.
    """
    layout = dealt_out(unet, devices)
    dispatch_model(unet, layout, main_device=devices[0], force_hooks=True, offload_dir=offload_dir)
    yield
    remove_hook_from_module(unet, recurse=True)
    unet.to(CPU)


def dealt_out(unet: nn.Module, devices: tuple[torch.device | str, ...]) -> dict[str, torch.device | str]:
    """Make a device map that cuts a model into stretches, one per device."""
    names = [name for name, child in unet.named_children() if any(True for _ in child.parameters())]
    blocks = [
        f"{name}.{i}" if isinstance(child, nn.ModuleList) else name
        for name in names
        for child in [unet.get_submodule(name)]
        for i in range(len(child) if isinstance(child, nn.ModuleList) else 1)
    ]
    return {name: devices[i * len(devices) // len(blocks)] for i, name in enumerate(blocks)}


class Balanced:
    """SD.Next's balanced mode: hooks are torn off and put on again each time another component starts.

    Nothing of a component's hooks survives a change of component: all are removed, the component goes to the CPU and
    gets one hook, and that one, when the component is called, dispatches it anew with a hook on every leaf.
    """

    def __init__(self, components: dict[str, nn.Module], where: torch.device, *, spill: bool) -> None:
        self.components = components
        self.where = where
        self.maps = {name: self._map(module, spill=spill) for name, module in components.items()}
        for name in components:
            self.rest(name)

    def rest(self, name: str) -> None:
        """Take every hook off, send the component away, and wait for its next call."""
        module = remove_hook_from_module(self.components[name], recurse=True)
        add_hook_to_module(module.to(CPU), _BalancedHook(self, name))

    def start(self, name: str) -> None:
        for other in self.components:
            if other != name:
                self.rest(other)
        dispatch_model(self.components[name], self.maps[name], main_device=self.where, force_hooks=True)

    def stop(self) -> None:
        for module in self.components.values():
            remove_hook_from_module(module, recurse=True).to(CPU)

    def _map(self, module: nn.Module, *, spill: bool) -> dict[str, torch.device | str]:
        if spill and hasattr(module, "up_blocks"):  # the end of a large component, beyond the high watermark
            return dealt_out(module, (self.where, self.where, "cpu"))
        return {"": self.where}


class _BalancedHook(ModelHook):
    def __init__(self, mode: Balanced, name: str) -> None:
        self.mode = mode
        self.name = name

    def pre_forward(
        self, module: nn.Module, *args: object, **kwargs: object
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        self.mode.start(self.name)
        return args, kwargs


@contextmanager
def balanced(unet: nn.Module, where: torch.device, *, spill: bool) -> Iterator[None]:
    """SD.Next's balanced mode around a UNet alone."""
    mode = Balanced({"unet": unet}, where, spill=spill)
    yield
    mode.stop()


@contextmanager
def manual_cast(dtype: torch.dtype) -> Iterator[None]:
    """A1111's `manual_cast`, for fp8 storage and old cards: class forwards cast the layer there and back per call."""
    found = {cls: cls.forward for cls in (nn.Linear, nn.Conv2d)}

    def casting(cls: type[nn.Module]) -> Callable[..., Tensor]:
        def forward(self: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
            storage = self.weight.dtype
            self.to(dtype)
            y: Tensor = found[cls](self, x.to(dtype))
            self.to(storage)
            return y

        return forward

    for cls in found:
        cls.forward = casting(cls)
    try:
        yield
    finally:
        for cls, forward in found.items():
            cls.forward = forward


SCHEMES: dict[str, Scheme] = {
    "resident": resident,
    "model": model_offload,
    "sequential": sequential_offload,
    "group-block": partial(group_offload, level="block_level"),
    "group-leaf": partial(group_offload, level="leaf_level"),
    "lowvram": lowvram,
    "dispatched": dispatched,
    "dispatched-spilled": lambda unet, where: dispatched(unet, where, "cpu"),
    "balanced": partial(balanced, spill=False),
    "balanced-spilled": partial(balanced, spill=True),
}
"""Those that leave the numbers as they are, on one device."""

STREAMING: dict[str, Scheme] = {
    "group-block-streams": partial(group_offload, level="block_level", stream=True),
    "group-leaf-streams": partial(group_offload, level="leaf_level", stream=True),
}
"""Those that need streams, so hardware."""


def call(unet: nn.Module, inputs: dict[str, object], where: torch.device = CPU) -> Tensor:
    """Call a UNet once, with its inputs where a pipeline would have put them; the result is on the CPU."""
    moved = {name: value.to(where) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    output: Tensor = unet(**moved)[0]
    return output.to(CPU)
