"""The tab in a real browser: find, stack, tune, keep, see what became of it; and what is done wrong.

The page is a small one, with the ids of the embedded web UI. `test_tab_everywhere.py` is the journey in gradio's pages.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from extension.standalone.pnginfo import read_infotext
from extension.text.infotext import Infotext, parse_infotext
from tests.extension.ui.serving import LONG, Served, generate, infotext_with, opened, opened_small, reload, until
from tests.extension.ui.tab import SHADOW, Tab
from tests.extension.ui.test_accessibility import faults

pytestmark = pytest.mark.browser
PROMPT = "#prompt textarea"
# addresses of pictures in memory
COUNTED = """
window.held = new Set();
const [create, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
URL.createObjectURL = (blob) => { const made = create(blob); window.held.add(made); return made; };
URL.revokeObjectURL = (address) => { window.held.delete(address); revoke(address); };
"""


@pytest.fixture(autouse=True)
def nothing_kept(served: Served) -> Iterator[None]:
    yield
    httpx.put(f"{served.url}/remora/v1/stack", json={}).raise_for_status()
    for preset in httpx.get(f"{served.url}/remora/v1/presets").json()["presets"]:
        httpx.delete(f"{served.url}/remora/v1/preset", params={"name": preset["name"]}).raise_for_status()


@pytest.fixture
def tab(served: Served, browser: Any) -> Iterator[Tab]:
    with opened_small(served, browser) as page:
        yield Tab(page).ready()


@pytest.fixture
def copy(served: Served) -> Iterator[Path]:
    """Return a LoRA file that the test may do anything with."""
    path = served.loras / "copied.safetensors"
    path.write_bytes((served.loras / "zorp.safetensors").read_bytes())
    httpx.post(f"{served.url}/remora/v1/refresh")
    yield path
    for other in served.loras.glob("copied.*"):
        other.unlink()
    httpx.post(f"{served.url}/remora/v1/refresh")


def kept(served: Served) -> Any:
    return httpx.get(f"{served.url}/remora/v1/stack").json()


@dataclass(frozen=True)
class Made:
    """A picture and its parameters."""

    pixels: bytes
    parameters: Infotext


def make(tab: Tab, served: Served, prompt: str) -> Made:
    """Make a picture by the page; what is made is seen where it is saved, as a quick one comes and goes unseen."""
    before = set(served.pictures.glob("*.png"))
    tab.page.fill(PROMPT, prompt)
    generate(tab.page)
    infotext_with(tab.page, prompt)
    made = set(served.pictures.glob("*.png")) - before
    with Image.open(made.pop()) as image:
        return Made(image.tobytes(), parse_infotext(read_infotext(image)))


# --- tags as people write them ---


def test_a_tag_within_brackets_says_what_they_do_not_do_and_a_click_makes_it_obey_them(
    tab: Tab, served: Served
) -> None:
    address = f"{served.url}/remora/v1/grammar"
    try:
        tab.write("two red circles [<lora:stripes:1>::0.5] (<lora:night:0.5>:1.2)")
        row = tab.row("stripes")
        row.get_by_text("Acts in all steps: its place in the prompt (until 50 %) does not count for tags.").wait_for()
        row.get_by_role("button", name="Tags obey the brackets around them").click()
        row.get_by_text("until 50 %", exact=True).wait_for()
        tab.row("night").get_by_text("times 1.2", exact=True).wait_for()
        assert row.get_by_text("Acts in all steps").count() == 0
        assert httpx.get(f"{served.url}/remora/v1/state").json()["grammar"] is True
        parameters = make(tab, served, tab.prompt).parameters.settings
        assert parameters["Remora limits"] == "stripes: until 50 %; night: times 1.2"
    finally:
        httpx.put(address, json={"on": False}).raise_for_status()


def test_a_name_that_is_not_found_has_buttons_of_what_may_be_meant(tab: Tab) -> None:
    tab.write("x <lora:styles\\zorpp:0.7:stop=0.5>")
    tab.row("zorpp").get_by_role("button", name="Write zorp in place of").click(timeout=LONG)
    tab.prompt_is("x <lora:zorp:0.7:stop=0.5>")
    tab.write("x <lora:Zorp:0.7>")
    tab.row("Zorp").get_by_role("button", name="More").wait_for()
    assert tab.row("Zorp").get_by_text("is not in the LoRA folders").count() == 0


# --- the library ---


def test_what_is_found_is_searched_by_several_words_over_all_that_is_known(tab: Tab) -> None:
    search = tab.root.get_by_role("searchbox", name="Search LoRA")
    for words, found in (
        ("PES stri", "1 of 6 LoRA"),
        ("loha", "1 of 6 LoRA"),
        ("stable diffusion", "6 LoRA"),
        ("", "6 LoRA"),
    ):
        search.fill(words)
        tab.root.get_by_text(found, exact=True).wait_for()
    search.fill("none <b>like</b> it")
    tab.root.get_by_text("No LoRA matches “none <b>like</b> it”.").wait_for()
    tab.button("Show all").click()
    tab.button("Insert zorp into the prompt").wait_for()


def test_what_searches_look_through_is_made_once_the_search_has_the_focus(tab: Tab) -> None:
    row = "window.remoraTab.library.catalog.all[0]"
    counted = f"Object.defineProperty({row}, 'captions', {{get: () => {{ window.read = 1; return ''; }}}})"
    tab.page.evaluate(f"() => {{ {counted}; }}")
    tab.root.get_by_role("searchbox", name="Search LoRA").click()
    tab.page.wait_for_function("window.read === 1")


def test_files_that_come_are_shown_without_being_asked_for_and_bad_ones_with_the_reason(tab: Tab, copy: Path) -> None:
    (copy.with_name("copied.<img src=x onerror=alert(1)>.safetensors")).write_bytes(b"x" * 100)
    tab.button("Insert copied into the prompt").wait_for(timeout=LONG)
    card = tab.root.locator(".rt-against").filter(has_text="<img src=x onerror=alert(1)>")
    copy.with_name("copied.a>b.safetensors").write_bytes(copy.read_bytes())
    named = tab.root.locator(".rt-against").filter(has_text="a tag cannot contain")
    named.get_by_role("button", name="cannot be inserted").click(timeout=LONG)
    assert tab.page.get_by_role("dialog").get_by_role("button", name="Insert into the prompt").is_disabled()
    tab.page.keyboard.press("Escape")
    card.get_by_text("header claims").wait_for(timeout=LONG)
    card.get_by_role("button", name="cannot be inserted").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_text("download it again").wait_for(timeout=LONG)
    assert dialog.get_by_role("button", name="Insert into the prompt").is_disabled()


def test_it_is_filtered_and_sorted(tab: Tab) -> None:
    tab.button("Filters").click()
    tab.root.get_by_label("Kind").select_option("loha")
    tab.root.get_by_text("1 of 6 LoRA", exact=True).wait_for()
    tab.root.get_by_text("Filters (1)").wait_for()
    tab.button("Show all").click()
    tab.root.get_by_label("Sort by").select_option("size")
    names = tab.root.locator(".rt-virtual .rt-card-name").all_inner_texts()
    assert (names[0], names[-1]) == ("stripes", "stars")
    tab.button("List").click()
    assert tab.root.locator(".rt-card-list").count() == 6


MANY = """() => {
    const {library} = window.remoraTab, {catalog} = library;
    const named = (_, at) => ({...catalog.all[0], id: `many ${at}`, picture: "",
        name: `Incredibly_Detailed_Anime-Portrait_Style_for_SDXL-v${at}`});
    catalog.take({...catalog, whole: true, gone: [], loras: Array.from({length: 200}, named)});
    library.changed();
}"""
SEEN = """box => {
    const isIn = (inner, outer) =>
        inner.top >= outer.top && inner.bottom <= outer.bottom && inner.right <= outer.right;
    const {top, bottom} = box.getBoundingClientRect();
    const sight = {top: Math.max(0, top), bottom: Math.min(innerHeight, bottom), right: innerWidth};
    const cards = [...box.querySelectorAll('.rt-card')].filter(card => isIn(card.getBoundingClientRect(), sight));
    const ends = cards.map(card => [card, card.querySelector('.rt-tail')]).filter(([card, end]) =>
        end.textContent.includes('-v') && isIn(end.getBoundingClientRect(), card.getBoundingClientRect()));
    return [cards.length, ends.length];
}"""
"""How many cards are in sight, and of how many the name's end is."""


def test_a_switch_sets_how_many_files_are_in_sight_and_their_names_keep_their_ends(tab: Tab) -> None:
    scripts = "performance.getEntriesByType('resource').map(({name}) => name.split('/remora/app/')[1]).filter(Boolean)"
    assert sorted(tab.page.evaluate(scripts)) == ["languages.json", "tab.css", "tab.js"]
    tab.page.set_viewport_size({"width": 1280, "height": 900})
    tab.page.evaluate(MANY)
    box = tab.root.locator(".rt-scroll")
    seen = []
    for view in ("Cards: large", "Cards: medium", "Cards: small", "List"):
        tab.root.get_by_role("group", name="How files are shown").get_by_role("button", name=view).click()
        tab.root.locator(".rt-card-" + view.split()[-1].lower()).first.wait_for()
        box.evaluate("box => box.scrollIntoView({block: 'center'})")
        cards, ends = box.evaluate(SEEN)
        assert cards == ends, view
        seen.append(cards)
    large, medium, small, lines = seen
    assert large < 9 < medium < small
    assert lines > 9
    tab.page.set_viewport_size({"width": 390, "height": 844})
    assert box.bounding_box()["height"] > 560, "on a phone it fills the page"


def test_arrow_keys_go_through_the_library(tab: Tab) -> None:
    tab.button("Insert neon into the prompt").focus()
    for key, name in (("ArrowRight", "night"), ("End", "zorp"), ("Home", "neon")):
        tab.page.keyboard.press(key)
        wanted = f"Insert {name} into the prompt"
        focused = f"name => {SHADOW}.activeElement?.getAttribute('aria-label') === name"
        tab.page.wait_for_function(focused, arg=wanted)


def test_files_are_selected_tagged_moved_renamed_deleted_and_brought_back(
    tab: Tab, served: Served, browser: Any, copy: Path
) -> None:
    other = copy.with_name("copied.b.safetensors")
    other.write_bytes(copy.read_bytes())
    copy.with_suffix(".json").write_text('{"notes": "mine"}', "utf-8")
    httpx.post(f"{served.url}/remora/v1/refresh")
    tab.write("<lora:copied:0.5>")
    bar = tab.root.get_by_role("group", name="Selected files")

    def choice(name: str) -> Any:
        return tab.root.get_by_role("button", name=f"Select {name}", exact=True)

    def press(name: str) -> None:
        bar.get_by_role("button", name=name, exact=True).click()

    def says(text: str) -> None:
        bar.get_by_text(text).wait_for(timeout=LONG)

    tab.button("Insert copied.b into the prompt").click(modifiers=["Control"], timeout=LONG)
    says("1 file is selected")
    choice("copied").click()
    assert tab.prompt == "<lora:copied:0.5>", "a click selects now"
    press("Tags …")
    bar.get_by_role("textbox").fill("night, wet")
    bar.get_by_role("textbox").press("Enter")
    says("2 files were changed.")
    bar.get_by_role("radio", name="3 of 5").click()
    for path in (copy, other):
        notes = path.with_suffix(".json")
        until(tab.page, lambda notes=notes: '"rating": 3' in notes.read_text("utf-8"))
        assert json.loads(notes.read_text("utf-8"))["tags"] == ["night", "wet"]
    # a name that is taken is asked about
    sub = served.loras / "copied-sub"
    sub.mkdir()
    (sub / "copied.json").write_text("theirs", "utf-8")
    press("Move …")
    bar.get_by_label("New folder in it").fill("copied-sub")
    press("Move")
    says("copied.safetensors stays: there is a file copied.json already")
    assert (sub / other.name).exists()
    with opened_small(served, browser) as page:  # another page follows by itself, and takes it back
        theirs = Tab(page).ready()
        theirs.button("About copied.b").wait_for(timeout=LONG)
        httpx.post(f"{served.url}/remora/v1/files/move", json={"ids": [idof(served, "copied.b")], "folder": ""})
    press("Move them under names with a number")
    says("1 file was moved to copied-sub.")
    tab.prompt_is("<lora:copied-2:0.5>")
    assert json.loads((sub / "copied-2.json").read_text("utf-8"))["notes"] == "mine"
    press("Undo")
    tab.prompt_is("<lora:copied:0.5>")
    press("Done")
    assert not bar.get_by_role("button", name="Delete").count()
    # the keyboard alone: all, but then one; a new name; the trash, and back
    tab.root.get_by_role("searchbox").fill("copied")
    tab.button("Remove copied from the prompt").focus()
    tab.page.keyboard.press("Control+a")
    says("2 files are selected")
    bar.get_by_role("button", name="Rename …").press("Enter")
    tab.page.keyboard.type("copied")
    bar.get_by_label("Replace with").fill("other")
    bar.get_by_label("Behind").fill(" x")
    says("2 files get new names.")
    previewed = bar.get_by_role("list", name="New names").locator("> li")
    assert [one.inner_text().strip() for one in previewed.all()] == ["copied → other x", "copied.b → other.b x"]
    assert faults(tab.page) == [], "new names"
    tab.page.keyboard.press("Enter")
    says("2 files were renamed.")
    tab.prompt_is("<lora:other x:0.5>")
    assert (served.loras / "other.b x.json").exists()
    press("Undo")
    says("This was taken back.")
    tab.prompt_is("<lora:copied:0.5>")
    tab.root.get_by_role("searchbox").fill("copied")
    choice("copied.b").wait_for(timeout=LONG)
    says("2 files are selected")
    choice("copied.b").press("Enter")
    says("1 file is selected")
    bar.get_by_role("button", name="Rename …").press("Enter")
    bar.get_by_role("textbox").fill("copied.new")
    bar.get_by_role("textbox").press("Enter")
    says("copied is now called copied.new.")
    tab.prompt_is("<lora:copied.new:0.5>")
    bar.get_by_role("button", name="Delete").press("Enter")
    says("1 file is in the trash now.")
    assert not list(served.loras.glob("copied.new.*"))
    tab.page.wait_for_function(f"{SHADOW}.activeElement?.textContent === 'Undo'")
    tab.button("Filters").press("Enter")
    tab.button("Trash: restore").press("Enter")
    trash = tab.page.get_by_role("dialog", name="Trash")
    trash.get_by_text("copied.new").wait_for(timeout=LONG)
    assert faults(tab.page) == [], "the trash"
    foot = trash.locator(".rt-dialog-foot")
    assert (foot.inner_text(), foot.evaluate("foot => foot.offsetHeight")) == ("", 0), (
        "one file needs no button for all"
    )
    tab.page.keyboard.press("Escape")
    press("Undo")
    says("This was taken back.")
    assert (served.loras / "copied.new.json").exists()
    tab.button("About copied.new").wait_for(timeout=LONG)
    httpx.post(f"{served.url}/remora/v1/files/delete", json={"ids": [idof(served, "copied.new")]}).raise_for_status()
    tab.button("Trash: restore").press("Enter")
    trash.get_by_role("button", name="Restore copied.new").press("Enter")
    trash.get_by_text("The trash is empty.").wait_for(timeout=LONG)
    assert tab.page.evaluate("document.activeElement.id") == "remora-tab", "the next key is the tab's"
    tab.page.keyboard.press("Escape")
    trash.wait_for(state="detached")
    tab.button("About copied.new").wait_for(timeout=LONG)
    shutil.rmtree(sub)
    shutil.rmtree(served.loras / ".remora-trash", ignore_errors=True)


def idof(served: Served, name: str) -> str:
    found = httpx.get(f"{served.url}/remora/v1/lora", params={"name": name}).raise_for_status()
    return str(found.json()["id"])


def test_the_wheel_moves_the_page_at_the_end_of_the_library(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 1400, "height": 420})
    tab.page.evaluate(MANY)
    box = tab.root.locator(".rt-scroll")
    box.evaluate("box => { box.scrollIntoView({block: 'center'}); box.scrollTop = box.scrollHeight }")
    before = tab.page.evaluate("scrollY")
    assert box.evaluate("box => box.scrollTop") > 0
    box.hover()
    tab.page.mouse.wheel(0, 300)
    tab.page.wait_for_function("before => scrollY > before", arg=before)


