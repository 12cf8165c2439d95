"""The tables of a report, in Markdown, as benchmarks/results has tables; it needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .journal import FAIL, PASS, SKIP, Row

WAYS = ("ours", "PEFT", "hotswap", "bake")
MEGABYTE, GIGABYTE = 2**20, 2**30


def markdown(report: Mapping[str, object]) -> str:
    """Return all tables of a report, with a line on the machine."""
    rows: list[Row] = list(report["rows"])  # type: ignore[call-overload]
    parts = [headline(report["machine"]), sections(rows)]  # type: ignore[arg-type]
    parts += [table for table in (steps(rows), changes(rows), offloads(rows)) if table]
    if report["small"]:
        parts.insert(1, "Small models: nothing was measured.")
    for result, title in ((FAIL, "failed"), (SKIP, "not tried")):
        found = [[row["section"], row["check"], row["figure"]] for row in rows if row["result"] == result]
        if found:
            parts.append(table((title, "check", "figure" if result == FAIL else "reason"), found))
    return "\n\n".join(parts)


def headline(machine: Mapping[str, object] | None) -> str:
    """Return a line on the machine."""
    if machine is None:
        return "No process got as far as its device."
    packages: Mapping[str, str | None] = machine["packages"]  # type: ignore[assignment]
    memory, found = machine.get("memory"), [str(machine["name"])]
    found += [f"{memory / GIGABYTE:.1f} GB"] if isinstance(memory, int) else []
    found += [f"{name} {machine[name]}" for name in ("driver", "cuda", "hip", "torch") if machine.get(name)]
    found += [f"{name} {packages[name]}" for name in ("diffusers", "peft") if packages.get(name)]
    return ", ".join([*found, f"Python {machine['python']}", str(machine["system"])])


def sections(rows: Sequence[Row]) -> str:
    """Return how many checks of each section passed."""
    counts = {name: Counter(row["result"] for row in rows if row["section"] == name) for name in _names(rows)}
    lines = [[name, *(str(count[result]) for result in (PASS, FAIL, SKIP))] for name, count in counts.items()]
    return table(("checks", "passed", "failed", "not tried"), lines)


def steps(rows: Sequence[Row]) -> str:
    """Return the times of a step."""
    lines = [
        [
            values["model"],
            str(values["loras"]),
            str(values["rank"]),
            _duration(values["base_s"]),
            f"{values['ours']:.3f}",
            "-" if values["peft"] is None else f"{values['peft']:.3f}",
            f"<= {values['goal']} {'met' if values['ours'] <= values['goal'] else 'missed'}",
        ]
        for values in _values(rows, "step")
    ]
    return (
        table(("a step", "LoRAs", "rank", "base", "ours/base", "PEFT/base", "goal of ours/base"), lines)
        if lines
        else ""
    )


def changes(rows: Sequence[Row]) -> str:
    """Return the times of changes."""
    lines = []
    for values in _values(rows, "change"):
        seconds = values["median_s"]
        cells = [_duration(seconds[way]) if way in seconds else "-" for way in WAYS]
        ratios = [f"{seconds[way] / seconds['ours']:.3g}" if way in seconds else "-" for way in WAYS[1:]]
        lines.append([f"{values['model']}: {values['what']}", *cells, *ratios])
    return table(("a change", *WAYS, *(f"{way}/ours" for way in WAYS[1:])), lines) if lines else ""


def offloads(rows: Sequence[Row]) -> str:
    """Return times and memory under each way of offloading."""
    lines = []
    for row in rows:
        values = row.get("values", {})
        if "base_peak" in values:
            times = [_duration(values["base_s"]), f"{values['ours_s'] / values['base_s']:.3f}"]
            peaks = (values["base_peak"], values["ours_peak"])
            times += ["-" if peak is None else f"{peak / MEGABYTE:.0f} MB" for peak in peaks]
            lines.append([row["check"], *times])
    return table(("offloading", "base", "ours/base", "peak: base", "peak: ours"), lines) if lines else ""


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is left-aligned, and the others right, unless they are text."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (headers, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(headers))]
    of_text = {"check", "figure", "reason"}
    rules = [
        "-" * width if i == 0 or name in of_text else "-" * (width - 1) + ":"
        for i, (name, width) in enumerate(zip(headers, widths, strict=True))
    ]
    lines = [
        [f"{c:{'<' if rule[-1] == '-' else '>'}{w}}" for c, w, rule in zip(row, widths, rules, strict=True)]
        for row in cells
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rules, *lines[1:]))


def _values(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row["values"] for row in rows if row.get("values", {}).get("table") == kind]


def _names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["section"] for row in rows))


def _duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 100 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e6:.3g} us"
