"""Stable Diffusion XL in full size: the UNet and both text encoders as one module, with weights that mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from _models import TINY
from diffusers import UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

UNET = {
    "sample_size": 128,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
SMALL_UNET = TINY | {
    "cross_attention_dim": 32,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 6 * 4 + 16,
}
ENCODERS = (
    {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20},
)
SMALL_ENCODERS = tuple(
    {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 99}
    for _ in ENCODERS
)
PREFIXES = {"unet": "lora_unet_", "text_encoder": "lora_te1_", "text_encoder_2": "lora_te2_"}
"""Of kohya's keys."""
_POOL = 1 << 22


class Sdxl(nn.Module):
    """The parts of the pipeline that have LoRA, called as it calls them."""

    def __init__(self, *, tiny: bool) -> None:
        super().__init__()
        first, second = (CLIPTextConfig(**one, projection_dim=one["hidden_size"]) for one in _encoders(tiny))
        self.unet = UNet2DConditionModel(**(SMALL_UNET if tiny else UNET))
        self.text_encoder = CLIPTextModel(first)
        self.text_encoder_2 = CLIPTextModelWithProjection(second)

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        found: torch.dtype = self.unet.dtype
        return found

    def forward(self, tokens: Tensor, sample: Tensor) -> Tensor:
        """One step of a prompt, (n, 77) and (n, 4, height, width)."""
        one = self.text_encoder(tokens, output_hidden_states=True)
        two = self.text_encoder_2(tokens, output_hidden_states=True)
        states = torch.cat([one.hidden_states[-2], two.hidden_states[-2]], -1)
        sizes = torch.zeros(len(tokens), 6, dtype=sample.dtype)
        added = {"text_embeds": two.text_embeds, "time_ids": sizes}
        found: Tensor = self.unet(sample, 500, states, added_cond_kwargs=added, return_dict=False)[0]
        return found


def _encoders(tiny: bool) -> tuple[dict[str, int], ...]:
    return SMALL_ENCODERS if tiny else ENCODERS


def build_sdxl(*, tiny: bool, dtype: torch.dtype) -> Sdxl:
    """Return it with random weights, the same few numbers again and again, as drawing billions takes minutes."""
    with torch.device("meta"):
        made = Sdxl(tiny=tiny)
    pool = torch.randn(_POOL, generator=torch.Generator().manual_seed(0)).to(dtype)
    for module in made.modules():
        for name, parameter in module.named_parameters(recurse=False):
            filled = torch.empty(parameter.shape, dtype=dtype)
            if filled.ndim == 1:
                filled.fill_(float("norm" in type(module).__name__.lower() and name == "weight"))
            else:
                _fill(filled, pool)
                filled *= filled[0].numel() ** -0.5
            setattr(module, name, nn.Parameter(filled, requires_grad=False))
    _give_positions(made)
    return made.eval()


def _fill(filled: Tensor, pool: Tensor) -> None:
    flat = filled.view(-1)
    for start in range(0, len(flat), len(pool)):
        part = flat[start : start + len(pool)]
        part.copy_(pool[: len(part)])


def _give_positions(model: nn.Module) -> None:
    for module in model.modules():
        if "position_ids" in module._buffers:
            positions = module._buffers["position_ids"]
            assert positions is not None
            module._buffers["position_ids"] = torch.arange(positions.shape[-1]).expand(1, -1)


def twin_sdxl(model: Sdxl, *, tiny: bool) -> Sdxl:
    """Return other modules over the same weights."""
    with torch.device("meta"):
        made = Sdxl(tiny=tiny)
    made.load_state_dict(model.state_dict(), assign=True)
    _give_positions(made)
    return made.eval().requires_grad_(False)


def sdxl_step(model: Sdxl, latent: int) -> Callable[[nn.Module], Tensor]:
    """Return a function that runs one step of such a model."""
    some = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, model.text_encoder.config.vocab_size, (1, 77), generator=some)
    sample = torch.randn(1, 4, latent, latent, generator=some).to(model.unet.dtype)

    def step(other: nn.Module) -> Tensor:
        with torch.no_grad():
            found: Tensor = other(tokens, sample)
        return found

    return step


def sdxl_layers(model: Sdxl) -> tuple[str, ...]:
    """Return the layers that kohya's trainer adapts: 722 of the UNet's transformers, 264 of the text encoders."""

    def chosen() -> Iterator[str]:
        for path, module in model.named_modules():
            if isinstance(module, nn.Linear) and (".attentions." in path or ".layers." in path):
                yield path

    return tuple(chosen())


def sdxl_key(path: str) -> str:
    """Kohya's key of a layer."""
    component, _, own = path.partition(".")
    return PREFIXES[component] + own.replace(".", "_")
