"""Files as users of other programs described them in 2026, and as other projects write them or have them in tests.

The spelling of keys and the parameters of a layer are those of the source. The layers are those of the family's model
with few blocks whose names have the given parts, and the shapes are the model's: the files themselves are not at hand,
and no list of keys is copied. So only names and kinds are tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from torch import nn

from lib_lora import load_network
from tests.fakes.files import hollow, save
from tests.families import families
from tests.families.base import Shapes, linear_layers

FAMILIES = families()
RANK = 8
PEFT = {"lora_A.weight": "down", "lora_B.weight": "up"}
PEFT_ALPHA = {**PEFT, "alpha": "alpha"}
NAMED = {"lora_A.default.weight": "down", "lora_B.default.weight": "up"}
KOHYA = {"lora_down.weight": "down", "lora_up.weight": "up", "alpha": "alpha"}
BARE = {"lora_down.weight": "down", "lora_up.weight": "up"}
LOKR = {"lokr_w1": "w1", "lokr_w2": "w2", "alpha": "alpha"}
DOKR = {**LOKR, "dora_scale": "norms"}
DIFFERENCES = {"diff": "weight", "diff_b": "bias"}
LIGHTX2V = {**BARE, "diff_b": "bias"}
LOHA = {"hada_w1_a": "up", "hada_w1_b": "down", "hada_w2_a": "up", "hada_w2_b": "down", "alpha": "alpha"}


@dataclass(frozen=True)
class Told:
    """A file that somebody told of.

    Args:
        source: the thread, or repository and path of the file that has such keys.
        family: of `tests/families`.
        key: how a layer is spelled; `{}` is its dotted name, `{_}` the same with underscores.
        params: parameter -> what it is.
        layers: which layers of the model it has, by a part of their names; all linear layers if none are given.
        native: whether they have the names of the model's own code.
        metadata: of the file.
        kinds: algorithms that act.
    """

    source: str
    family: str
    key: str
    params: Mapping[str, str]
    layers: tuple[str, ...] = ()
    native: bool = False
    metadata: Mapping[str, str] | None = None
    kinds: frozenset[str] = frozenset({"lora"})


LOKR_KIND, DOKR_KIND = frozenset({"lokr"}), frozenset({"lokr+dora"})
WITH_BIAS, FULL = frozenset({"lora+bias"}), frozenset({"full"})
LOHA_KIND, DORA_KIND = frozenset({"loha"}), frozenset({"lora+dora"})
BLOCK = ("blocks.0.", "layers.0.")
THREADS = (
    Told("Comfy-Org/ComfyUI 16234: LoKr with DoRA", "krea2", "diffusion_model.{}", DOKR, BLOCK, True, kinds=DOKR_KIND),
    Told(
        "bghira/SimpleTuner 3222: the same", "krea2", "lycoris_{_}", DOKR, ("transformer_blocks.0.",), kinds=DOKR_KIND
    ),
    Told("kohya-ss/musubi-tuner 807", "z_image", "lora_unet_{_}", KOHYA, ("layers.", ".attention.")),
    Told("Comfy-Org/ComfyUI 11926: names of diffusers", "flux2", "transformer.{}", PEFT, ("transformer_blocks.",)),
    Told("huggingface/diffusers 13162", "flux2_klein", "base_model.model.{}", PEFT, ("double_", "single_"), True),
    Told(
        "huggingface/diffusers 13261", "flux2_klein", "diffusion_model.{}", LOKR, ("_blocks.",), True, kinds=LOKR_KIND
    ),
    Told("Comfy-Org/ComfyUI 14477: OneTrainer", "ideogram4", "diffusion_model.{}", PEFT_ALPHA, ("attention.",)),
    Told("Nerogar/OneTrainer 1522", "ideogram4", "transformer.{}", KOHYA),
    Told("kohya-ss/musubi-tuner 1112", "minimax_h3", "diffusion_model.{}", PEFT, ("blocks.",), True),
    Told("Comfy-Org/ComfyUI 14767", "hidream_o1", "model.{}", PEFT, ("language_model.",)),
    Told("Comfy-Org/ComfyUI 14349: DiffSynth-Studio", "ltx2", "{}", NAMED, ("attn1.",)),
    Told("Comfy-Org/ComfyUI 11419: NewBie", "lumina2", "base_model.model.{}", PEFT, ("attention.",), True),
    Told("Nerogar/OneTrainer 1487", "anima", "transformer.{}", BARE, ("attn1.",)),
    Told("Nerogar/OneTrainer 1431", "ernie_image", "transformer.{}", KOHYA, ("self_attention.", "mlp.")),
    Told("AbstractEyes/comfyui-lycoris 6", "z_image", "lycoris_{_}", LOHA, ("attention.",), kinds=LOHA_KIND),
    Told("modelscope/DiffSynth-Studio 1587", "minimax_h3", "{}", NAMED, ("attn.",), True),
    Told("huggingface/diffusers 14408", "minimax_h3", "transformer.{}", PEFT, ("blocks.",)),
    Told("komikndr/raylight 110: Turbo", "minimax_h3", "{}", PEFT, ("blocks.", "adaln_proj"), True),
)
"""Issues and pull requests by number."""
MFLUX = "filipstrand/mflux tests/test_{}_lora_mapping.py"
SDNEXT = "vladmandic/sdnext test/test-{}-native-adapters.py"
INVOKE = "invoke-ai/InvokeAI tests/backend/patches/lora_conversions/{}"
INVOKE_WAN = "invoke-ai/InvokeAI tests/backend/model_manager/configs/test_wan_lora_config.py"
H3 = INVOKE.format("test_minimax_h3_lora_conversion_utils.py")
QWEN = INVOKE.format("lora_state_dicts/qwen_image_lora_kohya_format.py")
LTX = INVOKE.format("test_ltx2_lora_conversion.py")
EXTRACTOR = "ModelTC/LightX2V tools/extract/lora_extractor.py"
ACE = "ace-step/ACE-Step-1.5 acestep/training/lora_utils.py"
ACE_LOKR = "sdbds/ACE-Step-1.5-for-windows acestep/training/lokr_utils.py"
ANIMA = "huggingface/diffusers tests/modular_pipelines/anima/test_modular_pipeline_anima.py"
LISTS = (
    Told(MFLUX.format("ernie"), "ernie_image", "lora_unet_{_}", BARE, ("self_attention.",)),
    Told(MFLUX.format("ernie"), "ernie_image", "transformer.{}", PEFT, ("mlp.",)),
    Told(MFLUX.format("flux2"), "flux2_klein", "diffusion_model.{}", PEFT, ("img_mlp", "txt_mlp"), True),
    Told(MFLUX.format("flux2"), "flux2_klein", "{}", NAMED, ("transformer_blocks.",)),
    Told(MFLUX.format("ideogram4"), "ideogram4", "transformer.{}", PEFT, ("attention.qkv", "attention.o"), True),
    Told(MFLUX.format("ideogram4"), "ideogram4", "diffusion_model.{}", PEFT, ("feed_forward.w1", "adaln_modulation")),
    Told(MFLUX.format("krea2"), "krea2", "transformer.{}", NAMED, ("transformer_blocks.",)),
    Told(MFLUX.format("krea2"), "krea2", "transformer.{}", PEFT, ("text_fusion.",)),
    Told(MFLUX.format("krea2"), "krea2", "{}", PEFT, ("blocks.",), True),
    Told(SDNEXT.format("anima"), "anima", "lora_unet_{_}", LOHA, ("self_attn.", "cross_attn."), True, kinds=LOHA_KIND),
    Told(SDNEXT.format("anima"), "anima", "lora_unet_{_}", BARE, ("mlp.layer",), True),
    Told(SDNEXT.format("chroma"), "chroma", "lora_transformer_{_}", BARE, ("transformer_blocks.",)),
    Told(SDNEXT.format("chroma"), "chroma", "diffusion_model.{}", LOKR, ("_blocks.",), True, kinds=LOKR_KIND),
    Told(SDNEXT.format("chroma"), "chroma", "diffusion_model.{}", PEFT, ("distilled_guidance_layer.",), True),
    Told(SDNEXT.format("ernie"), "ernie_image", "diffusion_model.{}", LOKR, ("layers.",), kinds=LOKR_KIND),
    Told(SDNEXT.format("flux2"), "flux2_klein", "base_model.model.transformer.{}", NAMED, ("transformer_blocks.",)),
    Told(SDNEXT.format("flux2"), "flux2_klein", "lycoris_{_}", LOKR, ("transformer_blocks.",), kinds=LOKR_KIND),
    Told(SDNEXT.format("flux2"), "flux2_klein", "lora_unet_{_}", KOHYA, ("double_",), True),
    Told(SDNEXT.format("krea2"), "krea2", "lora_transformer_{_}", BARE, ("blocks.",), True),
    Told(SDNEXT.format("zimage"), "z_image", "diffusion_model.{}", PEFT, ("attention.to_",)),
    Told(SDNEXT.format("zimage"), "z_image", "diffusion_model.{}", LOKR, ("attention.to_",), kinds=LOKR_KIND),
    Told(SDNEXT.format("zimage"), "z_image", "transformer.{}", BARE, ("attention.",)),
    Told(SDNEXT.format("zimage"), "z_image", "lycoris_{_}", LOKR, ("attention.",), kinds=LOKR_KIND),
    Told(SDNEXT.format("zimage"), "z_image", "diffusion_model.{}", LOHA, ("attention.qkv",), True, kinds=LOHA_KIND),
    Told(H3, "minimax_h3", "base_model.model.transformer.{}", PEFT, ("blocks.", "adaln_proj"), True),
    Told(INVOKE_WAN, "wan", "base_model.model.transformer.{}", PEFT, ("attn1.", "attn2.")),
    Told(INVOKE_WAN, "wan", "lora_unet_{_}", BARE, ("attn1.", "attn2.")),
    Told(INVOKE_WAN, "wan", "diffusion_model.{}", PEFT, ("attn.", "ffn."), True),
    Told(QWEN, "qwen_image", "lora_unet_{_}", LOKR, ("attn.", "img_mlp."), kinds=LOKR_KIND),
    Told(
        INVOKE.format("test_qwen_image_lora_conversion_utils.py"), "qwen_image", "transformer.{}", BARE, ("attn.to_k",)
    ),
    Told(
        INVOKE.format("test_z_image_lora_conversion_utils.py"),
        "z_image",
        "diffusion_model.{}",
        {**PEFT, "lora_magnitude_vector.weight": "bias"},
        ("attention.to_q",),
        kinds=DORA_KIND,
    ),
    Told(
        INVOKE.format("test_z_image_lora_conversion_utils.py"),
        "z_image",
        "diffusion_model.{}",
        {**PEFT, "magnitude": "bias"},
        ("attention.to_q",),
        kinds=DORA_KIND,
    ),
    Told(
        INVOKE.format("lora_state_dicts/anima_lora_lokr_format.py"),
        "anima",
        "diffusion_model.{}",
        DOKR,
        ("cross_attn.",),
        True,
        kinds=DOKR_KIND,
    ),
    Told(
        INVOKE.format("lora_state_dicts/flux_dora_onetrainer_format.py"),
        "flux",
        "lora_transformer_{_}",
        {**KOHYA, "dora_scale": "norms of columns"},
        ("attn.", "ff."),
        kinds=DORA_KIND,
    ),
    Told(
        INVOKE.format("lora_state_dicts/flux_lora_diffusers_base_model_format.py"),
        "flux",
        "base_model.model.{}",
        PEFT,
        ("transformer_blocks.",),
    ),
    Told(LTX, "ltx2", "base_model.model.transformer.{}", PEFT, native=True),
    Told(EXTRACTOR, "wan", "diffusion_model.{}", LIGHTX2V, ("attn.", "ffn."), True, kinds=WITH_BIAS),
    Told(EXTRACTOR, "wan", "diffusion_model.{}", DIFFERENCES, ("time_embedding.", "head.head"), True, kinds=FULL),
    Told(ACE, "ace_step", "base_model.model.{}", PEFT, ("_attn.",), True),
    Told(ACE_LOKR, "ace_step", "lycoris_{_}", LOKR, ("_attn.", "mlp."), True, kinds=LOKR_KIND),
    Told(ANIMA, "anima", "diffusion_model.{}", PEFT, ("self_attn.", "adaln_modulation_cross_attn."), True),
)
"""Tests of other programs, and trainers, by repository and path."""


@lru_cache
def model(name: str) -> nn.Module:
    return FAMILIES[name].build(False)


def weights(name: str, native: bool) -> Shapes:
    family = FAMILIES[name]
    if native:
        assert family.native is not None
        found = {
            key.removesuffix(".weight"): shape for key, shape in family.native().items() if key.endswith(".weight")
        }
        return {layer: shape for layer, shape in found.items() if len(shape) == 2}
    return {path: tuple(one.weight.shape) for path, one in model(name).named_modules() if isinstance(one, nn.Linear)}


def sizes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    outputs, inputs = shape
    return {
        "down": (RANK, inputs),
        "up": (outputs, RANK),
        "alpha": (),
        "w1": (4, 4),
        "w2": (outputs // 4, inputs // 4),
        "norms": (outputs, 1),
        "norms of columns": (1, inputs),
        "weight": shape,
        "bias": (outputs,),
    }


def keys(told: Told) -> Iterator[tuple[str, tuple[int, ...]]]:
    found = weights(told.family, told.native)
    for layer in linear_layers(found, told.layers):
        if any(size % 4 for size in found[layer]):
            continue  # which no trainer decomposes so
        for param, what in told.params.items():
            spelled = told.key.replace("{_}", layer.replace(".", "_")).replace("{}", layer)
            yield f"{spelled}.{param}", sizes(found[layer])[what]


@pytest.mark.parametrize(
    "told", [*THREADS, *LISTS], ids=lambda told: re.sub(r"\W+", "-", f"{told.family} {told.source}")
)
def test_all_keys_of_a_file_that_was_told_of_act(told, tmp_path):
    infos = {key: (shape, "BF16") for key, shape in keys(told)}
    assert len(infos) >= len(told.params)
    path = hollow(tmp_path / "file.safetensors", infos, told.metadata)
    report = load_network(path, {FAMILIES[told.family].component: model(told.family)}).report
    assert (report.reasons(), report.hit) == ({}, report.layers)
    assert set(report.kinds) == told.kinds
    assert report.family is None or not report.model or not report.family.differs(report.model)


@pytest.mark.parametrize(
    ("family", "native", "kept"),
    [
        (
            "wan",
            True,
            ("cross_attn", "self_attn"),
        ),  # kohya-ss/musubi-tuner 124, of files converted before its commit 6b51165
        ("hunyuan_video", False, ()),  # FramePack's
        ("kandinsky5", False, ()),
        ("flux", True, ("double_blocks", "single_blocks")),
    ],
)
@pytest.mark.parametrize("params", [PEFT, LOKR])
def test_layers_act_whose_underscores_a_converter_made_dots(family, native, kept, params, tmp_path):
    """As kohya-ss/musubi-tuner convert_lora.py, `convert_to_diffusers`, does but for names that it knows."""
    found = weights(family, native)
    infos: Shapes = {}
    for layer in linear_layers(found, ("blocks.",)):
        name = layer.replace("_", ".")
        for word in kept:
            name = name.replace(word.replace("_", "."), word)
        size = sizes(found[layer])
        infos |= {f"diffusion_model.{name}.{param}": size[what] for param, what in params.items()}
    path = hollow(tmp_path / "file.safetensors", {key: (shape, "BF16") for key, shape in infos.items()})
    report = load_network(path, {FAMILIES[family].component: model(family)}).report
    assert (report.reasons(), report.hit) == ({}, report.layers)
    assert report.architecture == family


@pytest.mark.parametrize(
    ("projection", "prefix"),
    [("text_embedding_projection.aggregate_embed", "diffusion_model"), ("connectors.text_proj_in", "transformer")],
)
def test_the_projection_of_the_text_of_ltx2_is_a_layer_of_a_component_of_its_own(projection, prefix, tmp_path):
    """huggingface/diffusers loaders/lora_pipeline.py, LTX2LoraLoaderMixin, and AkaneTendo25/musubi-tuner 7."""
    with torch.device("meta"):
        connectors = nn.ModuleDict({"text_proj_in": nn.Linear(188160, 3840, bias=False)})
    found = {f"{prefix}.{layer}": shape for layer, shape in weights("ltx2", False).items() if "_attn" in layer}
    found[projection] = (3840, 188160)
    infos = {
        f"{layer}.{param}": (sizes(shape)[what], "BF16")
        for layer, shape in found.items()
        for param, what in PEFT.items()
    }
    path = hollow(tmp_path / "file.safetensors", infos)
    report = load_network(path, {"transformer": model("ltx2"), "connectors": connectors}).report
    assert (report.reasons(), report.hit, report.architecture) == ({}, len(found), "ltx2")
    assert report.components == {"transformer", "connectors"}
    alone = load_network(path, {"transformer": model("ltx2")}).report
    assert list(alone.reasons()) == ["component connectors is absent in this model"]


def test_rows_that_are_by_turns_come_to_their_layers(tmp_path):
    """DiffSynth-Studio trains MiniMax-H3 on a checkpoint with the three of each head one after another."""
    heads, width, inner = 56, 5376, 56 * 128
    up = torch.arange(3 * inner, dtype=torch.float32).unsqueeze(1)
    name = "blocks.1.attn.qkv_proj"
    tensors = {f"{name}.lora_A.default.weight": torch.ones(1, width), f"{name}.lora_B.default.weight": up}
    network = load_network(save(tmp_path / "file.safetensors", tensors), {"transformer": model("minimax_h3")})
    assert (network.report.unused, network.report.format) == ((), "peft")
    found = {one.target.path: one.adapter.factors().up.flatten() for one in network.bindings}
    by_head = up.view(heads, 3, 128)
    assert len(found) == 3
    for turn, part in enumerate("qkv"):
        assert torch.equal(found[f"transformer_blocks.1.attn.to_{part}"], by_head[:, turn].flatten())
