"""Files that hold little tell the families of video and diffusion transformers apart as well as whole ones do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import pytest
from torch import nn

from lib_lora import load_network
from lib_lora.naming.architectures import others
from lib_lora.naming.architectures.base import fact, family_of, known_architectures, ranked
from lib_lora.report import Family as Told
from tests.conftest import TORCH
from tests.covering import some_of
from tests.fakes.files import pair, save
from tests.families import families
from tests.families.base import linear_layers

FAMILIES = families()
ALONE = [(name, one) for name, family in FAMILIES.items() for one in family.alone]
STRANGERS = [
    ("flux", "single_blocks.37.linear1:3072"),
    ("flux", "single_transformer_blocks.37.attn.to_q:3072"),
    ("anima", "blocks.0.self_attn.q_proj:2048"),
    ("CogVideoX", "transformer_blocks.0.attn1.to_q:1920"),
    ("z_image", "layers.0.attention.qkv:3840"),
    ("z_image", "layers.0.attention.to_q:3840"),
    ("nobody", "blocks.0.attn.qkv:1024"),
    ("sd1", "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q:320"),
    ("qwen_image", "transformer_blocks.59.attn.add_q_proj:3072"),
    ("qwen_image", "transformer_blocks.19.attn.to_q:3072"),
]
"""A family, and a layer of it that resembles one of another family."""


def families_of(component: str, one: str, *metadata: str) -> str | None:
    module, _, width = one.rpartition(":")
    facts = [f"{component}:{module.replace('.', '_')}:{width}", *metadata]
    found, _ = next(iter(ranked(known_architectures(), facts)), (None, 0))
    return None if found is None else found.name


@pytest.mark.parametrize("component", ["denoiser", "?"])
def test_one_layer_is_enough(component):
    found = {one: families_of(component, one) for _, one in ALONE}
    assert found == {one: FAMILIES[name].known_as for name, one in ALONE}


@pytest.mark.parametrize(("owner", "one"), [case for case in STRANGERS if case[1] not in {one for _, one in ALONE}])
def test_a_layer_is_not_taken_for_one_of_another_family(owner, one):
    found = families_of("denoiser", one)
    assert found in (None, owner), f"If {found} has this layer, add it to `alone` in tests/families/{found}.py."


KEYS = ("ss_base_model_version", "modelspec_architecture")
NAMED = [(name, words) for name, family in FAMILIES.items() for words in family.named]
UNKNOWN = {"cosmos3-nano/lora", "pt"}


def test_metadata_of_trainers():
    found = {(key, words): family_of([f"meta:{key}:{words}"]) for key in KEYS for _, words in NAMED}
    told = {each: one and (one.name, one.sure, one.named) for each, one in found.items()}
    assert told == {(key, words): (FAMILIES[name].known_as, True, True) for key in KEYS for name, words in NAMED}


def test_every_architecture_has_a_family_to_be_tested_with():
    for architecture in known_architectures():
        own = [family for family in FAMILIES.values() if family.known_as == architecture.name]
        if architecture in vars(others).values():
            continue  # it has layers of diffusers alone, and no trainer's file to test
        if TORCH < (2, 3) and not own:
            continue  # diffusers has no such model yet
        assert own, f"Add tests/families/{architecture.name}.py with a `FAMILY`, see CONTRIBUTING.md."
        assert all(family.named for family in own), f"Add `named` to `FAMILY` in tests/families/{architecture.name}.py."


def test_every_family_is_an_architecture():
    assert {family.known_as for family in FAMILIES.values()} <= {one.name for one in known_architectures()}


@pytest.mark.parametrize("words", sorted(UNKNOWN - {words for _, words in NAMED}))
@pytest.mark.parametrize("key", KEYS)
def test_metadata_of_families_that_are_not_known(key, words):
    found = family_of([f"meta:{key}:{words}"])
    assert found is None, f"If it is {found.name}, add it to `named` in tests/families/{found.name}.py."


@pytest.mark.parametrize(
    "line", ["meta:ss_base_model_version:hunyuan_video_1_5", "meta:modelspec_architecture:hunyuan-video-1.5/lora"]
)
def test_other_versions_are_other_families(line):
    found, _ = next(iter(ranked(known_architectures(), [line])), (None, 0))
    assert found is None or found.name != "hunyuan_video"


def test_flux_blocks_of_hunyuan_video_are_not_flux():
    """As musubi-tuner trains them: all names that are flattened are Flux's, but there are more blocks."""
    lines = [f"denoiser:double_blocks_{i}_img_attn_qkv:3072" for i in range(20)]
    lines += [f"denoiser:single_blocks_{i}_linear1:3072" for i in range(40)]
    lines += [f"denoiser:single_blocks_{i}_linear2:15360" for i in range(40)]
    (found, _), *_ = ranked(known_architectures(), lines)
    assert found.name == "hunyuan_video"


