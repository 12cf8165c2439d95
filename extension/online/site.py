"""The interface that a site must implement, and what it says of a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from .fetch import SiteAccess, SiteClient

TERMS = ("credit", "no_commercial", "images", "rent", "rent_civitai", "sell", "no_derivatives", "same_licence")
"""The words for the terms of a licence."""


@dataclass(frozen=True)
class LocalFile:
    """The file that a site is asked about."""

    sha256: str
    """Of the whole file, in hex digits."""
    shorthash: Callable[[], str]
    """Returns the first 12 hex digits of the SHA-256 of what follows the header, which another header leaves alike."""
    page: str = ""
    """The page that the file is said to be from; empty if unknown."""

    def hashes(self) -> Iterator[str]:
        """Yield what to ask for, until it is found."""
        yield self.sha256
        yield self.shorthash()


@dataclass(frozen=True)
class SiteFile:
    """A file that a site offers."""

    name: str
    address: str
    size: int
    """Bytes, or a little more."""
    sha256: str
    """Empty if the site does not tell it."""


@dataclass(frozen=True)
class Newer:
    """A newer version."""

    version: str
    page: str
    published: str


@dataclass(frozen=True)
class Published:
    """A site's record of a file, as plain text: no HTML, no tags."""

    site: str
    page: str
    model: str
    version: str
    file: SiteFile | None = None
    words: tuple[str, ...] = ()
    base_model: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    creator: str = ""
    licence: str = ""
    """Its name; empty if the site tells terms instead."""
    terms: tuple[str, ...] = ()
    """What it asks for, and the commercial uses that it allows; see `TERMS`."""
    picture: str = ""
    """Address of a preview."""
    published: str = ""
    newer: Newer | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """The content of `name.civitai.info`; empty if the site is another."""


class Site(Protocol):
    """One site."""

    key: str
    """In routes and sidecars."""

    def access(self) -> SiteAccess:
        """Return how to ask it, from the present environment."""

    def has(self, page: str) -> bool:
        """Tell whether an address is a page of this site."""

    def prepare(self, client: SiteClient, hashes: Sequence[str]) -> None:
        """Ask for many files at once, by their SHA-256, where the site can; `find` has the answers then.

        Raises:
            OnlineError: the site cannot be asked, or its answer cannot be used.
        """

    def find(self, client: SiteClient, local: LocalFile) -> Published | None:
        """Return what the site says of a file; None if it does not know the file.

        Raises:
            OnlineError: the site cannot be asked, or its answer cannot be used.
        """

    def at(self, client: SiteClient, page: str) -> Published:
        """Return the record on a page, with the file to download.

        Raises:
            OnlineError: likewise, or the page has no such file.
        """


def on_site(page: str, hosts: Collection[str], endpoint: str) -> SplitResult | None:
    """Return the parts of an address on one of a site's hosts, or below its endpoint; None if it is elsewhere."""
    try:
        parts = urlsplit(page)
    except ValueError:
        return None
    is_there = (parts.hostname or "").removeprefix("www.") in hosts or page.startswith(f"{endpoint}/")
    return parts if is_there and parts.scheme in ("http", "https") else None
