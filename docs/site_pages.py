"""What mkdocs needs beside docs/: pages and pictures of the project outside it, and links that lead there.

The pages are written for the repository, where links start at the page's own folder. In the site docs/ is the root.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("*.md", "LICENSE", "demo/README.md", "demo/pictures/*", "benchmarks/results/*.md")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)")


def outside() -> Iterator[str]:
    """Yield the path in the project of each file outside docs/ that the site has, too."""
    for pattern in OUTSIDE:
        yield from sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


def in_site(path: str) -> str | None:
    """Return where the site has a file of the project; None where it has not."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path in set(outside()) else None


def for_site(markdown: str, page: str) -> str:
    """Return a page with its links as the site needs them; of a link to a file that is not there the label remains.

    Args:
        markdown: the page's text.
        page: its path in the project.
    """
    folder, here = posixpath.dirname(page), posixpath.dirname(in_site(page) or "")

    def moved(match: re.Match[str]) -> str:
        target, _, anchor = match[3].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        there = in_site(posixpath.normpath(posixpath.join(folder, target)))
        if there is None:
            return match[2]
        link = posixpath.relpath(there, here or ".") + (f"#{anchor}" if anchor else "")
        return f"{match[1]}[{match[2]}]({link})"

    parts, last = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(moved, markdown[last : code.start()]), code[0]]
        last = code.end()
    return "".join(parts) + _LINK.sub(moved, markdown[last:])


def slug(heading: str, _separator: str) -> str:
    """Return the anchor of a heading as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def on_config(config: Any) -> Any:
    """Have mkdocs make the anchors that the links name."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/."""
    from mkdocs.structure.files import File

    for path in outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Move the links of a page."""
    return for_site(markdown, Path(page.file.abs_src_path).relative_to(ROOT).as_posix())
