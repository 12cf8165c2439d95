"""Writes the records of sites into the files beside a LoRA, where these have none."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..library import CatalogFile, beside, notes_lock
from ..library.notes import fill_notes, read_own
from ..library.pictures import shrunk_picture
from ..store import json_bytes, write_bytes
from .site import TERMS, Published
from .values import date, line, lines, mapping

ONLINE = "online"
"""The field of Remora's own object in `name.json`."""
_SIDE = 1024  # pixels of a preview
_MOST_TEXT, _MOST_OF_TAG = 20_000, 100  # characters, as notes have
_LATEST = 1e12  # seconds since 1970


def keep(file: CatalogFile, published: Published) -> None:
    """Keep what a site says of a file: fields that are empty, and `name.civitai.info` if there is none.

    Raises:
        NotesError: `name.json` cannot be changed.
        OSError: a file cannot be written.
    """
    words, text = (one[:_MOST_TEXT] for one in (", ".join(published.words), published.description))
    found = {"words": words, "description": text, "tags": [tag[:_MOST_OF_TAG] for tag in published.tags]}
    with notes_lock(file):
        # once for each page: a field that the user has emptied since stays empty
        is_new = mapping(read_own(file).get(ONLINE)).get("page") != published.page
        wanted = {name: value for name, value in found.items() if value and is_new}
        fill_notes(file, wanted, {ONLINE: _record(published)})
        info = file.path.with_name(f"{file.path.stem}.civitai.info")
        if published.info and not os.path.lexists(info):
            write_bytes(info, json_bytes(published.info, indent=4))


def keep_picture(file: CatalogFile, content: bytes) -> None:
    """Keep a preview, as PNG of its pixels alone, unless the file has a picture.

    Raises:
        PictureError: it is no picture.
        OSError: it cannot be written.
    """
    made = shrunk_picture(content, _SIDE, "PNG")
    path = file.path.with_name(f"{file.path.stem}.preview.png")
    with notes_lock(file):
        if beside(file).picture is None and not os.path.lexists(path):
            write_bytes(path, made)


def read_online(file: CatalogFile) -> Any:
    """Return the stored record of a site, as `records.OnlineLora`; None if there is none."""
    kept = mapping(read_own(file).get(ONLINE))
    site, page, checked = line(kept.get("site")), _page(kept), kept.get("checked")
    if not site or not page or isinstance(checked, bool) or not isinstance(checked, int | float):
        return None
    newer = mapping(kept.get("newer"))
    told = {"version": line(newer.get("version")), "page": _page(newer), "published": date(newer.get("published"))}
    return {
        **{name: line(kept.get(name)) for name in ("model", "version", "base_model", "creator", "licence")},
        "site": site,
        "page": page,
        "terms": [term for term in lines(kept.get("terms")) if term in TERMS],
        "newer": told if told["page"] else None,
        "checked": float(checked) if abs(checked) < _LATEST else 0.0,
    }


def _page(kept: Mapping[str, Any]) -> str:
    """Return an address that a page may link to."""
    page = line(kept.get("page"), 2000)
    return page if page.startswith(("https://", "http://")) else ""


def _record(published: Published) -> dict[str, Any]:
    names = ("site", "page", "model", "version", "base_model", "creator", "licence", "terms")
    return {
        **{name: getattr(published, name) for name in names},
        "newer": None if published.newer is None else asdict(published.newer),
        "checked": time.time(),
    }
