"""Files that are replaced in one go: whoever reads one sees the old one or the new one, also after a power cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace a file, and make its folder where there is none.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    # half a character, which a file of others may hold, is written as JSON writes it
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replace a file, and make its folder where there is none.

    Args:
        path: of the file.
        content: all of it.
        lasting: wait until it would outlive a power cut, too.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        _take_mode(path, Path(name))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _take_mode(path: Path, new: Path) -> None:
    """Let others read it as they could before, or as any new file of this user: temporary files are for one alone."""
    if os.name == "nt":
        return
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    new.chmod(mode)
