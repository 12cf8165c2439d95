"""FourierFT: a few numbers of the delta's spectrum, dW = m s Re(ifft2(F)), https://arxiv.org/abs/2405.03003.

`fourierft_spectrum` (n,) has the numbers; their places are drawn from `random_loc_seed`, s is `scaling`. Both are in
`adapter_config.json` alone. Source: huggingface/peft tuners/fourierft/layer.py.
"""

import torch
from torch import Tensor

from ..tensors import wide
from ._spectral import Spectral, drawn_places
from .base import At, Origin, Params, Site


class FourierFT(Spectral):
    """A sparse spectrum."""

    name = "fourierft"
    params = Params(frozenset({"fourierft_spectrum"}))

    @classmethod
    def places_for(cls, site: Site, seed: int, count: int, origin: Origin) -> Tensor:
        return drawn_places(site.shape[0] * site.inside, seed, count)

    def spread(self, at: At) -> Tensor:
        dtype = wide(at.dtype)
        dense = torch.zeros(self.shape, device=at.device, dtype=dtype)
        dense.view(-1)[self.places.to(at.device)] = self.spectrum.to(at.device, dtype)
        delta: Tensor = torch.fft.ifft2(dense).real.to(at.dtype)
        return delta
