"""(IA)^3: a scale of a layer's inputs or outputs, channel by channel, https://arxiv.org/abs/2205.05638.

LyCORIS: W' = W * (1 + m w). `weight` is (channels,), on a convolution (1, channels, 1, ...); `on_input` says which
channels. The bias is left alone since 2024-05-25; before, it was the layer's output that was scaled, bias and all,
which only the file's date tells. Source: LyCORIS modules/ia3.py.

PEFT: x * l of feed-forward layers, y * l of others. `ia3_l` begins at 1. It is (1, in) or (out, 1) on linear layers; on
convolutions (1, channels, 1, ...) for both, which only their number tells, or `feedforward_modules` of the
configuration: ends of names, or a pattern of whole names. The output is scaled with its bias. PEFT has no multiplier:
it lerps l to 1. Source: huggingface/peft tuners/ia3/layer.py.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timezone

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..files.formats import Table, read_pattern
from ..tensors import wide
from ._operation import Operation
from ._rows import number, placed, taken, unfit
from ._trainer import trained_within
from .base import Adapter, At, Form, InputEffect, Origin, OutputEffect, Params, Proportional, Rows, Site, Tensors

_WITH_BIAS = (datetime(2023, 1, 1, tzinfo=timezone.utc), datetime(2024, 5, 25, tzinfo=timezone.utc))


@dataclass(frozen=True, slots=True)
class ScaledInput(InputEffect):
    """The change of x by a scale of 1 + excess."""

    excess: Tensor  # (in,)

    def delta(self, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return x * (op.per_channel(self.excess) * multiplier)

    def added(self, total: Tensor, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return torch.addcmul(total, x, op.per_channel(self.excess) * multiplier)


@dataclass(frozen=True, slots=True)
class ScaledOutput(OutputEffect):
    """The change of y by a scale of 1 + excess, with the bias or without."""

    excess: Tensor  # (out,)
    with_bias: bool = False

    @property
    def reads_bias(self) -> bool:
        return self.with_bias

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return y * (op.per_channel(self.excess) * multiplier)

    def added(self, total: Tensor, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return torch.addcmul(total, y, op.per_channel(self.excess) * multiplier)


@dataclass(frozen=True, slots=True, eq=False)
class _Scale(Proportional):
    """W' = W * (1 + m e), along the inputs or the outputs; b' = b * (1 + m e) where the bias is meant too."""

    excess: Tensor  # e, (in,), (groups * in / groups,) or (out,)
    on_input: bool
    with_bias: bool
    site: Site

    reads_base = widens_base = by_rows = True

    @property
    def bias_excess(self) -> Tensor | None:
        return self.excess if self.with_bias else None

    def take(self, rows: Rows) -> Self | None:
        if self.on_input and self.excess.numel() != self.site.shape[1]:
            return None  # which inputs are an output's depends on its group
        excess = self.excess if self.on_input else taken(self.excess, rows)
        return replace(self, excess=excess, site=self.site.take(rows))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        shape = at.base.shape
        excess = at.put(self.excess)
        rows = slice(None) if at.rows is None else slice(*at.rows)
        if not self.on_input:
            factor = excess[rows].unsqueeze(1)
        elif excess.numel() == shape[1]:
            factor = excess.unsqueeze(0)
        else:  # each group of outputs has inputs of its own
            groups = self.site.groups
            factor = excess.view(groups, -1).repeat_interleave(self.site.shape[0] // groups, 0)[rows]
        return at.base * factor.reshape(*factor.shape, *(1,) * (len(shape) - 2)), at.multiplier

    def form(self, rank: int | None = None) -> Form:
        return Form(on_input=self.on_input, on_output=not self.on_input)

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        return ScaledInput(placed(self.excess, device, dtype))

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return ScaledOutput(placed(self.excess, device, dtype), self.with_bias)


class IA3(_Scale):
    name = "ia3"
    params = Params(frozenset({"weight", "on_input"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        on_input = bool(number(params, "on_input"))
        with_bias = not on_input and trained_within(origin, _WITH_BIAS)
        return cls(_checked(params["weight"], site, "weight", on_input=on_input), on_input, with_bias, site)


class PeftIA3(_Scale):
    name = "peft_ia3"
    params = Params(frozenset({"ia3_l"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        vector = params["ia3_l"]
        on_input = _on_input(vector, site, origin)
        vector = _checked(vector, site, "ia3_l", on_input=on_input)
        return cls(vector - 1, on_input, not on_input, site)


def _on_input(vector: Tensor, site: Site, origin: Origin) -> bool:
    """Return whether a vector scales the inputs; raise UnsupportedError if it may scale either, and nothing tells."""
    if vector.ndim == 2 and site.shape[0] != 1:
        return vector.shape[0] == 1
    inputs = {site.shape[1], site.groups * site.shape[1]}
    if vector.numel() not in inputs or vector.numel() != site.shape[0]:
        return vector.numel() in inputs
    said = origin.config.get("feedforward_modules")
    if not isinstance(said, str | list):
        raise UnsupportedError(
            "of (IA)^3 on a layer with as many inputs as outputs, and only adapter_config.json tells which it scales: "
            "keep it beside the file, which must be called adapter_model.safetensors"
        )
    if isinstance(said, list):
        return any(origin.module.endswith(str(one)) for one in said)
    if read_pattern(said) is None:
        raise UnsupportedError("of (IA)^3 with a pattern of feedforward_modules that is not understood")
    return Table([(f"^{said.removeprefix('^')}", True)]).value(origin.module) is not None


def _checked(vector: Tensor, site: Site, name: str, *, on_input: bool) -> Tensor:
    """Return a vector over the inputs or the outputs in fp32 or better; raise ValueError if it has another length."""
    wants = {site.shape[1], site.groups * site.shape[1]} if on_input else {site.shape[0]}
    if vector.numel() not in wants:
        raise unfit(f"{name} of {' or '.join(map(str, sorted(wants)))}", vector)
    return vector.reshape(-1).to(wide(vector.dtype))
