"""A mapping that contains every key, to check the syntax of stored text without resolving its names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

_T = TypeVar("_T")


class AnyName(Mapping[str, _T]):
    """Maps every name to one value, and iterates over none."""

    def __init__(self, value: _T) -> None:
        self._value = value

    def __getitem__(self, name: str) -> _T:
        return self._value

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
