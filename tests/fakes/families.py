"""Full-size models on meta: nothing but names and shapes, but all of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from lib_lora.inspection.skeleton import skeleton

from .ldm import UNETS, UNetConfig, open_clip_shapes, unet_shapes

_CROSS, _PLAIN = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D"), ("DownBlock2D", "UpBlock2D")

_XL = {
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
}
_UNETS: dict[str, dict[str, Any]] = {
    "sd1": {"attention_head_dim": 8},
    "sd2": {"attention_head_dim": (5, 10, 20, 20), "use_linear_projection": True},
    "sdxl": {
        **_XL,
        "attention_head_dim": (5, 10, 20),
        "projection_class_embeddings_input_dim": 2816,
    },
    "sdxl_refiner": {
        **_XL,
        "attention_head_dim": (6, 12, 24, 24),
        "projection_class_embeddings_input_dim": 2560,
    },
}


def diffusers_unet(family: str, config: UNetConfig | None = None) -> nn.Module:
    """Return a family's UNet, or one with other numbers of blocks."""
    config = config or UNETS[family]
    blocks = [_CROSS if depth else _PLAIN for depth in config.depths]
    with torch.device("meta"):
        return UNet2DConditionModel(
            block_out_channels=tuple(mult * config.channels for mult in config.mult),
            down_block_types=tuple(down for down, _ in blocks),
            up_block_types=tuple(up for _, up in reversed(blocks)),
            cross_attention_dim=config.context,
            transformer_layers_per_block=(*config.depths[:-1], config.middle),
            **_UNETS[family],
        )


def _clip(width: int, layers: int, *, projection: bool = False) -> nn.Module:
    config = CLIPTextConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        projection_dim=width,
    )
    with torch.device("meta"):
        return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)


class FrozenCLIPEmbedder(nn.Module):
    """ldm's wrapper, with the nested tree of transformers up to 5.5, which A1111 has."""

    def __init__(self, clip: nn.Module) -> None:
        super().__init__()
        if not hasattr(clip, "text_model"):
            nested = nn.Module()
            nested.text_model = clip
            clip = nested
        self.transformer = clip


class FrozenOpenCLIPEmbedder(nn.Module):
    """ldm's wrapper of the OpenCLIP tower."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.model = skeleton(open_clip_shapes(width, layers))


@lru_cache(maxsize=1)
def models() -> dict[tuple[str, str], dict[str, nn.Module]]:
    """{(family, tree): components}; the trees are `diffusers` and `ldm`."""
    built: dict[tuple[str, str], dict[str, nn.Module]] = {}
    for family in UNETS:
        built[family, "diffusers"] = {"unet": diffusers_unet(family)}
        built[family, "ldm"] = {"unet": skeleton(unet_shapes(UNETS[family]))}
    built["sd1", "diffusers"]["text_encoder"] = _clip(768, 12)
    built["sd1", "ldm"]["text_encoder"] = FrozenCLIPEmbedder(_clip(768, 12))
    built["sd2", "diffusers"]["text_encoder"] = _clip(1024, 23)
    built["sd2", "ldm"]["text_encoder"] = FrozenOpenCLIPEmbedder(1024, 24)
    built["sdxl", "diffusers"] |= {"text_encoder": _clip(768, 12), "text_encoder_2": _clip(1280, 32, projection=True)}
    built["sdxl", "ldm"]["text_encoder"] = FrozenCLIPEmbedder(_clip(768, 12))
    built["sdxl", "ldm"]["text_encoder_2"] = FrozenOpenCLIPEmbedder(1280, 32)
    built["sdxl_refiner", "diffusers"]["text_encoder_2"] = _clip(1280, 32, projection=True)
    built["sdxl_refiner", "ldm"]["text_encoder_2"] = FrozenOpenCLIPEmbedder(1280, 32)
    return built
