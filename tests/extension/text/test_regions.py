"""Regions as prompts write them, as parameters texts carry them, and as files."""

from __future__ import annotations

import base64
import io
import logging
import re
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from extension.generation.paste import with_own_regions
from extension.kept.region_files import RegionFiles, as_png, from_text, read_picture
from extension.text.known import ANY, Known
from extension.text.prompt import PromptError, format_tag, parse
from extension.text.regions import (
    NAMED,
    NO_MASK,
    PARAMETER,
    RegionTextError,
    checked_name,
    parameters,
    read_mask,
    read_parameter,
)
from lib_lora import Region, Strength

FACE = Region.rectangle(0.25, 0.1, 0.5, 0.4)
OWN = {"face": FACE, "left": Region.rectangle(0, 0, 0.4, 1)}
REGIONS = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda size: st.binary(min_size=size[0] * size[1], max_size=size[0] * size[1]).map(
        lambda cells: Region(size[0], size[1], cells)
    )
)
REGION_NAMES = st.from_regex(r"[a-z][a-z0-9 _.()-]{0,20}[a-z0-9_)]", fullmatch=True).filter(
    lambda one: one not in NAMED and not re.match(r"(?:con|prn|aux|nul|(?:com|lpt)[1-9]) *(?:\.|$)", one)
)


def png(width: int, height: int, colour: tuple[int, ...], mode: str = "RGB") -> bytes:
    made = io.BytesIO()
    Image.new(mode, (width, height), colour).save(made, "PNG")
    return made.getvalue()


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("right", NAMED["right"]),
        ("0,0,0.5,1", NAMED["left"]),
        (" 0.5 , 0, 1, 1.0 ", NAMED["right"]),
        ("face", FACE),
        ("left", OWN["left"]),
        ("!face", FACE.inverted()),
        ("!!face", FACE),
        ("face+right", FACE | NAMED["right"]),
        ("! face + 0,0,.1,.1", FACE.inverted() | Region.rectangle(0, 0, 0.1, 0.1)),
        ("left third", NAMED["left third"]),
    ],
)
def test_what_is_written_is_a_part_of_the_picture(written: str, want: Region) -> None:
    mask = read_mask(written, 0, OWN)
    assert mask.region == want
    assert mask.written == written.strip()


def test_a_tag_is_for_its_region_alone() -> None:
    (tag,) = parse("<lora:a:0.8:mask=face:feather=0.1>", Known(regions=OWN)).tags
    assert tag.multiplier == Strength(0.8, region=FACE.feathered(0.1))
    (kept,) = parse("<lora:a:0.8:mask=face:outside=0.25>", Known(regions=OWN)).tags
    assert kept.multiplier == Strength(0.8, region=FACE, outside=0.25)
    assert format_tag(tag) == "<lora:a:0.8:mask=face:feather=0.1>"
    assert tag.mask.own == {"face": FACE}
    assert parse("<lora:a>").tags[0].mask == NO_MASK


def test_a_region_is_known_by_its_name_or_refused_at_its_place() -> None:
    with pytest.raises(
        PromptError, match=r"there is no region 'nose'; the regions are bottom, .*, top, face, left"
    ) as caught:
        parse("<lora:a:0.8:mask=face+nose>", Known(regions=OWN))
    assert caught.value.position == len("<lora:a:0.8:mask=face+")
    assert parse("<lora:a:0.8:mask=nose>", ANY).tags[0].mask.written == "nose"


@pytest.mark.parametrize(
    "name", ["", " ", "left", "0.5", "a,b", "a:b", "a>b", "!a", "a+b", "x" * 61, "../up", "a/b", "-"]
)
def test_a_name_that_a_tag_or_a_file_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(RegionTextError):
        checked_name(name)


@pytest.mark.parametrize(
    "name", ["con", "Con", "NUL", "aux", "prn", "com1", "LPT9", "com²", "nul.face", "con .x", "face.", "com9.tar.gz"]
)
def test_a_name_that_no_file_can_have_on_windows_is_refused(name: str) -> None:
    with pytest.raises(RegionTextError):
        checked_name(name)


