"""Requests to a site: few, bounded, and to its own hosts alone."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from email.utils import parsedate_to_datetime
from fnmatch import fnmatch
from functools import partial
from io import BufferedRandom
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from ..version import VERSION

PAUSE = 1.0
"""Seconds from one request to a site until the next."""
FIRST_WAIT = 1.0
"""Seconds until a request is sent again, which double each time."""
_TRIES = 5
_LONGEST_WAIT = 60.0  # seconds; a site that asks for more ends the job
_SILENCE = 20.0  # seconds in which a site must send something
_LONGEST_ANSWER = 120.0  # seconds, of all but a download
_MOST_REDIRECTS = 5
_MOST_JSON = 8 << 20  # bytes
_MOST_KNOWN = 200  # answers that a job keeps
_MOST_PICTURE = 16 << 20
_CHUNK = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504, 520, 522, 524})
_OK, _PARTIAL, _NO_SUCH_RANGE = 200, 206, 416

_T = TypeVar("_T")


class OnlineError(ValueError):
    """A site cannot be asked, or its answer cannot be used; the message is one sentence."""


class AbsentError(OnlineError):
    """The site has nothing at this address."""


class UnreachableError(OnlineError):
    """The site did not answer, however often it was asked."""


class EndedError(OnlineError):
    """No request may follow for now: the site asks to wait, or the user has turned it off."""


class CancelledError(Exception):
    """The job is cancelled."""


@dataclass(frozen=True)
class SiteAccess:
    """How a site is asked."""

    name: str
    """For people."""
    endpoint: str
    """Scheme and host of its API; a mirror of the user's may be any."""
    hosts: tuple[str, ...]
    """Patterns of the hosts that its answers may lead to."""
    token: str = field(default="", repr=False)
    token_variable: str = ""
    """The environment variable that the token is read from."""


def from_environment(*names: str, default: str = "") -> str:
    """Return the first of some environment variables that is set."""
    return next((value.strip() for name in names if (value := os.environ.get(name, "")).strip()), default)


