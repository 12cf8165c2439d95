"""(IA)^3 as PEFT trains it, https://arxiv.org/abs/2205.05638: x * l of feed-forward layers, y * l of others.

`ia3_l` begins at 1. It is (1, in) or (out, 1) on linear layers; on convolutions (1, channels, 1, ...) for both, which
only their number tells, or `feedforward_modules` of the configuration: ends of names, or a pattern of whole names. The
output is scaled with its bias. PEFT has no multiplier: it lerps l to 1. Source: huggingface/peft tuners/ia3/layer.py.
"""

from torch import Tensor

from ..errors import UnsupportedError
from ..files.formats import Table, read_pattern
from ._scale import Scale, check_channels
from .base import Adapter, Origin, Params, Site, Tensors


class PeftIA3(Scale):
    """A learned scale."""

    name = "peft_ia3"
    params = Params(frozenset({"ia3_l"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        vector = params["ia3_l"]
        on_input = _on_input(vector, site, origin)
        vector = check_channels(vector, site, "ia3_l", on_input=on_input)
        return cls(vector, one=1.0, on_input=on_input, with_bias=not on_input, site=site)


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
