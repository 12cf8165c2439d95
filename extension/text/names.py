"""Names for what comes from somewhere else, where its own may be taken."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count


def numbered(name: str, joint: str, at_most: int) -> Iterator[str]:
    """Yield a name, and then without end the same with a number from 2: `name`, `name 2`, `name 3`, ...

    Args:
        name: of no more than `at_most` characters.
        joint: stands between the name and its number.
        at_most: characters. The name is shortened where it and its number were longer.
    """
    yield name
    for number in count(2):
        end = f"{joint}{number}"
        yield name[: at_most - len(end)].rstrip() + end
