"""What headers tell."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from extension.library.facts import Facts, FactsReader, read_training
from extension.standalone.demo import Demo
from lib_lora.inspection.families import family_named
from tests.fakes.files import pair

SITE = {
    "SD 1.5": "sd1",
    "SDXL 1.0": "sdxl",
    "Flux.1 D": "flux",
    "Wan Video 14B t2v": "wan",
    "ZImageTurbo": "z_image",
    "Pony": None,
    "a\nb": None,
    "": None,
}
"""What Civitai writes beside a file as its base model -> the family that is named."""
LAYER = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"


def lora(path: Path, rank: int = 4, **metadata: str) -> Path:
    tensors = {
        f"{LAYER}.lora_down.weight": torch.zeros(rank, 320),
        f"{LAYER}.lora_up.weight": torch.zeros(320, rank),
        f"{LAYER}.alpha": torch.tensor(float(rank)),
    }
    save_file(tensors, path, {name.replace("__", "."): value for name, value in metadata.items()})
    return path


def tags(counts: dict[str, int], pictures: int) -> dict[str, str]:
    return {
        "ss_tag_frequency": json.dumps({"10_x": counts}),
        "ss_dataset_dirs": json.dumps({"10_x": {"n_repeats": 10, "img_count": pictures}}),
    }


def test_the_demos_files(demo: Demo) -> None:
    facts = FactsReader().read(demo.loras / "zorp.safetensors")
    assert (facts.problem, facts.alias, facts.words, facts.picture) == ("", "zorp", ("zorp",), True)
    assert facts.structure.kinds == {"loha": 264}
    assert facts.structure.ranks == (2, 2)
    assert facts.structure.family is not None
    assert facts.structure.family.name == "sd1"
    assert facts.base_model == "remora-shapes (sd_v1)"
    training = read_training(demo.loras / "zorp.safetensors")
    assert training.settings["trained with"] == "lycoris.kohya"
    assert training.settings["steps"] == "700"
    assert training.tags[0][0] == "zorp"


def test_facts_cannot_be_changed_as_rows_and_threads_share_them(demo: Demo) -> None:
    facts = FactsReader().read(demo.loras / "zorp.safetensors")
    for value, name in ((facts, "alias"), (facts.structure, "layers")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, None)


def test_a_file_of_known_structure_is_not_taken_apart_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FactsReader()
    one = reader.read(lora(tmp_path / "one.safetensors", ss_output_name="first"))
    monkeypatch.setattr("lib_lora.inspect_file", lambda file: pytest.fail("taken apart"))
    other = reader.read(lora(tmp_path / "other.safetensors", ss_output_name="second"))
    assert other.structure is one.structure
    assert (one.alias, other.alias) == ("first", "second")


def test_of_another_rank_it_is_another_structure(tmp_path: Path) -> None:
    reader = FactsReader()
    ranks = [reader.read(lora(tmp_path / f"{rank}.safetensors", rank)).structure.ranks for rank in (4, 8)]
    assert ranks == [(4, 4), (8, 8)]


@pytest.mark.parametrize(
    ("counts", "pictures", "words"),
    [
        ({"sks": 20, "1girl": 19, "smile": 3}, 20, ("sks",)),
        ({"sks": 20, "fox": 20, "smile": 3}, 20, ("sks", "fox")),
        ({"smile": 3, "night": 4}, 20, ()),
        ({f"tag {n}": 20 for n in range(9)}, 20, ()),  # all captions are alike: that says nothing
        ({"sks": 20}, 0, ()),
    ],
)
def test_words_that_all_captions_have_are_trigger_words(
    tmp_path: Path, counts: dict[str, int], pictures: int, words: tuple[str, ...]
) -> None:
    assert FactsReader().read(lora(tmp_path / "a.safetensors", **tags(counts, pictures))).words == words


def test_a_named_phrase_beats_counted_words(tmp_path: Path) -> None:
    path = lora(tmp_path / "a.safetensors", modelspec__trigger_phrase="my style", **tags({"sks": 20}, 20))
    assert FactsReader().read(path).words == ("my style",)


def test_what_cannot_be_used_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 100)
    save_file({"x": torch.zeros(1)}, tmp_path / "b.safetensors")
    reader = FactsReader()
    assert reader.read(tmp_path / "a.safetensors").problem.startswith("it is truncated")
    assert "is not a known adapter" in reader.read(tmp_path / "b.safetensors").problem


def test_a_header_that_names_another_family_than_the_layers_is_told(tmp_path: Path) -> None:
    layer = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k"
    cases = {
        ("sd_v1", ""): "Stable Diffusion 1.x",
        ("", "flux-1-dev/lora"): "FLUX.1",
        ("sdxl_base_v1-0", "stable-diffusion-xl-v1-base/lora"): "",
        ("pony", ""): "",
        ("", ""): "",
    }
    for at, ((version, architecture), named) in enumerate(cases.items()):
        said = {"ss_base_model_version": version, "modelspec.architecture": architecture}
        tensors = pair(layer, (640, 2048), 2)
        save_file(tensors, tmp_path / f"{at}.safetensors", {key: text for key, text in said.items() if text})
        structure = FactsReader().read(tmp_path / f"{at}.safetensors").structure
        assert structure.named == named, said
    found = {text: family_named(text) for text in SITE}
    assert {text: family and family.name for text, family in found.items()} == SITE


def test_facts_are_the_same_after_they_were_kept(demo: Demo) -> None:
    reader = FactsReader()
    for path in demo.loras.glob("*.safetensors"):
        facts = reader.read(path)
        assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    assert Facts.from_json({**facts.to_json(), "version": 0}) is None


NUMBERS = st.integers() | st.integers(-9, 9).map(lambda digits: digits * 10**400) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | st.text() | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ANY = st.text().map(lambda text: text.encode("utf-8", "replace").decode()) | JSON.map(json.dumps)


def per_folder(*names: str) -> st.SearchStrategy[str]:
    """Draw {folder: {one of `names`: a number}}, as trainers write it."""
    inner = st.dictionaries(st.sampled_from(names), NUMBERS, min_size=1)
    return st.dictionaries(st.text(), inner, min_size=1, max_size=3).map(json.dumps)


@settings(deadline=None)
@given(st.tuples(per_folder("cat", " ") | ANY, per_folder("img_count") | ANY, ANY, ANY))
def test_any_metadata_are_read(tmp_path_factory: pytest.TempPathFactory, texts: tuple[str, ...]) -> None:
    path = tmp_path_factory.mktemp("any") / "a.safetensors"
    keys = ("ss_tag_frequency", "ss_dataset_dirs", "ss_output_name", "modelspec__thumbnail")
    lora(path, **dict(zip(keys, texts, strict=True)))
    assert FactsReader().read(path).problem == ""
    read_training(path)


@pytest.mark.parametrize("count", [10**400, -(10**400), -1, 1e308, "20", None], ids=lambda count: f"{count!s:.9}")
def test_a_number_that_counts_nothing_is_ignored(tmp_path: Path, count: object) -> None:
    said = {
        "ss_tag_frequency": json.dumps({"a": {"sks": 20, "cat": count}}),
        "ss_dataset_dirs": json.dumps({"a": {"img_count": 20}, "b": {"img_count": count}}),
    }
    path = lora(tmp_path / "a.safetensors", **said)
    assert FactsReader().read(path).words == ("sks",)
    assert read_training(path).tags == (("sks", 20),)
