"""Names of blocks, and lists of weights for them."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_lora import BlockNames, BlockWeights, Element, StackError, model_blocks
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.architectures._block import block_of, side_of
from lib_lora.naming.blocks import blocks_of, read_list
from tests.fakes.families import models
from tests.families.base import Family

SD1 = [*(f"IN{i:02}" for i in range(12)), "M00", *(f"OUT{i:02}" for i in range(12))]
FLUX = ("IN", *(f"D{i:02}" for i in range(19)), *(f"S{i:02}" for i in range(38)), "OUT")
TEXTS = ("text_encoder", "text_encoder_2")
XL = BlockNames((*TEXTS, *(f"IN{i:02}" for i in range(9)), "M00", *(f"OUT{i:02}" for i in range(9))))


def family_of(name: str) -> Family:
    module = import_module(f"tests.families.{name}")
    return next(value for value in vars(module).values() if isinstance(value, Family))


@pytest.mark.parametrize("family", ["sd1", "sd2", "sdxl", "sdxl_refiner"])
def test_a_unet_has_the_same_blocks_in_both_trees(family: str) -> None:
    found = [model_blocks(parts) for (name, _), parts in models().items() if name == family]
    assert len(found) == 2
    assert found[0] == found[1]
    assert list(found[0].parts) == (SD1 if family != "sdxl" else list(XL.parts))


@pytest.mark.parametrize(
    ("component", "name", "block"),
    [
        ("unet", "conv_in", "IN00"),
        ("unet", "input_blocks.0.0", "IN00"),
        ("unet", "down_blocks.0.downsamplers.0.conv", "IN03"),
        ("unet", "input_blocks.3.0.op", "IN03"),
        ("unet", "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q", "IN04"),
        ("unet", "input_blocks.4.1.transformer_blocks.0.attn1.to_q", "IN04"),
        ("unet", "up_blocks.1.upsamplers.0.conv", "OUT05"),
        ("unet", "time_embedding.linear_1", ""),
        ("unet", "out.2", ""),
        ("transformer", "double_blocks.3.img_attn.qkv", "D03"),
        ("transformer", "transformer_blocks.3.attn.to_q", "D03"),
        ("transformer", "single_transformer_blocks.12.proj_out", "S12"),
        ("transformer", "time_text_embed.timestep_embedder.linear_1", "IN"),
        ("transformer", "time_embedding.0", "IN"),
        ("transformer", "final_layer.adaLN_modulation.1", "OUT"),
        ("transformer", "norm_out.linear", "OUT"),
        ("transformer_2", "blocks.39.ffn.net.0.proj", "B39"),
        ("text_encoder_2", "text_model.encoder.layers.3.mlp.fc1", "text_encoder_2"),
        ("vae", "encoder.conv_in", ""),
    ],
)
def test_names(component: str, name: str, block: str) -> None:
    assert block_of(component, name) == block


def test_flux_has_the_list_of_the_block_weight_extension() -> None:
    blocks = model_blocks({"transformer": family_of("flux").build(True)})
    assert blocks.parts == FLUX
    assert blocks.lists()[0] == ("CLIP", "T5", *FLUX)
    assert [len(one) for one in blocks.lists()] == [61, 60, 58, 57]


@pytest.mark.parametrize("name", ["wan", "sd3", "z_image", "qwen_image", "hidream"])
def test_every_layer_of_a_transformer_is_in_a_block(name: str) -> None:
    family = family_of(name)
    blocks = model_blocks({"transformer": family.build(False)})
    assert set(blocks.parts) > {"IN"}
    inner = [one for one in blocks.parts if one not in ("IN", "OUT")]
    assert len(inner) >= 1
    assert [len(one) for one in blocks.lists()] == [len(inner) + 3, len(inner) + 1, len(inner)]
    if family.native is not None:  # lists mean the same on hosts with the model's own code
        native = model_blocks({"transformer": skeleton(family.native())})
        assert len(native.lists()[0]) == len(blocks.lists()[0])


@pytest.mark.parametrize(
    ("length", "names"),
    [
        (26, "BASE " + " ".join(SD1)),
        (17, "BASE IN01 IN02 IN04 IN05 IN07 IN08 M00 OUT03 OUT04 OUT05 OUT06 OUT07 OUT08 OUT09 OUT10 OUT11"),
        (20, "BASE " + " ".join(XL.parts)),
        (12, "BASE IN04 IN05 IN07 IN08 M00 OUT00 OUT01 OUT02 OUT03 OUT04 OUT05"),
    ],
)
@pytest.mark.parametrize("parts", [SD1, XL.parts], ids=["sd1", "xl"])
def test_a_list_of_any_length_fits_any_unet(length: int, names: str, parts) -> None:
    """Blocks that the list has no name for are 0, as in the extension's `to26`."""
    blocks = BlockNames((*TEXTS, *parts))
    values = tuple(float(i + 1) for i in range(length))
    given = dict(zip(names.split(), values, strict=True))
    want = {one: given.get(one, 0.0) for one in parts} | dict.fromkeys(TEXTS, 1.0)
    assert read_list(values, blocks) == want


