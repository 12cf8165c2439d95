"""A layer that does not fit says what the file was made for, and what to do, in one sentence."""

from __future__ import annotations

from functools import lru_cache

import diffusers
import pytest
from diffusers import WanTransformer3DModel
from torch import nn

from lib_lora import NoMatchError, load_network
from lib_lora.inspection.skeleton import skeleton
from tests.fakes.files import hollow
from tests.families import families
from tests.families.base import on_meta

FAMILIES = families()
FLUX = {"single_transformer_blocks.0.attn.to_q": (3072, 3072), "transformer_blocks.0.ff_context.net.2": (3072, 12288)}
WAN = {"blocks.0.attn1.to_q": (5120, 5120), "blocks.0.ffn.net.2": (5120, 13824)}
MADE_FOR = {
    "Fill": ("flux", FLUX | {"x_embedder": (3072, 384)}, "made for FLUX.1 Fill, which has 384 inputs in x_embedder"),
    "control": ("flux", FLUX | {"x_embedder": (3072, 128)}, "made for FLUX.1 control (Canny or Depth), which has 128"),
    "nobody's inputs": ("flux", FLUX | {"x_embedder": (3072, 100)}, "made for another model, which has 100 inputs in"),
    "more blocks": (
        "flux",
        FLUX | {"transformer_blocks.18.ff.net.2": (3072, 12288)},
        "of a block that the loaded model",
    ),
    "Wan control": (
        "wan t2v",
        WAN | {"patch_embedding": (5120, 32, 1, 2, 2)},
        "made for Wan with a control video, which",
    ),
    "Wan VACE": ("wan", WAN | {"vace_blocks.0.proj_out": (5120, 5120)}, "of a layer that only Wan VACE has; load Wan"),
    "Wan 1.3B": (
        "wan",
        {"blocks.0.attn1.to_q": (1536, 1536), "blocks.0.ffn.net.2": (1536, 8960)},
        "made for a model that is Wan 1.3B, 1536 wide; the loaded one is Wan 14B, 5120 wide: load",
    ),
    "Klein": (
        "flux2",
        {"single_transformer_blocks.0.attn.to_qkv_mlp_proj": (36864, 4096)},
        "made for a model that is FLUX.2 Klein 9B, 4096 wide; the loaded one is FLUX.2 dev, 6144 wide",
    ),
    "SD 3.5": (
        "sd3",
        {"transformer_blocks.0.attn.to_q": (2432, 2432), "transformer_blocks.0.attn.to_k": (2432, 2432)},
        "made for a model that is Stable Diffusion 3.5 Large, 2432 wide; the loaded one is Stable Diffusion 3",
    ),
    "inpainting": (
        "sd1",
        {"conv_in": (320, 9, 3, 3), "time_embedding.linear_1": (1280, 320)},
        "made for Stable Diffusion 1.5 inpainting, which has 9 inputs in conv_in where the loaded model has 4; load",
    ),
    "another family": (
        "sd1",
        {
            "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k": (640, 2048),
            "down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k": (640, 2048),
        },
        "of a layer that Stable Diffusion XL has in another size; load a model of that family",
    ),
    "broken": (
        "flux",
        FLUX | {"x_embedder": (3072, 64, 2)},
        "of a layer whose tensors do not fit each other; download the file again",
    ),
}


@lru_cache
def model(name: str) -> dict[str, nn.Module]:
    if name == "wan t2v":
        return {"transformer": on_meta(WanTransformer3DModel, num_layers=1, in_channels=16)}
    return {FAMILIES[name].component: FAMILIES[name].build(False)}


@pytest.mark.parametrize("case", MADE_FOR)
def test_a_layer_that_does_not_fit_says_what_the_file_was_made_for(case, tmp_path):
    name, layers, sentence = MADE_FOR[case]
    infos = {}
    for layer, (out, *inside) in layers.items():
        prefix = f"{next(iter(model(name)))}.{layer}"
        infos[f"{prefix}.lora_A.weight"] = ((2, *inside), "F16")
        infos[f"{prefix}.lora_B.weight"] = ((out, 2, *(1 for _ in inside[1:])), "F16")
    network = load_network(hollow(tmp_path / "a.safetensors", infos), model(name))
    reasons = [one for one in network.report.reasons() if "shared" not in one]
    assert any(one.startswith(sentence) for one in reasons), reasons
    assert "want" not in network.report.why() or case == "broken"
    if network.bindings:
        assert case == "more blocks" or "VACE" in case or sentence in network.report.warning
    else:
        with pytest.raises(NoMatchError) as caught:
            network.check_fit()
        assert sentence in str(caught.value)


def test_a_text_encoder_of_another_width_is_named(tmp_path):
    layer = "text_encoder.text_model.encoder.layers.0.self_attn.q_proj"
    infos = {f"{layer}.lora_A.weight": ((2, 1280), "F16"), f"{layer}.lora_B.weight": ((1280, 2), "F16")}
    encoder = skeleton({f"{layer.removeprefix('text_encoder.')}.weight": (768, 768)})
    network = load_network(hollow(tmp_path / "a.safetensors", infos), {"text_encoder": encoder})
    with pytest.raises(NoMatchError, match="made for a text encoder that is OpenCLIP bigG, 1280 wide; the loaded one"):
        network.check_fit()


def own_flux(width: int) -> dict[str, tuple[int, int]]:
    """Return layers by FLUX.1's own names -> outputs and inputs."""
    halves = {"attn_qkv": (3, 1), "attn_proj": (1, 1), "mlp_0": (4, 1), "mlp_2": (1, 4), "mod_lin": (6, 1)}
    layers = {f"double_blocks_0_{half}_{name}": size for half in ("img", "txt") for name, size in halves.items()}
    layers |= {f"single_blocks_0_{name}": size for name, size in {"linear1": (7, 1), "linear2": (1, 5)}.items()}
    return {name: (outputs * width, inside * width) for name, (outputs, inside) in layers.items()}


@pytest.mark.parametrize("heads", [24, 4])
@pytest.mark.parametrize(
    ("model_class", "title"),
    [
        ("OvisImageTransformer2DModel", "Ovis-Image"),
        ("BriaTransformer2DModel", "BRIA 3.2"),
        ("BriaFiboTransformer2DModel", "BRIA FIBO"),
    ],
)
def test_own_names_of_flux_on_a_relative_that_has_none_name_no_other_family(tmp_path, model_class, title, heads):
    made = getattr(diffusers, model_class, None)
    if made is None:
        pytest.skip(f"this diffusers has no {model_class}")
    more = {"pooled_projection_dim": None} if "Bria" in model_class else {}
    relative = on_meta(made, num_layers=1, num_single_layers=1, num_attention_heads=heads, **more)
    layers = own_flux(128 * heads)
    infos: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, (outputs, inside) in layers.items():
        infos[f"lora_unet_{name}.lora_down.weight"] = ((2, inside), "F16")
        infos[f"lora_unet_{name}.lora_up.weight"] = ((outputs, 2), "F16")
    network = load_network(hollow(tmp_path / "a.safetensors", infos), {"transformer": relative})
    assert network.report.hit == 0
    family = network.report.family
    assert family is None or family.name == "flux" or not family.sure, family
    with pytest.raises(NoMatchError) as caught:
        network.check_fit()
    if heads == 24:
        assert f"FLUX.1 or HunyuanVideo, the loaded model is {title}: 0 of {len(layers)} layers fit" in str(
            caught.value
        )
    else:
        assert "fits no layer of the loaded model" in str(caught.value)
