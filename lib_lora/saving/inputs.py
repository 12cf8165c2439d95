"""Inputs of layers, taken while pictures are made: an error counts by what it does to the outputs of its layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from weakref import ref

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from ..errors import check_count
from ..naming.index import check_named

_AT_ONCE = 4  # inputs of a call


class InputSamples:
    """Some inputs of each linear layer and 2D convolution, drawn from all calls inside a `with` block.

        with InputSamples({"unet": pipe.unet}) as inputs:
            pipe("a prompt")
        saved = engine.save("small.safetensors", rank=8, inputs=inputs)

    Args:
        components: of the model, as of `Engine`.
        count: how many inputs of a layer are kept.
        seed: of the choice.

    Raises:
        ComponentError: `components` are no modules.
        ArgumentError: a number is none.
    """

    def __init__(self, components: Mapping[str, nn.Module], count: int = 64, seed: int = 0) -> None:
        check_named(components, "InputSamples({})")
        check_count(count, "count")
        check_count(seed, "seed")
        self._components = {name: ref(root) for name, root in components.items()}  # the model may be unloaded
        self._count = max(count, 1)
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: dict[tuple[str, str], list[Tensor]] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for component, known in self._components.items():
            root = known()
            for path, layer in () if root is None else root.named_modules():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    take = partial(self._take, (component, path))
                    self._handles.append(layer.register_forward_pre_hook(take))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        while self._handles:
            self._handles.pop().remove()

    def of(self, component: str, path: str) -> Tensor | None:
        """Return inputs of a layer as columns (in * kernel, n) in fp64; None where it was not called."""
        kept = self._kept.get((component, path))
        return torch.stack(kept, 1).double() if kept else None

    def _take(self, place: tuple[str, str], layer: nn.Module, args: tuple[object, ...]) -> None:
        """Keep each input of a layer with the same probability."""
        x = args[0] if args else None
        if not isinstance(x, Tensor) or not x.numel():
            return
        with torch.no_grad():
            found = self._patches(layer, x) if isinstance(layer, nn.Conv2d) else self._rows(x)
        kept = self._kept.setdefault(place, [])
        for one in found:
            self._seen[place] = seen = self._seen.get(place, 0) + 1
            if len(kept) < self._count:
                kept.append(one)
            elif (number := self._draw(seen)) < self._count:
                kept[number] = one

    def _draw(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self._generator))

    def _rows(self, x: Tensor) -> list[Tensor]:
        rows = x.detach().reshape(-1, x.shape[-1])
        return list(rows[[self._draw(len(rows)) for _ in range(_AT_ONCE)]].float().cpu())

    def _patches(self, layer: nn.Conv2d, x: Tensor) -> list[Tensor]:
        """Return what the kernel lies on at some places."""
        images = x.detach() if x.ndim > 3 else x.detach().unsqueeze(0)
        sides = layer._reversed_padding_repeated_twice
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        spans = [gap * (size - 1) + 1 for gap, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        found = []
        for _ in range(_AT_ONCE):
            image = F.pad(images[self._draw(len(images))].unsqueeze(0), sides, mode=mode)
            windows: list[slice] = []
            for size, span, stride, gap in zip(image.shape[2:], spans, layer.stride, layer.dilation, strict=True):
                first = stride * self._draw(max((size - span) // stride + 1, 1))
                windows.append(slice(first, first + span, gap))
            rows, columns = windows
            found.append(image[0, :, rows, columns].flatten().float().cpu())
        return found
