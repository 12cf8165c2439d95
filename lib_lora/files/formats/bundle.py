"""Textual inversion embeddings bundled with an adapter: `bundle_emb.`, the name to prompt with, and the vectors.

`bundle_emb.mychar.string_to_param.*` -> mychar, bundle_emb.string_to_param.*    (the layout of an embedding's own file)
`bundle_emb.mychar.clip_g`            -> mychar, bundle_emb.clip_g               (one tensor per text encoder)
`bundle_emb.mychar.t5_out`            -> mychar, bundle_emb.t5_out               (OneTrainer)

Source: AUTOMATIC1111/stable-diffusion-webui extensions-builtin/Lora/networks.py, `bundle_embeddings`, which takes the
name up to the first dot; Nerogar/OneTrainer modules/modelSaver.
"""

from .base import KeyFormat

BUNDLE = KeyFormat(
    name="bundle",
    before=("diffusers", "peft"),  # an embedding's parts may be called anything, `alpha` too
    patterns=(r"(?P<param>bundle_emb)\.(?P<module>[^.]+)\.(?P<rest>.+)",),
    example="bundle_emb.mychar.string_to_param.*",
)