def test_notes_are_kept_beside_the_file_as_a1111_reads_them(tab: Tab, served: Served, copy: Path) -> None:
    tab.button("About copied").click()
    dialog = tab.page.get_by_role("dialog", name="copied")
    dialog.get_by_role("radio", name="4 of 5").click()
    dialog.get_by_role("button", name="Favourite").click()
    dialog.get_by_label("Trigger words").fill("(zorp, of mine:1.2), tail")
    tab.page.keyboard.press("Escape")
    dialog.get_by_role("alert").get_by_text("Your changes are not saved.").wait_for()
    dialog.get_by_role("button", name="Keep editing").click()
    dialog.get_by_label("Preferred strength").fill("much")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_role("alert").get_by_text("must be a number, such as 0.8, not “much”").wait_for()
    dialog.get_by_label("Preferred strength").fill("0.6")
    dialog.get_by_label("Tags").fill("beings, mine")
    dialog.get_by_label("Notes").fill("a note that is searched")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.wait_for(state="hidden")
    noted = json.loads(copy.with_suffix(".json").read_text("utf-8"))
    assert noted == {
        "remora": {"rating": 4, "favourite": True},
        "activation text": "(zorp, of mine:1.2), tail",
        "preferred weight": 0.6,
        "tags": ["beings", "mine"],
        "notes": "a note that is searched",
    }
    tab.root.get_by_role("searchbox").fill("note searched")
    tab.insert("copied")
    tab.prompt_is("<lora:copied:0.6> (zorp, of mine:1.2), tail")
    tab.write("<lora:copied:0.6> (zorp, of mine:1.3), tail")
    words = tab.more("copied", "Words").get_by_role("group", name="Trigger words of copied in the prompt")
    of_set = words.get_by_role("button", name="(zorp, of mine:1.2)", pressed=True)
    of_set.click()
    tab.prompt_is("<lora:copied:0.6> tail")
    words.get_by_role("button", name="(zorp, of mine:1.2)", pressed=False).click()
    tab.prompt_is("<lora:copied:0.6> tail, (zorp, of mine:1.2)")


