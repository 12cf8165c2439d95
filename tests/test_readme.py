"""README.md and BENCHMARKS.md are short, and true where a test can tell; links lead somewhere; cells are short."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from extension.generation.options import TABLE
from extension.text.prompt import parse
from training.pictures import SHEETS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BENCHMARKS = ROOT / "BENCHMARKS.md"
RESULTS = ROOT / "benchmarks" / "results"
DOCS = sorted((ROOT / "docs").glob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
LINKING = sorted([*ROOT.glob("*.md"), *DOCS, *REFERENCE, *RESULTS.glob("*.md")])
MOST_WORDS = 1000
MOST_WORDS_OF_BENCHMARKS = 2500
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


def test_links_lead_somewhere() -> None:
    assert {page.name: broken for page in LINKING if (broken := list(_broken(page)))} == {}


def test_tables_have_short_cells() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in (README, BENCHMARKS, *DOCS, *REFERENCE)}
    assert {name: cells for name, text in texts.items() if (cells := list(_long_cells(text)))} == {}


def test_the_readme_links_every_page_for_users() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", README.read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in DOCS} - linked == {
        "docs/publishing.md",  # for maintainers
        "docs/comfyui.md",  # hosts.md has the link
        "docs/online.md",  # tab.md has the link
        "docs/save_tutorial.md",  # tutorial.md has the link
    }


def test_the_moving_picture_is_near_the_top_and_small() -> None:
    file = ROOT / "docs" / "tab.webp"
    assert "(docs/tab.webp)" in "".join(README.read_text(encoding="utf-8").splitlines(keepends=True)[:10])
    assert file.stat().st_size < 3 << 20
    with Image.open(file) as picture:
        assert picture.n_frames > 15


def test_the_first_screens_are_for_those_who_make_pictures() -> None:
    first, _, rest = README.read_text(encoding="utf-8").partition("## Install")
    assert len(re.findall(r"^!\[", first, re.MULTILINE)) >= 4
    assert re.findall(r"PEFT|microsecond|millisecond|benchmark", first, re.IGNORECASE) == []
    assert "ADDRESS" not in rest
    assert 'press the button "Code", choose "HTTPS"' in rest


def test_the_five_things_to_try_are_those_of_the_picture() -> None:
    text = README.read_text(encoding="utf-8")
    table = re.findall(r"^\| (?P<what>[^|]+) \| `(?P<tags><lora:[^`]+)` \|", text, re.MULTILINE)
    ((without, *shown),) = SHEETS["five"]
    assert [(what.lower(), tags) for what, tags in table] == [
        (one.label, one.prompt.removeprefix(f"{without.prompt} ")) for one in shown
    ]
    assert "](demo/pictures/five.webp)" in text


def test_the_page_of_benchmarks_is_short_and_begins_with_its_chart() -> None:
    text = BENCHMARKS.read_text(encoding="utf-8")
    words = len(text.split())
    assert words <= MOST_WORDS_OF_BENCHMARKS, f"BENCHMARKS.md has {words} words; raw tables go to benchmarks/results"
    assert re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text) == ["docs/benchmarks.svg"]
    assert text.splitlines()[2].startswith("![")
    assert set(re.findall(r"\]\(benchmarks/results/([^)]+)", text)) == {page.name for page in RESULTS.glob("*.md")}


def _numbers(text: str) -> set[str]:
    """Return the numbers that stand by themselves, as they are written."""
    return set(re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w|[.,]\d)", text.replace("%", " ")))


def _unproved(text: str) -> Iterator[str]:
    """Return the numbers of each row and paragraph with raw tables that none of these tables has."""
    for part in re.split(r"\n(?=\||- )|\n\n", _without_code(text)):
        raw = re.findall(r"\]\(benchmarks/results/([^)]+)\)", part)
        told = set().union(*(_numbers((RESULTS / name).read_text(encoding="utf-8")) for name in raw))
        if raw:
            said = re.sub(r"\]\([^)]*\)|Stable Diffusion 1\.5", " ", part)
            yield from sorted(_numbers(said) - told)


def test_the_figures_of_the_page_are_those_of_the_raw_tables() -> None:
    text = BENCHMARKS.read_text(encoding="utf-8")
    assert list(_unproved(text)) == []
    rows = [line for line in text.splitlines() if re.match(r"\| .*\d", line)]
    assert len(rows) > 30
    assert [
        line for line in rows if not re.search(r"\]\(benchmarks/results/\w+\.md\) \|$|\| raw table \|$", line)
    ] == []


def test_a_figure_that_no_raw_table_has_is_found() -> None:
    assert list(_unproved("| 1 LoRA | 1.036 | 1.037 | [a](benchmarks/results/step_overhead.md) |")) == ["1.037"]


@pytest.fixture
def chart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart", ROOT / "docs" / "benchmarks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_chart_is_of_the_raw_tables(chart: ModuleType) -> None:
    assert chart.PICTURE.read_text(encoding="utf-8") == chart.picture(), "run python docs/benchmarks.py"
    labels = re.findall(r"<text[^>]*>([^<]+)</text>", chart.picture())
    assert {"+4 %", "+45 %", "40.6 µs", "2.99 s", "325 ms"} <= set(labels)


def test_the_library_page_rounds_the_raw_figures(chart: ModuleType) -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    steps, changes = chart.rows("step_overhead"), chart.rows("switch")
    for way in ("ours", "PEFT"):
        assert "| " + ", ".join(f"{float(row[f'{way}/base']):.2f}" for row in steps) + " |" in page
        times = [chart.seconds(row[way]) * 1e6 for row in changes if row["operation"] == "strength"]
        digits = 2 if way == "PEFT" else 0
        ends = [round(min(times), -digits), round(max(times), -digits)]
        assert f"| {ends[0]:.0f} to {ends[1]:.0f} |" in page
    (back,) = (row for row in changes if row["operation"] == "switch")
    here, peft, hotswap = (round(1000 * chart.seconds(back[way])) for way in ("ours", "PEFT", "hotswap"))
    assert f"| {here} | {peft}; its hotswap {hotswap} |" in page


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


def test_files_that_pages_name_are_there() -> None:
    """The changelog names files of former versions."""
    pages = [page for page in (*ROOT.glob("*.md"), *DOCS, *REFERENCE) if page.name != "CHANGELOG.md"]
    text = "\n".join([_without_code(page.read_text(encoding="utf-8")) for page in pages])
    kinds = "extension|lib_lora|javascript|tests|scripts|docs|benchmarks|requirements|training|demo|\\.github"
    named = set(re.findall(rf"`((?:{kinds})/[\w./-]*\w)`", text))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_functions_are_as_short_as_contributing_says() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ((usual, most),) = re.findall(r"most have fewer than (\d+) lines, and none has more than (\d+)", page)
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno}": (node.end_lineno or 0) - node.lineno + 1
        for package in ("lib_lora", "extension")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert [place for place, length in lengths.items() if length > int(most)] == []
    assert sum(length < int(usual) for length in lengths.values()) > 0.9 * len(lengths)


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
