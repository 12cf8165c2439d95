"""Single-file checkpoints in the original (ldm) layout, loaded without a network.

All else that a pipeline needs is derived: configurations from the shapes in the file's header, the prediction type from
its metadata, the tokenizer from CLIP's published vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.loaders import single_file_utils as ldm
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from lib_lora import AdapterFile

from .layout import CheckpointError, SdLayout, TextEncoder, read_layout
from .tokenizer import END, clip_tokenizer

logger = logging.getLogger(__name__)

_TRAINED_WITH = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
_SAMPLED_WITH = {"steps_offset": 1, "clip_sample": False, "set_alpha_to_one": False}
_OPENCLIP_PAD = "!"  # OpenCLIP pads with token 0


def load_single_file(
    path: Path, dtype: torch.dtype, prediction_type: str | None = None, tokenizer: Path | None = None
) -> Any:
    """Load a checkpoint of SD 1.x, 2.x, XL or the XL refiner as a pipeline on the CPU.

    `prediction_type` ("epsilon" or "v_prediction") overrides the file; `tokenizer` is a folder.

    Raises:
        LoraError: the file is no readable safetensors file.
        CheckpointError: another model, or an unknown layout.
        TokenizerError: CLIP's vocabulary is missing.
    """
    header = AdapterFile.open(path)
    layout = read_layout({key: info.shape for key, info in header.infos.items()}, header.metadata)
    weights = load_file(path)
    unet = _filled(UNet2DConditionModel, layout.unet, ldm.convert_ldm_unet_checkpoint(weights, layout.unet), dtype)
    vae = _filled(AutoencoderKL, layout.vae, ldm.convert_ldm_vae_checkpoint(weights, layout.vae), dtype)
    encoders = [_text_encoder(encoder, weights, dtype) for encoder in layout.text_encoders]
    tokenizers = [clip_tokenizer(tokenizer, _OPENCLIP_PAD if e.open_clip else END) for e in layout.text_encoders]
    kind = prediction_type or layout.prediction_type or _probe(unet, layout)
    logger.info("%s: %s, predicts %s", path.name, layout.family, kind)
    scheduler = DDIMScheduler(
        **_TRAINED_WITH, **_SAMPLED_WITH, prediction_type=kind, rescale_betas_zero_snr=layout.zero_snr
    )
    return _assemble(layout, unet, vae, encoders, tokenizers, scheduler)


def _assemble(
    layout: SdLayout, unet: nn.Module, vae: nn.Module, encoders: list[nn.Module], tokenizers: list[Any], scheduler: Any
) -> Any:
    shared = {"unet": unet, "vae": vae, "scheduler": scheduler}
    match layout.family:
        case "sdxl":
            return StableDiffusionXLPipeline(
                **shared,
                text_encoder=encoders[0],
                text_encoder_2=encoders[1],
                tokenizer=tokenizers[0],
                tokenizer_2=tokenizers[1],
                add_watermarker=False,
            )
        case "sdxl-refiner":
            return StableDiffusionXLImg2ImgPipeline(
                **shared,
                text_encoder=None,
                tokenizer=None,
                text_encoder_2=encoders[0],
                tokenizer_2=tokenizers[0],
                requires_aesthetics_score=True,
                force_zeros_for_empty_prompt=False,
                add_watermarker=False,
            )
        case _:
            return StableDiffusionPipeline(
                **shared,
                text_encoder=encoders[0],
                tokenizer=tokenizers[0],
                safety_checker=None,
                feature_extractor=None,
                requires_safety_checker=False,
            )


def _text_encoder(encoder: TextEncoder, weights: Mapping[str, Tensor], dtype: torch.dtype) -> nn.Module:
    config = CLIPTextConfig(**encoder.config)
    with init_empty_weights():
        model = (CLIPTextModelWithProjection if encoder.projection else CLIPTextModel)(config)
    own = {key: value for key, value in weights.items() if key.startswith(encoder.prefix)}
    if encoder.open_clip:
        converted = ldm.convert_open_clip_checkpoint(model, own, prefix=encoder.prefix)
    else:
        converted = {key.removeprefix(encoder.prefix): value for key, value in own.items()}
    return _fill(model, _fitted(model, converted), dtype, encoder.prefix)


def _fitted(model: nn.Module, converted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename keys for this version of transformers (5.6 dropped `text_model.`); drop keys that `model` lacks."""
    wanted = model.state_dict().keys()
    nested = any(key.startswith("text_model.") for key in wanted)
    fitted = {}
    for key, value in converted.items():
        bare = key.removeprefix("text_model.")
        spelled = f"text_model.{bare}" if nested and not bare.startswith("text_projection") else bare
        if spelled in wanted:  # not: position_ids, logit_scale, the last block that SD 2.x never runs
            fitted[spelled] = value
    return fitted


def _filled(
    kind: Any, config: Mapping[str, object], converted: Mapping[str, Tensor | None], dtype: torch.dtype
) -> nn.Module:
    with init_empty_weights():
        model: nn.Module = kind.from_config(dict(config))
    wanted = model.state_dict().keys()
    present = {key: value for key, value in converted.items() if value is not None}
    unexpected = sorted(present.keys() - wanted)
    if unexpected:
        raise CheckpointError(
            f"the checkpoint holds weights {kind.__name__} has no place for: {', '.join(unexpected[:3])}"
        )
    return _fill(model, present, dtype, kind.__name__)


def _fill(model: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype, what: str) -> nn.Module:
    """Give a meta model its weights.

    Raises:
        CheckpointError: a weight is missing or has another shape.
    """
    for key, empty in model.state_dict().items():
        if key not in weights:
            raise CheckpointError(f"the checkpoint has no weight {key} for {what}; it is damaged or of another layout")
        if weights[key].shape != empty.shape:
            got, want = tuple(weights[key].shape), tuple(empty.shape)
            raise CheckpointError(f"weight {key} for {what} has shape {got}, not {want}")
    # copy even in the same dtype: tensors in the file are not aligned, and kernels for such tensors round differently
    model.load_state_dict({key: value.to(dtype, copy=True) for key, value in weights.items()}, assign=True)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def _probe(unet: nn.Module, layout: SdLayout) -> str:
    """Tell SD 2.x's v-prediction from noise prediction by the model's answer, as its files do not tell.

    The input and the threshold are A1111's (`is_using_v_parameterization_for_sd2`).
    """
    if layout.family != "sd2":
        return "epsilon"
    dtype = next(unet.parameters()).dtype
    nn.Module.to(unet, torch.float32)  # diffusers' own `to` would warn needlessly
    width = layout.unet["cross_attention_dim"]
    latents, context = torch.full((1, 4, 8, 8), 0.5), torch.full((1, 2, int(str(width))), 0.5)
    answer: Tensor = unet(latents, 999, context).sample
    nn.Module.to(unet, dtype)
    return "v_prediction" if (answer - latents).mean().item() < -1 else "epsilon"
