"""A checkpoint's original (ldm) layout, derived from the names and shapes in its header; no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Shapes = Mapping[str, tuple[int, ...]]

_UNET = "model.diffusion_model."
_VAE = "first_stage_model."
_CLIP_L = ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer.")
_OPENCLIP = ("cond_stage_model.model.", "conditioner.embedders.1.model.", "conditioner.embedders.0.model.")
_LATENT_CHANNELS = 4
_SD1_HEADS = 8
_HEAD_DIM = 64  # of SD 2.x, XL and every CLIP text model
_SCALING = {"sd1": 0.18215, "sd2": 0.18215, "sdxl": 0.13025, "sdxl-refiner": 0.13025}


class CheckpointError(ValueError):
    """A checkpoint cannot be loaded; the message is one sentence for the user."""


def find_model(path: Path) -> Path:
    """Return the whole path of a model, a file or a folder of diffusers; opens neither.

    Raises:
        CheckpointError: it is neither.
    """
    path = path.expanduser().resolve()
    if not path.is_file() and not (path / "model_index.json").is_file():
        raise CheckpointError(f"{path} is neither a checkpoint file nor a diffusers folder (with a model_index.json)")
    return path


@dataclass(frozen=True)
class TextEncoder:
    """One text encoder of a checkpoint."""

    prefix: str
    open_clip: bool
    projection: bool
    config: Mapping[str, object]
    """For transformers' CLIPTextConfig."""


@dataclass(frozen=True)
class SdLayout:
    """A checkpoint's family and the configurations of its parts, for diffusers and transformers."""

    family: str
    """sd1, sd2, sdxl or sdxl-refiner."""
    unet: Mapping[str, object]
    vae: Mapping[str, object]
    text_encoders: tuple[TextEncoder, ...]
    prediction_type: str | None
    """None if the file does not tell."""
    zero_snr: bool


def read_layout(shapes: Shapes, metadata: Mapping[str, str]) -> SdLayout:
    """Derive a checkpoint's layout.

    Raises:
        CheckpointError: no checkpoint of SD 1.x, 2.x, XL or the XL refiner, or an unknown layout.
    """
    family = _family(shapes)
    encoders = [_clip_l(shapes, prefix) for prefix in _CLIP_L if _has(shapes, prefix)]
    encoders += [_open_clip(shapes, prefix, family) for prefix in _OPENCLIP if _has(shapes, prefix)]
    if not encoders or not _has(shapes, _VAE):
        missing = "text encoder" if not encoders else "VAE"
        raise CheckpointError(f"the checkpoint has no {missing}; a full checkpoint is needed")
    return SdLayout(
        family,
        _unet(shapes, family),
        _vae(shapes, family),
        tuple(encoders),
        _prediction(shapes, metadata),
        "ztsnr" in shapes,
    )


def _family(shapes: Shapes) -> str:
    if f"{_UNET}input_blocks.0.0.weight" not in shapes:
        seen = ", ".join(sorted(shapes)[:3])
        raise CheckpointError(f"not a Stable Diffusion checkpoint in the original layout; its first keys are {seen}")
    if f"{_UNET}label_emb.0.0.weight" in shapes:
        return "sdxl" if _has(shapes, _OPENCLIP[1]) else "sdxl-refiner"
    return "sd2" if _has(shapes, _OPENCLIP[0]) else "sd1"


def _unet(shapes: Shapes, family: str) -> dict[str, object]:
    own = _below(shapes, _UNET)
    inputs = own["input_blocks.0.0.weight"][1]
    if inputs != _LATENT_CHANNELS:
        raise CheckpointError(
            f"the unet takes {inputs} channels, not {_LATENT_CHANNELS}: a model for inpainting or editing, "
            f"which cannot make a picture from text alone"
        )
    cross = next(shape[1] for key, shape in own.items() if key.endswith("attn2.to_k.weight"))
    linear = next(len(shape) == 2 for key, shape in own.items() if key.endswith(".proj_in.weight"))
    config: dict[str, object] = {
        **_unet_blocks(own, family),
        "in_channels": inputs,
        "out_channels": own["out.2.weight"][0],
        "cross_attention_dim": cross,
        "use_linear_projection": linear,
        "sample_size": 64 if family == "sd1" else 96 if family == "sd2" else 128,
    }
    if "label_emb.0.0.weight" in own:
        config |= {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": own["label_emb.0.0.weight"][1],
        }
    return config


