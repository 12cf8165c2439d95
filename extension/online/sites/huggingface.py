"""Hugging Face, by https://huggingface.co/docs/hub/api; it finds no file by a hash, so that the user gives the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from ..fetch import OnlineError, SiteAccess, SiteClient, from_environment
from ..site import LocalFile, Newer, Published, SiteFile, on_site
from ..values import date, digest, line, lines, mapping, mappings, prompt_words, whole

_ENDPOINT = "https://huggingface.co"
_HOSTS = ("huggingface.co", "*.huggingface.co", "hf.co", "*.hf.co")
_PAGES = ("huggingface.co", "hf.co")
_PART = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = "main"
_PICTURES = (".png", ".jpg", ".jpeg", ".webp")


class HuggingFace:
    """Repositories of files, whose hashes are compared here."""

    key = "huggingface"

    def access(self) -> SiteAccess:
        """Return how to ask it; `HF_ENDPOINT` may name a mirror, and `HF_TOKEN` is the user's."""
        endpoint = from_environment("HF_ENDPOINT", default=_ENDPOINT).rstrip("/")
        return SiteAccess("Hugging Face", endpoint, _HOSTS, from_environment("HF_TOKEN"), "HF_TOKEN")

    def has(self, page: str) -> bool:
        """Tell whether an address is a page of this site."""
        return _named(page, self.access().endpoint) is not None

    def prepare(self, client: SiteClient, hashes: Sequence[str]) -> None:
        """Ask for nothing, as no file is found by a hash."""

    def find(self, client: SiteClient, local: LocalFile) -> Published | None:
        """Return what a repository says of a file with this hash; it may have another file of its name by now."""
        named = _named(local.page, client.access.endpoint)
        if named is None:
            return None
        repository, revision, path = named
        info = _info(client, repository, revision)
        files = mappings(info.get("siblings"))
        same = next((file for file in files if _sha256(file) == local.sha256), None)
        other = next((file for file in files if path and line(file.get("rfilename"), 1000) == path), None)
        if same is None and other is None:
            return None
        shown = path if same is None else line(same.get("rfilename"), 1000)
        newer = Newer("", _page(client, named[:2], shown), date(info.get("lastModified"))) if same is None else None
        return _published(client, named[:2], info, shown, newer)

    def at(self, client: SiteClient, page: str) -> Published:
        """Return the file that an address names, or the only one of its repository."""
        repository, revision, path = _named(page, client.access.endpoint) or ("", "", "")
        info = _info(client, repository, revision)
        names = [line(file.get("rfilename"), 1000) for file in mappings(info.get("siblings"))]
        usable = [name for name in names if name.lower().endswith(".safetensors") and (not path or name == path)]
        if len(usable) != 1:
            raise OnlineError("this page of Hugging Face does not name one safetensors file; give the file's own page")
        return _published(client, (repository, revision), info, usable[0])


def _named(page: str, endpoint: str) -> tuple[str, str, str] | None:
    """Return the repository, the revision and the file that an address names; the file may be empty."""
    parts = on_site(page, _PAGES, endpoint)
    path = [] if parts is None else [unquote(part) for part in parts.path.strip("/").split("/")]
    if not all(map(_PART.fullmatch, path[:2])):
        return None
    if len(path) == 2:
        return "/".join(path), _REVISION, ""
    if len(path) > 3 and path[2] in ("blob", "resolve", "tree") and _PART.fullmatch(path[3]):
        return "/".join(path[:2]), path[3], "/".join(path[4:])
    return None


def _info(client: SiteClient, repository: str, revision: str) -> Mapping[str, Any]:
    return mapping(client.json(f"/api/models/{repository}/revision/{revision}?blobs=true"))


def _sha256(file: Mapping[str, Any]) -> str:
    return digest(mapping(file.get("lfs")).get("sha256"))


def _page(client: SiteClient, repository: tuple[str, str], path: str, kind: str = "blob") -> str:
    name, revision = repository
    return f"{client.access.endpoint}/{name}/{kind}/{revision}/{quote(path)}"


def _published(
    client: SiteClient,
    repository: tuple[str, str],
    info: Mapping[str, Any],
    path: str,
    newer: Newer | None = None,
) -> Published:
    card = mapping(info.get("cardData"))
    files = {line(file.get("rfilename"), 1000): file for file in mappings(info.get("siblings"))}
    file, picture = files[path], next((name for name in files if name.lower().endswith(_PICTURES)), "")
    size = whole(file.get("size")) or whole(mapping(file.get("lfs")).get("size"))
    base = lines(card.get("base_model"))
    return Published(
        site="huggingface",
        page=_page(client, repository, path),
        model=repository[0],
        version=path,
        file=SiteFile(path.rpartition("/")[2], _page(client, repository, path, "resolve"), size, _sha256(file)),
        words=prompt_words(card.get("instance_prompt")),
        base_model=base[0] if base else "",
        tags=lines(card.get("tags")) or lines(info.get("tags")),
        creator=line(info.get("author")) or repository[0].partition("/")[0],
        licence=line(card.get("license_name")) or line(card.get("license")),
        picture=_page(client, repository, picture, "resolve") if picture else "",
        published=date(info.get("lastModified")),
        newer=newer,
    )


SITE = HuggingFace()
