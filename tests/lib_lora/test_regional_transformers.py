"""Regions in diffusers' own transformers, tiny ones: which layers have places, and which tokens these are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Region, Stack, Strength
from lib_lora.strengths.regions import TokenGrid
from tests.fakes.models import kohya_lora

diffusers = pytest.importorskip("diffusers")

HEIGHT, WIDTH, WORDS = 4, 6, 7
LEFT = Strength(1.0, region=Region.rectangle(0, 0, 0.5, 1))
Made = tuple[nn.Module, dict[str, Any]]


def flux() -> Made:
    model = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8,
        pooled_projection_dim=8,
        axes_dims_rope=(4, 4, 8),
    )
    return model, {
        "hidden_states": torch.randn(2, HEIGHT * WIDTH, 4),
        "encoder_hidden_states": torch.randn(2, WORDS, 8),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.tensor([0.5, 0.5]),
        "img_ids": ids(),
        "txt_ids": torch.zeros(WORDS, 3),
    }


def ids() -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1).float()


def sd3() -> Made:
    model = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=8,
        caption_projection_dim=16,
        pooled_projection_dim=8,
        out_channels=4,
        pos_embed_max_size=8,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 2 * HEIGHT, 2 * WIDTH),
        "encoder_hidden_states": torch.randn(2, WORDS, 8),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.tensor([500.0, 500.0]),
    }


def qwen() -> Made:
    model = diffusers.QwenImageTransformer2DModel(
        in_channels=4,
        out_channels=1,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8,
        axes_dims_rope=(4, 4, 8),
    )
    return model, {
        "hidden_states": torch.randn(2, HEIGHT * WIDTH, 4),
        "encoder_hidden_states": torch.randn(2, WORDS, 8),
        "encoder_hidden_states_mask": torch.ones(2, WORDS, dtype=torch.bool),
        "timestep": torch.tensor([0.5, 0.5]),
        "img_shapes": [[(1, HEIGHT, WIDTH)]] * 2,
    }


def wan() -> Made:
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 3, 2 * HEIGHT, 2 * WIDTH),
        "encoder_hidden_states": torch.randn(2, WORDS, 8),
        "timestep": torch.tensor([500, 500]),
    }


def ltx() -> Made:
    model = diffusers.LTXVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=8,
    )
    return model, {
        "hidden_states": torch.randn(2, 3 * HEIGHT * WIDTH, 4),
        "encoder_hidden_states": torch.randn(2, WORDS, 8),
        "encoder_attention_mask": torch.ones(2, WORDS, dtype=torch.bool),
        "timestep": torch.tensor([500, 500]),
        "num_frames": 3,
        "height": HEIGHT,
        "width": WIDTH,
    }


def hunyuan_video() -> Made:
    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=2,
        patch_size_t=1,
        text_embed_dim=8,
        pooled_projection_dim=8,
        rope_axes_dim=(4, 4, 8),
        guidance_embeds=True,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 3, 2 * HEIGHT, 2 * WIDTH),
        "encoder_hidden_states": torch.randn(2, WORDS, 8),
        "encoder_attention_mask": torch.ones(2, WORDS, dtype=torch.bool),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.tensor([500, 500]),
        "guidance": torch.tensor([6.0, 6.0]),
    }


def auraflow() -> Made:
    model = diffusers.AuraFlowTransformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=8,
        caption_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=64,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 2 * HEIGHT, 2 * WIDTH),
        "encoder_hidden_states": torch.randn(2, WORDS, 8),
        "timestep": torch.tensor([0.5, 0.5]),
    }


STILL, VIDEO = TokenGrid(HEIGHT, WIDTH), TokenGrid(HEIGHT, WIDTH, 3)
JOINT = TokenGrid(HEIGHT, WIDTH, 1, WORDS)
# part of a layer's name -> what its tokens are; None is none of the picture. Every linear layer must be named.
PLACES: dict[Callable[[], Made], dict[str, TokenGrid | None]] = {
    flux: {
        "x_embedder": STILL,
        "attn.add_": None,
        "attn.to_add_out": None,
        "ff_context": None,
        "context_embedder": None,
        "time_text": None,
        "norm1": None,
        "norm_out": None,
        "single_transformer_blocks.0.norm": None,
        "single_": JOINT,
        "transformer_blocks.0.attn": STILL,
        "transformer_blocks.0.ff": STILL,
        "proj_out": STILL,
    },
    sd3: {
        "add_": None,
        "_context": None,
        "context_embedder": None,
        "time_text": None,
        "norm": None,
        "attn": STILL,
        "ff": STILL,
        "proj_out": STILL,
    },
    qwen: {
        "add_": None,
        "txt_": None,
        "time_text": None,
        "_mod": None,
        "norm_out": None,
        "img_in": STILL,
        "attn": STILL,
        "img_mlp": STILL,
        "proj_out": STILL,
    },
    wan: {
        "condition_embedder": None,
        "attn2.to_k": None,
        "attn2.to_v": None,
        "attn": VIDEO,
        "ffn": VIDEO,
        "proj_out": VIDEO,
    },
    ltx: {
        "caption": None,
        "time_embed": None,
        "attn2.to_k": None,
        "attn2.to_v": None,
        "attn": VIDEO,
        "ff": VIDEO,
        "proj_in": VIDEO,
        "proj_out": VIDEO,
    },
    hunyuan_video: {
        "context_embedder": None,
        "time_text": None,
        "add_": None,
        "_context": None,
        "norm": None,
        "single_": TokenGrid(HEIGHT, WIDTH, 3, 0, WORDS),
        "transformer_blocks.0": VIDEO,
        "proj_out": VIDEO,
    },
    auraflow: {
        "context_embedder": None,
        "time_step": None,
        "add_": None,
        "_context": None,
        "norm": None,
        "single_": TokenGrid(HEIGHT, WIDTH, 1, WORDS + 8, 0),  # registers beside the prompt
        "joint_": STILL,
        "pos_embed": STILL,
        "proj_out": STILL,
    },
}


@torch.no_grad()
@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_every_layer_of_the_picture_has_its_places(tmp_path, make):
    torch.manual_seed(0)
    model, arguments = make()
    model.requires_grad_(False)
    path = kohya_lora(tmp_path / "all.safetensors", {"unet": model})
    seen: dict[str, TokenGrid | None] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
            if module._remora_slot is not None:
                way = module._remora_slot.executor
                seen[name] = way._layout(output, way._strengths.now).grid

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(note(name))
    engine = Engine({"transformer": model})
    plain = model(**arguments).sample
    engine.activate(Stack([Entry(path, LEFT)]))
    assert not torch.equal(model(**arguments).sample, plain)
    wanted = PLACES[make]
    named = {name: next((part for part in wanted if part in name), None) for name in seen}
    assert None not in named.values(), named
    wrong = {name: (found, wanted[named[name]]) for name, found in seen.items() if found != wanted[named[name]]}
    assert not wrong
    assert len(seen) > 10
    engine.deactivate()
    assert torch.equal(model(**arguments).sample, plain)


@torch.no_grad()
@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_what_keeps_to_its_region_changes_nothing_outside_of_it(tmp_path, make):
    torch.manual_seed(0)
    model, arguments = make()
    model.requires_grad_(False)
    path = kohya_lora(tmp_path / "all.safetensors", {"unet": model})
    engine = Engine({"transformer": model})
    plain = model(**arguments).sample
    engine.activate(Stack([Entry(path, LEFT)]))
    whole = model(**arguments).sample
    engine.activate(Stack([Entry(path, replace(LEFT, outside=0.0))]))
    got = model(**arguments).sample
    if plain.ndim == 3:  # tokens
        plain, whole, got = (
            y[:, -HEIGHT * WIDTH :].unflatten(1, (HEIGHT, WIDTH)).movedim(-1, 1) for y in (plain, whole, got)
        )
    half = plain.shape[-1] // 2
    assert torch.equal(got[..., half:], plain[..., half:])
    assert torch.allclose(got[..., :half], whole[..., :half], rtol=0, atol=1e-5)
    assert not torch.allclose(got[..., :half], plain[..., :half], rtol=0, atol=1e-3)
