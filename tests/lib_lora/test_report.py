"""What is told of a file: what it was made for, whether that is the loaded model, and why a key has no effect."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lib_lora.naming.index
from lib_lora import ActivationError, Engine, Entry, Stack, inspect_file, load_network
from lib_lora.files.formats import base_model
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.index import LayerIndex, family_of_model
from lib_lora.report import Cause, Family, Unused
from tests.fakes.families import UNETS, models
from tests.fakes.files import pair, save
from tests.fakes.models import kohya_lora, tiny_text_encoder, tiny_unet
from tests.families import families

FAMILIES = families()
SDXL = {"ss_base_model_version": "sdxl_base_v1-0", "ss_sd_model_name": "sd_xl_base_1.0.safetensors"}


class Unet(nn.Module):
    """One layer of each kind that matters here."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 12)
        self.conv = nn.Conv2d(4, 6, 3)
        self.norm = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2)


@pytest.fixture
def components() -> dict[str, nn.Module]:
    return {"unet": Unet(), "text_encoder": nn.Sequential(nn.Linear(8, 8))}


def indexes(parts: dict[str, nn.Module]) -> list[LayerIndex]:
    return [LayerIndex(name, module) for name, module in parts.items()]


# --- causes -----------------------------------------------------------------------------------------------------------


def all_causes() -> dict[str, torch.Tensor]:
    tensors = pair("lora_unet_proj", (12, 8), 4) | pair("unet.proj", (12, 8), 4)
    tensors |= pair("lora_unet_nowhere", (12, 8), 4)
    tensors |= pair("lora_unet_attn_out_proj", (8, 8), 4, alpha=float("nan"))
    tensors |= pair("lora_te3_x", (8, 8), 4)
    tensors |= {"base_model.vera_A": torch.zeros(2, 8)}
    tensors |= {"base_model.model.proj.fourierft_spectrum": torch.zeros(4)}
    tensors |= pair("lora_unet_conv", (6, 5, 3, 3), 4)
    tensors |= pair("lora_unet_norm", (8, 8), 4)
    tensors |= {"lora_te_1.lora_up.weight": torch.zeros(8, 4), "junk": torch.zeros(1)}
    for name in ("default", "style"):
        tensors |= {f"text_encoder.0.lora_A.{name}.weight": torch.zeros(2, 8)}
        tensors |= {f"text_encoder.0.lora_B.{name}.weight": torch.zeros(8, 2)}
    return tensors | {"text_encoder.0.lora.down.weight": torch.zeros(2, 8)}


def test_every_key_that_goes_unused_has_a_cause_for_programs(tmp_path, components):
    report = load_network(save(tmp_path / "a.safetensors", all_causes()), components).report
    by_key = {item.key: item.cause for item in report.unused}
    assert set(by_key.values()) == set(get_args(Cause)), "the file above has one of each"
    assert by_key["lora_unet_nowhere.lora_up.weight"] == "no_module"
    assert by_key["lora_te3_x.lora_up.weight"] == "no_component"
    assert by_key["lora_unet_conv.lora_up.weight"] == "shape"
    assert by_key["lora_unet_norm.lora_up.weight"] == "layer_kind"
    assert by_key["base_model.model.proj.fourierft_spectrum"] == "unsupported", "there is no configuration"
    assert by_key["junk"] == "unknown_key"
    assert by_key["lora_te_1.lora_up.weight"] == "unknown_parameters"
    assert by_key["unet.proj.lora_up.weight"] == "second_adapter"
    assert by_key["text_encoder.0.lora_A.style.weight"] == "unchosen_adapter"
    assert by_key["text_encoder.0.lora.down.weight"] == "repeated", "PEFT's is asked first"


def test_causes_and_keys_lie_side_by_side_in_json(tmp_path, components):
    report = load_network(save(tmp_path / "a.safetensors", all_causes()), components).report
    data = json.loads(json.dumps(report.to_json()))
    assert data["unused"].keys() == data["causes"].keys()
    told = {key: data["causes"][reason] for reason, keys in data["unused"].items() for key in keys}
    assert told == {item.key: item.cause for item in report.unused}
    assert data["details"]["lora_unet_conv.lora_up.weight"].endswith(
        "is 6 x 4 x 3 x 3 in the model, 6 x 5 x 3 x 3 in the file"
    )


