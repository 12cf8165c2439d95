"""Trains the denoiser and the text encoder together, from nothing, to predict the noise in coded pictures."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from diffusers import DDIMScheduler, DDPMScheduler, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from torch import Generator, Tensor, nn

from .draw import draw
from .latents import Latents, coded
from .loop import Loss, Plan, Trainer
from .text import WIDTH, make_text_encoder, tokenize, train_tokenizer
from .vae import save_grid
from .world import SIDE, Teller

PLANS = (
    Plan("denoiser", steps=2600, rate=1e-3, matrix_rate=1.5e-3, warmup=100, average=0.998, seed=2),
    Plan("denoiser-again", steps=1500, rate=6e-4, matrix_rate=1e-3, warmup=50, average=0.998, seed=3),
)
"""One after the other: what the first leaves is the start of the second."""
_SEED = 2
SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}  # SD 1.5's
_PICTURES = 40_000
_BATCH = 64
_WORDLESS = 0.1  # share of captions left empty, for classifier-free guidance
_GAMMA = 5.0
_LOOK = (
    "two small red circles on a blue ground",
    "a big yellow star on a pink ground",
    "a green heart on the left on a white ground",
    "three purple squares on a yellow ground",
    "a red circle left of a blue triangle on a grey ground",
    "four small orange crosses on a green ground",
    "an orange circle at the top on a blue ground",
    "one big white heart on a grey ground",
    "blue star",
    "a purple triangle above a yellow square on a green ground",
)


def make_unet() -> nn.Module:
    """Return the denoiser with random weights: SD 1.5's blocks, a tenth of the width."""
    unet: nn.Module = UNet2DConditionModel(
        sample_size=SIDE // 8,
        block_out_channels=(32, 64, 128, 128),
        cross_attention_dim=WIDTH,
        attention_head_dim=(2, 4, 4, 4),
        norm_num_groups=16,
    )
    return unet


def train_denoiser(folder: Path, vae: Any) -> Any:
    """Train denoiser and text encoder, or go on where they stopped; returns the whole pipeline."""
    torch.manual_seed(_SEED)
    teller = Teller(_SEED)
    tokenizer = train_tokenizer(teller.caption(teller.scene()) for _ in range(4000))
    pipeline = make_pipeline(vae, make_unet(), make_text_encoder(tokenizer), tokenizer)
    teller = Teller(_SEED + 1)

    scenes = (teller.scene() for _ in itertools.count())
    examples = ((draw(scene), teller.caption(scene)) for scene in scenes)
    latents = coded(folder / "pictures.pt", vae, tokenizer, _PICTURES, examples)
    vae.register_to_config(scaling_factor=round(1 / float(latents.means.float().std()), 5))
    loss = noise_loss(pipeline, latents, _BATCH)
    for plan in PLANS:
        trainer = Trainer(plan, [pipeline.unet, pipeline.text_encoder], folder)
        trainer.run(loss, lambda: look(pipeline, _LOOK, folder / "denoiser-look.png"))
    return pipeline


def make_pipeline(vae: nn.Module, unet: nn.Module, text_encoder: nn.Module, tokenizer: Any) -> Any:
    """Put the parts together, with SD 1.5's scheduler."""
    return StableDiffusionPipeline(
        unet=unet,
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        scheduler=PNDMScheduler(**SCHEDULE, skip_prk_steps=True, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def load_pipeline(folder: Path) -> Any:
    """Load the finished model as it is used: from half precision, for computing in single."""
    pipeline = StableDiffusionPipeline.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        part.eval().requires_grad_(False)
    return pipeline


def noise_loss(pipeline: Any, latents: Latents, size: int) -> Loss:
    """Return the loss of predicted noise, weighted by min-SNR (Hang et al. 2023, arXiv:2303.09556)."""
    noises = DDPMScheduler(**SCHEDULE)
    kept = noises.alphas_cumprod
    weights = (kept / (1 - kept)).clamp(max=_GAMMA) / (kept / (1 - kept))
    wordless = tokenize(pipeline.tokenizer, [""])
    scale = pipeline.vae.config.scaling_factor

    def loss(generator: Generator) -> Tensor:
        clean, tokens = latents.batch(size, scale, generator)
        tokens = torch.where(torch.rand(size, 1, generator=generator) < _WORDLESS, wordless, tokens)
        times = torch.randint(len(kept), (size,), generator=generator)
        noise = torch.randn(clean.shape, generator=generator)
        noisy = noises.add_noise(clean, noise, times)
        predicted = pipeline.unet(noisy, times, pipeline.text_encoder(tokens)[0]).sample
        errors = (predicted - noise).square().mean((1, 2, 3))
        weighted: Tensor = (errors * weights[times]).mean()
        return weighted

    return loss


@torch.no_grad()
def look(pipeline: Any, prompts: tuple[str, ...], path: Path, steps: int = 20, guidance: float = 5.0) -> None:
    """Save one picture per prompt, always from the same noise."""
    save_grid([generate(pipeline, prompts, seed=0, steps=steps, guidance=guidance)], path)


@torch.no_grad()
def generate(pipeline: Any, prompts: tuple[str, ...], seed: int, steps: int = 20, guidance: float = 5.0) -> Tensor:
    """Return a picture per prompt, (n, 3, height, width) in -1 to 1, by DDIM."""
    scheduler = DDIMScheduler(**SCHEDULE, clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    scheduler.set_timesteps(steps)
    words = pipeline.text_encoder(tokenize(pipeline.tokenizer, [*[""] * len(prompts), *prompts]))[0]
    side = SIDE // 8
    latents = torch.randn(len(prompts), 4, side, side, generator=Generator().manual_seed(seed))
    for time in scheduler.timesteps:
        blind, told = pipeline.unet(torch.cat([latents] * 2), time, words).sample.chunk(2)
        latents = scheduler.step(blind + guidance * (told - blind), time, latents).prev_sample
    pictures: Tensor = pipeline.vae.decode(latents / pipeline.vae.config.scaling_factor).sample
    return pictures
