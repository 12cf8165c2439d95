"""PVeRA: VeRA with a probability, of which the mean is used, https://arxiv.org/abs/2512.07703.

The first halves of `pvera_lambda_d` (2 r,) and `pvera_A` (2 r, in) are the mean, the second ones the spread that
training draws from. Source: huggingface/peft tuners/pvera/layer.py.
"""

from dataclasses import replace

from ..errors import UnsupportedError
from .base import Adapter, Origin, Params, Site, Tensors
from .vera import VeRA


class PVeRA(VeRA):
    """The mean of a PVeRA."""

    name = "pvera"
    params = Params(frozenset({"pvera_lambda_b", "pvera_lambda_d"}), frozenset({"alpha"}))
    shared = frozenset({"pvera_A", "pvera_B"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        if origin.config.get("sample_at_inference"):
            raise UnsupportedError("of PVeRA with sample_at_inference, which is another change in each call")
        inner, a = params["pvera_lambda_d"].reshape(-1), origin.shared.get("pvera_A")
        if inner.numel() % 2 or (a is not None and a.shape[:1] != (inner.numel(),)):
            raise ValueError("want pvera_lambda_d (2 r,) and pvera_A (2 r, in)")
        rank = inner.numel() // 2
        shared = origin.shared if a is None else {**origin.shared, "pvera_A": a[:rank]}
        return super().from_params({**params, "pvera_lambda_d": inner[:rank]}, site, replace(origin, shared=shared))