def test_what_does_not_fit_itself_has_that_cause_without_a_model(tmp_path):
    tensors = pair("lora_unet_a", (8, 8), 4) | pair("lora_unet_b", (8, 8), 4)
    tensors["lora_unet_a.alpha"] = torch.zeros(2)
    report = inspect_file(save(tmp_path / "a.safetensors", tensors))
    assert {item.cause for item in report.unused} == {"shape"}


def test_layers_of_the_model_are_counted_once_each(tmp_path):
    tensors = {}
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors |= pair(f"lora_unet_attn_{name}", (8, 8), 2)
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"unet": Unet()}).report
    assert (report.hit, report.layers, report.changed) == (3, 3, 1)


# --- the family of a model, and of a file -----------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "tree"), [(family, tree) for family in UNETS for tree in ("diffusers", "ldm")])
def test_a_model_is_known_by_its_own_layers(family, tree):
    found = family_of_model(indexes(models()[family, tree]))
    assert found is not None
    assert (found.name, found.sure) == (family, True)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_transformer_is_known_by_its_own_layers_in_every_tree(name):
    family = FAMILIES[name]
    whole = {family.component: family.build(True), **{part: build() for part, build in family.encoders.items()}}
    trees = [whole] if family.native is None else [whole, {family.component: skeleton(family.native())}]
    for parts in trees:
        found = family_of_model(indexes(parts))
        assert found is not None
        # Anima's transformer alone is that of Cosmos-Predict2 2B
        alone = name == "anima" and list(parts) == [family.component]
        also = ("cosmos_predict2",) if alone else ()
        assert (found.name, tuple(one.name for one in found.also), found.sure) == (family.known_as, also, not alone)


def xl_file(folder, metadata=None):
    """Two layers as SDXL has them, of which SD 1 has the second, too."""
    tensors = pair("lora_unet_input_blocks_4_1_transformer_blocks_1_attn2_to_k", (640, 2048), 1)
    tensors |= pair("lora_unet_time_embed_0", (1280, 320), 1)
    return save(folder / "style.safetensors", tensors, metadata)


def test_a_file_for_another_family_is_told_in_one_sentence(tmp_path):
    report = load_network(xl_file(tmp_path, SDXL), models()["sd1", "ldm"]).report
    sentence = "made for Stable Diffusion XL, the loaded model is Stable Diffusion 1.x: 1 of 2 layers fit"
    assert report.warning == sentence
    unused = "2 keys unused: no module of that name in unet (2 keys)"
    assert report.summary() == f"style: 1 of 2 layers (2 lora, rank 1, kohya, sdxl); {sentence}; {unused}"
    data = report.to_json()
    assert (data["warning"], data["base_model"]) == (sentence, "sd_xl_base_1.0.safetensors (sdxl_base_v1-0)")
    assert data["family"] == {"name": "sdxl", "title": "Stable Diffusion XL", "sure": True}
    assert data["model"] == {"name": "sd1", "title": "Stable Diffusion 1.x", "sure": True}


def test_on_its_own_family_and_without_a_model_there_is_no_warning(tmp_path):
    path = xl_file(tmp_path)
    for tree in ("ldm", "diffusers"):
        assert load_network(path, models()["sdxl", tree]).report.warning == ""
    assert inspect_file(path).warning == ""
    assert inspect_file(path).to_json()["model"] is None


def test_the_refiner_is_another_family_than_its_base(tmp_path):
    report = load_network(xl_file(tmp_path), models()["sdxl_refiner", "diffusers"]).report
    assert report.warning.startswith("made for Stable Diffusion XL, the loaded model is Stable Diffusion XL refiner: ")


def test_of_a_small_model_which_is_no_family_for_sure_only_the_probable_one_is_told(tmp_path):
    parts = {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}
    assert load_network(kohya_lora(tmp_path / "own.safetensors", parts), parts).report.warning == ""
    report = load_network(xl_file(tmp_path, SDXL), parts).report
    told = "made for Stable Diffusion XL, the loaded model is probably Stable Diffusion 1.x"
    assert report.warning == f"{told}: 0 of {report.layers} layers fit"
    assert report.warning in report.summary()


