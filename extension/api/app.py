"""`/remora/app/*`: the tab's own files, served here so that every host serves them with the right types."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from fastapi import HTTPException, Request, Response

from .answers import NOT_FOUND
from .bundle import bundle

_TAB = "tab.js"
"""The whole tab, as a page loads it. It is made again for each page, so that a changed module needs no restart."""
_FOLDER = Path(__file__).resolve().parents[2] / "javascript" / "remora"
_LANGUAGES = "languages.json"
"""What each language of the tab besides English calls itself, by its tag."""
_NAME = "language.name"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
}


def front_end(request: Request, name: str) -> Response:
    """Return one file of the tab."""
    files = _files()
    if name == _TAB:
        modules = {path: file.read_text("utf-8") for path, file in files.items() if file.suffix == ".js"}
        content = bundle(modules).encode()
    elif name == _LANGUAGES:
        strings = {file.stem: json.loads(file.read_text("utf-8")) for file in files.values() if file.suffix == ".json"}
        content = json.dumps({tag: strings[tag][_NAME] for tag in sorted(strings)}, ensure_ascii=False).encode()
    elif name in files:  # existing files only, so that no path leads outside
        content = files[name].read_bytes()
    else:
        raise HTTPException(NOT_FOUND, f"the tab has no file {name:.80}")
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"', "Cache-Control": "no-cache"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)


@lru_cache(maxsize=1)
def _files() -> Mapping[str, Path]:
    """Return the files of the tab by name; scanned once, as a page requests dozens."""
    return {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.suffix in _TYPES}
