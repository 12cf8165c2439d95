"""A user's web UI downloads little: `git clone --filter=blob:none`, as A1111 runs it, brings what is tracked now."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST = 10_650_000
"""Bytes of all files as git packs them. Names and messages of the history come on top, 1.3 MB as this is written."""


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no clone made by git")
def test_what_a_clone_downloads_is_small() -> None:
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    files = [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
    sizes = {path.relative_to(ROOT).as_posix(): len(zlib.compress(path.read_bytes())) for path in files}
    largest = ", ".join(f"{name} {sizes[name]:,}" for name in sorted(sizes, key=lambda name: -sizes[name])[:3])
    assert len(sizes) > 500
    assert sum(sizes.values()) <= MOST, f"{sum(sizes.values()):,} bytes; the largest files: {largest}"
