"""What LTX-Video and LTX-2 have in common: diffusers' own blocks under diffusers' names, but for the norms.

Source: Lightricks/LTX-Video ltx_video/models/transformers/transformer3d.py against LTXVideoTransformer3DModel.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...files.components import DENOISER
from .base import Alias, aliases, layers

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


LTX_SIGNS = (
    # one sign, as others have such layers, too (CogView 4, Cosmos-Predict2)
    layers(r"transformer_blocks_\d+_(attn[12]_to_([qkv]|out_0)|ff_net_0_proj):4096$", 1),
    # here text is as wide as what asks for it
    layers(r"transformer_blocks_\d+_attn2_to_[kv]:4096$"),
    layers(r"(patchify_proj|proj_in):128$", 1),
)
"""What LTX-Video 13B and LTX-2 have alike."""
