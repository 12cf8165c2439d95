"""Civitai, by https://developer.civitai.com/site/reference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..fetch import AbsentError, OnlineError, SiteAccess, SiteClient, from_environment
from ..site import LocalFile, Newer, Published, SiteFile, on_site
from ..values import date, digest, line, lines, mapping, mappings, prompt_words, text, whole

_ENDPOINT = "https://civitai.com"
_PAGES = ("civitai.com", "civitai.red", "civitai.green")
_HOSTS = (
    *(pattern for host in _PAGES for pattern in (host, f"*.{host}")),
    "civitai-delivery-worker-prod.*.r2.cloudflarestorage.com",  # where downloads are, by redirects
)
_BY_HASH = "/api/v1/model-versions/by-hash"
_ID = re.compile(r"\d{1,12}")
_COMMERCIAL = {"Image": "images", "Rent": "rent", "RentCivit": "rent_civitai", "Sell": "sell"}


class Civitai:
    """Knows files by their hash."""

    key = "civitai"

    def access(self) -> SiteAccess:
        """Return how to ask it; `CIVITAI_ENDPOINT` may name another of its addresses, as https://civitai.red."""
        endpoint = from_environment("CIVITAI_ENDPOINT", default=_ENDPOINT).rstrip("/")
        token = from_environment("CIVITAI_TOKEN", "CIVITAI_API_KEY")
        return SiteAccess("Civitai", endpoint, _HOSTS, token, "CIVITAI_TOKEN")

    def has(self, page: str) -> bool:
        """Tell whether an address is a page of this site."""
        return _ids(page, self.access().endpoint) is not None

    def prepare(self, client: SiteClient, hashes: Sequence[str]) -> None:
        """Ask for many files at once; the site takes a hundred."""
        versions = mappings(client.posted(_BY_HASH, hashes))
        for sought in hashes:
            own = (one for one in versions if any(_has(file, sought) for file in mappings(one.get("files"))))
            client.learn(f"{_BY_HASH}/{sought}", next(own, None))

    def find(self, client: SiteClient, local: LocalFile) -> Published | None:
        """Return what the site says of a file with this hash."""
        for sought in local.hashes():
            try:
                version = mapping(client.json(f"{_BY_HASH}/{sought}"))
            except AbsentError:
                continue
            files = mappings(version.get("files"))  # a withdrawn model lists none
            if files and not any(_has(file, sought) for file in files):
                raise OnlineError("Civitai answers with a model that has no file of this hash; it was not used")
            return _published(client, version, _model(client, version))
        return None

    def at(self, client: SiteClient, page: str) -> Published:
        """Return the version on a page, or the latest one of the model."""
        model_id, version_id = _ids(page, client.access.endpoint) or ("", "")
        if version_id:
            version = mapping(client.json(f"/api/v1/model-versions/{version_id}"))
            return _published(client, version, _model(client, version))
        model = mapping(client.json(f"/api/v1/models/{model_id}"))
        versions = mappings(model.get("modelVersions"))
        if not versions:
            raise OnlineError("this page of Civitai has no version that can be downloaded")
        return _published(client, {**versions[0], "modelId": model.get("id")}, model)


def _ids(page: str, endpoint: str) -> tuple[str, str] | None:
    """Return the model and the version that an address names, one of which may be empty."""
    parts = on_site(page, _PAGES, endpoint)
    if parts is None:
        return None
    path, wanted = parts.path.strip("/").split("/"), parse_qs(parts.query).get("modelVersionId", [""])[0]
    if path[:3] == ["api", "download", "models"] and _ID.fullmatch(path[-1]):
        return "", path[-1]
    if len(path) > 1 and path[0] == "models" and _ID.fullmatch(path[1]):
        return path[1], wanted if _ID.fullmatch(wanted) else ""
    return None


