"""A checkpoint's model as AUTOMATIC1111 holds it, tiny: an ldm tree with a UNet and a wrapped text encoder."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8
LATENT = 4
TOKENS = 4  # of one chunk of a prompt
LAYERS = {
    "lora_te_text_model_encoder_layers_0_self_attn_q_proj": (WIDTH, WIDTH),
    "lora_unet_input_blocks_1_1_proj_in": (WIDTH, LATENT),
    "lora_unet_input_blocks_1_1_transformer_blocks_0_attn2_to_k": (WIDTH, WIDTH),
}
"""kohya's names of what LoRA can change, with the shapes."""


def _tree(**children: nn.Module) -> nn.Module:
    """Modules below dotted names, `__` for a dot."""
    root = nn.Module()
    for name, child in children.items():
        *path, leaf = name.split("__")
        place = root
        for part in path:
            if part.lstrip("_") not in place._modules:
                place.add_module(part.lstrip("_"), nn.Module())
            place = place.get_submodule(part.lstrip("_"))
        place.add_module(leaf.lstrip("_"), child)
    return root


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = _tree(
            proj_in=nn.Linear(LATENT, WIDTH),
            transformer_blocks___0__attn2__to_k=nn.Linear(WIDTH, WIDTH, bias=False),
            proj_out=nn.Linear(WIDTH, LATENT),
        )
        self.input_blocks = nn.ModuleList([nn.ModuleList([nn.Identity()]), nn.ModuleList([nn.Identity(), block])])
        self.calls: list[int] = []

    def forward(self, x: Tensor, timesteps: Tensor, context: Tensor) -> Tensor:
        self.calls.append(x.shape[0])
        block = self.input_blocks[1][1]
        pixels = x.flatten(2).transpose(1, 2)
        seen = block.get_submodule("transformer_blocks.0.attn2.to_k")(context).mean(1, keepdim=True)
        out = block.proj_out(torch.tanh(block.proj_in(pixels) + seen))
        return out.transpose(1, 2).reshape(x.shape)


class ClipText(nn.Module):
    """Longer prompts give more tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.text_model = _tree(encoder__layers___0__self_attn__q_proj=nn.Linear(WIDTH, WIDTH))
        self.asked: list[str] = []

    def forward(self, text: str) -> Tensor:
        self.asked.append(text)
        generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        x = torch.randn(TOKENS * (1 + len(text) // 40), WIDTH, generator=generator)
        return x + self.text_model.get_submodule("encoder.layers.0.self_attn.q_proj")(x)


class Model(nn.Module):
    """Stable Diffusion 1.5's, after the host has wrapped its text encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _tree(diffusion_model=UNet())
        self.cond_stage_model = _tree(wrapped__transformer=ClipText())
        self.sd_checkpoint_info: Any = None
        self.is_sdxl = False

    @property
    def unet(self) -> UNet:
        return self.model.diffusion_model

    @property
    def clip(self) -> ClipText:
        return self.cond_stage_model.wrapped.transformer

    def get_learned_conditioning(self, texts: list[str]) -> list[Tensor]:
        return [self.clip(text) for text in texts]


def checkpoint(name: str, seed: int, config: str = "sd1") -> SimpleNamespace:
    """Return the host's record of a checkpoint with its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights = Model().state_dict()
    return SimpleNamespace(name=name, filename=str(Path("nowhere", f"{name}.ckpt")), config=config, weights=weights)
