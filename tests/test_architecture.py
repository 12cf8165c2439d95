"""docs/architecture.md: its picture is the one of the import contracts, and every file that it names is there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_picture_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    assert drawing.PICTURE.read_text(encoding="utf-8") == drawing.picture(), "run python docs/architecture.py"
    rooms = {
        f"{package}.{name}" for package in ("extension", "lib_lora") for row in drawing.layers(package) for name in row
    }
    assert set(drawing.CAPTIONS) <= rooms


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`((?:extension|lib_lora|javascript|tests|scripts|docs)/[^` ]*)`", TEXT))
    assert len(named) > 30
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_glossary_has_forty_words_at_most() -> None:
    table = TEXT.partition("## Words")[2].partition("\n## ")[0]
    words = [word for row in re.findall(r"^\| (?!word )([^|]+) \|", table, re.MULTILINE) for word in row.split(", ")]
    assert 15 < len(words) <= 40