@pytest.mark.parametrize("name", ["console", "com", "com10", "face.con", "auxiliary.1", "lpt 1"])
def test_a_name_that_only_looks_like_one_of_windows_is_taken(name: str) -> None:
    assert checked_name(name) == name


def test_a_picture_put_there_by_hand_under_a_name_that_no_tag_has_is_no_region(tmp_path: Path) -> None:
    (tmp_path / "regions").mkdir()
    (tmp_path / "regions" / "face .png").write_bytes(as_png(FACE))
    assert RegionFiles(lambda: tmp_path).all == {}


@given(st.dictionaries(REGION_NAMES, REGIONS, max_size=4))
def test_a_parameters_text_carries_them(regions: dict[str, Region]) -> None:
    masks = [read_mask("left", 0, {}), *(read_mask(f"!{name}+left", 0, regions) for name in regions)]
    told = parameters(masks)
    assert bool(told) == bool(regions)
    assert read_parameter(told.get(PARAMETER, "")) == regions


@given(st.text(st.sampled_from("face:, 64x-AQIDlkeft0123456789=_"), max_size=60) | st.text(max_size=30))
def test_any_other_text_is_left_out(text: str) -> None:
    assert all(isinstance(region, Region) for region in read_parameter(text).values())


def test_a_text_that_unpacks_to_more_than_it_says_is_left_out() -> None:
    (told,) = parameters([read_mask("big", 0, {"big": Region(64, 64, bytes(range(256)) * 16)})]).values()
    assert read_parameter(told.replace("64x64", "8x8")) == {}


def test_of_a_pasted_text_regions_come_along_under_names_that_are_free() -> None:
    given = {"face": NAMED["top"], "sky": FACE, "Hat": NAMED["top"], "same": FACE}
    own = {"face": FACE, "hat": FACE, "same": FACE}
    prompt = "a <lora:x:1:mask=face+!sky:feather=0.1> face <lora:y:mask= Hat > <lora:z:1:mask=same:half=pos>"
    got, kept = with_own_regions(prompt, given, own)
    assert got == ("a <lora:x:1:mask=face-2+!sky:feather=0.1> face <lora:y:mask= Hat-2> <lora:z:1:mask=same:half=pos>")
    assert kept == {"face-2": NAMED["top"], "sky": FACE, "Hat-2": NAMED["top"]}
    again, more = with_own_regions(prompt, given, {**own, **kept})
    assert (again, more) == (got, {})


def test_a_long_name_of_a_pasted_region_is_shortened_for_its_number() -> None:
    long = "f" * 60
    own = {long: FACE}
    got, kept = with_own_regions(f"<lora:x:1:mask={long}>", {long: NAMED["top"]}, own)
    assert kept == {"f" * 58 + "-2": NAMED["top"]}
    assert got == f"<lora:x:1:mask={'f' * 58}-2>"
    assert all(checked_name(name) == name for name in kept)


