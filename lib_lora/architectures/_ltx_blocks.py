"""What LTX-Video and LTX-2 have in common: diffusers' own blocks under diffusers' names, but for the norms.

Source: Lightricks/LTX-Video ltx_video/models/transformers/transformer3d.py against LTXVideoTransformer3DModel.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..components import DENOISER
from .base import Alias, aliases

LTX_EMBEDDERS = aliases(DENOISER, {"patchify_proj": "proj_in", "adaln_single": "time_embed"})


def norms(attentions: Iterable[str]) -> tuple[Alias, ...]:
    """Aliases of the norms of queries and keys of these attentions of a block."""
    return aliases(
        DENOISER,
        {
            f"transformer_blocks.{{}}.{attention}.{part}_norm": f"transformer_blocks.{{}}.{attention}.norm_{part}"
            for attention in attentions
            for part in "qk"
        },
    )
