"""The family that words name: what a header, or a page on the web, says that a file was made for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ..naming.architectures.base import family_of
from ..report import Family


@lru_cache(maxsize=4096)
def family_named(*texts: str) -> Family | None:
    """Return the family that texts name, such as `sdxl_base_v1-0` or `SD 1.5`; None if they name none."""
    words = [text.strip().replace(" ", "_").replace("\n", "_") for text in texts]
    return family_of([f"meta:ss_base_model_version:{word}" for word in words])


def named_otherwise(texts: Iterable[str], family: Family | None) -> Family | None:
    """Return the family that texts name, if the layers of the file are of another one; None if either is unknown."""
    named = family_named(*texts)
    return named if named is not None and family is not None and named.differs(family) else None