def test_block_weights_take_a_list() -> None:
    assert hash(BlockWeights([1.0, 0.5])) == hash(BlockWeights((1.0, 0.5)))  # type: ignore[arg-type]


def test_lists_of_transformers() -> None:
    blocks = BlockNames(("text_encoder", "IN", "B00", "B01", "OUT"))
    assert read_list((0.5, 0.6), blocks) == {"text_encoder": 1.0, "IN": 1.0, "B00": 0.5, "B01": 0.6, "OUT": 1.0}
    assert read_list((2, 0.5, 0.6), blocks)["text_encoder"] == 2
    assert read_list((2, 3, 0.5, 0.6, 4), blocks) == dict(zip(blocks.of_model, [2, 3, 0.5, 0.6, 4], strict=True))
    flux = BlockNames((*TEXTS, *FLUX))
    own = read_list(tuple(float(i) for i in range(61)), flux)
    assert (own["text_encoder"], own["text_encoder_2"], own["IN"], own["D00"], own["OUT"]) == (0, 1, 2, 3, 60)
    with pytest.raises(StackError, match=r"a list of 7 block weights; the loaded model takes 61, 60, 58, 57"):
        read_list((*[1.0] * 6, 0.0), flux)


def test_a_preset_that_is_the_same_for_all_blocks_fits_any_model() -> None:
    assert set(read_list((0.5,) * 17, BlockNames(("text_encoder", *FLUX))).values()) == {0.5}


def test_sides() -> None:
    assert [side_of(one) for one in ("IN04", "", "M00", "D03", "OUT11", "OUT")] == [
        "in",
        "in",
        "mid",
        "mid",
        "out",
        "out",
    ]


def test_rules_for_some_layers() -> None:
    deep = Element(("IN05-OUT05",), ("attn",), 0.25)
    suits = lambda rule, block, name: rule.suits(block, [name], XL)  # noqa: E731
    assert suits(deep, "M00", "mid_block.attentions.0.transformer_blocks.0.attn1.to_q")
    assert not suits(deep, "M00", "mid_block.resnets.0.conv1")
    assert not suits(deep, "IN04", "input_blocks.4.1.attn1.to_q")
    assert suits(Element(("OUT05-IN05",), (), 1.0), "OUT05", "x")  # either way round
    assert suits(Element(("IN",), (), 1.0), "IN07", "x")
    assert suits(Element((), (), 1.0), "", "x")
    everything_else = Element(("IN",), ("proj",), 1.0, not_blocks=True, not_words=True)
    assert suits(everything_else, "OUT01", "attn1.to_q")
    assert not suits(everything_else, "OUT01", "proj_in")
    assert not suits(everything_else, "IN01", "attn1.to_q")
    assert suits(Element(("BASE",), (), 1.0), "text_encoder_2", "x")


@given(st.lists(st.text("_.abcdefgh0123456789blocks", max_size=30), max_size=20))
def test_any_names_have_blocks(names: list[str]) -> None:
    targets = [SimpleNamespace(path=name) for name in names]
    blocks = blocks_of([SimpleNamespace(component=name, targets=targets) for name in ("transformer", "unet")])
    for one in blocks.lists():
        assert len(set(one)) == len(one)
        assert set(read_list((0.5,) * len(one), blocks).values()) <= {0.5, 1.0, 0.0}


def test_a_weight_that_is_no_number_is_refused() -> None:
    with pytest.raises(StackError, match="finite"):
        BlockWeights((1.0, float("nan")))