# --- parts of files ---------------------------------------------------------------------------------------------------

Tree = Mapping[str, int]
"""Layer -> its inputs."""
KINDS = {
    "all": "",
    "attention": r"attn|attention",
    "queries and values": r"(to_[qv]|[qv]_proj|\.[qv]|w[qv]|qkv)$",
    "text": r"(attn2|cross_attn).*(to_k|to_v|\.k|\.v|[kv]_proj|kv)|add_|txt|context",
    "outputs": r"(to_out\.0|out|proj|\.o|wo)$",
    "feed-forward": r"mlp|ff|ffn|feed_forward",
    "modulation": r"mod|norm|adaln|adaLN",
}
BLOCKS = {
    "all": r"",
    "of blocks": r"\.\d+\.",
    "double": r"^(double|joint|transformer_blocks|blocks|layers|down|input)",
    "single": r"^(single|up|output)",
    "the first": r"^[^.]*\.[01]\.",
    "one": r"^[^.]*\.1\.",
}


@lru_cache
def trees(name: str) -> tuple[Tree, ...]:
    """Return the linear layers of a family under diffusers' names, under its own code's, and with joined layers."""
    family = FAMILIES[name]
    own = {path: one.in_features for path, one in family.build(True).named_modules() if isinstance(one, nn.Linear)}
    found = [own]
    if family.native is not None:
        shapes = {key.removesuffix(".weight"): shape for key, shape in family.native().items() if "weight" in key}
        found.append({layer: shape[1] for layer, shape in shapes.items() if len(shape) > 1})
    for writer in family.writers.values():
        if writer.fuse and writer.format != "xlabs":  # which has none of those names once it is read
            found.append({layer: own[parts[0]] for layer, parts in writer.fuse.items() if parts[0] in own})
    return tuple(found)


@lru_cache
def told(name: str) -> Told:
    """Return the family of a model that is diffusers' denoiser alone."""
    found = family_of(facts(FAMILIES[name].component, trees(name)[0]))
    assert found is not None
    return found


def facts(component: str | None, tree: Tree) -> list[str]:
    return [fact(component, layer, width) for layer, width in tree.items()]


def parts_of(name: str) -> Iterator[tuple[str, Tree]]:
    """Return the subsets of a family's layers that trainers may write, as (description, layers)."""
    asked = {f"{kind}, {block}": (KINDS[kind], BLOCKS[block]) for kind in KINDS for block in BLOCKS}
    for tree in trees(name):
        met = set()
        chosen = {words: [one for one in tree if all(re.search(p, one) for p in both)] for words, both in asked.items()}
        for writer, how in FAMILIES[name].writers.items():
            chosen[writer] = linear_layers(tree, how.layers)
        for words, layers in chosen.items():
            if layers and tuple(layers) not in met:
                met.add(tuple(layers))
                yield words, {one: tree[one] for one in layers}


@pytest.mark.parametrize("name", FAMILIES)
def test_no_part_of_a_file_is_for_another_family_than_its_own(name):
    model = told(name)
    wrong = []
    for words, part in parts_of(name):
        found = family_of(facts(None, part))  # so that it may be a text encoder's as well
        if found is not None and (found.differs(model) or (found.sure and found.name != FAMILIES[name].known_as)):
            wrong.append((words, found))
    assert wrong == []


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_part_of_a_file_says_of_itself_is_believed(name):
    """Layers that several families have are no reason to doubt it."""
    known_as = FAMILIES[name].known_as
    words = f"meta:modelspec_architecture:{FAMILIES[name].named[0]}"
    wrong = [
        (part_words, found)
        for part_words, part in parts_of(name)
        if (found := family_of([words, *facts("denoiser", part)])) is None
        or (found.name, found.sure, found.named) != (known_as, True, True)
    ]
    assert wrong == []


@some_of(
    ("name", "model"),
    [
        pytest.param(name, one)
        for name, family in FAMILIES.items()
        for one in ("sd1", "sdxl", "flux")
        if one not in family.blocks_of
    ],
    strength=1,
)
def test_a_file_of_all_layers_of_blocks_is_held_against_models_of_other_families(name, model):
    for tree in trees(name):
        part = {layer: width for layer, width in tree.items() if re.search(BLOCKS["of blocks"], layer)}
        found = family_of(facts("denoiser", part))
        assert found is not None
        assert found.differs(told(model)) == (model != FAMILIES[name].known_as), found


