"""The file of users and their keys."""

from __future__ import annotations

from pathlib import Path

SHORTEST = 16
"""Characters of a key: a program that guesses finds a shorter one."""


def read_keys(path: Path) -> tuple[str, ...]:
    """Return each `user:key` of a file, which may have comments that begin with a #.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no user and key, a key is short, or two users have one key.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        user, _, key = text.partition(":")
        if not user or len(key) < SHORTEST:
            raise ValueError(f"line {number} of {path} must be user:key, with a key of {SHORTEST} characters or more")
        if key in found:
            raise ValueError(f"line {number} of {path} has the key of another user")
        found[key] = user
    if not found:
        raise ValueError(f"{path} has no keys")
    return tuple(f"{user}:{key}" for key, user in found.items())
