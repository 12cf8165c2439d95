"""Draw mutants at random: one small change of one place in the code, made by the operators of cosmic-ray."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[2]
ROOMS: Mapping[str, tuple[str, ...]] = {
    "algorithms": ("lib_lora/adapters/*.py",),
    "executors": (
        "lib_lora/plan.py",
        "lib_lora/execution/*.py",
        "lib_lora/strengths/stack_strengths.py",
        "lib_lora/strengths/table.py",
    ),
    "names": ("lib_lora/files/formats/*.py", "lib_lora/naming/*.py"),
    "prompt": ("extension/text/*.py",),
    "api": ("extension/api/*.py",),
    "generation": ("extension/generation/*.py",),
    "library": ("extension/library/*.py", "extension/kept/*.py", "extension/store.py"),
}
"""Patterns of files, by what the figures call them."""
_NEVER = {"core/NoOp"}

Position = tuple[int, int]
"""Line from 1, column from 0."""


@dataclass(frozen=True)
class Mutant:
    """One change."""

    room: str
    path: str
    line: int
    operator: str
    occurrence: int

    def apply(self, source: str) -> str:
        """Return the changed source of the file."""
        changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        assert changed is not None, self
        return str(changed)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def draw(number: int, seed: int, rooms: Sequence[str] = tuple(ROOMS)) -> list[Mutant]:
    """Draw so many mutants, equally many from each room; the same ones for the same seed and code.

    First a place is drawn and then one of its changes. A `+`, of which eleven others can be made, is as likely as a
    `not`.
    """
    random_ = random.Random(seed)
    drawn = []
    for place, room in enumerate(rooms):
        share = number // len(rooms) + (place < number % len(rooms))
        changes: dict[tuple[str, Position], list[Mutant]] = defaultdict(list)
        for path in sorted({path for pattern in ROOMS[room] for path in ROOT.glob(pattern)}):
            for position, mutant in _mutants_of(room, path):
                changes[mutant.path, position].append(mutant)
        places = sorted(changes)
        random_.shuffle(places)
        found = (_any_that_compiles(changes[one], random_) for one in places)
        drawn += list(islice((one for one in found if one is not None), share))
    return drawn


def _any_that_compiles(mutants: list[Mutant], random_: random.Random) -> Mutant | None:
    """Return one of the changes of a place; None where all are syntax errors, as of the stars of an unpacking."""
    for mutant in random_.sample(mutants, len(mutants)):
        try:
            ast.parse(mutant.apply((ROOT / mutant.path).read_text(encoding="utf-8")))
        except SyntaxError:
            continue
        return mutant
    return None


def _mutants_of(room: str, path: Path) -> Iterator[tuple[Position, Mutant]]:
    """Yield each change of a file that its running code can notice."""
    source = path.read_text(encoding="utf-8")
    tree, never_run = get_ast(source), _never_run(source)
    for name in operator_names():
        kind = get_operator(name)
        if name in _NEVER or kind.arguments():
            continue
        operator = kind()
        positions = (span for node in ast_nodes(tree) for span in operator.mutation_positions(node))
        for occurrence, (start, _) in enumerate(positions):
            if not any(first <= start < last for first, last in never_run):
                relative = path.relative_to(ROOT).as_posix()
                yield start, Mutant(room, relative, start[0], name, occurrence)


def _never_run(source: str) -> list[tuple[Position, Position]]:
    """Return the spans of annotations and of imports for type checkers: all files postpone annotations."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        found: list[ast.AST | None] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            found.append(node)
        spans += [
            ((one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset))
            for one in found
            if isinstance(one, ast.expr | ast.stmt) and one.end_lineno is not None and one.end_col_offset is not None
        ]
    return spans
