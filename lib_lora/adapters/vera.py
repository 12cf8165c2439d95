"""VeRA: two vectors per layer between a pair of random matrices that all layers share.

dW = diag(lambda_b) B diag(lambda_d) A, https://arxiv.org/abs/2310.11454; huggingface/peft tuners/vera/layer.py. A and B
are as large as the largest layer that was trained, each layer using the first of their columns and rows.

PVeRA is VeRA with a probability, of which the mean is used, https://arxiv.org/abs/2512.07703. The first halves of
`pvera_lambda_d` (2 r,) and `pvera_A` (2 r, in) are the mean, the second ones the spread that training draws from.
Source: huggingface/peft tuners/pvera/layer.py.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from ..errors import UnsupportedError
from ..tensors import wide
from ._rows import unfit
from .base import Adapter, Factors, LowRank, Origin, Params, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class VeRA(LowRank):
    down: Tensor  # (r, in)
    up: Tensor  # (out, r)
    inner: Tensor  # (r,), lambda_d
    outer: Tensor  # (out,), lambda_b

    name = "vera"
    params = Params(required=frozenset({"vera_lambda_b", "vera_lambda_d"}), optional=frozenset({"alpha"}))
    row_fields = ("up", "outer")
    shared = frozenset({"vera_A", "vera_B"})
    kinds = frozenset({"linear"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        outer, inner = (params[f"{cls.name}_lambda_{one}"].reshape(-1) for one in "bd")
        a, b = (origin.shared.get(f"{cls.name}_{one}") for one in "AB")
        out, inside, rank = site.shape[0], site.inside, inner.shape[0]
        if outer.shape[0] != out:
            raise unfit(f"{cls.name}_lambda_b ({out},)", outer)
        if a is None or b is None:
            # PEFT would draw them again from a seed, in the sizes of the largest layer, which need not be in the model
            raise UnsupportedError(
                f"of {cls.__name__} without {cls.name}_A and {cls.name}_B, which all its layers share, and whose sizes "
                "it does not contain: save it again with save_projection=True"
            )
        if a.ndim != 2 or a.shape[0] != rank or a.shape[1] < inside:
            raise unfit(f"{cls.name}_A ({rank}, {inside} or more)", a)
        if b.ndim != 2 or b.shape[1] != rank or b.shape[0] < out:
            raise unfit(f"{cls.name}_B ({out} or more, {rank})", b)
        return cls(a[:, :inside], b[:out], inner, outer)

    def factors(self, rank: int | None = None) -> Factors:
        dtype = wide(self.outer.dtype)
        down = self.down[:rank].to(dtype) * self.inner[:rank].to(dtype).unsqueeze(1)
        return Factors(down, self.up[:, :rank].to(dtype) * self.outer.to(dtype).unsqueeze(1))


class PVeRA(VeRA):
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