@pytest.mark.parametrize(
    ("component", "layers"),
    [
        # CogView 4
        (None, ["transformer_blocks.0.attn1.to_q:4096", "transformer_blocks.0.attn1.to_out.0:4096"]),
        (None, ["transformer_blocks.0.attn1.to_q:4096", "transformer_blocks.0.ff.net.0.proj:4096"]),
        # Sana 0.6B
        (None, ["transformer_blocks.0.attn1.to_q:1152", "transformer_blocks.0.attn2.to_k:1152"]),
        ("transformer", ["blocks.0.attn.qkv:1152", "blocks.0.cross_attn.q_linear:1152"]),
        # Stable Audio
        (None, ["transformer_blocks.0.attn1.to_q:1536", "transformer_blocks.0.attn2.to_q:1536"]),
        ("transformer", ["transformer_blocks.0.attn1.to_q:1536", "transformer_blocks.0.ff.net.0.proj:1536"]),
        # Qwen3 0.6B
        (None, ["layers.0.self_attn.q_proj:1024", "layers.0.mlp.up_proj:1024"]),
        (None, ["model.layers.0.self_attn.q_proj:1024"]),
        # OpenCLIP bigG, which four families have
        ("text_encoder_2", ["text_model.encoder.layers.0.self_attn.q_proj:1280"]),
        # Cosmos-Predict2 2B or Anima
        ("transformer", ["transformer_blocks.0.attn2.to_k:1024", "transformer_blocks.0.attn1.to_out.0:2048"]),
    ],
)
def test_layers_that_families_share_are_of_none_for_sure(component, layers):
    found = family_of(fact(component, *one.rsplit(":", 1)) for one in layers)
    assert found is None or not found.sure


def test_a_small_model_with_the_layers_of_sdxl_is_not_dreamlite():
    """DreamLite alone has attention to the text, and no other, on the finest level."""
    cases = {
        ("down_blocks.1.attentions.0", "up_blocks.1.attentions.0", "input_blocks.4.1"): "sdxl",
        ("down_blocks.0.attentions.0", "input_blocks.1.1"): None,
    }
    for levels, expected in cases.items():
        for level in levels:
            inside = f"{level}.transformer_blocks.0"
            every = {f"{inside}.attn2.to_k": 2048, f"{inside}.attn1.to_q": 320, f"{inside}.attn2.to_q": 320}
            found = family_of(facts("unet", every))
            assert (found and found.name) == expected, level
    own = {"down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_q": 320, "mid_block.attentions.0.attn2.to_k": 2048}
    found = family_of(facts("unet", own))
    assert found is not None
    assert found.name == "dream_lite"


def test_a_lora_of_chromas_blocks_is_not_warned_of(tmp_path):
    """As tdrussell/diffusion-pipe writes it: FLUX.1 has the same blocks, and the metadata tells nothing."""
    family = FAMILIES["chroma"]
    tensors = {}
    for layer, width in trees("chroma")[0].items():
        if re.match(r"(single_)?transformer_blocks\.0\.attn", layer):
            tensors |= pair(f"lora_unet_{layer.replace('.', '_')}", (width, width), 1)
    path = save(tmp_path / "a.safetensors", tensors, {"format": "pt"})
    report = load_network(path, {family.component: family.build(True)}).report
    assert (report.hit, report.architecture, report.warning) == (11, "flux", "")
    path = save(tmp_path / "b.safetensors", tensors, {"modelspec.architecture": "Flux.1-dev/lora"})
    report = load_network(path, {family.component: family.build(True)}).report
    assert report.warning == "made for FLUX.1, the loaded model is Chroma: 11 of 11 layers fit"


def test_a_text_encoder_says_nothing_of_a_denoiser_that_no_family_has():
    """Many families have CLIP: a small or new transformer beside it was said to be Stable Diffusion 1.x."""
    clip = {f"text_model.encoder.layers.{i}.self_attn.q_proj": 768 for i in range(12)}
    alone = family_of(facts("text_encoder", clip))
    assert alone is not None
    assert (alone.name, alone.sure) == ("sd1", False)
    unknown = facts("transformer", {"layers.0.mixer": 128})
    assert family_of([*unknown, *facts("text_encoder", clip)]) is None
    unet = facts("unet", {"down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": 320})
    mine = family_of([*unet, *facts("text_encoder", clip)])
    assert mine is not None
    assert mine.name == "sd1"
