"""The model and the adapters that are measured: full size, random weights; nothing is downloaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

diffusers_logging.set_verbosity_error()  # it warns of every cast

SD15 = {
    "sample_size": 64,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
    "block_out_channels": (320, 640, 1280, 1280),
    "layers_per_block": 2,
}
TINY = {
    "sample_size": 8,
    "cross_attention_dim": 16,
    "attention_head_dim": 4,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}
BOUNDS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""How far two ways to the same output may differ, in units of its largest entry: 182 layers of rounding."""


@dataclass(frozen=True, slots=True)
class LoraFile:
    """One LoRA, in two files of equal content."""

    kohya: Path
    peft: Path
    rank: int
    alpha: float
    layers: tuple[str, ...]


def build_unet(*, tiny: bool, dtype: torch.dtype) -> nn.Module:
    """Return SD 1.5's UNet with random weights, or a tiny one of the same making."""
    unet: nn.Module = UNet2DConditionModel(**(TINY if tiny else SD15))
    return unet.to(dtype).eval().requires_grad_(False)


def twin(model: Any) -> nn.Module:
    """Return other modules over the same weights, so that variants stand side by side in the memory of one."""
    with torch.device("meta"):
        made: nn.Module = type(model).from_config(model.config)
    made.load_state_dict(model.state_dict(), assign=True)
    return made.eval().requires_grad_(False)


def make_step(unet: Any, latent: int, batch: int) -> Callable[[nn.Module], Tensor]:
    """Return a function that runs one step of a model on inputs that stay the same."""
    some = torch.Generator().manual_seed(1)
    own = {"device": unet.device, "dtype": unet.dtype}
    sample = torch.randn(batch, 4, latent, latent, generator=some).to(**own)
    states = torch.randn(batch, 77, unet.config["cross_attention_dim"], generator=some).to(**own)

    def step(model: nn.Module) -> Tensor:
        with torch.no_grad():
            output: Tensor = model(sample, 500, encoder_hidden_states=states, return_dict=False)[0]
        return output

    return step


def linear_layers(unet: nn.Module) -> tuple[str, ...]:
    """Return the linear layers without the two of the time embedding: 182 in SD 1.5."""
    linear = (name for name, module in unet.named_modules() if isinstance(module, nn.Linear))
    return tuple(name for name in linear if not name.startswith("time_embedding."))


def conv_layers(unet: nn.Module) -> tuple[str, ...]:
    """Return the convolutions."""
    return tuple(name for name, module in unet.named_modules() if isinstance(module, nn.Conv2d))


def kohya_key(path: str) -> str:
    """Return the key of a layer of a UNet."""
    return f"lora_unet_{path.replace('.', '_')}"


def write_lora(
    folder: Path,
    name: str,
    model: nn.Module,
    layers: Sequence[str],
    rank: int,
    key_of: Callable[[str], str] = kohya_key,
) -> LoraFile:
    """Write a LoRA of random numbers, as kohya's trainer and as PEFT would, in half precision as files are.

    Its weights are a third of the layers' in size, alpha is half the rank: `down_blocks.0.attentions.0.proj_in` has
    `lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight`.
    """
    some = torch.Generator().manual_seed(sum(map(ord, name)))
    alpha = rank / 2
    kohya, peft = {}, {}
    for path in layers:
        out, fan_in, *kernel = model.get_parameter(f"{path}.weight").shape
        down = torch.randn(rank, fan_in, *kernel, generator=some) * (fan_in * torch.Size(kernel).numel()) ** -0.5
        up = torch.randn(out, rank, *(1 for _ in kernel), generator=some) * (0.2 * rank / alpha * rank**-0.5)
        key = key_of(path)
        kohya[f"{key}.lora_down.weight"] = peft[f"{path}.lora_A.weight"] = down.half()
        kohya[f"{key}.lora_up.weight"] = peft[f"{path}.lora_B.weight"] = up.half()
        kohya[f"{key}.alpha"] = torch.tensor(alpha).half()
    file = LoraFile(folder / f"{name}.safetensors", folder / f"{name}.peft.safetensors", rank, alpha, tuple(layers))
    save_file(kohya, file.kohya)
    save_file(peft, file.peft)
    return file


