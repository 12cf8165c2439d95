"""README.md is short; links of README.md, CONTRIBUTING.md and docs/ lead somewhere; tables have short cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from extension.generation.options import TABLE
from extension.text.prompt import parse
from training.pictures import SHEETS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
MOST_WORDS = 1000
MOST_WORDS_OF_A_CELL = 25


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#{1,6} +(.+?) *$", _without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def _broken(page: Path) -> Iterator[str]:
    """Return the relative links of a page that lead nowhere."""
    text = _without_code(page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            yield target


def _long_cells(text: str) -> Iterator[str]:
    for line in _without_code(text).splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            yield from (cell.strip() for cell in cells if len(cell.split()) > MOST_WORDS_OF_A_CELL)


def test_the_readme_is_short() -> None:
    words = len(README.read_text(encoding="utf-8").split())
    assert words <= MOST_WORDS, f"README.md has {words} words; move what is not for the first visit into docs/"


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *DOCS], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(_broken(page)) == []


@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda page: page.name)
def test_tables_have_short_cells(page: Path) -> None:
    assert list(_long_cells(page.read_text(encoding="utf-8"))) == []


def test_the_readme_links_every_page_for_users() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", README.read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in DOCS} - linked == {"docs/publishing.md"}  # for maintainers


def test_the_moving_picture_is_near_the_top_and_small() -> None:
    file = ROOT / "docs" / "tab.webp"
    assert "(docs/tab.webp)" in "".join(README.read_text(encoding="utf-8").splitlines(keepends=True)[:10])
    assert file.stat().st_size < 3 << 20
    with Image.open(file) as picture:
        assert picture.n_frames > 15


def test_the_five_things_to_try_are_those_of_the_picture() -> None:
    text = README.read_text(encoding="utf-8")
    table = re.findall(r"^\| (?P<what>[^|]+) \| `(?P<tags><lora:[^`]+)` \|", text, re.MULTILINE)
    ((without, *shown),) = SHEETS["five"]
    assert [(what.lower(), tags) for what, tags in table] == [
        (one.label, one.prompt.removeprefix(f"{without.prompt} ")) for one in shown
    ]
    assert "](demo/pictures/five.png)" in text


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`, c\n[1](#a-b-c) [2](#d) [3](page.md) [4](gone.md) [5](https://a.example/x)\n", encoding="utf-8"
    )
    assert list(_broken(page)) == ["#d", "gone.md"]
    assert list(_long_cells("| a | " + "b " * 25 + "|\n| " + "c " * 26 + "|")) == [("c " * 26).strip()]


@pytest.mark.parametrize(
    "page",
    [README, ROOT / "docs" / "tags.md", ROOT / "docs" / "tab.md", ROOT / "docs" / "tutorial.md"],
    ids=lambda page: page.name,
)
def test_tags_are_read(page: Path) -> None:
    tags = [tag for tag in re.findall(r"<lora:[^<>]*>", page.read_text(encoding="utf-8")) if "..." not in tag]
    assert tags
    assert [tag for tag in tags if len(parse(tag).tags) != 1] == []


def _runs(text: str) -> list[str]:
    """Return all runs of three words, of two in a short text: the code has variables between them."""
    words = text.split()
    length = min(3, max(2, len(words) // 2))
    return [" ".join(words[i : i + length]) for i in range(max(1, len(words) - length + 1))]


def test_the_messages_that_troubleshooting_quotes_are_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    bold = " ".join(" ".join(part.split()) for part in re.findall(r"^\*\*(.*?)\*\*", page, re.MULTILINE | re.DOTALL))
    rows = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith('| "'))
    quotes = [one for one in re.findall(r'"([^"]+)"', f"{bold} {rows}") if one != "Remora"]
    sources = [path for package in ("lib_lora", "extension") for path in (ROOT / package).rglob("*.py")]
    sources += (ROOT / "javascript" / "remora").rglob("*.js")
    code = "\n".join(re.sub(r'"\s+f?"', "", path.read_text(encoding="utf-8")) for path in sources)
    assert len(quotes) > 15
    assert [one for one in quotes if not any(run in code for run in _runs(one))] == []


def test_every_setting_has_its_row_and_its_section() -> None:
    page = ROOT / "docs" / "settings.md"
    rows = re.findall(r"^\| \[[^\]]+\]\(#([^)]+)\) \| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [key for _, key in rows] == [option.key for option in TABLE]
    assert {anchor for anchor, _ in rows} <= _anchors(page)