def test_a_file_that_is_not_rated_has_no_full_star(tab: Tab, copy: Path) -> None:
    tab.button("About copied").click(timeout=LONG)
    dialog = tab.page.get_by_role("dialog", name="copied")
    stars = dialog.get_by_role("radiogroup", name="Rating of copied: not rated")
    stars.wait_for(timeout=LONG)
    assert stars.inner_text().replace("\n", "") == "☆☆☆☆☆"
    dialog.get_by_role("radio", name="3 of 5").click()
    dialog.get_by_role("radiogroup", name="Rating of copied: 3 of 5").wait_for()
    assert dialog.locator(".rt-stars").inner_text().replace("\n", "") == "★★★☆☆"
    dialog.get_by_role("radio", name="3 of 5").click()
    stars.wait_for()


def test_the_page_takes_the_settings_that_a_distilled_lora_was_made_for(tab: Tab, served: Served, copy: Path) -> None:
    copy.rename(copy.with_name("copied.lcm_lora_4step.safetensors"))
    tab.button("Refresh").click()
    tab.button("About copied.lcm_lora_4step").click(timeout=LONG)
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Set steps and CFG scale").click(timeout=LONG)
    dialog.get_by_role("status").get_by_text(
        "The page has 4 steps and a CFG scale of 1 now; set LCM by hand."
    ).wait_for()
    tab.page.keyboard.press("Escape")
    tab.write("a distilled fox")
    tab.page.click("#generate")
    settings = parse_infotext(infotext_with(tab.page, "a distilled fox")).settings
    assert (settings["Steps"], settings["CFG scale"]) == ("4", "1")


def test_a_preferred_strength_of_0_is_the_web_uis_default_and_the_dialog_says_so(tab: Tab, copy: Path) -> None:
    tab.button("About copied").click(timeout=LONG)
    dialog = tab.page.get_by_role("dialog", name="copied")
    dialog.get_by_text("Empty or 0: the web UI").wait_for(timeout=LONG)
    for typed, kept in (("0.6", 0.6), ("0", 0.0)):
        dialog.get_by_label("Preferred strength").fill(typed)
        dialog.get_by_role("button", name="Save", exact=True).click()
        dialog.wait_for(state="hidden")
        assert json.loads(copy.with_suffix(".json").read_text("utf-8"))["preferred weight"] == kept
        tab.button("About copied").click()
    assert dialog.get_by_label("Preferred strength").input_value() == ""


def test_where_the_scale_is_a_guess_the_dialog_asks_for_alpha(tab: Tab, copy: Path) -> None:
    layer = "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    save_file({f"{layer}.lora_A.weight": torch.ones(4, 16), f"{layer}.lora_B.weight": torch.ones(16, 4)}, copy)
    tab.button("Refresh").click()
    tab.button("About copied").click(timeout=LONG)
    dialog = tab.page.get_by_role("dialog", name="copied")
    dialog.get_by_text("Nothing in the file tells its alpha").wait_for(timeout=LONG)
    dialog.get_by_label("Alpha").fill("8")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.wait_for(state="hidden")
    assert json.loads(copy.with_suffix(".json").read_text("utf-8"))["remora"] == {"alpha": 8}
    tab.button("About copied").click()
    dialog.get_by_text("In place of the file").wait_for(timeout=LONG)
    assert dialog.get_by_label("Alpha").input_value() == "8"