@pytest.mark.parametrize(("hit", "absent", "warns"), [(0, 0, True), (1, 0, True), (2, 0, False), (1, 2, False)])
def test_hints_at_the_models_family_count_where_most_layers_do_not_fit(tmp_path, hit, absent, warns):
    file = inspect_file(save(tmp_path / "a.safetensors", pair("lora_unet_proj", (12, 8), 2)))
    family, model = Family("a", "A"), Family("b", "B", sure=False)
    report = replace(file, family=family, model=model, hit=hit, layers=4, absent=absent)
    assert report.warning.startswith("made for A, the loaded model is probably B") == warns
    assert not replace(report, family=replace(family, sure=False)).warning.startswith("made for")


def test_a_file_of_which_there_are_only_hints_is_not_held_against_the_model(tmp_path):
    """SD 1's text encoder is SDXL's first one, so a file with nothing else may be for either."""
    path = save(tmp_path / "a.safetensors", pair("lora_te_text_model_encoder_layers_0_mlp_fc1", (3072, 768), 1))
    report = load_network(path, models()["sdxl", "diffusers"]).report
    assert (report.architecture, report.hit, report.warning) == ("sd1", 1, "")


@pytest.mark.parametrize(
    ("family", "model", "warns"),
    [
        (Family("a", "A"), Family("b", "B"), True),
        (Family("a", "A"), Family("a", "A"), False),
        (Family("a", "A", sure=False), Family("b", "B"), False),
        (Family("a", "A", sure=False, also=(Family("b", "B"),)), Family("b", "B"), False),
        (Family("b", "B"), Family("a", "A", sure=False, also=(Family("b", "B"),)), False),
        (Family("a", "A"), Family("b", "B", sure=False), False),
        (None, Family("b", "B"), False),
        (Family("a", "A"), None, False),
    ],
)
def test_only_what_is_known_of_both_is_warned_of(tmp_path, family, model, warns):
    file = inspect_file(save(tmp_path / "a.safetensors", pair("lora_unet_proj", (12, 8), 2)))
    report = replace(file, family=family, model=model, hit=3, layers=4)
    left_out = "1 of 4 layers is left out"
    assert report.warning == ("made for A, the loaded model is B: 3 of 4 layers fit" if warns else left_out)


def test_one_unused_key_is_told_in_the_singular(tmp_path):
    file = inspect_file(save(tmp_path / "a.safetensors", pair("lora_unet_proj", (12, 8), 2)))
    keys = tuple(Unused(key, "no_module", "no such layer") for key in "ab")
    assert "; 1 key unused: no such layer (1 key)" in replace(file, unused=keys[:1]).summary()
    assert "; 2 keys unused: no such layer (2 keys)" in replace(file, unused=keys).summary()


def test_the_families_that_a_file_may_be_for_are_all_named():
    """FLUX.1, Chroma and HunyuanVideo have the same attention: it is none of SDXL's, whichever of them it is for."""
    file = Family("a", "A", sure=False, also=(Family("b", "B", sure=False), Family("c", "C", sure=False)))
    assert file.titles == "A, B or C"
    assert file.differs(Family("d", "D"))
    assert Family("d", "D").differs(file)
    assert not file.differs(Family("c", "C"))
    assert not file.differs(Family("d", "D", sure=False))
    assert file.differs(Family("d", "D", sure=False), hints=True)
    assert not Family("d", "D", sure=False).differs(file, hints=True)


@pytest.mark.parametrize(
    ("family", "warns"),
    [
        (Family("a", "A"), False),
        (Family("a", "A", named=True), True),
        (Family("a", "A", sure=False, also=(Family("c", "C"),), named=True), False),
    ],
)
def test_where_all_layers_fit_only_what_the_file_says_of_itself_counts(tmp_path, family, warns):
    file = inspect_file(save(tmp_path / "a.safetensors", pair("lora_unet_proj", (12, 8), 2)))
    report = replace(file, family=family, model=Family("b", "B"), hit=3, layers=3)
    assert bool(report.warning) == warns


