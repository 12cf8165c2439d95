"""Keys taken apart by all formats there are."""

from __future__ import annotations

from lib_lora.files.formats import base
from lib_lora.files.formats.base import ParsedKey
from lib_lora.naming.parsed import key_formats


def parse_key(key: str, said: str | None = None) -> tuple[str, ParsedKey | None]:
    """Return the format of a key and its parts, as a file's keys are read."""
    return base.parse_key(key_formats().values(), key, said)