def test_what_is_typed_in_a_dialog_outlives_all_that_the_server_tells(tab: Tab, served: Served, copy: Path) -> None:
    tab.insert("copied")
    tab.button("About copied").first.click()
    dialog = tab.page.get_by_role("dialog", name="copied")
    dialog.get_by_role("button", name="Favourite").press("Control+z")
    dialog.get_by_role("button", name="Favourite").press("/")
    assert tab.prompt == "<lora:copied:1> zorp", "what is behind a dialog stays as it is"
    dialog.get_by_label("Notes").fill("typed")
    told = httpx.patch(
        f"{served.url}/remora/v1/lora", params={"name": "copied"}, json={"tags": ["elsewhere"], "notes": "elsewhere"}
    )
    told.raise_for_status()
    httpx.post(f"{served.url}/remora/v1/refresh").raise_for_status()
    tab.page.wait_for_function(
        "() => window.remoraTab.library.catalog.all.some(lora => lora.notes === 'elsewhere')", timeout=LONG
    )
    dialog.get_by_role("radio", name="4 of 5").click()  # which is kept at once, and answered
    dialog.get_by_role("radiogroup", name="Rating of copied: 4 of 5").wait_for()
    assert dialog.get_by_label("Notes").input_value() == "typed"
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.wait_for(state="hidden")
    noted = json.loads(copy.with_suffix(".json").read_text("utf-8"))
    assert (noted["notes"], noted["tags"]) == ("typed", ["elsewhere"]), "nothing but what was typed is written"


def test_a_picture_of_the_page_becomes_that_of_a_file(tab: Tab, served: Served, copy: Path) -> None:
    # the page shows the latest picture of another test, if there is one
    tab.page.evaluate("document.getElementById('gallery').id = 'elsewhere'")
    tab.button("About copied").click()
    dialog = tab.page.get_by_role("dialog", name="copied")
    dialog.get_by_role("button", name="Picture from the page").click()
    dialog.get_by_role("alert").get_by_text("The page shows no picture yet").wait_for()
    tab.page.evaluate("document.getElementById('elsewhere').id = 'gallery'")
    tab.page.keyboard.press("Escape")
    make(tab, served, "a fox")
    tab.page.wait_for_function("document.querySelector('#gallery img')?.naturalWidth === 64")
    tab.button("About copied").click()
    dialog.get_by_role("button", name="Picture from the page").click()
    dialog.get_by_role("button", name="Cancel").wait_for()
    until(tab.page, copy.with_suffix(".png").is_file)
    with Image.open(copy.with_suffix(".png")) as picture:
        assert picture.size == (64, 64)
    dialog.get_by_role("button", name="Undo replacing the picture").click()
    dialog.get_by_text("The picture is replaced.").wait_for(state="hidden")
    assert not copy.with_suffix(".png").exists(), "as there was none"


# --- the prompt is the truth ---


def test_one_click_inserts_with_the_words_and_one_removes_both(tab: Tab) -> None:
    tab.write("a red thing, night")
    tab.insert("zorp")
    tab.prompt_is("a red thing, night, <lora:zorp:1> zorp")
    tab.button("Remove zorp from the prompt").click()
    tab.prompt_is("a red thing, night")


def test_words_that_are_there_are_not_written_twice_and_stay(tab: Tab) -> None:
    tab.write("a Zorp, night")
    tab.insert("zorp")
    tab.prompt_is("a Zorp, night <lora:zorp:1>")
    tab.button("Remove zorp from the prompt").click()
    tab.prompt_is("a Zorp, night")


def test_what_is_typed_into_the_prompt_is_shown_and_what_is_set_is_typed(tab: Tab, served: Served) -> None:
    tab.write("a  <lora:zorp:te=0.5> fox (red:1.2)\n<lora:stripes:0.25:high>")
    assert tab.strength("stripes").input_value() == "0.25"
    tab.row("stripes").get_by_text("high").wait_for()
    tab.strength("zorp").fill("0.75")
    tab.prompt_is("a  <lora:zorp:te=0.75> fox (red:1.2)\n<lora:stripes:0.25:high>")
    tab.button("Apart: set zorp").click()
    tab.strength("zorp", "UNet").fill("1.5")
    tab.prompt_is("a  <lora:zorp:te=0.75:unet=1.5> fox (red:1.2)\n<lora:stripes:0.25:high>")
    tab.button("Apart: set zorp").click()
    tab.prompt_is("a  <lora:zorp:te=1.5:unet=1.5> fox (red:1.2)\n<lora:stripes:0.25:high>")


def test_the_cursor_stays_where_it_is(tab: Tab) -> None:
    tab.write("a fox <lora:zorp:1> in the snow")
    tab.page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange(2, 5)")
    tab.strength("zorp").fill("0.55")
    tab.prompt_is("a fox <lora:zorp:0.55> in the snow")
    place = f"(() => {{ const b = document.querySelector('{PROMPT}'); return [b.selectionStart, b.selectionEnd] }})()"
    assert tab.page.evaluate(place) == [2, 5]
    tab.page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange(25, 25)")  # behind the tag
    tab.strength("zorp").fill("0.5")
    tab.prompt_is("a fox <lora:zorp:0.5> in the snow")
    assert tab.page.evaluate(place) == [24, 24]


def test_sliders_and_arrow_keys_change_a_strength(tab: Tab) -> None:
    tab.insert("zorp")
    tab.strength("zorp").focus()
    tab.page.keyboard.press("ArrowUp")
    tab.prompt_is("<lora:zorp:1.05> zorp")
    tab.root.get_by_role("slider", name="Strength of zorp, slider").focus()
    tab.page.keyboard.press("ArrowLeft")
    tab.prompt_is("<lora:zorp:1> zorp")
    tab.strength("zorp").fill("5.5")  # past the slider
    tab.prompt_is("<lora:zorp:5.5> zorp")
    for strength, is_filled in ((0.8, [False, False, True, False]), (-0.7, [False, True, False, False])):
        tab.strength("zorp").fill(str(strength))
        assert filled(tab) == is_filled, "from 0 to the strength"


