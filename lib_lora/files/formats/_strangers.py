"""Keys of files that are no adapters, for a guess at what a user has taken for one."""

from __future__ import annotations

from collections.abc import Sequence

_LOOKS = {
    "model.diffusion_model.": "a whole checkpoint: load it as the model",
    "img_in.weight": "a whole checkpoint: load it as the model",
    "emb_params": "a textual inversion embedding: it belongs in the embeddings folder",
    "base_model.internal_xlora_classifier.": "an X-LoRA, which chooses LoRA for each token: load these LoRA instead",
    "prompt_embeddings": "a soft prompt of PEFT, which belongs to a text model and changes no layer",
    "control_model.": "a ControlNet: load it with ControlNet",
    "first_stage_model.": "a VAE: load it as the VAE",
    "decoder.conv_in.": "a VAE: load it as the VAE",
}
"""Begin of keys in a file that is no adapter -> a guess at the file."""


def guess(keys: Sequence[str]) -> str:
    """Return what a file of these keys looks like, as the end of a sentence; empty where nothing tells."""
    looks = next((what for start, what in _LOOKS.items() for key in keys if key.startswith(start)), "")
    return f"; it looks like {looks}" if looks else ""
