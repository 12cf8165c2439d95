"""Kandinsky 5 (text and image to video, and images): Qwen 2.5 VL and CLIP-L.

diffusers and musubi-tuner have the names of kandinskylab/kandinsky-5 kandinsky/models/dit.py.
"""

from ._clip import CLIP_ALIASES
from ._llm import LLM_ALIASES
from .base import Architecture, Variant, layers, named

KANDINSKY5 = Architecture(
    name="kandinsky5",
    title="Kandinsky 5",
    signs=(
        layers(
            r"(text|visual)_transformer_blocks_\d+_"
            r"(self_attention|cross_attention|feed_forward|(text|visual)_modulation)_",
            10,
        ),
        named("kandinsky-?5"),
    ),
    never=layers(  # Kandinsky 6's
        r"(visual_transformer_blocks_\d+_(feed_forward_net_|(audio|video)_dec|av_|va_)|audio_|video_"
        r"|time_embeddings_timestep_embedder_)"
    ),
    variants=(Variant("Kandinsky 5 Lite", width=1792), Variant("Kandinsky 5 Pro", width=4096)),
    aliases=(*CLIP_ALIASES, *LLM_ALIASES),
)