def filled(tab: Tab) -> list[bool]:
    """Tell of four places of a slider, at -0.95, -0.35, 0.35 and 1.4, whether its track is filled there."""
    slider = tab.root.get_by_role("slider", name="Strength of zorp, slider")
    picture = Image.open(io.BytesIO(slider.screenshot())).convert("RGB")
    inside = picture.width - 16
    pixel = [
        picture.getpixel((8 + round(inside * (at + 1) / 3), picture.height // 2))
        for at in (-0.95, -0.35, 0.35, 1.4, 1.9)
    ]
    return [one != pixel[-1] for one in pixel[:-1]]


def test_a_strength_that_is_no_number_is_said_in_place_and_nothing_is_lost(tab: Tab) -> None:
    tab.insert("zorp")
    for typed in ("x", "0,5,1", "1e999", ""):
        tab.strength("zorp").fill(typed)
        tab.row("zorp").get_by_text(f"“{typed}” is not a number" if typed else "Type a number, such as 0.8").wait_for()
        assert tab.strength("zorp").get_attribute("aria-invalid") == "true"
    tab.strength("zorp").blur()
    assert (tab.strength("zorp").input_value(), tab.prompt) == ("1", "<lora:zorp:1> zorp")
    tab.strength("zorp").fill("0,5")
    tab.prompt_is("<lora:zorp:0.5> zorp")
    tab.strength("zorp").fill("5000")
    tab.row("zorp").get_by_text("5000 is beyond 10, where pictures are noise or black").wait_for()


def test_a_strength_of_0_is_said_to_change_nothing(tab: Tab) -> None:
    said = tab.row("zorp").get_by_text("A strength of 0 changes nothing")
    tab.write("<lora:zorp:0>")
    said.wait_for()
    for acts in ("<lora:zorp:0:0.5>", "<lora:zorp:0:unet=0@0,1@1>", "<lora:zorp:1>"):
        tab.write(acts)
        said.wait_for(state="detached")
    tab.write("<lora:zorp:0>")
    said.wait_for()
    tab.row("zorp").get_by_role("checkbox").uncheck()
    said.wait_for(state="detached")


def test_entries_are_switched_off_and_on_where_they_were(tab: Tab) -> None:
    tab.write("<lora:zorp:0.5> a fox <lora:stripes:1> x <lora:night:1>")
    tab.row("stripes").get_by_label("stripes on").uncheck()
    tab.prompt_is("<lora:zorp:0.5> a fox x <lora:night:1>")
    tab.strength("stripes").fill("0.4")
    tab.row("stripes").get_by_label("stripes on").check()
    names = "window.remoraTab.stack.rows().map(row => [row.name, row.unet, row.on])"
    assert tab.page.evaluate(names) == [["zorp", 0.5, True], ["stripes", 0.4, True], ["night", 1, True]]


def test_rows_are_moved_by_keyboard_and_by_drag(tab: Tab) -> None:
    tab.write("a <lora:zorp:1> b <lora:stripes:0.5> c <lora:night:1>")
    tab.pane("Stack")
    tab.button("Move stripes;").press("ArrowUp")
    tab.prompt_is("a <lora:stripes:0.5> b <lora:zorp:1> c <lora:night:1>")
    assert tab.page.evaluate(f"{SHADOW}.activeElement.getAttribute('aria-label')").startswith("Move stripes;")
    handle, target = tab.button("Move stripes;").bounding_box(), tab.row("night").bounding_box()
    tab.page.mouse.move(handle["x"] + 5, handle["y"] + 5)
    tab.page.mouse.down()
    tab.page.mouse.move(handle["x"] + 5, target["y"] + target["height"] - 3, steps=5)
    tab.page.mouse.up()
    tab.prompt_is("a <lora:zorp:1> b <lora:night:1> c <lora:stripes:0.5>")


def test_rows_are_moved_by_a_finger(served: Served, browser: Any) -> None:
    with opened_small(served, browser, viewport={"width": 380, "height": 800}, has_touch=True) as page:
        tab = Tab(page).ready()
        tab.write("a <lora:zorp:1> b <lora:stripes:0.5> c <lora:night:1>")
        tab.pane("Stack")
        tab.row("night").scroll_into_view_if_needed()
        start, end = tab.button("Move zorp;").bounding_box(), tab.row("night").bounding_box()
        x = start["x"] + start["width"] / 2
        tops = [start["y"] + start["height"] / 2, end["y"] + end["height"] - 3]
        _drag_by_touch(page, [(x, tops[0] + (tops[1] - tops[0]) * step / 8) for step in range(9)])
        tab.prompt_is("a <lora:stripes:0.5> b <lora:night:1> c <lora:zorp:1>")


def _drag_by_touch(page: Any, points: list[tuple[float, float]]) -> None:
    """As the browser's own input: Playwright has taps alone."""
    session = page.context.new_cdp_session(page)
    for kind, point in (("touchStart", points[0]), *(("touchMove", point) for point in points[1:]), ("touchEnd", None)):
        touched = [] if point is None else [{"x": point[0], "y": point[1]}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})


def test_everything_is_taken_back_and_done_again(tab: Tab) -> None:
    tab.write("a fox")
    states = [tab.prompt]
    tab.insert("zorp", "stripes")
    tab.strength("zorp").fill("0.5")
    tab.button("Move stripes;").press("ArrowUp")
    tab.row("zorp").get_by_label("zorp on").uncheck()
    tab.prompt_is("a fox, <lora:stripes:1> zorp")
    states.append(tab.prompt)
    for _ in range(5):
        tab.button("Undo").click()
    tab.prompt_is(states[0])
    assert tab.button("Undo").is_disabled()
    for _ in range(5):
        tab.button("Redo").click()
    tab.prompt_is(states[1])


def test_taking_back_leaves_alone_what_was_typed_since(tab: Tab) -> None:
    tab.write("a fox")
    tab.insert("zorp")
    tab.prompt_is("a fox, <lora:zorp:1> zorp")
    tab.write("in the snow, a fox, <lora:zorp:1> zorp")
    tab.pane("Stack")
    tab.row("zorp").get_by_label("zorp on").focus()
    tab.page.keyboard.press("Control+z")
    tab.prompt_is("in the snow, a fox")


def test_names_and_tags_that_mean_nothing_are_said_at_their_rows(tab: Tab) -> None:
    tab.write("<lora:zorpp:1> <lora:stripes:1.1.> <lora:night:1:2:3:4>")
    tab.row("zorpp").get_by_role("alert").get_by_text("did you mean zorp?").wait_for(timeout=LONG)
    tab.row("stripes").get_by_role("alert").get_by_text("“1.1.” is not a number").wait_for()
    tab.row("night").get_by_role("alert").get_by_text("a fourth number, “4”").wait_for()
    assert tab.prompt == "<lora:zorpp:1> <lora:stripes:1.1.> <lora:night:1:2:3:4>"


def test_a_prompt_of_ten_megabytes_is_said_and_left_alone(tab: Tab) -> None:
    long = "a fox, " * 1_500_000
    tab.page.evaluate(
        "text => { const b = document.querySelector('#prompt textarea'); b.value = text;"
        " b.dispatchEvent(new Event('input', {bubbles: true})) }",
        long,
    )
    tab.pane("Stack")
    tab.root.get_by_text("The tab neither reads nor changes a prompt of this length").wait_for(timeout=LONG)
    assert len(tab.prompt) == len(long)


def test_the_stack_is_copied_as_a_prompt(served: Served, browser: Any) -> None:
    with opened_small(served, browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        tab = Tab(page).ready()
        tab.pane("Stack")
        tab.button("Copy the LoRA tags").click()
        tab.root.get_by_text("There is no LoRA to copy.").wait_for()
        tab.insert("zorp", "stripes")
        tab.pane("Stack")
        tab.button("Copy the LoRA tags").click()
        tab.root.get_by_text("Copied: <lora:zorp:1> <lora:stripes:1>").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "<lora:zorp:1> <lora:stripes:1>"


def test_where_copying_is_not_allowed_the_text_is_shown(tab: Tab) -> None:
    tab.page.evaluate(
        "() => { document.execCommand = () => false; navigator.clipboard.writeText = () => Promise.reject(1) }"
    )
    tab.insert("zorp")
    tab.pane("Stack")
    tab.button("Copy the LoRA tags").click()
    assert tab.root.get_by_role("textbox", name="The stack as a prompt").input_value() == "<lora:zorp:1>"


# --- what became of it ---


def test_what_became_of_each_is_told_at_its_row(tab: Tab, served: Served) -> None:
    tab.insert("zorp")
    make(tab, served, tab.prompt)
    tab.row("zorp").get_by_text("✓ applied: 264 of 264 layers · 752 KB").wait_for(timeout=LONG)
    tab.row("zorp").get_by_text("264 loha · rank 2 · kohya · for Stable Diffusion 1.x").wait_for()
    tab.write(f"<lora:stripes:1> {tab.prompt}")
    tab.row("stripes").wait_for()
    assert tab.row("stripes").locator(".rt-state").count() == 0, "it was in no picture yet"
    tab.strength("zorp").fill("0.5")
    changed = tab.row("zorp").locator(".rt-changed")
    changed.get_by_text("From the latest picture: ✓ applied: 264 of 264 layers").wait_for()
    tab.button("Remove stripes").last.click()
    tab.button("Remove zorp").last.click()
    others = tab.root.get_by_role("list", name="Other LoRA of the latest picture")
    others.get_by_text("264 of 264").wait_for()
    name = others.locator(".rt-name").first
    assert name.bounding_box()["height"] == name.locator("> *").bounding_box()["height"], "no empty lines around it"


def test_a_file_that_goes_while_the_page_is_open_is_said_where_it_is_used(tab: Tab, copy: Path) -> None:
    tab.button("Insert copied into the prompt").wait_for(timeout=LONG)
    tab.insert("copied")
    copy.unlink()
    said = tab.row("copied").get_by_role("alert").get_by_text("is not in the LoRA folders")
    said.wait_for(timeout=LONG)
    tab.row("copied").get_by_role("button", name="Remove copied").click()
    assert "copied" not in tab.prompt


def test_a_file_that_goes_while_its_notes_are_open_is_said_there(tab: Tab, copy: Path) -> None:
    tab.button("About copied").click(timeout=LONG)
    dialog = tab.page.get_by_role("dialog", name="copied")
    dialog.get_by_label("Notes").fill("lost?")
    copy.unlink()
    httpx.post(f"{tab.page.url.split('?')[0].rstrip('/')}/remora/v1/refresh")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_role("alert").get_by_text("is not a file in the LoRA folders").wait_for()
    assert dialog.get_by_label("Notes").input_value() == "lost?"


def test_a_lora_for_other_models_is_warned_of_at_its_row(served: Served, browser: Any) -> None:
    sentence = "made for Stable Diffusion XL, the loaded model is Stable Diffusion 1.x: 1 of 2 layers fit"
    lora = {
        "name": "zorp",
        "asked": "zorp",
        "where": "prompt",
        "number": 0,
        "written": "zorp:1",
        "state": "partly",
        "reason": "1 of 2 layers fits this model",
        "advice": "",
        "hit": 1,
        "layers": 2,
        "warning": sentence,
        "format": "kohya",
        "family": {"name": "sdxl", "title": "Stable Diffusion XL", "sure": True},
        "base_model": "<b>pony</b>",
        "kinds": {"lora": 2},
        "ranks": [4, 8],
        "unused": {"of another shape": ["a.lora_up.weight"]},
        "details": {"a.lora_up.weight": "want up (4, r), got (8, 2)"},
    }

    def answer(route: Any) -> None:
        state = route.fetch().json() | {"loras": [lora]}
        route.fulfill(content_type="application/json", body=json.dumps(state))

    with opened_small(served, browser, before=lambda page: page.route("**/remora/v1/state", answer)) as page:
        tab = Tab(page).ready()
        tab.insert("zorp")
        own = tab.row("zorp")
        own.get_by_role("alert").get_by_text(sentence).wait_for(timeout=LONG)
        own.get_by_text("2 lora · rank 4 to 8 · kohya · for Stable Diffusion XL · made from <b>pony</b>").wait_for()
        own.get_by_text("Which keys").click()
        own.get_by_text("of another shape: a.lora_up.weight (want up (4, r), got (8, 2))").wait_for()


# --- always on ---


def test_what_is_always_on_changes_every_picture_and_its_parameters_say_so(tab: Tab, served: Served) -> None:
    plain = make(tab, served, "a fox")
    tab.write("a fox")
    tab.insert("zorp")
    tab.strength("zorp").fill("0.8")
    tab.button("apply zorp to every picture").click()
    tab.saved()
    assert kept(served)["entries"] == [{"name": "zorp", "on": True, "unet": 0.8, "text_encoder": 0.8, "more": ""}]
    always = make(tab, served, "a fox")
    assert always.parameters.settings["Remora stack"] == "<lora:zorp:0.8>"
    assert always.pixels != plain.pixels
    tab.row("zorp", "Always on").get_by_text("✓ applied: 264 of 264 layers").wait_for()
    tab.row("zorp", "Always on").get_by_label("zorp on").uncheck()
    tab.saved()
    assert make(tab, served, "a fox") == plain
    tab.button("Into the prompt: move zorp").click()
    tab.prompt_is("a fox, <lora:zorp:0.8> zorp")
    tab.saved()
    assert kept(served)["entries"] == []


def test_what_is_always_on_is_there_when_the_page_is_opened_again(served: Served, browser: Any) -> None:
    httpx.put(f"{served.url}/remora/v1/stack", json={"always_on": True, "entries": [{"name": "stripes"}]})
    with opened_small(served, browser) as page:
        page.set_viewport_size({"width": 1280, "height": 900})
        row = Tab(page).ready().row("stripes", "Always on")
        buttons = [row.get_by_role("button", name=name).bounding_box(timeout=LONG) for name in ("More", "Remove")]
        assert buttons[0]["y"] == buttons[1]["y"], "the row's buttons are in one line"
        assert row.locator(".rt-name").bounding_box()["width"] > 88


def test_what_the_server_refuses_is_said_and_can_be_put_right(tab: Tab, served: Served) -> None:
    httpx.put(f"{served.url}/remora/v1/stack", json={"always_on": True, "entries": [{"name": "zorp"}]})
    reload(tab.page)
    tab.ready()

    def refuse(route: Any) -> None:
        route.abort() if route.request.method == "PUT" else route.continue_()

    tab.page.route("**/remora/v1/stack", refuse)
    tab.strength("zorp").fill("0.5")
    tab.root.get_by_role("alert").get_by_text("The web UI does not answer.").wait_for()
    tab.page.unroute("**/remora/v1/stack")
    tab.strength("zorp").fill("0.6")
    tab.saved()
    assert kept(served)["entries"][0]["unet"] == 0.6


@pytest.mark.parametrize("mine", [True, False])
def test_a_stack_that_another_page_changed_meanwhile_is_not_written_over(tab: Tab, served: Served, mine: bool) -> None:
    stack = f"{served.url}/remora/v1/stack"
    httpx.put(stack, json={"always_on": True, "entries": [{"name": "zorp"}]})
    tab.row("zorp", "Always on").wait_for(timeout=LONG)  # by itself
    tab.page.route("**/remora/v1/state", lambda route: route.abort())  # nothing tells the page
    theirs = httpx.put(stack, json={"always_on": True, "entries": [{"name": "stripes"}, {"name": "zorp"}]}).json()
    tab.strength("zorp").fill("0.5")
    notice = tab.root.get_by_role("alert").filter(has_text="your change is not saved")
    notice.wait_for(timeout=LONG)
    tab.row("stripes", "Always on").wait_for()
    assert kept(served) == theirs
    if mine:
        notice.get_by_role("button", name="Use mine: save my change in place of the other one").click()
        tab.saved()
        assert [(one["name"], one["unet"]) for one in kept(served)["entries"]] == [("zorp", 0.5)]
        tab.row("stripes", "Always on").wait_for(state="detached")
    else:
        notice.get_by_role("button", name="Forget mine: forget my change").click()
        tab.page.wait_for_timeout(400)
        assert kept(served) == theirs
    notice.wait_for(state="detached")


def test_notes_that_another_page_changed_meanwhile_are_not_written_over(tab: Tab, served: Served, copy: Path) -> None:
    tab.button("About copied").click(timeout=LONG)
    dialog = tab.page.get_by_role("dialog", name="copied")
    dialog.get_by_label("Notes").fill("mine")
    lora = f"{served.url}/remora/v1/lora"
    httpx.patch(lora, params={"name": "copied"}, json={"notes": "theirs", "tags": ["a"]}).raise_for_status()
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_role("alert").get_by_text("“Notes” is now “theirs”").wait_for()
    told = httpx.get(lora, params={"name": "copied"}).json()
    assert (told["notes"], told["tags"]) == ("theirs", ["a"])
    assert dialog.get_by_label("Notes").input_value() == "mine"
    assert dialog.get_by_label("Tags").input_value() == "a"
    httpx.patch(lora, params={"name": "copied"}, json={"words": "of theirs"}).raise_for_status()  # that is no conflict
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.wait_for(state="hidden")
    told = httpx.get(lora, params={"name": "copied"}).json()
    assert (told["notes"], told["tags"], told["words"]) == ("mine", ["a"], "of theirs")


def test_a_preset_that_another_page_made_meanwhile_is_not_written_over(tab: Tab, served: Served) -> None:
    preset = f"{served.url}/remora/v1/preset"
    tab.write("a fox <lora:zorp:0.5>")
    tab.pane("Stack")
    tab.button("Presets").click()
    dialog = tab.page.get_by_role("dialog", name="Presets")
    dialog.get_by_text("There is no preset yet.").wait_for()
    httpx.put(preset, params={"name": "Theirs"}, json={"text": "<lora:night:1>"}).raise_for_status()
    dialog.get_by_role("textbox", name="Name of the new preset").fill("Mine")
    dialog.get_by_role("button", name="Save", exact=True).click()  # of another name: both are kept
    dialog.get_by_text("Mine", exact=True).wait_for()
    dialog.get_by_text("Theirs", exact=True).wait_for()
    httpx.put(preset, params={"name": "Same"}, json={"text": "<lora:night:1>"}).raise_for_status()
    dialog.get_by_role("textbox", name="Name of the new preset").fill("Same")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_role("alert").get_by_text("Your change is not made: another page or program").wait_for()
    dialog.get_by_text("Same", exact=True).wait_for()
    assert "night" in httpx.get(preset, params={"name": "Same"}).text
    dialog.get_by_role("button", name="Make my change all the same").click()
    dialog.get_by_text("<lora:zorp:0.5>").nth(1).wait_for()
    assert "zorp" in httpx.get(preset, params={"name": "Same"}).text
    httpx.put(preset, params={"name": "Same"}, json={"text": "<lora:stripes:1>"}).raise_for_status()
    dialog.get_by_role("button", name="Delete Same").click()
    dialog.get_by_role("button", name="Make my change all the same").click()
    dialog.get_by_role("button", name="Undo deleting the preset Same").click()  # as the other page had made it
    dialog.get_by_text("<lora:stripes:1>").wait_for()
    assert dialog.get_by_text("Your change is not made").count() == 0


def test_escape_in_a_name_takes_back_what_is_typed_and_leaves_the_dialog_open(tab: Tab, served: Served) -> None:
    text = {"text": "<lora:zorp:0.5>"}
    httpx.put(f"{served.url}/remora/v1/preset", params={"name": "Mine"}, json=text).raise_for_status()
    tab.pane("Stack")
    tab.button("Presets").click()
    dialog = tab.page.get_by_role("dialog", name="Presets")
    field = dialog.get_by_role("textbox", name="Name of the new preset")
    field.fill("half a na")
    field.press("Escape")
    assert (field.input_value(), dialog.is_visible()) == ("", True)
    dialog.get_by_role("button", name="Rename Mine").click()
    dialog.get_by_role("textbox", name="New name").press("Escape")
    dialog.get_by_role("textbox", name="New name").wait_for(state="hidden")
    assert dialog.get_by_role("button", name="Rename Mine").evaluate("e => e === e.getRootNode().activeElement")
    dialog.get_by_role("button", name="Import presets").click()
    dialog.get_by_role("textbox", name="Text to import").fill("# Remora preset 1: long")
    tab.page.keyboard.press("Escape")
    dialog.get_by_role("button", name="Keep editing").click()
    dialog.get_by_role("button", name="Close", exact=True).last.click()
    dialog.get_by_role("button", name="Use Mine").click()
    tab.root.get_by_role("status").get_by_text("Preset Mine in use.").wait_for()
    tab.write("another stack")
    tab.root.get_by_text("Preset Mine in use.").wait_for(state="hidden")


# --- presets ---


def test_a_stack_is_kept_as_a_preset_used_renamed_given_away_and_deleted(tab: Tab) -> None:
    tab.write("a fox")
    tab.insert("zorp", "stripes")
    tab.strength("zorp").fill("0.5")
    tab.button("Presets").click()
    dialog = tab.page.get_by_role("dialog", name="Presets")
    dialog.get_by_role("textbox", name="Name of the new preset").fill("Mine")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_text("<lora:zorp:0.5> <lora:stripes:1>").wait_for()
    tab.page.keyboard.press("Escape")
    tab.write("a fox <lora:night:1>")
    tab.button("Presets").click()
    dialog.get_by_role("button", name="Use Mine").click()
    tab.prompt_is("a fox, <lora:zorp:0.5> zorp <lora:stripes:1>")
    tab.button("Presets").click()
    dialog.get_by_role("button", name="Rename Mine").click()
    dialog.get_by_role("textbox", name="New name").fill("Ours")
    dialog.get_by_role("textbox", name="New name").press("Enter")
    dialog.get_by_role("button", name="Export Ours as text").click()
    shown = dialog.get_by_role("textbox", name="The preset as text")
    assert shown.input_value() == "# Remora preset 1: Ours\n<lora:zorp:0.5> zorp\n<lora:stripes:1>\n"
    dialog.get_by_role("button", name="Close", exact=True).last.click()
    dialog.get_by_role("button", name="Import presets").click()
    text = dialog.get_by_role("textbox", name="Text to import")
    text.fill("# Remora preset 9: of tomorrow\n<lora:zorp:1>")
    dialog.get_by_role("button", name="Import", exact=True).click()
    dialog.get_by_role("alert").get_by_text("line 1: this preset is of version 9, and this Remora knows").wait_for()
    assert text.input_value().startswith("# Remora preset 9")  # nothing is lost
    text.fill("# Remora preset 1: Ours\n<lora:night:0.5>")
    dialog.get_by_role("button", name="Import", exact=True).click()
    dialog.get_by_text("Ours 2").wait_for()
    dialog.get_by_role("button", name="Delete Ours 2").click()
    dialog.get_by_role("button", name="Use Ours 2").wait_for(state="hidden")
    tab.page.wait_for_function(f"{SHADOW}.activeElement?.innerText === 'Undo'")
    tab.page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Use Ours 2").wait_for()
    tab.page.wait_for_function(f"{SHADOW}.activeElement?.closest('dialog')")
    dialog.get_by_text("<lora:night:0.5>").wait_for()
    dialog.get_by_role("textbox", name="Name of the new preset").fill("Ours 2")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_text("<lora:night:0.5>").wait_for(state="hidden")
    dialog.get_by_role("button", name="Undo replacing the preset Ours 2").click()
    dialog.get_by_text("<lora:night:0.5>").wait_for()
    dialog.get_by_role("button", name="Delete Ours 2").click()
    dialog.get_by_text("The preset Ours 2 is deleted.").wait_for()


# --- compare ---


def test_strengths_are_compared_in_a_grid(tab: Tab, served: Served) -> None:
    tab.write("a fox")
    tab.insert("zorp", "stripes")
    tab.pane("Stack")
    tab.button("Compare").click()
    dialog = tab.page.get_by_role("dialog", name="Compare")
    assert dialog.get_by_label("Steps").input_value() == "2"  # as the page has it
    dialog.get_by_label("Strengths", exact=False).last.fill("0-1 (0.5), 2x")
    dialog.get_by_role("button", name="Make the pictures").click()
    dialog.get_by_role("alert").get_by_text("“2x” is not a strength").wait_for()
    dialog.get_by_label("Strengths", exact=False).last.fill("0-1 (0.5)")
    dialog.get_by_role("button", name="Make the pictures").click()
    dialog.get_by_text("3 of 3 pictures, seed 7").wait_for(timeout=LONG)
    assert dialog.locator("th[scope=col]").all_inner_texts() == ["0", "0.5", "1"]
    shown = f"[...{SHADOW}.querySelectorAll('.rt-cell img')].filter(i => i.naturalWidth === 64).length === 3"
    tab.page.wait_for_function(shown)
    grid = httpx.get(f"{served.url}/remora/v1/compare/picture")
    assert grid.headers["content-type"] == "image/png"
    dialog.get_by_role("button", name="Use the prompt of zorp 0.5").click()
    tab.prompt_is("a fox, <lora:zorp:0.5> zorp <lora:stripes:1>")
    tab.page.evaluate("window.remoraTab.set({comparison: ''})")
    tab.button("Compare").click()
    dialog.get_by_role("button", name="Make the pictures").wait_for()
    assert dialog.get_by_role("table").count() == 0, "a comparison of another page is not this page's"


def test_a_comparison_is_cancelled_and_keeps_what_was_made(tab: Tab) -> None:
    tab.write("a fox <lora:zorp:1>")
    tab.pane("Stack")
    tab.button("Compare").click()
    dialog = tab.page.get_by_role("dialog", name="Compare")
    dialog.get_by_label("Steps").fill("30")
    dialog.get_by_label("Strengths", exact=False).last.fill("0-1 [50]")
    dialog.get_by_role("button", name="Make the pictures").click()
    tab.page.wait_for_function(f"{SHADOW}.querySelectorAll('.rt-cell img').length >= 1", timeout=LONG)
    asked: list[str] = []

    def refuse(route: Any) -> None:
        asked.append(route.request.method)
        route.fulfill(status=503)

    tab.page.route("**/remora/v1/compare", refuse)
    dialog.get_by_text("The web UI answered 503").wait_for(timeout=LONG)
    count = len(asked)
    tab.page.wait_for_timeout(1500)
    assert len(asked) == count, "it does not ask again by itself"
    tab.page.unroute("**/remora/v1/compare")
    dialog.get_by_role("button", name="Try again").click()
    dialog.get_by_role("button", name="Cancel").click()
    dialog.get_by_text("Cancelled after").wait_for(timeout=LONG)
    dialog.get_by_role("button", name="Make the pictures").wait_for()


# --- the page ---


def test_it_fits_a_phone_in_light_and_dark(served: Served, browser: Any) -> None:
    colours = set()
    for theme in ("light", "dark"):
        context = {"viewport": {"width": 380, "height": 800}, "color_scheme": theme, "has_touch": True}
        with opened(served, browser, **context) as page:
            tab = Tab(page).ready()
            tab.insert("zorp")
            for pane in ("Library", "Stack"):
                tab.pane(pane)
                _fits(page, 380)
            for name, title in (("Presets", "Presets"), ("Compare", "Compare"), ("zorp", "zorp")):
                tab.root.get_by_role("button", name=name, exact=True).first.click()
                page.get_by_role("dialog", name=title).wait_for()
                _fits(page, 380)
                page.keyboard.press("Escape")
            colours.add(page.evaluate(f"getComputedStyle({SHADOW}.querySelector('.rt')).color"))
    assert len(colours) == 2


def _fits(page: Any, width: int) -> None:
    box = page.evaluate(
        f"[...{SHADOW}.querySelectorAll('*')].filter(e => !e.closest('.rt-grid-scroll'))"
        ".map(e => e.getBoundingClientRect()).filter(r => r.width)"
        ".reduce((a, r) => [Math.min(a[0], r.left), Math.max(a[1], r.right)], [380, 0])"
    )
    assert box[0] >= 0
    assert box[1] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_damaged_stack_is_told_in_the_page(served: Served, browser: Any) -> None:
    stack = served.pictures / "data" / "stack.json"
    stack.parent.mkdir(exist_ok=True)
    stack.write_text("{")
    try:
        with opened_small(served, browser) as page:
            page.get_by_text("the next change renames it to stack.json.damaged-1").wait_for(timeout=LONG)
    finally:
        httpx.put(f"{served.url}/remora/v1/stack", json={}).raise_for_status()
    stack.with_name("stack.json.damaged-1").unlink()


def test_a_web_ui_that_asks_for_a_password_gets_it(served: Served, browser: Any) -> None:
    asked: list[str | None] = []

    def answer(route: Any) -> None:
        authorization = route.request.headers.get("authorization")
        asked.append(authorization)
        if authorization == "Basic dMO8OnA=":  # tü:p
            route.continue_()
        else:
            detail = "the user and password of the web UI's API are needed"
            route.fulfill(status=401, content_type="application/json", body=json.dumps({"detail": detail}))

    def before(page: Any) -> None:
        page.route("**/remora/v1/**", answer)
        page.add_init_script(COUNTED)

    with opened_small(served, browser, before=before) as page:
        page.get_by_role("alert").get_by_text("are needed").wait_for(timeout=LONG)
        page.get_by_label("User").fill("tü")
        page.get_by_label("Password").fill("p")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Insert zorp into the prompt").wait_for(timeout=LONG)
        page.wait_for_function(f"{SHADOW}.querySelector('.rt-thumb img')?.naturalWidth > 0", timeout=LONG)
        page.get_by_label("Password").wait_for(state="hidden")
        page.wait_for_function(f"() => window.held.size === {SHADOW}.querySelectorAll('.rt-thumb img').length")
        page.get_by_role("searchbox", name="Search LoRA").fill("no such file")
        page.wait_for_function(f"() => {SHADOW}.querySelectorAll('.rt-thumb img').length === 0")
        page.wait_for_function("() => window.held.size === 0")  # no picture stays in memory unseen
        mine = {"name": "mine"}
        httpx.put(f"{served.url}/remora/v1/preset", params=mine, json={"text": "<lora:zorp:1>"}).raise_for_status()
        Tab(page).pane("Stack")
        page.get_by_role("button", name="Presets").click()
        page.get_by_role("button", name="Details: LoRA, prompt and settings of mine").click()
        with page.expect_download() as file:
            page.get_by_role("link", name="Save as file").click()
        assert file.value.suggested_filename == "mine.remora.json"
        assert file.value.url.startswith("blob:"), "the browser sends no password of ours by itself"
        assert "<lora:zorp:1>" in file.value.path().read_text("utf-8")
        httpx.delete(f"{served.url}/remora/v1/preset", params=mine).raise_for_status()
    assert asked[0] is None


def test_a_web_ui_that_is_gone_is_said_and_found_again(tab: Tab) -> None:
    tab.page.route("**/remora/v1/**", lambda route: route.abort())
    tab.root.get_by_role("alert").get_by_text("The web UI does not answer.").wait_for(timeout=LONG)
    tab.page.unroute("**/remora/v1/**")
    tab.root.get_by_role("alert").get_by_text("The web UI does not answer.").wait_for(state="hidden", timeout=LONG)