def _unet_blocks(own: Shapes, family: str) -> dict[str, object]:
    levels = _unet_levels(own)
    middle = _count(own, "middle_block.1.transformer_blocks.")
    depths = [depth or (middle if index == len(levels) - 1 else 1) for index, (_, depth, _) in enumerate(levels)]
    if depths[-1] != middle or len({blocks for *_, blocks in levels}) != 1:
        raise CheckpointError("the unet's blocks are laid out in a way that is not known here")
    channels = [width for width, *_ in levels]
    return {
        "block_out_channels": channels,
        "layers_per_block": levels[0][2],
        "down_block_types": ["CrossAttnDownBlock2D" if depth else "DownBlock2D" for _, depth, _ in levels],
        "up_block_types": ["CrossAttnUpBlock2D" if depth else "UpBlock2D" for _, depth, _ in reversed(levels)],
        "transformer_layers_per_block": depths,
        # diffusers' name for the number of heads
        "attention_head_dim": _SD1_HEADS if family == "sd1" else [width // _HEAD_DIM for width in channels],
    }


def _unet_levels(own: Shapes) -> list[tuple[int, int, int]]:
    """Return (channels, transformer depth, number of blocks) per resolution."""
    levels: list[tuple[int, int, int]] = []
    fresh = True
    for index in range(1, _count(own, "input_blocks.")):
        block = f"input_blocks.{index}."
        if f"{block}0.op.weight" in own:
            fresh = True
            continue
        width = own[f"{block}0.in_layers.2.weight"][0]
        depth = _count(own, f"{block}1.transformer_blocks.")
        if fresh:
            levels.append((width, depth, 1))
        elif levels[-1][:2] != (width, depth):
            raise CheckpointError(f"the unet's input block {index} differs from its neighbour, which is not known here")
        else:
            levels[-1] = (width, depth, levels[-1][2] + 1)
        fresh = False
    return levels


def _vae(shapes: Shapes, family: str) -> dict[str, object]:
    own = _below(shapes, _VAE)
    count = _count(own, "encoder.down.")
    return {
        "in_channels": own["encoder.conv_in.weight"][1],
        "out_channels": own["decoder.conv_out.weight"][0],
        "block_out_channels": [own[f"encoder.down.{index}.block.0.conv1.weight"][0] for index in range(count)],
        "layers_per_block": _count(own, "encoder.down.0.block."),
        "down_block_types": ["DownEncoderBlock2D"] * count,
        "up_block_types": ["UpDecoderBlock2D"] * count,
        "latent_channels": own["post_quant_conv.weight"][0],
        "scaling_factor": _SCALING[family],
        "force_upcast": family.startswith("sdxl"),
        "sample_size": 512 if family == "sd1" else 768 if family == "sd2" else 1024,
    }


def _clip_l(shapes: Shapes, prefix: str) -> TextEncoder:
    own = {key.removeprefix("text_model."): shape for key, shape in _below(shapes, prefix).items()}
    config = _clip_config(own["embeddings.token_embedding.weight"], own["embeddings.position_embedding.weight"])
    config |= {
        "intermediate_size": own["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": _count(own, "encoder.layers."),
        "hidden_act": "quick_gelu",
    }
    return TextEncoder(prefix, False, False, config)


def _open_clip(shapes: Shapes, prefix: str, family: str) -> TextEncoder:
    own = _below(shapes, prefix)
    config = _clip_config(own["token_embedding.weight"], own["positional_embedding"])
    layers = _count(own, "transformer.resblocks.")
    config |= {
        "intermediate_size": own["transformer.resblocks.0.mlp.c_fc.weight"][0],
        # SD 2.x conditions on the last block but one, followed by the final norm: as if the last were not there
        "num_hidden_layers": layers - 1 if family == "sd2" else layers,
        "hidden_act": "gelu",
        "projection_dim": own["text_projection"][1] if "text_projection" in own else own["token_embedding.weight"][1],
    }
    return TextEncoder(prefix, True, family != "sd2", config)


def _clip_config(tokens: tuple[int, ...], positions: tuple[int, ...]) -> dict[str, object]:
    """Return the common configuration of both kinds of CLIP; the two highest token ids start and end a text."""
    vocabulary, width = tokens
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "max_position_embeddings": positions[0],
        "num_attention_heads": max(1, width // _HEAD_DIM),
        "projection_dim": width,
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,
        "pad_token_id": vocabulary - 1,
    }


def _prediction(shapes: Shapes, metadata: Mapping[str, str]) -> str | None:
    """Read the prediction type from markers that trainers leave."""
    said = metadata.get("modelspec.prediction_type", "").lower()
    if said.startswith("v") or "v_pred" in shapes or metadata.get("ss_v_parameterization", "").lower() == "true":
        return "v_prediction"
    return "epsilon" if said.startswith("eps") else None


def _has(shapes: Shapes, prefix: str) -> bool:
    return any(key.startswith(prefix) for key in shapes)


def _below(shapes: Shapes, prefix: str) -> dict[str, tuple[int, ...]]:
    return {key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)}


def _count(shapes: Shapes, prefix: str) -> int:
    """Count the distinct numbers that follow a prefix."""
    return len({key.removeprefix(prefix).partition(".")[0] for key in shapes if key.startswith(prefix)})