def peft_load(unet: Any, file: LoraFile, name: str) -> None:
    """Add an adapter the way diffusers does: empty layers first, the file's tensors assigned to them."""
    config = LoraConfig(r=file.rank, lora_alpha=file.alpha, target_modules=list(file.layers))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several adapters are meant
        inject_adapter_in_model(config, unet, adapter_name=name, low_cpu_mem_usage=True)
    device = next(unet.parameters()).device
    state = {key: tensor.to(device, unet.dtype) for key, tensor in load_file(file.peft).items()}
    result = set_peft_model_state_dict(unet, state, adapter_name=name, low_cpu_mem_usage=True)
    if result.unexpected_keys:
        raise RuntimeError(f"PEFT could not use {result.unexpected_keys[:3]}")


def peft_layers(unet: nn.Module) -> Iterator[Any]:
    """Return the layers that PEFT put into the model."""
    return (module for module in unet.modules() if isinstance(module, LoraLayer))


def peft_activate(unet: nn.Module, names: Sequence[str]) -> None:
    """Make these adapters act, and only they; what `set_adapters` comes down to."""
    for layer in peft_layers(unet):
        layer.set_adapter(list(names), inference_mode=True)


def peft_scale(unet: nn.Module, name: str, multiplier: float) -> None:
    """Change the strength of one adapter."""
    for layer in peft_layers(unet):
        layer.set_scale(name, multiplier)


def peft_delete(unet: Any, name: str) -> None:
    """Take an adapter out again."""
    for layer in peft_layers(unet):
        layer.delete_adapter(name)
    del unet.peft_config[name]


class ByHand(nn.Module):
    """The shortest code that adds LoRAs to a layer: all as one pair, one number for each rank component."""

    def __init__(self, base: nn.Module, pairs: Sequence[tuple[Tensor, Tensor, float]]) -> None:
        super().__init__()
        like = next(base.parameters())
        self.base = base
        self.down = torch.cat([down for down, _, _ in pairs]).to(like)
        self.up = torch.cat([up for _, up, _ in pairs], 1).to(like)
        ranks = torch.cat([torch.full((len(down),), scale) for down, _, scale in pairs])
        self.scale = ranks.to(like).view(-1, *(1,) * (self.down.ndim - 2))

    def forward(self, x: Tensor) -> Tensor:
        """Compute base, down, times strength, up and sum."""
        y: Tensor = self.base(x)
        if self.down.ndim > 2:
            low = self.base._conv_forward(x, self.down, None) * self.scale  # type: ignore[operator]
            return y + nn.functional.conv2d(low, self.up)
        low = nn.functional.linear(x, self.down) * self.scale
        return y.view(-1, y.shape[-1]).addmm_(low.view(-1, low.shape[-1]), self.up.t()).view(y.shape)


def by_hand(model: nn.Module, paths: Iterable[str], files: Sequence[LoraFile], strength: float) -> None:
    """Replace layers by the shortest code that adds LoRAs to them."""
    tensors = [load_file(file.peft) for file in files]
    for path in paths:
        pairs = [
            (one[f"{path}.lora_A.weight"], one[f"{path}.lora_B.weight"], strength * file.alpha / file.rank)
            for one, file in zip(tensors, files, strict=True)
        ]
        model.set_submodule(path, ByHand(model.get_submodule(path), pairs))


def check_equal(what: str, output: Tensor, other: Tensor, base: Tensor) -> float:
    """Return how far two outputs are apart, in units of the largest entry.

    Raises:
        RuntimeError: further than rounding explains, or so near to the base output that the check says nothing.
    """
    bound = BOUNDS[output.dtype]
    largest = other.abs().max()
    apart = ((output - other).abs().max() / largest).item()
    effect = ((other - base).abs().max() / largest).item()
    if not apart <= bound:
        raise RuntimeError(f"{what}: outputs differ by {apart:.1e} of the largest entry, more than {bound:.0e}")
    if not effect > 2 * bound:
        raise RuntimeError(f"{what}: the adapters change the output by {effect:.1e} only; their check says nothing")
    return apart
