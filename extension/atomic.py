"""Files that are replaced in one go, so that a reader has the old one or the new one, and read within bounds."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

_CHUNK = 1 << 20  # bytes


def write_text(path: Path, text: str) -> None:
    """Replace a file, and make its folder where there is none; half a character (a lone surrogate) becomes `?`.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replace a file, and make its folder where there is none. A link stays, and the file that it names is replaced.

    Args:
        path: of the file.
        content: all of it.
        lasting: wait until it would outlive a power cut, too.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = _mode_of(path)
    new = path.with_name(f".remora-{secrets.token_hex(8)}.tmp")  # short, as the file's own name may be of full length

    def made(name: str, flags: int) -> int:
        # a new file has the mode that the system gives to any; a copy of a private one is private from the beginning
        return os.open(name, flags, 0o666 if mode is None else 0o600)

    try:
        with open(new, "xb", opener=made) as stream:  # Path.open takes no opener
            stream.write(content)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        if mode is not None and os.name != "nt":
            new.chmod(mode)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def read_bytes(path: Path, at_most: int) -> bytes:
    """Read a regular file. A pipe would block for ever, and a device may have no end.

    Args:
        path: of the file; may be a link to one.
        at_most: bytes. Hardly more are read, whatever size the file claims to have.

    Raises:
        OSError: it cannot be read, or it is no regular file.
        ValueError: it has more bytes.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise _irregular(path)
    content = bytearray()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            if len(content) > at_most:
                raise ValueError(f"{path.name} has more than the {at_most:,} bytes that such a file may have")
    return bytes(content)


def _mode_of(path: Path) -> int | None:
    """Who may read and write it; None where there is no file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise _irregular(path)
    return stat.S_IMODE(mode) & 0o777


def _irregular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is a folder, a pipe or a device, and no regular file", str(path))