@pytest.fixture(params=["in a folder", "without one"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> RegionFiles:
    folder = tmp_path if request.param == "in a folder" else None
    return RegionFiles(lambda: folder)


def test_regions_are_kept_changed_and_deleted(files: RegionFiles) -> None:
    assert files.all == {}
    made = files.put("face", as_png(FACE))
    assert made == FACE
    files.put("small", png(3, 2, (255, 255, 255)))
    files.put("face", png(5, 5, (128, 128, 128)))
    assert files.all == {"face": Region(5, 5, bytes([128]) * 25), "small": Region(3, 2, b"\xff" * 6)}
    with pytest.raises(RegionTextError, match="there is a region 'face' already"):
        files.put("Face", as_png(FACE))
    with pytest.raises(RegionTextError, match="is a built-in region"):
        files.put("left", as_png(FACE))
    with pytest.raises(RegionTextError, match="empty: white is where the LoRA acts"):
        files.put("none", png(5, 5, (0, 0, 0)))
    files.delete("face")
    assert set(files.all) == {"small"}
    with pytest.raises(RegionTextError, match="no region 'face' of your own"):
        files.delete("face")


def test_a_large_picture_is_made_small_and_a_transparent_one_is_black() -> None:
    large = Image.new("L", (1000, 500))
    large.paste(255, (0, 0, 500, 500))
    made = io.BytesIO()
    large.save(made, "JPEG", quality=100)
    region = read_picture(made.getvalue())
    assert (region.width, region.height) == (64, 64)
    assert abs(region.share - 0.5) < 0.01
    assert read_picture(png(4, 4, (255, 255, 255, 0), "RGBA")).share == 0
    assert read_picture(png(4, 4, (255, 255, 255, 128), "RGBA")).share == pytest.approx(128 / 255, abs=0.01)


@pytest.mark.parametrize("content", [b"", b"no picture", png(4, 4, (1, 2, 3))[:40]])
def test_what_is_no_picture_is_refused(content: bytes, files: RegionFiles) -> None:
    with pytest.raises(RegionTextError, match=r"^this picture cannot be read: "):
        files.put("face", content)
    assert files.all == {}


def test_a_picture_put_there_by_hand_is_a_region_and_a_damaged_one_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = RegionFiles(lambda: tmp_path)
    (tmp_path / "regions").mkdir()
    (tmp_path / "regions" / "mine.png").write_bytes(png(2, 2, (255, 0, 0)))
    (tmp_path / "regions" / "bad.png").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        assert set(files.all) == {"mine"}
        assert set(files.all) == {"mine"}
    (record,) = caplog.records
    bad = tmp_path / "regions" / "bad.png"
    assert record.getMessage().startswith(f"remora: {bad} cannot be read as a region (this picture")
    assert record.getMessage() == f"remora: {files.problem}"
    (tmp_path / "regions" / "worse.png").write_bytes(b"x")
    assert files.problem.endswith("starts an empty file; 1 more file has a problem")
    (tmp_path / "regions" / "worst.png").write_bytes(b"x")
    assert files.problem.endswith("starts an empty file; 2 more files have problems")
    for name in ("bad", "worse", "worst"):
        (tmp_path / "regions" / f"{name}.png").unlink()
    assert files.problem == RegionFiles(lambda: None).problem == ""


def test_a_region_in_place_of_a_damaged_picture_leaves_that_under_another_name(tmp_path: Path) -> None:
    files = RegionFiles(lambda: tmp_path)
    (tmp_path / "regions").mkdir()
    (tmp_path / "regions" / "face.png").write_bytes(b"x")
    files.put("face", as_png(FACE))
    assert files.all == {"face": FACE}
    assert (tmp_path / "regions" / "face.png.damaged-1").read_bytes() == b"x"


@pytest.mark.parametrize("start", ["", "data:image/png;base64,"])
def test_a_picture_as_text(start: str) -> None:
    assert from_text(start + base64.b64encode(b"abc").decode()) == b"abc"
    with pytest.raises(RegionTextError, match="must be base64"):
        from_text(start + "é")


def test_a_text_that_unpacks_to_far_more_takes_no_memory() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(bytes(200 << 20), 9)).decode().rstrip("=")
    tracemalloc.start()
    try:
        assert read_parameter(f"big: 8x8-{bomb}") == {}
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_no_more_regions_are_kept_than_a_list_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extension.kept.region_files._MOST", 2)
    files = RegionFiles(lambda: tmp_path)
    stream = io.BytesIO()
    Image.new("L", (8, 8), 255).save(stream, "PNG")
    files.put("a", stream.getvalue()), files.put("b", stream.getvalue())
    with pytest.raises(RegionTextError, match="there are 2 regions already"):
        files.put("c", stream.getvalue())
    files.put("b", stream.getvalue())
    assert set(files.all) == {"a", "b"}
