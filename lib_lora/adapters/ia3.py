"""(IA)^3 as LyCORIS trains it, https://arxiv.org/abs/2205.05638: W' = W * (1 + m w), along inputs or outputs.

`weight` is (channels,), on a convolution (1, channels, 1, ...); `on_input` says which channels. The bias is left alone
since 2024-05-25; before, it was the layer's output that was scaled, bias and all, which only the file's date tells.
Source: LyCORIS modules/ia3.py.
"""

from datetime import datetime, timezone

from ._rotation import number
from ._scale import Scale, check_channels
from ._trainer import trained_within
from .base import Adapter, Origin, Params, Site, Tensors

_WITH_BIAS = (datetime(2023, 1, 1, tzinfo=timezone.utc), datetime(2024, 5, 25, tzinfo=timezone.utc))


class IA3(Scale):
    """A learned scale less 1."""

    name = "ia3"
    params = Params(frozenset({"weight", "on_input"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        on_input = bool(number(params, "on_input"))
        return cls(
            vector=check_channels(params["weight"], site, "weight", on_input=on_input),
            one=0.0,
            on_input=on_input,
            with_bias=not on_input and trained_within(origin, _WITH_BIAS),
            site=site,
        )
