"""The site of `install.py docs`: its contents, and its links; building it takes a package that tests do not have."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.test_readme import DOCS, REFERENCE, ROOT, _anchors, _without_code

CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for inner in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(inner)


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """Return the hook that mkdocs calls."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / CONFIG["hooks"][0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_contents_once(site: ModuleType) -> None:
    listed = list(pages(CONFIG["nav"]))
    outside = [path for path in site.outside() if path.endswith(".md")]
    inside = [page.relative_to(ROOT / "docs").as_posix() for page in (*DOCS, *REFERENCE)]
    assert sorted(listed) == sorted([*outside, *inside])
    assert {"README.md", "demo/pictures/stack.webp"} <= set(site.outside())


def test_links_of_the_site_lead_somewhere(site: ModuleType) -> None:
    """Each link of each page leads to a file of the site, and to a heading that is there."""
    files = {site.in_site(path.relative_to(ROOT).as_posix()): path for path in (ROOT / "docs").rglob("*.*")}
    files |= {path: ROOT / path for path in site.outside()}
    found = 0
    for page in pages(CONFIG["nav"]):
        text = site.for_site(files[page].read_text(encoding="utf-8"), files[page].relative_to(ROOT).as_posix())
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub("`[^`\n]+`", "", _without_code(text))):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = files.get(posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page)
            assert there is not None, (page, target)
            assert not anchor or anchor in _anchors(there), (page, target)
            found += 1
    assert found > 50


def test_a_link_is_moved_or_becomes_its_label(site: ModuleType) -> None:
    text = "[a](../BENCHMARKS.md#x) [b](tags.md) ![c](../demo/pictures/ideas.webp) [d](../lib_lora/plan.py) `[e](../f)`"
    moved = "[a](BENCHMARKS.md#x) [b](tags.md) ![c](demo/pictures/ideas.webp) d `[e](../f)`"
    assert site.for_site(text, "docs/tab.md") == moved
    assert site.for_site("[a](docs/tags.md) [b](https://a.example/c.md) [c](#d)", "README.md") == (
        "[a](tags.md) [b](https://a.example/c.md) [c](#d)"
    )
    assert site.for_site("![a](pictures/ideas.webp) [b](../docs/tab.md)", "demo/README.md") == (
        "![a](pictures/ideas.webp) [b](../tab.md)"
    )


def test_anchors_are_those_of_the_repository(site: ModuleType) -> None:
    config = SimpleNamespace(mdx_configs={})
    make = site.on_config(config).mdx_configs["toc"]["slugify"]
    assert make("What a picture's parameters say", "-") == "what-a-pictures-parameters-say"


def test_names_in_tables_are_not_broken_inside_a_word() -> None:
    styles = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in CONFIG["extra_css"]]
    rule = re.search(r"\btd code \{(.*?)\}", "".join(styles))
    assert rule is not None
    assert "word-break: normal" in rule[1]  # the theme's own is break-word
