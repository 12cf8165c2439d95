"""(IA)^3 as PEFT trains it, https://arxiv.org/abs/2205.05638: x * l of feed-forward layers, y * l of others.

`ia3_l` begins at 1. It is (1, in) or (out, 1) on linear layers; on convolutions (1, channels, 1, ...) for both, which
only their number tells, and as many inputs as outputs are taken for outputs unless the configuration names no other
layers than feed-forward ones. The output is scaled with its bias. PEFT has no multiplier: it lerps l to 1. Source:
huggingface/peft tuners/ia3/layer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from ._scale import Scale, check_channels
from .base import Origin, Params, Site


class PeftIA3(Scale):
    """A learned scale."""

    __slots__ = ()

    name: ClassVar[str] = "peft_ia3"
    params: ClassVar[Params] = Params(frozenset({"ia3_l"}))

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        vector = params["ia3_l"]
        on_input = _on_input(vector, site, origin.config)
        vector = check_channels(vector, site, "ia3_l", on_input=on_input)
        return cls(vector, one=1.0, on_input=on_input, with_bias=not on_input, site=site)


def _on_input(vector: Tensor, site: Site, config: Mapping[str, object]) -> bool:
    if vector.ndim == 2:
        return vector.shape[0] == 1 and site.shape[0] != 1
    if vector.numel() != site.shape[0]:
        return True
    wanted, inputs = config.get("target_modules"), config.get("feedforward_modules")
    return bool(inputs) and wanted == inputs and vector.numel() == site.groups * site.shape[1]
