"""The module trees of ldm and of open_clip: names and shapes from configurations, and a text tower that runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class UNetConfig:
    """What openaimodel.UNetModel is built from."""

    channels: int
    mult: tuple[int, ...]
    depths: tuple[int, ...]  # transformer blocks per level; 0 for none
    middle: int
    context: int
    linear: bool  # proj_in and proj_out are linear layers
    label: int | None = None  # width of the vector embedding's input
    inputs: int = 4


UNETS = {
    "sd1": UNetConfig(320, (1, 2, 4, 4), (1, 1, 1, 0), 1, 768, linear=False),
    "sd2": UNetConfig(320, (1, 2, 4, 4), (1, 1, 1, 0), 1, 1024, linear=True),
    "sdxl": UNetConfig(320, (1, 2, 4), (0, 2, 10), 10, 2048, linear=True, label=2816),
    "sdxl_refiner": UNetConfig(384, (1, 2, 4, 4), (0, 4, 4, 0), 4, 1280, linear=True, label=2560),
}


def _weight(name: str, *shape: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": shape, **({f"{name}.bias": shape[:1]} if bias else {})}


def _resnet(name: str, inside: int, out: int, time: int) -> Shapes:
    shapes = _weight(f"{name}.in_layers.0", inside) | _weight(f"{name}.in_layers.2", out, inside, 3, 3)
    shapes |= _weight(f"{name}.emb_layers.1", out, time)
    shapes |= _weight(f"{name}.out_layers.0", out) | _weight(f"{name}.out_layers.3", out, out, 3, 3)
    return shapes | (_weight(f"{name}.skip_connection", out, inside, 1, 1) if inside != out else {})


def _transformer(name: str, width: int, depth: int, config: UNetConfig) -> Shapes:
    kernel = () if config.linear else (1, 1)
    shapes = _weight(f"{name}.norm", width) | _weight(f"{name}.proj_in", width, width, *kernel)
    for i in range(depth):
        block = f"{name}.transformer_blocks.{i}"
        for attn, context in (("attn1", width), ("attn2", config.context)):
            shapes |= _weight(f"{block}.{attn}.to_q", width, width, bias=False)
            shapes |= _weight(f"{block}.{attn}.to_k", width, context, bias=False)
            shapes |= _weight(f"{block}.{attn}.to_v", width, context, bias=False)
            shapes |= _weight(f"{block}.{attn}.to_out.0", width, width)
        shapes |= _weight(f"{block}.ff.net.0.proj", 8 * width, width) | _weight(f"{block}.ff.net.2", width, 4 * width)
        for norm in ("norm1", "norm2", "norm3"):
            shapes |= _weight(f"{block}.{norm}", width)
    return shapes | _weight(f"{name}.proj_out", width, width, *kernel)


def unet_shapes(config: UNetConfig) -> Shapes:
    """Every parameter of an ldm UNet, without `model.diffusion_model.`."""
    time = 4 * config.channels
    shapes = _weight("time_embed.0", time, config.channels) | _weight("time_embed.2", time, time)
    if config.label is not None:
        shapes |= _weight("label_emb.0.0", time, config.label) | _weight("label_emb.0.2", time, time)
    shapes |= _weight("input_blocks.0.0", config.channels, config.inputs, 3, 3)
    width, skips, block = config.channels, [config.channels], 1
    for level, mult in enumerate(config.mult):
        for _ in range(2):
            out = mult * config.channels
            shapes |= _resnet(f"input_blocks.{block}.0", width, out, time)
            if config.depths[level]:
                shapes |= _transformer(f"input_blocks.{block}.1", out, config.depths[level], config)
            width, block = out, block + 1
            skips.append(width)
        if level + 1 < len(config.mult):
            shapes |= _weight(f"input_blocks.{block}.0.op", width, width, 3, 3)
            skips.append(width)
            block += 1
    shapes |= _resnet("middle_block.0", width, width, time) | _resnet("middle_block.2", width, width, time)
    shapes |= _transformer("middle_block.1", width, config.middle, config)
    return shapes | _output_blocks(config, width, skips, time)


def _output_blocks(config: UNetConfig, width: int, skips: list[int], time: int) -> Shapes:
    shapes: Shapes = {}
    block = 0
    for level, mult in reversed(list(enumerate(config.mult))):
        for i in range(3):
            out = mult * config.channels
            shapes |= _resnet(f"output_blocks.{block}.0", width + skips.pop(), out, time)
            place = 1
            if config.depths[level]:
                shapes |= _transformer(f"output_blocks.{block}.1", out, config.depths[level], config)
                place = 2
            if i == 2 and level:
                shapes |= _weight(f"output_blocks.{block}.{place}.conv", out, out, 3, 3)
            width, block = out, block + 1
    return shapes | _weight("out.0", width) | _weight("out.2", 4, width, 3, 3)


def open_clip_shapes(width: int, layers: int) -> Shapes:
    """Return the layers of an OpenCLIP text tower."""
    shapes: Shapes = {}
    for i in range(layers):
        block = f"transformer.resblocks.{i}"
        shapes |= {f"{block}.attn.in_proj_weight": (3 * width, width), f"{block}.attn.in_proj_bias": (3 * width,)}
        shapes |= _weight(f"{block}.attn.out_proj", width, width)
        shapes |= _weight(f"{block}.ln_1", width) | _weight(f"{block}.ln_2", width)
        shapes |= _weight(f"{block}.mlp.c_fc", 4 * width, width) | _weight(f"{block}.mlp.c_proj", width, 4 * width)
    return shapes | _weight("ln_final", width) | _weight("token_embedding", 49408, width, bias=False)


class ResidualAttentionBlock(nn.Module):
    """open_clip's block, on torch's own attention with its fused weight."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class OpenClipText(nn.Module):
    """A small OpenCLIP text tower, from embeddings to the last hidden state, after ln_final."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList(ResidualAttentionBlock(width, heads) for _ in range(layers))
        self.ln_final = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype).triu_(1)
        for block in self.transformer.resblocks:
            x = block(x, mask)
        return self.ln_final(x)


def hf_names(tower: OpenClipText) -> Iterator[tuple[str, nn.Module | None, tuple[int, int]]]:
    """Return transformers' names of the tower's linear layers with their shapes, as trainers see them."""
    for i, block in enumerate(tower.transformer.resblocks):
        width = block.attn.embed_dim
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield f"text_model.encoder.layers.{i}.self_attn.{name}", None, (width, width)
        yield f"text_model.encoder.layers.{i}.mlp.fc1", block.mlp.c_fc, (4 * width, width)
        yield f"text_model.encoder.layers.{i}.mlp.fc2", block.mlp.c_proj, (width, 4 * width)
