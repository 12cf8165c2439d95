"""Inputs that are no plain tensors: a layer with adapters computes with the plain tensors in them.

A DTensor's numbers lie on several processes, as tensor parallel has them. Its layer gets the whole input, and returns
the whole output as a DTensor, from which torch's own hook takes its part. With adapters beside the layer, the
processes share the layer's own product; an effective weight is built of the whole weight in each of them.

A jagged tensor is a batch of sequences of unlike lengths, which follow each other in one tensor. It is taken for one
row, so sequences cannot have strengths of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..compiler import uncompiled
from .arguments import Args, BaseForward, Kwargs

if TYPE_CHECKING:
    from ..placement.resident import Resident

_JAGGED = getattr(torch, "jagged", None)


def is_wrapped(x: object) -> bool:
    """Tell whether an input is one of these; asked of those that are no plain tensors."""
    return isinstance(x, Tensor) and (x.layout is _JAGGED or hasattr(x, "full_tensor"))


def plain_part(x: Any) -> Tensor:
    """Return the plain tensor in one of these: all of a jagged one, and this process's part of a DTensor."""
    part: Tensor = x.values() if x.layout is _JAGGED else x.to_local()
    return part


@uncompiled
def run_unwrapped(
    executor: Resident[Any], layer: nn.Module, base_forward: BaseForward, args: Args, kwargs: Kwargs
) -> Any:
    """Compute a layer's forward with its adapters; the first of `args` is its input, one of these."""
    x, *others = args
    if x.layout is _JAGGED:
        y = executor.run(layer, base_forward, (x.values().unsqueeze(0), *others), kwargs)
        return torch.nested.nested_tensor_from_jagged(y.squeeze(0), x.offsets(), x.lengths(), jagged_dim=x._ragged_idx)
    from torch.distributed.tensor import DTensor, Replicate

    from .dense import DenseExecutor, with_parameters

    mesh, everywhere, own = x.device_mesh, [Replicate()] * x.device_mesh.ndim, dict(layer.named_parameters())
    placements = [one if one.is_shard() else Replicate() for one in x.placements]
    is_dense = isinstance(executor, DenseExecutor)

    def shared(_: nn.Module, whole: Tensor) -> Tensor:
        part = DTensor.from_local(whole, mesh, everywhere, run_check=False).redistribute(placements=placements)
        product: Tensor = base_forward(layer, part, *others, **kwargs).full_tensor()
        return product

    # beside the layer, only the bias is read: effects of the output take it off, and add it again
    parts = {name: one for name, one in own.items() if isinstance(one, DTensor) and (is_dense or name == "bias")}
    whole = with_parameters(layer, {name: one.full_tensor() for name, one in parts.items()}) or layer
    if is_dense:
        y = executor.run(whole, base_forward, (x.full_tensor(), *others), kwargs)
    else:
        y = executor.run(whole, shared, (x.full_tensor(),), {})
    return DTensor.from_local(y, mesh, everywhere, run_check=False)
