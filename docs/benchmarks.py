"""Draw docs/benchmarks.svg, the chart of BENCHMARKS.md, from the tables in benchmarks/results.

usage: python docs/benchmarks.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "benchmarks.svg"
RESULTS = ROOT / "benchmarks" / "results"
COLOURS = {"Remora": "#0f766e", "PEFT": "#d97706", "baked weights": "#64748b"}
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BAR, GAP, GROUP_GAP = 16, 3, 14
PANEL, LABEL = 380, 112
"""The width of a panel, and the part of it that names the groups."""
LONGEST = PANEL - LABEL - 70
TOP = 72

Group = tuple[str, list[tuple[str, float, str]]]
"""The name of a group, and of each bar: what it shows, its share of the longest bar, its label."""


def rows(program: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a program; of equal headers the first one counts."""
    lines = (RESULTS / f"{program}.md").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    headers, _, *body = table
    return [dict(reversed(list(zip(headers, cells, strict=True)))) for cells in body]


def seconds(text: str) -> float:
    """Return a duration such as `3.09 ms` in seconds."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


def steps() -> list[Group]:
    """Return the time that LoRA add to a step, in percent."""
    groups = []
    most = max(float(row["PEFT/base"]) for row in rows("step_overhead")) - 1
    for row in rows("step_overhead"):
        extra = {"Remora": float(row["ours/base"]) - 1, "PEFT": float(row["PEFT/base"]) - 1}
        bars = [(name, value / most, f"+{100 * value:.0f} %") for name, value in extra.items()]
        groups.append((f"{row['LoRAs']} LoRA", bars))
    return groups


def changes() -> list[Group]:
    """Return the time of each change on a scale of powers of ten, from a microsecond on."""
    names = {"strength": "another strength", "switch": "back to a file", "first use": "first use of a file"}
    table = {row["operation"]: row for row in rows("switch") if row["layers"] == "182"}
    most = max(seconds(table[name][way]) for name in names for way in ("ours", "PEFT", "bake"))
    groups = []
    for name, title in names.items():
        ways = {"Remora": "ours", "PEFT": "PEFT", "baked weights": "bake"}
        times = {label: table[name][way] for label, way in ways.items()}
        share = {label: math.log(seconds(text) / 1e-6) / math.log(most / 1e-6) for label, text in times.items()}
        groups.append((title, [(label, share[label], text.replace("us", "µs")) for label, text in times.items()]))
    return groups


def panel(title: str, note: str, groups: Sequence[Group], left: int) -> Iterator[str]:
    """Draw one panel."""
    yield f'<text x="{left}" y="24" class="title">{title}</text>'
    yield f'<text x="{left}" y="42" class="note">{note}</text>'
    y = TOP
    for name, bars in groups:
        middle = y + (len(bars) * (BAR + GAP) - GAP) / 2 + 4
        yield f'<text x="{left + LABEL - 8}" y="{middle:g}" class="group">{name}</text>'
        for what, share, label in bars:
            width = max(share * LONGEST, 1)
            x = left + LABEL
            yield f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{COLOURS[what]}"/>'
            yield f'<text x="{x + width + 6:.1f}" y="{y + 12}">{label}</text>'
            y += BAR + GAP
        y += GROUP_GAP


def picture() -> str:
    """Return the chart as SVG."""
    panels = (
        ("The time that LoRA add to a step", "of the step's time without LoRA; shorter is better", steps()),
        ("The time of a change", "on a scale of powers of ten; shorter is better", changes()),
    )
    deepest = max(sum(len(bars) * (BAR + GAP) + GROUP_GAP for _, bars in groups) for *_, groups in panels)
    width, height = 2 * PANEL + 40, TOP + deepest + 40
    style = (
        "text{font:12px sans-serif;fill:#1c2733} .title{font-weight:bold;font-size:15px} "
        ".note{fill:#52616f} .group{text-anchor:end}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{style}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, (title, note, groups) in enumerate(panels):
        lines += panel(title, note, groups, 10 + number * (PANEL + 20))
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = 10 + LABEL + number * 110
        lines.append(f'<rect x="{x}" y="{height - 26}" width="12" height="12" rx="2" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="{height - 16}">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
