"""Free names for items that come from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count


def numbered(name: str, joint: str, at_most: int) -> Iterator[str]:
    """Yield a name, then without end the name with a number from 2: `name`, `name 2`, `name 3`, ...

    Args:
        name: of at most `at_most` characters.
        joint: between the name and its number.
        at_most: characters; a longer result shortens the name.
    """
    yield name
    for number in count(2):
        end = f"{joint}{number}"
        yield name[: at_most - len(end)].rstrip() + end
