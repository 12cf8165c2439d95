"""Pictures with captions, coded once and kept: training the denoiser needs no pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from tqdm import trange

from .draw import Pixels
from .text import tokenize
from .vae import stacked, to_floats

_BATCH = 32
Example = tuple[Pixels, str]
"""A drawn picture and its caption."""


@dataclass(frozen=True)
class Latents:
    """Coded pictures of one size with their captions' token numbers."""

    means: Tensor
    """(n, 4, height / 8, width / 8), half precision, unscaled."""
    deviations: Tensor
    tokens: Tensor
    """(n, 77), 16 bits."""

    def __len__(self) -> int:
        return len(self.means)

    def batch(self, count: int, scale: float, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return scaled latents (count, 4, height / 8, width / 8) and token numbers (count, 77)."""
        chosen = torch.randint(len(self), (count,), generator=generator)
        means, deviations = self.means[chosen].float(), self.deviations[chosen].float()
        noise = torch.randn(means.shape, generator=generator)
        return (means + deviations * noise) * scale, self.tokens[chosen].long()


def coded(path: Path, vae: Any, tokenizer: Any, count: int, examples: Iterator[Example]) -> Latents:
    """Return what `path` holds, or code `count` of the examples and keep them there."""
    if path.is_file():
        return Latents(**torch.load(path, weights_only=True))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in trange(0, count, _BATCH, desc=path.stem, mininterval=2):
        pictures, captions = zip(*islice(examples, min(_BATCH, count - start)), strict=True)
        with torch.no_grad():
            posterior = vae.encode(to_floats(stacked(pictures))).latent_dist
        parts.append((posterior.mean.half(), posterior.std.half(), tokenize(tokenizer, captions).short()))
    means, deviations, tokens = (torch.cat(part) for part in zip(*parts, strict=True))
    torch.save({"means": means, "deviations": deviations, "tokens": tokens}, path)
    return Latents(means, deviations, tokens)
