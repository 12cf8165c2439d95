"""Chroma."""

from __future__ import annotations

import warnings

from diffusers import ChromaTransformer2DModel
from diffusers.loaders.single_file_utils import convert_chroma_transformer_checkpoint_to_diffusers
from torch import nn

from ._encoders import encoder_writers, t5
from ._flux_formats import BLOCKS, WIDTH, blocks, omi, writers
from .base import KOHYA_PARAMS, Family, Shapes, Writer, dotted, linear, norm, on_meta

HIDDEN = 5120


def build(full: bool) -> nn.Module:
    """lodestones/Chroma1-HD, transformer/config.json."""
    with warnings.catch_warnings():
        # diffusers imports a class of its own from where it is deprecated
        warnings.filterwarnings("ignore", "`FluxPosEmbed` is deprecated", FutureWarning)
        return on_meta(
            ChromaTransformer2DModel,
            num_layers=19 if full else BLOCKS,
            num_single_layers=38 if full else BLOCKS,
            approximator_layers=5 if full else BLOCKS,
        )


def native() -> Shapes:
    """lodestone-rock/flow src/models/chroma/model.py, Chroma; Comfy-Org/ComfyUI comfy/ldm/chroma/model.py."""
    guide = "distilled_guidance_layer"
    found = linear(HIDDEN, 64, f"{guide}.in_proj") | linear(WIDTH, HIDDEN, f"{guide}.out_proj")
    for i in range(BLOCKS):
        found |= linear(HIDDEN, HIDDEN, f"{guide}.layers.{i}.in_layer", f"{guide}.layers.{i}.out_layer")
        found |= norm(HIDDEN, f"{guide}.norms.{i}", param="scale")
    found |= linear(WIDTH, 64, "img_in") | linear(WIDTH, 4096, "txt_in") | linear(64, WIDTH, "final_layer.linear")
    return found | blocks()


ATTENTION = {  # a file of blocks alone is one of FLUX.1 as well; these say what they are for
    "kohya": {"ss_base_model_version": "chroma", "modelspec.architecture": "chroma/lora"},
    "lycoris": {"ss_base_model_version": "chroma"},
}


def _named(writer: Writer, metadata: dict[str, str]) -> Writer:
    return Writer(**{**vars(writer), "metadata": metadata})


FAMILY = Family(
    name="chroma",
    named=("chroma", "chroma/lora", "Chroma1/lora", "chroma_radiance"),
    both_trees=True,
    blocks_of=("flux",),
    build=build,
    native=native,
    convert=convert_chroma_transformer_checkpoint_to_diffusers,
    encoders={"text_encoder": t5},
    writers={
        **{name: _named(writer, ATTENTION.get(name, {})) for name, writer in writers().items()},
        "omi": Writer(
            "diffusers",
            "OMI, as OneTrainer wrote it for FLUX.1",
            dotted("transformer.", KOHYA_PARAMS),
            fuse=omi(),
            metadata={"modelspec.architecture": "Chroma1/lora"},
        ),
        **encoder_writers(
            {"t5": "text_encoder"},
            {"lora_te": "t5", "lora_te1": "t5", "lora_te3": "t5"},
            {"modelspec.architecture": "Chroma1/lora"},
            omi=True,
        ),
    },
)
