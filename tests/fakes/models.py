"""Small models of the real architectures, LoRA files for them, and what such a file must do, in fp64."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

WIDTH = 32  # of the text encoder, so of the UNet's cross attention
TOKENS = 8

Deltas = Mapping[str, Mapping[str, Tensor]]
"""Component -> layer path -> dense change of its weight."""

_PREFIXES = {"unet": "lora_unet", "text_encoder": "lora_te", "text_encoder_2": "lora_te2"}


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Have every device do the same operations in the same order, so that results can be compared bit for bit.

    One thread, too: between operations this small a pool of them only waits, and the tests take ten times as long.
    """
    threads = torch.get_num_threads()
    mha: Any = getattr(torch.backends, "mha", None)  # torch 2.2 and later
    fast_attention = mha is not None and mha.get_fastpath_enabled()
    torch.set_num_threads(1)
    if fast_attention:
        mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), _plain_attention():
            yield
    finally:
        if fast_attention:
            mha.set_fastpath_enabled(True)
        torch.set_num_threads(threads)


def _plain_attention() -> AbstractContextManager[Any]:
    """No fused attention."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ModuleNotFoundError:  # before torch 2.3
        return torch.backends.cuda.sdp_kernel(enable_flash=False, enable_math=True, enable_mem_efficient=False)
    return sdpa_kernel(SDPBackend.MATH)


def tiny_unet(seed: int) -> UNet2DConditionModel:
    """Make a UNet of SD 1.5's kinds of block, two levels deep, frozen, in fp32."""
    return copy.deepcopy(_unet(seed))


def tiny_text_encoder(seed: int) -> CLIPTextModel:
    """Make a CLIP text encoder of two layers, frozen, in fp32."""
    return copy.deepcopy(_text_encoder(seed))


def tiny_pipeline(seed: int) -> StableDiffusionPipeline:
    """Make a text-to-image pipeline of the tiny models; it has no tokenizer, so it is called with embeddings."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        vae = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8)
    pipeline = StableDiffusionPipeline(
        vae=vae.requires_grad_(False).eval(),
        text_encoder=tiny_text_encoder(seed),
        tokenizer=None,
        unet=tiny_unet(seed),
        scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def unet_inputs(seed: int, batch: int = 2) -> dict[str, Any]:
    """Make the keyword arguments of one call of `tiny_unet`, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "sample": torch.randn(batch, 4, 8, 8, generator=generator),
        "timestep": torch.tensor(500),
        "encoder_hidden_states": torch.randn(batch, TOKENS, WIDTH, generator=generator),
        "return_dict": False,
    }


def kohya_lora(
    path: Path,
    component_modules: Mapping[str, nn.Module],
    rank: int = 4,
    alpha: float = 2.0,
    seed: int = 0,
    *,
    conv: bool = False,
) -> Path:
    """Write a file in kohya's spelling with a LoRA for every linear layer, and every convolution if `conv`.

    Each delta is about a tenth of the layer's weight in norm, so no layer is without effect and none drowns another.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, _, layer in _layers(component_modules, conv=conv):
        weight = layer.weight
        down = torch.randn(rank, *weight.shape[1:], generator=generator)
        up = torch.randn(weight.shape[0], rank, *(1,) * (weight.ndim - 2), generator=generator)
        delta = alpha / rank * (up.flatten(1) @ down.flatten(1)).norm()
        up *= 0.1 * math.sqrt(weight.numel() / (3 * weight[0].numel())) / delta  # torch's init has that norm
        tensors |= {
            f"{name}.lora_down.weight": down,
            f"{name}.lora_up.weight": up,
            f"{name}.alpha": torch.tensor(alpha),
        }
    save_file(tensors, path)
    return path


def dense_deltas(path: Path, component_modules: Mapping[str, nn.Module]) -> Deltas:
    """Compute alpha / rank * up @ down of each layer of a kohya file, in fp64, from the file's bytes alone."""
    tensors = {key: tensor.double() for key, tensor in load_file(path).items()}
    deltas: dict[str, dict[str, Tensor]] = {component: {} for component in component_modules}
    for name, (component, layer_path), layer in _layers(component_modules, conv=True):
        down, up = tensors.get(f"{name}.lora_down.weight"), tensors.get(f"{name}.lora_up.weight")
        if down is not None and up is not None:
            scale = tensors[f"{name}.alpha"].item() / down.shape[0]
            delta = scale * up.flatten(1) @ down.flatten(1)
            deltas[component][layer_path] = delta.reshape(layer.weight.shape)
    return deltas


def merged(module: nn.Module, deltas: Mapping[str, Tensor], strength: float) -> nn.Module:
    """Copy a module to fp64 with `strength` times the deltas in its weights: the exact reference."""
    reference = copy.deepcopy(module).double()
    with torch.no_grad():
        for path, delta in deltas.items():
            reference.get_submodule(path).weight += strength * delta
    return reference


def _layers(
    component_modules: Mapping[str, nn.Module], *, conv: bool
) -> Iterator[tuple[str, tuple[str, str], nn.Linear | nn.Conv2d]]:
    """Yield (name in the file, (component, path), layer)."""
    for component, module in component_modules.items():
        for path, layer in module.named_modules():
            if isinstance(layer, nn.Linear) or (conv and isinstance(layer, nn.Conv2d)):
                # files keep the name of the tree that transformers flattened in 5.6
                lost = component.startswith("text_encoder") and not path.startswith("text_model.")
                name = f"{'text_model.' if lost else ''}{path}".replace(".", "_")
                yield f"{_PREFIXES[component]}_{name}", (component, path), layer


@functools.lru_cache(maxsize=4)
def _unet(seed: int) -> UNet2DConditionModel:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        unet = UNet2DConditionModel(
            sample_size=8,
            layers_per_block=1,
            block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=WIDTH,
            attention_head_dim=4,
            norm_num_groups=8,
        )
    return unet.requires_grad_(False).eval()


@functools.lru_cache(maxsize=4)
def _text_encoder(seed: int) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=100,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=TOKENS,
        bos_token_id=98,
        eos_token_id=99,
        pad_token_id=99,
    )
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        encoder = CLIPTextModel(config)
    return encoder.requires_grad_(False).eval()
