"""metadata.ini as A1111 reads it, and the sections of docs/publishing.md."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

from extension.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
TAGS = {
    *("script", "localization", "tab", "dropdown", "ads", "training", "models", "UI related", "prompting", "editing"),
    *("manipulations", "online", "animation", "query", "science", "extras"),
}


def test_remora_is_loaded_after_extensions_that_handle_the_same_tags() -> None:
    read = configparser.ConfigParser()
    read.read(ROOT / "metadata.ini", encoding="utf-8")
    names = re.split(r"[\s,]+", read["scripts"]["After"])
    assert names == ["sd-webui-loractl", "sd-webui-lora-block-weight"]
    assert names == [name.lower() for name in names]  # A1111 compares in lower case
    assert not any("requires" in section for section in read.values())  # it needs no other extension


def test_the_entries_for_the_lists_are_valid() -> None:
    text = (ROOT / "docs" / "publishing.md").read_text(encoding="utf-8")
    a1111, sdnext = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    assert a1111.keys() == {"name", "url", "description", "tags"}
    assert set(a1111["tags"]) <= TAGS
    assert "online" not in a1111["tags"]
    assert a1111["url"].startswith("https://")
    assert sdnext.keys() == {"name", "url", "description", "branch", "note", "status"}


def test_the_extension_and_the_library_have_one_version() -> None:
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
