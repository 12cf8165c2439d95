"""Trainable tokens: some rows of an embedding, W'[i] = W[i] + m (t - W[i]).

`trainable_tokens_delta` (n, width) has the rows t themselves, despite its name. Which tokens they are is in
`adapter_config.json` alone: `token_indices`, or beside a LoRA `trainable_token_indices`, a list or one for each layer
by name. Source: huggingface/peft tuners/trainable_tokens/layer.py, and utils/other.py, `TrainableTokensWrapper`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ._rows import places_in, unfit
from .base import Adapter, At, Origin, Params, Rows, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class TrainableTokens(Adapter):
    vectors: Tensor  # (n, width)
    tokens: Tensor  # (n,)

    name = "trainable_tokens"
    params = Params(frozenset({"trainable_tokens_delta"}))
    kinds = frozenset({"embedding", "linear"})
    reads_base = True
    exact = frozenset({"vectors", "tokens"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        vectors, tokens = params["trainable_tokens_delta"], _tokens(origin)
        if vectors.shape != (len(tokens), site.inside):
            raise unfit(f"trainable_tokens_delta ({len(tokens)}, {site.inside})", vectors)
        if len(set(tokens)) < len(tokens) or not all(0 <= token < site.shape[0] for token in tokens):
            raise ValueError(f"want tokens that differ and are below {site.shape[0]}, got {str(tokens)[:60]}")
        return cls(vectors, torch.tensor(tokens, dtype=torch.long))

    def take(self, rows: Rows) -> Self:
        chosen, tokens = places_in(self.tokens, rows)
        return replace(self, vectors=self.vectors[chosen], tokens=tokens)

    def delta_weight(self, at: At) -> Tensor:
        delta, tokens = torch.zeros_like(at.base), self.tokens.to(at.device)
        delta[tokens] = (at.put(self.vectors) - at.base[tokens]) * at.multiplier
        return delta


def _tokens(origin: Origin) -> list[int]:
    found = origin.config.get("token_indices") or origin.config.get("trainable_token_indices")
    if isinstance(found, Mapping):
        own = [value for name, value in found.items() if f".{origin.module}".endswith(f".{name}")]
        found = own[0] if own else None
    if not isinstance(found, list) or not all(type(token) is int and abs(token) < 2**31 for token in found):
        raise UnsupportedError("of trainable tokens without the list of tokens, which adapter_config.json has")
    return found