def _model(client: SiteClient, version: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model of a version; an empty one if the site does not show it any more."""
    try:
        return mapping(client.json(f"/api/v1/models/{whole(version.get('modelId'))}"))
    except AbsentError:
        return {}


def _has(file: Mapping[str, Any], sought: str) -> bool:
    """Tell whether a file has a hash: a SHA-256, or 12 digits of what Civitai calls AutoV3."""
    hashes = mapping(file.get("hashes"))
    return sought in (digest(hashes.get("SHA256")), line(hashes.get("AutoV3"))[:12].lower())


def _published(client: SiteClient, version: Mapping[str, Any], model: Mapping[str, Any]) -> Published:
    about = {**mapping(version.get("model")), **model}
    model_id, version_id = whole(version.get("modelId")), whole(version.get("id"))
    if not model_id or not version_id:
        raise OnlineError("Civitai answers with a model that has no number; it was not used")
    info = _info(version, about)
    return Published(
        site="civitai",
        page=_page(client, model_id, version_id),
        model=line(about.get("name")),
        version=line(version.get("name")),
        file=_file(client.access.endpoint, mappings(version.get("files"))),
        words=prompt_words(version.get("trainedWords")),
        base_model=line(version.get("baseModel")),
        description="\n\n".join(filter(None, (info["description"], info["model"]["description"]))),
        tags=lines(about.get("tags")),
        creator=info["creator"]["username"],
        terms=_terms(about),
        picture=_picture(mappings(version.get("images"))),
        published=date(version.get("publishedAt") or version.get("createdAt")),
        newer=_newer(client, version, model_id, mappings(model.get("modelVersions"))),
        info=info,
    )


def _page(client: SiteClient, model_id: int, version_id: int) -> str:
    return f"{client.access.endpoint}/models/{model_id}?modelVersionId={version_id}"


def _file(endpoint: str, files: Sequence[Mapping[str, Any]]) -> SiteFile | None:
    """Return the main file that can be loaded."""
    loadable = [file for file in files if line(file.get("name")).lower().endswith(".safetensors")]
    for file in sorted(loadable, key=lambda one: one.get("primary") is not True):
        # the path alone: the site's own address is asked, whatever an answer says
        parts = urlsplit(line(file.get("downloadUrl"), 2000))
        if parts.path.startswith("/api/download/"):
            size = file.get("sizeKB")
            most = int(size * 1024) + 1024 if isinstance(size, int | float) and 0 < size < 1 << 40 else 0
            address = f"{endpoint}{parts.path}?{parts.query}".removesuffix("?")
            return SiteFile(line(file.get("name")), address, most, digest(mapping(file.get("hashes")).get("SHA256")))
    return None


def _picture(images: Sequence[Mapping[str, Any]]) -> str:
    """Return the address of the first of the mildest pictures."""
    stills = [image for image in images if image.get("type", "image") == "image" and line(image.get("url"), 2000)]
    mildest = min(stills, key=lambda image: whole(image.get("nsfwLevel")), default={})
    return line(mildest.get("url"), 2000)


def _newer(
    client: SiteClient, version: Mapping[str, Any], model_id: int, versions: Sequence[Mapping[str, Any]]
) -> Newer | None:
    """Return the latest version for the same base model, if it is another one."""
    own = date(version.get("publishedAt") or version.get("createdAt"))
    others = [one for one in versions if one.get("baseModel") == version.get("baseModel") and whole(one.get("id"))]
    latest = max(others, key=lambda one: date(one.get("publishedAt")), default={})
    published = date(latest.get("publishedAt"))
    if not own or published <= own or latest.get("id") == version.get("id"):
        return None
    return Newer(line(latest.get("name")), _page(client, model_id, whole(latest.get("id"))), published)


def _terms(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the conditions of the licence, as far as the site tells them."""
    said = model.get("allowCommercialUse")
    # a list, or as the database writes one: {Image,RentCivit}
    allowed = said.strip("{}").split(",") if isinstance(said, str) else said if isinstance(said, list) else None
    terms = ["credit"] if model.get("allowNoCredit") is False else []
    if allowed is not None:
        sold = [_COMMERCIAL[one] for one in map(line, allowed) if one in _COMMERCIAL]
        terms += sold or ["no_commercial"]
    terms += ["no_derivatives"] if model.get("allowDerivatives") is False else []
    return (*terms, *(["same_licence"] if model.get("allowDifferentLicense") is False else []))


def _info(version: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what other programs read, as the API names it, but as plain text: some of them show it as HTML."""
    flags = ("nsfw", "poi", "allowNoCredit", "allowDerivatives", "allowDifferentLicense")
    sold = about.get("allowCommercialUse")
    return {
        **{name: whole(version.get(name)) for name in ("id", "modelId")},
        **{name: line(version.get(name)) for name in ("name", "baseModel")},
        **{name: date(version.get(name)) for name in ("createdAt", "publishedAt")},
        "description": text(version.get("description")),
        "trainedWords": list(prompt_words(version.get("trainedWords"))),
        "model": {
            **{name: line(about.get(name)) for name in ("name", "type")},
            **{name: about[name] for name in flags if isinstance(about.get(name), bool)},
            "allowCommercialUse": list(lines(sold)) if isinstance(sold, list) else line(sold),
            "description": text(about.get("description")),
            "tags": list(lines(about.get("tags"))),
        },
        "creator": {"username": line(mapping(about.get("creator")).get("username"))},
        "files": [_info_of_file(file) for file in mappings(version.get("files"))],
        "images": [_info_of_image(image) for image in mappings(version.get("images"))],
        "downloadUrl": _address(version.get("downloadUrl")),
    }


def _info_of_file(file: Mapping[str, Any]) -> dict[str, Any]:
    hashes = mapping(file.get("hashes"))
    size = file.get("sizeKB")
    return {
        "id": whole(file.get("id")),
        **{name: line(file.get(name)) for name in ("name", "type")},
        "sizeKB": size if isinstance(size, int | float) else 0,
        "hashes": {line(name): line(value) for name, value in hashes.items()},
        "primary": file.get("primary") is True,
        "downloadUrl": _address(file.get("downloadUrl")),
    }


def _info_of_image(image: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "url": _address(image.get("url")),
        "type": line(image.get("type")),
        **{name: whole(image.get(name)) for name in ("width", "height", "nsfwLevel")},
    }


def _address(value: object) -> str:
    """Return an address that a program may open."""
    address = line(value, 2000)
    return address if address.startswith("https://") else ""


SITE = Civitai()