def test_where_no_layer_fits_the_error_says_for_what_the_file_was_made(tmp_path):
    tensors = pair("lora_unet_input_blocks_4_1_transformer_blocks_1_attn2_to_k", (640, 2048), 1)
    path = save(tmp_path / "a.safetensors", tensors)
    engine = Engine(models()["sd1", "ldm"])
    with pytest.raises(ActivationError) as caught:
        engine.activate(Stack([Entry(path)]))
    assert (
        "a.safetensors: made for Stable Diffusion XL, the loaded model is Stable Diffusion 1.x: 0 of 1 layers fit: "
        "no module of that name in unet (2 keys)"
    ) in str(caught.value)


def test_the_family_of_a_model_is_found_out_once(tmp_path):
    parts = {"unet": Unet()}
    paths = [save(tmp_path / f"{i}.safetensors", pair("lora_unet_proj", (12, 8), 2, seed=i)) for i in range(3)]
    known = lib_lora.naming.index._family
    known.cache_clear()
    engine = Engine(parts)
    for path in (*paths, *paths):
        engine.activate(Stack([Entry(path)]))
    assert load_network(paths[0], parts).report.hit == 1
    assert known.cache_info().misses == 1


# --- the model it was made from ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        ({}, None),
        (SDXL, "sd_xl_base_1.0.safetensors (sdxl_base_v1-0)"),
        ({"ss_sd_model_name": "runwayml/stable-diffusion-v1-5"}, "runwayml/stable-diffusion-v1-5"),
        ({"ss_sd_model_name": "/home/me/models/anime.safetensors"}, "anime.safetensors"),
        ({"ss_sd_model_name": r"D:\models\anime.safetensors"}, "anime.safetensors"),
        ({"ss_sd_model_name": "None", "ss_base_model_version": "sd_v1"}, "sd_v1"),
        ({"ss_base_model_version": "flux.1", "software": '{"name": "ai-toolkit"}'}, "flux.1"),  # ai-toolkit
        ({"modelspec.architecture": "Flux.1-dev/lora", "modelspec.title": "FluxDev LoRA"}, "Flux.1-dev"),  # OneTrainer
        ({"modelspec.architecture": "sdxl-base-1.0/lora", "modelspec.title": "my run"}, "sdxl-base-1.0"),  # SimpleTuner
        ({"ss_base_model_version": "sdxl_", "modelspec.architecture": "x/lora"}, "sdxl"),  # OneTrainer, for web UIs
        ({"ss_base_model_version": "wan\n\x1b[31m2.1"}, "wan [31m2.1"),
        ({"ss_sd_model_name": "x" * 1000}, "x" * 120),
    ],
)
def test_the_model_it_was_made_from_in_its_trainers_words(metadata, want):
    assert base_model(metadata) == want


@given(st.dictionaries(st.sampled_from([*SDXL, "modelspec.architecture", "ss_base_model"]), st.text()), st.text())
def test_any_header_gives_one_line(metadata, configured):
    text = base_model(metadata, configured)
    assert text is None or (0 < len(text) < 300 and text.isprintable())


@pytest.mark.parametrize(
    ("header", "beside"),
    [
        ({"lora_adapter_metadata": {"unet.base_model_name_or_path": "a/b"}}, None),  # diffusers
        ({"ot_config": {"base_model_name": "a/b"}}, None),  # OneTrainer
        ({}, {"base_model_name_or_path": "a/b"}),  # PEFT
    ],
)
def test_the_model_it_was_made_from_in_the_trainers_configuration(tmp_path, header, beside):
    if beside is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(beside))
    tensors = {
        "base_model.model.unet.proj.lora_A.weight": torch.zeros(2, 8),
        "base_model.model.unet.proj.lora_B.weight": torch.zeros(12, 2),
    }
    metadata = {key: json.dumps(value) for key, value in header.items()}
    assert inspect_file(save(tmp_path / "adapter_model.safetensors", tensors, metadata)).base_model == "a/b"
