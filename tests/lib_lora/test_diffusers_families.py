"""Of every transformer and UNet of diffusers, a model and its files are named by the right family, or by none."""

from __future__ import annotations

import inspect
import re

import diffusers
import pytest
from torch import nn

from lib_lora import NoMatchError, load_network
from lib_lora.files.components import DENOISER
from lib_lora.naming.architectures.base import fact, family_of
from lib_lora.report import Family
from tests.fakes.files import hollow
from tests.families._diffusers_classes import CLASSES, NO_DEFAULT
from tests.families.base import on_meta

PARTS = {
    "all": "",
    "attention": r"attn|attention",
    "diffusers' default": r"\.to_(q|k|v|out\.0)$",
    "queries and values": r"(to_[qv]|[qv]_proj|\.[qv]|w[qv]|qkv)$",
    "feed-forward": r"mlp|ff|ffn|feed_forward",
    "blocks": r"\.\d+\.",
    "the first block": r"^[^.]*\.0\.",
}
FEW = ("OvisImageTransformer2DModel", "GlmImageTransformer2DModel", "Flux3Transformer2DModel")
SURE = {
    "bria",
    "bria_fibo",
    "ovis_image",
    "glm_image",
    "flux3",
    "motif_video",
    "stable_video",
    "prior",
    "plain_dit",
    "allegro",
}
"""Families whose models were called others, or none."""


def model(name: str) -> nn.Module:
    return on_meta(getattr(diffusers, name), **NO_DEFAULT.get(name, {}))


def tree(module: nn.Module) -> dict[str, tuple[int, ...]]:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {path: tuple(one.weight.shape) for path, one in module.named_modules() if isinstance(one, kinds)}


def is_wrong(found: Family | None, right: str) -> bool:
    return found is not None and right not in {found.name, *(one.name for one in found.also)}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("names", [FEW, pytest.param(tuple(CLASSES), marks=pytest.mark.long)], ids=["few", "every"])
def test_no_model_and_no_file_is_named_wrongly(names, tmp_path):
    """Files in the model's own names and in two other models' names, whole and in part."""
    names, wrong = [name for name in names if hasattr(diffusers, name)], []
    if len(names) < 2:
        pytest.skip("this diffusers has none of these models, or one")
    models = {name: model(name) for name in names}
    trees = {name: tree(one) for name, one in models.items()}
    for i, name in enumerate(names):
        own, right, prior = trees[name], CLASSES[name], "unet" if "UNet" in name else "transformer"
        for part, pattern in PARTS.items():
            found = family_of(fact(DENOISER, path, own[path][1]) for path in own if re.search(pattern, path))
            if is_wrong(found, right) or (part == "all" and right in SURE and (found is None or not found.sure)):
                wrong.append((name, part, found))
        for other in (names[i - 1], names[i - 2]):
            infos = {}
            for path, (out, *inside) in list(trees[other].items())[::3]:
                infos[f"{prior}.{path}.lora_A.weight"] = ((1, *inside), "F16")
                infos[f"{prior}.{path}.lora_B.weight"] = ((out, 1, *(1 for _ in inside[1:])), "F16")
            network = load_network(hollow(tmp_path / "a.safetensors", infos), {prior: models[name]})
            report = network.report
            whole = family_of(fact(DENOISER, path, shape[1]) for path, shape in own.items())
            unsure = whole is not None and whole.sure and (report.model is None or not report.model.sure)
            if unsure or is_wrong(report.model, right) or is_wrong(report.family, CLASSES[other]):
                wrong.append((name, other, report.model, report.family))
            if not network.bindings:
                with pytest.raises(NoMatchError):
                    network.check_fit()
    assert wrong == []


def test_every_transformer_and_unet_of_diffusers_is_listed():
    classes = {
        name
        for name, one in vars(diffusers.models).items()
        if name.endswith("Model")
        and inspect.isclass(one)
        and issubclass(one, nn.Module)
        and re.search("Transformer|UNet|UVit|DiT", name)
        and not re.search("ControlNet|Adapter", name)
    }
    assert classes <= set(CLASSES) | {"ModelMixin"}
