"""T-LoRA: orthogonal factors that begin as singular vectors of W, fewer of them in noise.

dW = alpha / r * (P diag(l) Q - P0 diag(l0) Q0), https://arxiv.org/abs/2507.05964; LyCORIS modules/tlora.py. The second
product is what the first began as: r singular triplets of the base weight, the principal ones unless the file says
otherwise. LyCORIS does not save it, a fork does. In training only the first ranks of both products act in noise; see
`RankSchedule`.

The two are nearly the same, and large. So that their difference survives half precision it is made rank by rank, before
rounding: p l q - p0 l0 q0 = (p l - p0 l0) q + p0 l0 (q - q0), two components per rank, both small.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor
from typing_extensions import Self

from ..tensors import TensorFields, wide
from ._rows import taken, unfit
from ._trainer import arguments, lycoris_scale, rank_schedule
from .base import Adapter, At, Factors, Form, LowRank, Origin, Pair, Params, RankSchedule, Rows, Site, Tensors

_PARTS = {"principal": 0.0, "last": 1.0, "middle": 0.5}
"""Which singular triplets of W the training began with -> the share of the others that is larger."""
_BASE = frozenset({"base_q", "base_p", "base_lambda"})


@dataclass(frozen=True, slots=True, eq=False)
class _Triplets(TensorFields):
    """P diag(l) Q."""

    q: Tensor  # (r, in, *kernel)
    p: Tensor  # (out, r)
    values: Tensor  # (r,)

    def take(self, rows: Rows) -> Self:
        return replace(self, p=taken(self.p, rows))


@dataclass(frozen=True, slots=True, eq=False)
class TLoRA(LowRank):
    now: _Triplets
    begun: _Triplets | None  # as it began; known once the base weight is
    scale: float
    schedule: RankSchedule | None
    shape: tuple[int, ...]
    larger: float = 0.0
    """The share of the other triplets that is larger."""

    name = "tlora"
    scaled = True
    params = Params(frozenset({"q_layer.weight", "p_layer.weight", "lambda_layer"}), _BASE | {"alpha"}, together=_BASE)
    row_fields = ("now", "begun", "shape")
    shaped_by = ("p_layer.weight", "q_layer.weight")

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        now = _triplets(params, ("q_layer.weight", "p_layer.weight", "lambda_layer"), site)
        begun = _triplets(params, ("base_q", "base_p", "base_lambda"), site) if "base_q" in params else None
        rank = now.values.shape[0]
        if begun is not None and begun.values.shape[0] != rank:
            raise unfit(f"base_lambda (1, {rank})", params["base_lambda"])
        if (part := str(arguments(origin).get("sig_type", "principal"))) not in _PARTS:
            raise ValueError(f"sig_type {part!r} is none of {', '.join(_PARTS)}")
        schedule = rank_schedule(origin, rank, certain=True)
        return cls(now, begun, lycoris_scale(origin, rank), schedule, site.shape, _PARTS[part])

    @property
    def rank(self) -> int:
        return self.now.values.shape[0]

    @property
    def reads_base(self) -> bool:
        return self.begun is None

    @property
    def by_rows(self) -> bool:  # type: ignore[override]
        return self.begun is not None

    def take(self, rows: Rows) -> Self | None:
        return None if self.begun is None else self.cut(rows)

    def outlined(self, rows: Rows) -> Self:
        return self.cut(rows)

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        if self.begun is not None:
            return self
        return replace(self, begun=_begun(read(), self.now, self.larger))

    def form(self, rank: int | None = None) -> Form:
        return Form(Pair(2 * min(self.rank, rank or self.rank), self.scale, self.schedule, per_rank=2))

    def factors(self, rank: int | None = None) -> Factors:
        assert self.begun is not None  # once `on` has seen the base weight
        q, p, values = _exact(self.now, rank)
        q0, p0, values0 = _exact(self.begun, rank)
        down = torch.stack([q, values0.unsqueeze(1) * (q - q0)], 1)
        up = torch.stack([p * values - p0 * values0, p0], 2)
        return Factors(down.flatten(0, 1).reshape(-1, *self.shape[1:]), up.flatten(1))

    def delta_weight(self, at: At) -> Tensor:
        known = self if self.begun is not None else replace(self, begun=_begun(at.base, self.now, self.larger))
        return super(TLoRA, known).delta_weight(at)


def _triplets(params: Tensors, names: tuple[str, str, str], site: Site) -> _Triplets:
    """Read triplets, checked against each other and the site."""
    q, p, values = (params[name] for name in names)
    rank, out = values.numel(), site.shape[0]
    if rank == 0 or q.numel() != rank * site.inside or p.numel() != out * rank:
        raise unfit(f"{names[0]} ({', '.join(map(str, (rank, *site.shape[1:])))}) and {names[1]} ({out}, {rank})", q, p)
    return _Triplets(q.reshape(rank, *site.shape[1:]), p.reshape(out, rank), values.reshape(rank))


def _exact(triplets: _Triplets, rank: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q (r, in * kernel), P (out, r) and l (r,), the first `rank` of them, in fp32 or better."""
    dtype = wide(triplets.q.dtype)
    q, p, values = triplets.q.to(dtype), triplets.p.to(dtype), triplets.values.to(dtype)
    return q.flatten(1)[:rank], p[:, :rank], values[:rank]


def _begun(weight: Tensor, now: _Triplets, larger: float) -> _Triplets:
    """Return the singular triplets of a weight that `now` began as.

    By the eigenvectors of the smaller Gram matrix, which are less work than the whole singular value decomposition and
    in fp64 more exact than the trainer's in fp32. A triplet's sign is the trained one's: it is arbitrary,
    and the difference of the two is small only if they agree.
    """
    device = weight.device if weight.device.type in ("cpu", "cuda") else torch.device("cpu")  # others lack fp64
    matrix = weight.to(device, torch.float64).flatten(1)
    flat = matrix.shape[0] <= matrix.shape[1]
    gram = matrix @ matrix.t() if flat else matrix.t() @ matrix
    vectors, rank = torch.linalg.eigh(gram)[1].flip(1), now.values.shape[0]  # by falling singular value
    start = int(max(vectors.shape[1] - rank, 0) * larger)
    vectors = vectors[:, start : start + rank]
    others = vectors.t() @ matrix if flat else (matrix @ vectors).t()
    values = others.norm(dim=1)
    others = others / torch.where(values > 0, values, torch.ones_like(values)).unsqueeze(1)
    p, q = (vectors, others) if flat else (others.t(), vectors.t())
    count = values.shape[0]
    like = now.q.to(q).flatten(1)[:count], now.p.to(p)[:, :count]
    sign = torch.where((q * like[0]).sum(1) + (p * like[1]).sum(0) < 0, -1.0, 1.0).to(q)
    missing = rank - count  # a small weight has fewer triplets
    found = F.pad(q * sign.unsqueeze(1), (0, 0, 0, missing)), F.pad(p * sign, (0, missing)), F.pad(values, (0, missing))
    return _Triplets(*(one.to(now.q.device, torch.float32) for one in found))