class SiteClient:
    """Asks one site for one job.

    Args:
        access: to the site.
        is_on: tells whether the user allows requests; asked before each.
        stop: is set when the job is cancelled.
    """

    def __init__(self, access: SiteAccess, is_on: Callable[[], bool], stop: threading.Event) -> None:
        self.access = access
        self._is_on = is_on
        self._stop = stop
        self._known: dict[str, Any] = {}
        self._opener = urllib.request.OpenerDirector()  # with no handler that follows redirects or opens files
        for handler in (urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()):
            self._opener.add_handler(handler)

    def json(self, path: str) -> Any:
        """Return the JSON at a path of the API; asked for once, unless many others were since.

        Raises:
            OnlineError: there is none.
        """
        if path not in self._known:
            self.learn(path, self._json(path))
        if self._known[path] is None:
            raise AbsentError(f"{self.access.name} has nothing at this address")
        return self._known[path]

    def posted(self, path: str, data: object) -> Any:
        """Send JSON to a path of the API, and return its answer.

        Raises:
            OnlineError: there is none.
        """
        return self._json(path, json.dumps(data).encode())

    def learn(self, path: str, answer: Any) -> None:
        """Keep what the site has at a path, as another answer told; None is nothing."""
        self._known[path] = answer
        for old in list(self._known)[:-_MOST_KNOWN]:
            del self._known[old]

    def _json(self, path: str, body: bytes | None = None) -> Any:
        content = self._tried(self.access.endpoint + path, partial(self._body, at_most=_MOST_JSON), body=body)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise OnlineError(f"{self.access.name} did not answer with JSON; try again later") from error

    def picture(self, address: str) -> bytes:
        """Return the file of a picture.

        Raises:
            OnlineError: there is none.
        """
        return self._tried(address, partial(self._body, at_most=_MOST_PICTURE))

    def download(self, address: str, part: Path, at_most: int, progress: Callable[[int], object]) -> None:
        """Write a file, from where an earlier download ended.

        Args:
            address: of the file.
            part: the unfinished file.
            at_most: bytes.
            progress: is called with the bytes that are there.

        Raises:
            OnlineError: it cannot be downloaded or written; the part that is there stays.
        """
        take = partial(self._append, part=part, at_most=at_most, progress=progress)
        self._tried(address, take, lambda: {"Range": f"bytes={here}-"} if (here := _size(part)) else {})

    def wait(self, seconds: float) -> None:
        """Wait, unless the job is cancelled.

        Raises:
            CancelledError: it is.
        """
        if self._stop.wait(max(seconds, 0.0)):
            raise CancelledError

    def _tried(
        self,
        address: str,
        take: Callable[[http.client.HTTPResponse], _T],
        headers: Callable[[], Mapping[str, str]] = dict,
        body: bytes | None = None,
    ) -> _T:
        """Send a request until its answer is taken; wait longer each time."""
        for attempt in range(_TRIES):
            wait = FIRST_WAIT * 2**attempt
            try:
                with self._redirected(address, headers(), body) as answer:
                    if answer.status not in _TEMPORARY:
                        self._refuse(answer)
                        return take(answer)
                    problem, wait = f"it answers with status {answer.status}", _asked_wait(answer.headers) or wait
            except (OSError, http.client.HTTPException) as error:
                problem = f"the connection failed: {str(error) or type(error).__name__:.120}"
            if wait > _LONGEST_WAIT:
                raise EndedError(f"{self.access.name} asks to wait {wait:.0f} seconds; try again then")
            if attempt + 1 < _TRIES:
                self.wait(wait)
        raise UnreachableError(f"{self.access.name} cannot be reached now ({problem}); try again later")

    def _redirected(self, address: str, headers: Mapping[str, str], body: bytes | None) -> http.client.HTTPResponse:
        """Send a request, and follow redirects to hosts of the site."""
        for _ in range(_MOST_REDIRECTS):
            answer = self._asked(address, headers, body)
            target = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not target:
                return answer
            answer.close()
            address = urljoin(address, target)
        raise OnlineError(f"{self.access.name} sends the request from one address to the next without an end")

    def _asked(self, address: str, headers: Mapping[str, str], body: bytes | None) -> http.client.HTTPResponse:
        if not self._is_on():
            raise EndedError("looking files up online is off; turn it on first")
        is_own = self._check(address)
        sent = {"User-Agent": f"Remora/{VERSION}", "Accept": "*/*", "Accept-Encoding": "identity", **headers}
        if is_own and self.access.token:
            sent["Authorization"] = f"Bearer {self.access.token}"
        if body is not None:
            sent["Content-Type"] = "application/json"
        _TURNS.wait(self.access.endpoint, self.wait)
        answer: http.client.HTTPResponse = self._opener.open(
            urllib.request.Request(address, body, sent), timeout=_SILENCE
        )
        return answer

    def _check(self, address: str) -> bool:
        """Tell whether an address is the API's own.

        Raises:
            OnlineError: it is neither that nor another one of the site.
        """
        host, own = "", urlsplit(self.access.endpoint)
        with suppress(ValueError):
            parts = urlsplit(address)
            if (parts.scheme, parts.netloc) == (own.scheme, own.netloc) and own.netloc:
                return True
            host = parts.hostname or ""
            is_plain = address.isascii() and address.isprintable() and " " not in address and "@" not in parts.netloc
            is_usual = parts.scheme == "https" and parts.port in (None, 443)
            if is_plain and is_usual and any(fnmatch(host, pattern) for pattern in self.access.hosts):
                return False
        where = f"{host:.80}" if host else "an address that cannot be read"
        raise OnlineError(f"{self.access.name} leads to {where}, which is not a host of this site; it is not asked")

    def _refuse(self, answer: http.client.HTTPResponse) -> None:
        """Raise OnlineError unless an answer has the requested content."""
        name, status = self.access.name, answer.status
        if status in (401, 403):
            raise self._needs_key()
        if status in (404, 410):
            raise AbsentError(f"{name} has nothing at this address")
        if status not in (_OK, _PARTIAL, _NO_SUCH_RANGE):
            raise OnlineError(f"{name} refuses this request with status {status}")

    def _needs_key(self) -> OnlineError:
        variable = self.access.token_variable
        return OnlineError(
            f"{self.access.name} gives this only with a key; set the environment variable {variable} to yours"
        )

    def _body(self, answer: http.client.HTTPResponse, at_most: int) -> bytes:
        content, until = bytearray(), time.monotonic() + _LONGEST_ANSWER
        for chunk in self._chunks(answer):
            content += chunk
            if len(content) > at_most:
                raise OnlineError(f"{self.access.name} answers with more than {at_most >> 20} MB; it is not read")
            if time.monotonic() > until:
                raise UnreachableError(f"{self.access.name} answers too slowly; try again later")
        return bytes(content)

    def _chunks(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the parts of a body as they come; a body that ends too early is an OSError."""
        told, read = answer.length, 0
        while chunk := answer.read1(_CHUNK):
            self.wait(0)
            read += len(chunk)
            yield chunk
        if told is not None and read < told:
            raise OSError(f"it ended after {read:,} of {told:,} bytes")

    def _append(
        self, answer: http.client.HTTPResponse, part: Path, at_most: int, progress: Callable[[int], object]
    ) -> None:
        """Append an answer to the unfinished file."""
        if answer.status == _NO_SUCH_RANGE:
            part.unlink(missing_ok=True)
            raise OSError("it has no such part of the file")
        if "html" in answer.headers.get("Content-Type", ""):  # to log in, perhaps
            if not self.access.token:
                raise self._needs_key()
            raise OnlineError(f"{self.access.name} answers with a page in place of the file; download it in a browser")
        begin = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        here = int(begin[1]) if answer.status == _PARTIAL and begin is not None else 0
        if here != _size(part) and here:
            raise OSError("it sent another part of the file")
        with _opened(part, here) as stream:
            for chunk in self._chunks(answer):
                here += len(chunk)
                if here > at_most:
                    raise OnlineError(f"{self.access.name} sends more bytes than it said; the download was stopped")
                _write(stream, part, chunk)
                progress(here)


def _size(path: Path) -> int:
    """Return the bytes of an unfinished file; 0 without one."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _opened(part: Path, here: int) -> BufferedRandom:
    """Open an unfinished file to write behind its first bytes.

    Raises:
        OnlineError: it cannot be written.
    """
    try:
        stream = open(part, "r+b" if here else "w+b", opener=_not_through_links)  # noqa: SIM115  # it is returned
        stream.truncate(here)
        stream.seek(here)
    except OSError as error:
        raise _unwritable(part, error) from error
    return stream


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _write(stream: BufferedRandom, part: Path, chunk: bytes) -> None:
    try:
        stream.write(chunk)
        stream.flush()
    except OSError as error:
        raise _unwritable(part, error) from error


def _unwritable(part: Path, error: OSError) -> OnlineError:
    return OnlineError(f"{part.parent} cannot be written: {error.strerror or error}")


def _asked_wait(headers: Message) -> float:
    """Return the seconds that an answer asks to wait; 0 if it asks for none."""
    asked = headers.get("Retry-After", "").strip()
    if not asked and (reset := re.search(r"\bt=(\d{1,9})", headers.get("RateLimit", ""))):  # of Hugging Face
        asked = reset[1]
    if re.fullmatch(r"\d{1,9}", asked):
        return float(asked)
    try:
        return max(parsedate_to_datetime(asked).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0


class _Turns:
    """When each site was asked last, for all jobs of this program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def wait(self, endpoint: str, wait: Callable[[float], object]) -> None:
        """Wait until a site may be asked again."""
        with self._lock:
            now = time.monotonic()
            turn = max(self._next.get(endpoint, now), now)
            self._next[endpoint] = turn + PAUSE
        wait(turn - now)


_TURNS = _Turns()
