"""Keys taken apart by all formats there are."""

from __future__ import annotations

from lib_lora.files.formats import base
from lib_lora.files.formats.base import ParsedKey
from lib_lora.naming.parsed import key_formats


def parse_key(key: str, said: str | None = None, *only: base.KeyFormat) -> tuple[str, ParsedKey | None]:
    """Return the format of a key and its parts, as a file's keys are read; all formats are tried, or these only."""
    formats = only or tuple(key_formats().values())
    return base.parse_keys(formats, [key], {} if said is None else {key: said})[0]
