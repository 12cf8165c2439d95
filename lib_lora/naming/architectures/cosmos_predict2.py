"""NVIDIA Cosmos-Predict2: 28 blocks of 2048 (2B) or 36 of 5120 (14B), T5. Anima has the transformer of the smaller."""

from ._cosmos_blocks import COSMOS_ALIASES, COSMOS_SIGNS
from .base import Architecture, Variant, layers, named

COSMOS_PREDICT2 = Architecture(
    name="cosmos_predict2",
    title="Cosmos-Predict2",
    signs=(
        *COSMOS_SIGNS,
        # the larger one's widths
        layers(r"(net_)?blocks_\d+_((self|cross)_attn_(q|k|v|output)_proj|mlp_layer[12]|adaln_.*):(5120|20480)$"),
        layers(r"(core_)?transformer_blocks_\d+_(attn[12]_to|ff_net|norm[123]_linear)_.*:(5120|20480)$"),
        named("cosmos(?!.?3)"),
    ),
    variants=(Variant("Cosmos-Predict2 2B", width=2048), Variant("Cosmos-Predict2 14B", width=5120)),
    aliases=COSMOS_ALIASES,
)
