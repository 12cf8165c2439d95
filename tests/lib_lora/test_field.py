"""Files as users of other programs described them in 2026, and as other projects have them in their tests.

Each is spelled here from what is written there, for the layers of the family's model with few blocks. The files
themselves are not at hand, so that only names, shapes and kinds are tried.
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
NAMED = {"lora_A.default.weight": "down", "lora_B.default.weight": "up"}
KOHYA = {"lora_down.weight": "down", "lora_up.weight": "up", "alpha": "alpha"}
BARE = {"lora_down.weight": "down", "lora_up.weight": "up"}
LOKR = {"lokr_w1": "w1", "lokr_w2": "w2", "alpha": "alpha"}
DOKR = {**LOKR, "dora_scale": "norms"}
DIFFERENCES = {"diff": "weight", "diff_b": "bias"}
LIGHTX2V = {**BARE, "diff_b": "bias"}


@dataclass(frozen=True)
class Told:
    """A file that somebody told of.

    Args:
        source: the thread, or the project whose tests or documentation have such keys.
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
WITH_BIAS = frozenset({"lora+bias"})
BLOCK = ("blocks.0.", "layers.0.")
THREADS = (
    Told("Comfy-Org/ComfyUI 16234: LoKr with DoRA", "krea2", "diffusion_model.{}", DOKR, BLOCK, True, kinds=DOKR_KIND),
    Told(
        "bghira/SimpleTuner 3222: the same", "krea2", "lycoris_{_}", DOKR, ("transformer_blocks.0.",), kinds=DOKR_KIND
    ),
    Told("kohya-ss/musubi-tuner 807", "z_image", "lora_unet_{_}", KOHYA, ("layers.", ".attention.")),
    Told("Comfy-Org/ComfyUI 11158: q, k and v apart", "z_image", "diffusion_model.{}", PEFT, ("attention.to_",)),
    Told(
        "huggingface/diffusers 13221", "z_image", "diffusion_model.{}", LOKR, ("attention.", "feed_"), kinds=LOKR_KIND
    ),
    Told("Comfy-Org/ComfyUI 11926: names of diffusers", "flux2", "transformer.{}", PEFT, ("transformer_blocks.",)),
    Told("huggingface/diffusers 13107: no single blocks", "flux2_klein", "lora_unet_{_}", KOHYA, ("double_",), True),
    Told("huggingface/diffusers 13162", "flux2_klein", "base_model.model.{}", PEFT, ("double_", "single_"), True),
    Told(
        "huggingface/diffusers 13261", "flux2_klein", "diffusion_model.{}", LOKR, ("_blocks.",), True, kinds=LOKR_KIND
    ),
    Told("Comfy-Org/ComfyUI 14477: OneTrainer", "ideogram4", "lora_transformer_{_}", KOHYA, ("layers.",)),
    Told("Comfy-Org/ComfyUI 15662", "minimax_h3", "diffusion_model.{}", PEFT, ("blocks.",), True),
    Told("Comfy-Org/ComfyUI 15662", "hidream_o1", "diffusion_model.{}", PEFT, ("language_model.",)),
    Told("huggingface/diffusers 14484: DiffSynth", "minimax_h3", "{}", NAMED, ("blocks.",), True),
    Told("huggingface/diffusers 14408", "minimax_h3", "transformer.{}", PEFT, ("blocks.",)),
    Told("komikndr/raylight 110: Turbo", "minimax_h3", "{}", PEFT, ("blocks.", "adaln_proj"), True),
)
"""Issues and pull requests by number."""
LISTS = (
    Told("documentation of a reader of H3's LoRA", "minimax_h3", "lora_unet_{_}", KOHYA, ("blocks.",), True),
    Told(
        "the same, of differences",
        "minimax_h3",
        "{}",
        DIFFERENCES,
        ("norm_out.linear", "audio_proj_in"),
        kinds=frozenset({"full"}),
    ),
    Told("invoke-ai/InvokeAI, tests of Krea 2", "krea2", "transformer.{}", PEFT, ("transformer_blocks.",)),
    Told("the same", "krea2", "base_model.model.{}", BARE, ("transformer_blocks.",)),
    Told("the same", "krea2", "{}", PEFT, ("text_fusion.",)),
    Told("notes on Krea 2 in a node pack: SimpleTuner", "krea2", "lycoris_{_}", BARE, ("blocks.",), True),
    Told("the same: OneTrainer", "krea2", "lora_transformer_{_}", BARE, ("blocks.",), True),
    Told("the same: LoKr of musubi", "krea2", "lora_unet_{_}", LOKR, ("blocks.",), True, kinds=LOKR_KIND),
    Told("documentation of an Ideogram 4 trainer", "ideogram4", "lora_unet_{_}", KOHYA, ("attention.to_",)),
    Told("vladmandic/sdnext pipelines/z_image", "z_image", "transformer.{}", BARE, ("attention.", "feed_forward.")),
    Told("tests of a LoRA manager: Klein 9B", "flux2", "transformer.{}", PEFT, ("double_", "single_"), True),
    Told("tests of mflux", "flux2_klein", "diffusion_model.{}", PEFT, ("img_attn", "txt_mlp"), True),
    Told("ByteDance-Seed scripts for Wan", "wan", "model.diffusion_model.{}", BARE, ("attn.",), True),
    Told(
        "LightX2V's distilled LoRA of Wan",
        "wan",
        "diffusion_model.{}",
        LIGHTX2V,
        ("attn.", "ffn."),
        True,
        kinds=WITH_BIAS,
    ),
    Told("tests of a Wan server", "wan", "base_model.model.{}", NAMED, ("attn1.", "attn2.")),
    Told("modelscope/DiffSynth-Studio", "wan", "{}", NAMED, ("self_attn.", "cross_attn.", "ffn."), True),
    Told("an Anima checkpoint tool", "anima", "model.diffusion_model.{}", NAMED, ("blocks.",), True),
    Told("tests of LTX-2 nodes", "ltx2", "diffusion_model.{}", PEFT, ("audio_to_video_attn", "video_to_audio_attn")),
    Told("ACE-Step's LyCORIS trainer", "ace_step", "lycoris_{_}", LOKR, ("_attn.", "mlp."), True, kinds=LOKR_KIND),
    Told("ACE-Step for ComfyUI", "ace_step", "diffusion_model.decoder.{}", PEFT, ("layers.",), True),
    Told("tests of a Qwen-Image LoKr", "qwen_image", "transformer.{}", LOKR, ("attn.",), kinds=LOKR_KIND),
    Told("tests of Qwen-Image in Rust", "qwen_image", "{}", LOKR, ("attn.",), kinds=LOKR_KIND),
    Told("an assistant adapter of ai-toolkit", "flux", "transformer.{}", PEFT, ("single_transformer_blocks.",)),
)
"""Key lists and patterns in public files of 2026."""


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


def test_rows_that_are_by_turns_come_to_their_layers(tmp_path):
    """DiffSynth-Studio trains MiniMax-H3 on a checkpoint with the three of each head one after another."""
    heads, width, inner = 56, 5376, 56 * 128
    up = torch.arange(3 * inner, dtype=torch.float32).unsqueeze(1)
    name = "blocks.1.attn.qkv_proj"
    tensors = {f"{name}.lora_A.default.weight": torch.ones(1, width), f"{name}.lora_B.default.weight": up}
    network = load_network(save(tmp_path / "file.safetensors", tensors), {"transformer": model("minimax_h3")})
    assert (network.report.unused, network.report.format) == ((), "diffsynth")
    found = {one.target.path: one.adapter.factors().up.flatten() for one in network.bound}
    by_head = up.view(heads, 3, 128)
    assert len(found) == 3
    for turn, part in enumerate("qkv"):
        assert torch.equal(found[f"transformer_blocks.1.attn.to_{part}"], by_head[:, turn].flatten())
