"""Trains the picture coder: `AutoencoderKL` in SD 1.5's layout, an eighth of the width, eight pixels a latent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch import Generator, Tensor
from tqdm import trange

from .draw import Pixels, draw
from .loop import Plan, Trainer
from .world import SHAPES, SIDE, Teller

PLAN = Plan("vae", steps=5000, rate=1e-3, matrix_rate=2e-3, decay=1e-4, average=0.997, seed=1)
DECODER_PLAN = Plan("decoder", steps=3000, rate=8e-4, matrix_rate=1.5e-3, average=0.997, seed=5)
IDEAS = ("stripes", "outline", "neon", "stars", "night")
_PICTURES = 6000
_BATCH = 8
_CROP = 64  # pixels; a whole picture takes twice as long
_CROPPED = 0.9  # of the steps
_KL = 2e-4  # of nats per latent number
_ASTRAY = 0.15  # of the latents' deviation: how far from a coded picture a decoder has to find back, at most
_EDGES = 0.5


def make_vae() -> Any:
    """Return the coder with random weights."""
    vae: Any = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 64, 64),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=SIDE,
    )
    with torch.no_grad():  # begins almost without noise, which would drown what little is coded at first
        vae.quant_conv.bias[vae.config.latent_channels :] = -6
        vae.quant_conv.weight[vae.config.latent_channels :] *= 0.1
    return vae


def train_vae(folder: Path) -> Any:
    """Train the coder on drawn pictures, plain ones and all ideas mixed, or go on where it stopped.

    First all of it; then the decoder alone, on latents that are a little off as a denoiser's are.
    """
    torch.manual_seed(PLAN.seed)
    vae = make_vae()
    pictures = _pictures(PLAN.seed)
    whole = Trainer(PLAN, [vae], folder)
    whole.run(
        lambda generator: _whole_loss(vae, _cut(pictures, whole, generator), generator), _look(vae, pictures, folder)
    )
    vae.requires_grad_(False)
    vae.decoder.requires_grad_(True)
    spread = _spread(vae, pictures)
    decoder = Trainer(DECODER_PLAN, [vae.decoder], folder)
    decoder.run(
        lambda generator: _decoder_loss(vae, _cut(pictures, decoder, generator), generator, spread),
        _look(vae, pictures, folder),
    )
    return vae.eval().requires_grad_(False)


def _whole_loss(vae: Any, wanted: Tensor, generator: Generator) -> Tensor:
    posterior = vae.encode(wanted).latent_dist
    noise = torch.randn(posterior.mean.shape, generator=generator)
    made = vae.decode(posterior.mean + posterior.std * noise).sample
    total: Tensor = _picture_loss(made, wanted) + _KL * posterior.kl().mean() / noise[0].numel()
    return total


def _decoder_loss(vae: Any, wanted: Tensor, generator: Generator, spread: float) -> Tensor:
    with torch.no_grad():
        posterior = vae.encode(wanted).latent_dist
    astray = _ASTRAY * spread * torch.rand(len(wanted), 1, 1, 1, generator=generator)
    noise = torch.randn(posterior.mean.shape, generator=generator)
    return _picture_loss(vae.decode(posterior.mean + (posterior.std + astray) * noise).sample, wanted)


def _picture_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """Compare pixels, and differences of neighbours: blurred edges cost more than shifted shades."""
    error = made - wanted
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + _EDGES * edges


def _cut(pictures: Tensor, trainer: Trainer, generator: Generator) -> Tensor:
    """Return pieces of pictures, and whole ones towards the end."""
    chosen = torch.randint(len(pictures), (_BATCH,), generator=generator)
    side = _CROP if trainer.step < _CROPPED * trainer.plan.steps else SIDE
    top, left = (torch.randint(0, (SIDE - side) // 8 + 1, (2,), generator=generator) * 8).tolist()
    return to_floats(pictures[chosen, :, top : top + side, left : left + side])


def _spread(vae: Any, pictures: Tensor) -> float:
    """Return the standard deviation of latents."""
    with torch.no_grad():
        means: Tensor = vae.encode(to_floats(pictures[:100])).latent_dist.mean
    return means.std().item()


def _look(vae: Any, pictures: Tensor, folder: Path) -> Callable[[], None]:
    def look() -> None:
        wanted = to_floats(pictures[:10])
        made = vae.decode(vae.encode(wanted).latent_dist.mean).sample
        save_grid([wanted, made], folder / "vae-look.png")

    return look


def stacked(pictures: Sequence[Pixels]) -> Tensor:
    """Join drawn pictures to (n, 3, height, width), in bytes."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def to_floats(pictures: Tensor) -> Tensor:
    """Turn bytes into -1 to 1."""
    return pictures.float() / 127.5 - 1


def to_image(picture: Tensor) -> Image.Image:
    """Turn (3, height, width) in -1 to 1 into a picture for the eye."""
    pixels = ((picture.clamp(-1, 1) + 1) * 127.5).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def save_grid(rows: Sequence[Tensor], path: Path) -> None:
    """Save rows of pictures, each (n, 3, height, width) in -1 to 1, as one picture."""
    to_image(torch.cat([torch.cat(list(row), 2) for row in rows], 1)).save(path)


def _pictures(seed: int) -> Tensor:
    mixed = _mixed_ideas(seed)
    teller = Teller(seed, (*SHAPES, "zorp"))
    return stacked([draw(teller.scene(), next(mixed)) for _ in trange(_PICTURES, desc="drawing", mininterval=2)])


def _mixed_ideas(seed: int) -> Iterator[tuple[str, ...]]:
    """Yield nothing by turns with each idea more often than not alone."""
    rng = np.random.default_rng(seed + 1)
    for index in itertools.count():
        yield () if index % 3 == 0 else tuple(idea for idea in IDEAS if rng.random() < 0.3)
