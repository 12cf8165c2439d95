from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extension.text.block_weights import BUILT_IN, BlockPresets, TagBlocks, described, read_list, read_rules
from extension.text.known import Known
from extension.text.prompt import PromptError, format_tag, parse, parse_arguments
from extension.text.regions import NAMED, NO_MASK, Mask, read_mask
from extension.text.steps import amount_by_host
from extension.text.tag import PASSES, Rule, Tag
from lib_lora import Curve, Element, Entry, Halves, LoraError, Region, Shape, Strength, Unit, Window
from tests.selection import examples

ROOT = Path(__file__).resolve().parents[3]
FUZZ = settings(max_examples=int(os.environ.get("REMORA_EXAMPLES") or examples(1000)), deadline=None)
"""100,000 in the long run."""

NAMES = st.text(st.characters(exclude_characters="<>:", exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    lambda name: name == name.strip() and not name.endswith("\\")  # which would make the colon behind it a letter
)
NUMBERS = st.floats(-10, 10, allow_nan=False)
PLACES = st.floats(0, 60, allow_nan=False)
DENOISING = ("unet", "transformer", "transformer_ref", "prior", "decoder", "llm_adapter", "connectors")


@st.composite
def tags(draw: st.DrawFn) -> Tag:
    """Any tag that can be written; all its schedules go by the same unit and have the same shape."""
    unit, shape = draw(st.sampled_from(get_args(Unit))), draw(st.sampled_from(get_args(Shape)))
    points = st.lists(st.tuples(PLACES, NUMBERS), min_size=1, max_size=4)
    amounts = NUMBERS | points.map(lambda found: Curve(tuple(found), unit, shape))
    more: dict[str, st.SearchStrategy[object]] = {
        "rank": st.integers(1, 512),
        "noise": st.frozensets(st.sampled_from(["high", "low"])),
        "hires_te": amounts,
        "hires_unet": amounts,
        "sides": st.dictionaries(st.sampled_from(["in", "mid", "out"]), amounts),
        "module": st.sampled_from(["unet", "transformer_2"]),
        "blocks": blocks(),
        "during": st.builds(Window, *[st.none() | st.floats(0, 60) for _ in range(4)]),
        "passes": st.frozensets(st.sampled_from(PASSES), max_size=3),
        "half": st.sampled_from(["pos", "neg"]),
        "rows": st.frozensets(st.integers(1, 16)),
        "mask": masks(),
    }
    # not all of them each time: drawing takes much longer than reading what was drawn
    chosen = draw(st.lists(st.sampled_from(sorted(more)), max_size=5, unique=True))
    return Tag(draw(NAMES), draw(amounts), draw(amounts), **{name: draw(more[name]) for name in chosen})  # type: ignore[arg-type]


@st.composite
def blocks(draw: st.DrawFn) -> TagBlocks:
    x, rules = draw(st.just(1.0) | NUMBERS), draw(st.sampled_from(["", *BUILT_IN.elements]))
    name = draw(st.sampled_from(["", *BUILT_IN.lists]))
    cells = st.lists(NUMBERS | st.sampled_from(["R", "U", "X", "X+0.5", "X-.25"]), min_size=2, max_size=30)
    written = name or draw(st.just("") | cells.map(lambda values: ",".join(map(str, values))))
    values = BUILT_IN.lists[name] if name else read_list(written) if written else ()
    return TagBlocks(written, values, rules, BUILT_IN.elements.get(rules, ()), x)


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """Any region that comes along or is a rectangle, or some of them."""
    edges = st.tuples(*[st.integers(0, 9)] * 2, *[st.integers(10, 20)] * 2).map(
        lambda found: ",".join(f"{edge / 20:g}" for edge in found)
    )
    parts = st.lists(
        st.builds("{}{}".format, st.sampled_from(["", "!"]), st.sampled_from([*NAMED]) | edges), max_size=3
    )
    written = "+".join(draw(parts))
    if not written:
        return NO_MASK
    mask = read_mask(written, draw(st.sampled_from([0.0, 0.1, 0.25, 1.0])), {})
    outside = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return replace(mask, outside=outside, part=draw(st.none() | st.integers(1, 9)))


TAGS = tags()


def test_every_written_form() -> None:
    for written, tag in (
        ("<lora:foo>", Tag("foo", 1.0, 1.0)),
        ("<lora:foo:0.8>", Tag("foo", 0.8, 0.8)),
        ("<lora:foo:0.5:1.0>", Tag("foo", 0.5, 1.0)),
        ("<lora:foo:0.5:1.0:16>", Tag("foo", 0.5, 1.0, 16)),
        ("<lora:foo:te=0.4:unet=0.9:dyn=16>", Tag("foo", 0.4, 0.9, 16)),
        ("<lora:foo:te=0.4>", Tag("foo", 0.4, 0.4)),
        ("<lora:foo:unet=0.9>", Tag("foo", 1.0, 0.9)),
        ("<lora:foo:0.5:te=0.2>", Tag("foo", 0.2, 0.2)),
        ("<lyco:foo:-1>", Tag("foo", -1.0, -1.0)),
        ("<LoRA:foo:.5>", Tag("foo", 0.5, 0.5)),
        ("<lora:sub/[XL] my.lora v1.5 :1e-1>", Tag("sub/[XL] my.lora v1.5", 0.1, 0.1)),
        ("<lora:a=b:1>", Tag("a=b", 1.0, 1.0)),
        ("<lora:foo:0.7:alpha=8>", Tag("foo", 0.7, 0.7, alpha=8.0)),
        ("<lora:foo:scale=.0625:alpha=8>", Tag("foo", alpha=8.0, scale=0.0625)),
        ("<lora:foo:0.7:high>", Tag("foo", 0.7, 0.7, None, frozenset({"high"}))),
        ("<lora:foo:LOW>", Tag("foo", 1.0, 1.0, None, frozenset({"low"}))),
        ("<lora:foo:high:0.7:low:0.5>", Tag("foo", 0.7, 0.5, None, frozenset({"high", "low"}))),
        ("<lora:foo:combine=TIES>", Tag("foo", rule=Rule("ties", 0.5))),
        (
            "<lora:foo:0.7:density=.3:combine=dare_ties_svd:seed=7>",
            Tag("foo", 0.7, 0.7, rule=Rule("dare_ties_svd", 0.3, 7)),
        ),
        ("<lora:foo:combine=orthogonal>", Tag("foo", rule=Rule("orthogonal"))),
        ("<lora:foo:combine=dare_linear:seed=0>", Tag("foo", rule=Rule("dare_linear", 0.5))),
    ):
        assert parse(f"a {written} b").tags == (tag,), written
        assert parse(format_tag(tag)).tags == (tag,), written
    for written, said in (
        ("combine=tie", "'tie' is none of orthogonal, svd, .*; did you mean ties or ties_svd"),
        ("combine=svd:density=0.4", "'density' needs a rule that it belongs to, such as combine=ties"),
        ("seed=3", "'seed' needs a rule that it belongs to, such as combine=dare_linear"),
        ("combine=ties:density=0", "0 is not a share of the numbers; write a number from 0 to 1"),
        ("combine=dare_ties:seed=-1", "'-1' is not a seed; write a whole number"),
    ):
        with pytest.raises(PromptError, match=said):
            parse(f"<lora:x:{written}>")


def curve(*points: float, **more: str) -> Curve:
    """Of value, place, value, place …, as they are written."""
    return Curve(tuple(zip(points[1::2], points[::2], strict=True)), **more)  # type: ignore[arg-type]


def rules_of(name: str) -> tuple[str, tuple[Element, ...]]:
    return name, BUILT_IN.elements[name]


OUTALL = TagBlocks("OUTALL", BUILT_IN.lists["OUTALL"])
SEVENTEEN = "0,0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0"


@pytest.mark.parametrize(
    ("written", "want"),
    [
        # cheald/sd-webui-loractl, README.md
        ("network:0.5:hr=1.0", {"te": 0.5, "unet": 0.5, "hires_te": 1.0, "hires_unet": 1.0}),
        ("network:0@0,1@1:hr=1@0,0@1", {"te": curve(0, 0, 1, 1), "hires_unet": curve(1, 0, 0, 1)}),
        ("st4rw4ar5at4t:0@0,1@0.4", {"unet": curve(0, 0, 1, 0.4)}),
        ("pixel:1:0@5,1@6", {"te": 1.0, "unet": curve(0, 5, 1, 6)}),
        ("foo:te=0.5:unet=1@0,0@1:hr=0.6", {"te": 0.5, "unet": curve(1, 0, 0, 1), "hires_te": 0.6}),
        ("foo:0.25~0.5;1", {"unet": curve(0.25, 0.5, 1, 1)}),  # `~` and `;` for those whose prompts use @ and ,
        ("foo:hrte=0.2:hrunet=0.3", {"te": 1.0, "hires_te": 0.2, "hires_unet": 0.3}),
        # hako-mikan/sd-webui-lora-block-weight, README.md
        (f"foo:1:{SEVENTEEN}", {"te": 1.0, "unet": 1.0, "blocks": TagBlocks(SEVENTEEN, read_list(SEVENTEEN))}),
        (f"foo:1:1:lbw={SEVENTEEN}", {"blocks": TagBlocks(SEVENTEEN, read_list(SEVENTEEN))}),
        ("foo:1:OUTALL", {"te": 1.0, "unet": 1.0, "blocks": OUTALL}),
        ("foo:0.5:OUTALL:0.7", {"te": 0.5, "unet": 0.5, "blocks": TagBlocks("OUTALL", OUTALL.values, x=0.7)}),
        ("foo:0.5:1:lbw=OUTALL:x=0.7", {"te": 0.5, "blocks": TagBlocks("OUTALL", OUTALL.values, x=0.7)}),
        ("foo:1:w=OUTALL", {"blocks": OUTALL}),
        ("foo:1:lbw=OUTALL:stop=10", {"blocks": OUTALL, "during": Window(stop=10)}),
        ("foo:1:OUTALL:start=10", {"blocks": OUTALL, "during": Window(start=10)}),
        (
            "foo:1:1:lbw=OUTALL:lbwe=ATTNDEEPON:step=2-12",
            {
                "blocks": TagBlocks("OUTALL", OUTALL.values, "ATTNDEEPON", (Element(("IN05-OUT05",), ("attn",), 1.0),)),
                "during": Window(2, 12),
            },
        ),
        ("foo:1:OUTALL:ATTNDEEPOFF", {"blocks": TagBlocks("OUTALL", OUTALL.values, *rules_of("ATTNDEEPOFF"))}),
        # vladmandic/sdnext modules/lora/extra_networks_lora.py
        ("foo:1.0:te=0.5:in=0.2:mid=1:out=0.8", {"te": 0.5, "sides": {"in": 0.2, "mid": 1.0, "out": 0.8}}),
        ("foo:1:module=Transformer_2", {"module": "transformer_2"}),
        # our own
        ("foo:1@14,0@1:by=sigma:curve=cosine", {"unet": curve(1, 14, 0, 1, unit="sigma", shape="cosine")}),
        ("foo:1:sigma=14-1.5", {"during": Window(high=14, low=1.5)}),
        ("foo:1:sigma=1e-1-", {"during": Window(high=0.1)}),
        ("foo:1:step=-4", {"during": Window(stop=4)}),
        # Haoming02/sd-webui-forge-classic, issues 1439 and 1457
        ("foo:1:start=5", {"during": Window(start=5)}),
        ("foo:0.5:5-15", {"te": 0.5, "unet": 0.5, "rank": None, "during": Window(5, 15)}),
        ("foo:5-15", {"te": 1.0, "during": Window(5, 15)}),
        ("foo:1:0.3:0.25-0.5:8", {"unet": 0.3, "rank": 8, "during": Window(0.25, 0.5)}),
        ("foo:1:5-", {"during": Window(start=5)}),
        ("foo:1:-4", {"unet": -4.0, "during": Window()}),  # a number
        ("foo:1:1e-5", {"unet": 1e-5, "during": Window()}),
        ("foo:1:start=0:end=0.25", {"during": Window(0, 0.25)}),
        ("foo:1:step=0.25-.5", {"during": Window(0.25, 0.5)}),
        ("foo:1:half=NEG:rows=3,1", {"half": "neg", "rows": frozenset({1, 3})}),
        ("foo:1:pass=hires+refiner", {"passes": frozenset({"hires", "refiner"})}),
        ("foo:1:pass=base,hires,refiner,detailer", {"passes": frozenset()}),
    ],
)
def test_what_each_source_writes(written: str, want: dict[str, object]) -> None:
    (tag,) = parse(f"<lora:{written}>").tags
    assert tag.name == written.partition(":")[0]
    assert {name: getattr(tag, name) for name in want} == want
    assert parse(format_tag(tag)).tags == (tag,)
    assert parse(f"<loractl:{written}>").tags == (tag,)


def test_presets_are_those_that_are_given() -> None:
    presets = Known(BlockPresets({"MINE": (0.5, "R"), "0,1": (1.0,)}))
    assert parse("<lora:a:1:MINE>", presets).tags[0].blocks.values == (0.5, "R")
    with pytest.raises(PromptError, match="'OUTALL' is neither a number nor block weights; presets of block weights"):
        parse("<lora:a:1:OUTALL>", presets)
    with pytest.raises(PromptError, match="there are no presets of rules"):
        parse("<lora:a:1:lbwe=ATTNDEEPON>", presets)


def test_what_a_tag_means_in_a_pass() -> None:
    (tag,) = parse("<lora:a:0.5:1:hr=0.2:pass=base,hires>").tags
    model = dict.fromkeys(DENOISING, 1.0)
    assert tag.multiplier_in("base") == {"text_encoder": 0.5, **model}
    assert tag.multiplier_in("hires") == 0.2
    assert tag.multiplier_in("refiner") == 0.0
    assert not tag.is_off
    assert parse("<lora:a:0:hr=0:pass=detailer>").tags[0].is_off
    assert not parse("<lora:a:0:hr=1>").tags[0].is_off
    assert parse("<lora:a:0@0,0@1>").tags[0].is_off


def test_a_function_of_a_tag() -> None:
    (tag,) = parse("<lora:a:0.5:0@0,1@1:lbw=OUTALL:stop=4:in=0.3>").tags
    found = tag.multiplier
    assert isinstance(found, Strength)
    assert isinstance(found.of, dict | type(found.of))
    assert found.amount("unet") == amount_by_host(curve(0, 0, 1, 1))
    assert found.amount("unet", "in") == 0.3
    assert found.amount("text_encoder_2") == 0.5
    assert found.during == Window(stop=4)
    assert found.blocks is not None
    assert found.blocks.values == (1.0, *[0.0] * 7, *[1.0] * 9)
    (alone,) = parse("<lora:a:0.7:module=transformer_2>").tags
    names = ("transformer", "transformer_2", "text_encoder", "unet")
    assert [Entry("a", alone.multiplier).strength(name) for name in names] == [0.0, 0.7, 0.0, 0.0]


def test_what_a_half_means() -> None:
    (tag,) = parse("<lora:a:0.5:1:half=pos>").tags
    found = tag.multiplier
    assert isinstance(found, Halves)
    assert Entry("a", found.positive).strength("unet") == 1.0
    assert Entry("a", found.negative).strength("unet") == 0.0
    assert {Entry("a", half).strength("text_encoder") for half in (found.positive, found.negative)} == {0.5}
    (tag,) = parse("<lora:a:0.5:1:half=neg:rows=2>").tags
    assert tag.multiplier_in(image=0) == 0.0
    found = tag.multiplier_in(image=1)
    assert isinstance(found, Halves)
    assert Entry("a", found.negative).strength("unet") == 1.0
    assert {Entry("a", half).strength("text_encoder") for half in (found.positive, found.negative)} == {0.0}


def test_drawn_weights_are_those_of_the_seed() -> None:
    (tag,) = parse("<lora:a:1:lbw=R,U,X,X+0.5,X-.25:x=2>").tags
    (other,) = parse("<lora:a:1:lbw=R,U,X,X+0.5,X-.25,R:x=2>").tags

    def drawn(of: Tag, seed: int | None) -> tuple[float, ...]:
        found = of.multiplier_in(seed=seed)
        assert isinstance(found, Strength)
        assert found.blocks is not None
        assert found.blocks.values is not None
        return found.blocks.values

    assert drawn(tag, 1) == drawn(tag, 1)
    assert drawn(tag, 1)[2:] == (2.0, 2.5, 1.75)
    assert len({drawn(tag, seed)[:2] for seed in range(40)} | {drawn(other, 1)[:2]}) == 41
    assert all(0 <= drawn(tag, seed)[0] <= 1 and -0.5 <= drawn(tag, seed)[1] <= 1.5 for seed in range(200))
    assert drawn(tag, None) != drawn(tag, None)


def test_what_is_left_alone_is_left_alone_in_every_pass() -> None:
    (tag,) = parse("<lora:a:0.5:0@0,1@1:hr=0.7:in=0.2>").tags
    texts = tag.without(["text_encoder", "text_encoder_2"])
    assert (texts.te, texts.hires_te, texts.unet, texts.hires_unet) == (0.0, 0.0, curve(0, 0, 1, 1), 0.7)
    model = tag.without(["unet"])
    assert (model.te, model.hires_te, model.unet, model.hires_unet, model.sides) == (0.5, 0.7, 0.0, 0.0, {})


def test_a_tag_may_be_for_one_expert_alone() -> None:
    (tag,) = parse("<lora:foo:0.7:high>").tags
    found = Entry("foo.safetensors", tag.multiplier)
    names = ("transformer", "transformer_2", "text_encoder", "unet")
    assert [found.strength(name) for name in names] == [0.7, 0.0, 0.7, 0.7]
    (tag,) = parse("<lora:foo:low>").tags
    assert [Entry("foo.safetensors", tag.multiplier).strength(name) for name in names] == [0.0, 1.0, 1.0, 1.0]
    (tag,) = parse("<lora:foo:0.7>").tags
    assert [Entry("foo.safetensors", tag.multiplier).strength(name) for name in names] == [0.7] * 4


def test_tags_are_cut_out_and_everything_else_stays() -> None:
    parsed = parse("a <lora:x:1>, (b:1.2) <hypernet:h:1> 1 < 2 <lora:x:0.5>")
    assert parsed.text == "a , (b:1.2) <hypernet:h:1> 1 < 2 "
    assert parsed.tags == (Tag("x"), Tag("x", 0.5, 0.5))  # the same file twice: both apply


WRONG = [
    ("a <lora:x:1.1.>", "1.1.", "'1.1.' is not a number"),
    ("a <lora:x:0,7>", "0,7", "'0,7' is not a number; write 0.7"),
    ("a <lora:x:0.7f>", "0.7f", "'0.7f' is not a number; write 0.7"),
    ("a <lora:x:1:hr=/models/zorp>", "/models", "is a path; write the name alone, zorp"),
    ("a <lora:x:>", ">", "'' is not a number"),
    ("a <lora:x:unet=nan>", "nan", "'nan' is not a number"),
    ("a <lora:x:1:nan>", "nan", "'nan' is neither a number nor block weights; presets of block weights there are"),
    ("a <lora:x:1e999>", "1e999", "is too large a number"),
    ("a <lora:x:1e39@0,1@1>", "1e39", "is too large a number"),
    ("a <lora:x:1@1e39>", "1e39", "is too large a number"),
    ("a <lora:x:1:1:0>", "0>", "is not a rank"),
    ("a <lora:x:dyn=4.5>", "4.5", "is not a rank"),
    ("a <lora:x:1:1:8:9>", "9>", "a fourth number"),
    ("a <lora:x:lbv=1>", "lbv", "'lbv' is not a setting of a LoRA tag; did you mean lbw?"),
    ("a <lora:x:Mask=left>", "Mask", "'Mask' is not a setting of a LoRA tag; did you mean mask?"),
    ("a <lora:x:colour=1>", "colour", "'colour' is not a setting of a LoRA tag; leave it out"),
    ("a <lora:x:1:0,7>", "0,7", "'0,7' is not a number; write 0.7, or for block weights lbw=0,7"),
    ("a <lora:x:80%>", "80%", "'80%' is not a number; write 0.8"),
    ("a <lora:x:1:hr=\u22120,5>", "\u22120,5", "'\u22120,5' is not a number; write -0.5"),
    ("a <lora:x:1:step=0,2\u20130,8>", "0,2", "'0,2\u20130,8' is not a range; write 0.2-0.8"),
    ("a <lora:x:1:lbw=outall>", "outall", "did you mean OUTALL?"),
    ("a <lora:x:1:lbw=1,x+0.2>", "1,x", "is neither a number nor R, U or X; write X+0.2"),
    ("a <lora:x:lbw=0.5>", "0.5", "'0.5' is a single number; write a weight for each block"),
    ("a <lora:x:1:lbwe=ATTN>", "ATTN", "did you mean ATTNDEEPON or ATTNDEEPOFF?"),
    ("a <lora:x:te=1:te=2>", "te=2", "set twice"),
    ("a <lora:x:1:lbw=OUTALL:w=OUTALL>", "w=OUT", "set twice"),
    ("a <lora:x:0@0,1@no>", "no", "'no' is not a number"),
    ("a <lora:x:0@0,1@0.5@1>", "1@0.5@1", "is not a point"),
    ("a <lora:x:0@0,@1>", "@1", "'' is not a number"),
    ("a <lora:x:1:lbw=1,2,B>", "1,2,B", "value 3 of the list, 'B', is neither a number nor R, U or X"),
    ("a <lora:x:1:lbw=OUTAL>", "OUTAL", "'OUTAL' is neither a number nor block weights; did you mean OUTALL?"),
    ("a <lora:x:1:lbw=>", ">", "'' is neither a number nor block weights"),
    ("a <lora:x:1:lbwe=OUTALL>", "OUTALL", "presets of rules there are: ATTNDEEPOFF"),
    ("a <lora:x:1:step=4>", "4>", "'4' is not a range, such as 2-12"),
    ("a <lora:x:1:sigma=->", "->", "'-' is not a range, such as 14-1"),
    ("a <lora:x:1:start=-2>", "-2", "-2 is below 0"),
    ("a <lora:x:1:end=-2>", "-2", "-2 is below 0"),
    ("a <lora:x:1:end=2:stop=3>", "stop=3", "'stop' is set twice"),
    ("a <lora:x:1:5-15:step=2-3>", "step=2-3", "'step' is set twice"),
    ("a <lora:x:1:pass=hire>", "hire", "'hire' is not a pass; did you mean hires?"),
    ("a <lora:x:1:pass=none>", "none", "'none' is not a pass; the passes are base, hires, refiner, detailer"),
    ("a <lora:x:0@0,1@1:by=minute>", "minute", "'minute' is none of step, sigma, timestep"),
    ("a <lora:x:1:curve=cosine>", "cosine", "needs a schedule"),
    ("a <lora:x:1:half=both>", "both", "'both' is none of pos, neg"),
    ("a <lora:x:1:rows=1,0>", "0>", "'0' is not an image of a batch; images are numbered from 1"),
    ("a <lora:x:1:mask=left:part=1000>", "1000", "'1000' is not a part of a prompt"),
    ("a <lora:x:1:NO:lbw=OUTALL>", "NO", "'NO' is neither a number nor block weights"),
    ("a <lora:x:1:OUTALL:NO:lbwe=ATTNDEEPON>", "NO", "'NO' is neither a number nor block weights"),
    ("a <lora:x:1:OUTALL:1e999:x=1>", "1e999", "'1e999' is too large a number"),
    ("a <lora:x:1:lbw=1e39,1>", "1e39", "value 1 of the list, '1e39', is neither a number"),
    ("a <lora:x:1:lbw=٣,1>", "٣", "value 1 of the list, '٣', is neither a number"),
    ("a <lora:x:1:mask=>", ">", "the region is missing"),
    ("a <lora:x:1:mask=lft>", "lft", "there is no region 'lft'; did you mean left?"),
    ("a <lora:x:1:mask=Left>", "Left", "there is no region 'Left'; did you mean left?"),
    ("a <lora:x:1:mask=eye>", "eye", "there is no region 'eye'; the regions are bottom, center, left"),
    ("a <lora:x:1:mask=left+0,0,2,1>", "0,0,2", "a rectangle is left, top, right and bottom"),
    ("a <lora:x:1:mask=left+0,0,1>", "0,0,1", "'0,0,1' is not a rectangle"),
    ("a <lora:x:1:mask=!0,0,1,1>", "!0,0", "has no place in the picture"),
    ("a <lora:x:1:mask=left:feather=2>", "2>", "2 is not a soft edge"),
    ("a <lora:x:1:mask=left:outside=2>", "2>", "2 is not a share of the effect; write a number from 0 to 1"),
    ("a <lora:x:1:outside=0.2>", "0.2", "'outside' needs a region"),
    ("a <lora:x:1:mask=left:part=0>", "0>", "'0' is not a part of a prompt"),
    ("a <lora:x:1:part=1>", "1>", "'part' needs a region"),
    ("a <lora:x:1:feather=0.2>", "0.2", "'feather' needs a region"),
    ("a <lora:x:1:module=a b>", "a b", "is not a component of a model"),
    ("a <lora:x:1:in=much>", "much", "'much' is not a number"),
    ("a <lora::1>", ":1>", "name is missing"),
    ("a <lora:x:1 and more", "<lora", "not closed"),
    ("a <lora:x:1 <lora:y:1>", "<lora:x", "not closed"),
]
"""A prompt, where the error is, and why."""


def test_an_error_shows_the_text_and_the_place() -> None:
    for prompt, place, reason in WRONG:
        with pytest.raises(PromptError) as caught:
            parse(prompt)
        error, asked = caught.value, (prompt, str(caught.value))
        assert str(error).endswith(f"of the prompt: {error.reason}"), f"{asked}: something is behind what is wrong"
        assert error.reason.count(";") <= 1, asked
        assert prompt[error.position :].startswith(place), asked
        assert f"character {error.position + 1} of" in str(error), asked
        assert reason in error.reason, asked
        assert error.text in str(error), asked
        assert error.text in prompt, asked
        assert isinstance(error, LoraError), asked


def test_a_path_of_windows_is_said_to_be_one() -> None:
    for path in (r"C:\models\zorp.safetensors", r"D:models\zorp", r'"C:\models\zorp.pt"'):
        with pytest.raises(PromptError, match=r"is a path; write the name alone, zorp$"):
            parse(f"a <lora:{path}:1>")


def test_one_number_stays_one_and_two_name_the_components() -> None:
    assert Tag("x", 0.5, 0.5).multiplier == 0.5
    model = dict.fromkeys(DENOISING, 1.0)
    assert Tag("x", 0.5, 1.0).multiplier == {"text_encoder": 0.5, **model}


def test_a_tag_is_off_only_when_all_is_zero() -> None:
    assert parse("<lora:x:0>").tags[0].is_off
    assert not parse("<lora:x:0:1>").tags[0].is_off
    assert not parse("<lora:x:1:0>").tags[0].is_off


def test_arguments_alone_are_read_as_in_a_tag() -> None:
    assert parse_arguments("x:0.5:1:8") == Tag("x", 0.5, 1.0, 8)
    with pytest.raises(PromptError) as caught:
        parse_arguments("x:what")
    assert "<lora:x:what>"[caught.value.position :].startswith("what")


@FUZZ
@given(st.text(st.sampled_from("0123456789.@~,;:=-+!RUXOUTALLbwesteprcugmahindoyfk "), max_size=60))
def test_any_fields_are_read_or_refused_and_what_is_read_is_written_again(fields: str) -> None:
    tag = place = None
    try:
        tag = parse_arguments(f"x:{fields}")
    except PromptError as error:
        place = error.position
    assert tag is not None or 0 <= (place or 0) <= len(f"<lora:x:{fields}>")
    assert tag is None or parse(format_tag(tag)).tags == (tag,)


@FUZZ
@given(st.lists(TAGS, max_size=2), st.text(st.characters(exclude_characters="<>"), max_size=40))
def test_what_is_written_is_read_back(tags: list[Tag], text: str) -> None:
    parsed = parse(text.join(["", *map(format_tag, tags), ""]))
    assert parsed.tags == tuple(tags)
    assert parsed.text == text * (len(tags) + 1)


@FUZZ
@given(st.text(st.sampled_from("<>:lora lyco te=unet=dyn=0.1-x@,lbwOUTALRX+stop"), max_size=60))
def test_any_text_is_read_or_refused_at_a_place_inside_it(prompt: str) -> None:
    error, text = None, prompt
    try:
        text = parse(prompt).text
    except PromptError as caught:
        error = caught
    if error is not None:
        assert 0 <= error.position < len(prompt)
        assert error.text.removesuffix("...") in prompt
    assert len(text) <= len(prompt)
    assert set(text) <= set(prompt)


DOCUMENTED = [
    tag
    for line in (ROOT / "docs" / "strength.md").read_text("utf-8").splitlines()
    for tag in re.findall(r"<(?:lora|lyco):[^<>`…]*>", line)
]


def test_what_the_documentation_writes_is_read() -> None:
    own = Known(regions={"face": Region.rectangle(0, 0, 0.5, 0.5)})
    assert len(DOCUMENTED) > 40
    for example in DOCUMENTED:
        assert [tag.name for tag in parse(example, own).tags] == ["name"], example


def test_rules_are_described_in_sentences() -> None:
    rules = read_rules("A:IN05-OUT05:attn:1\n\nB:NOT IN01 M00:NOT ff proj:0.5,::0")
    assert described(rules["A"]) == "Layers with “attn” in their names, in IN05-OUT05: weight 1."
    assert described(rules["B"]) == (
        "Layers without “ff” or “proj” in their names, in all blocks but IN01, M00: weight 0.5. All layers: weight 0."
    )
