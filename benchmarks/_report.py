"""One report of all programs: what each printed, all figures, and the plots.

usage: python benchmarks/_report.py FOLDER

FOLDER has what the programs wrote with --json. `report.md`, `report.json` and `growth.svg` are written beside it.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from _common import Record

PACKAGES = ("torch", "diffusers", "transformers", "peft", "lycoris-lora", "safetensors", "numpy")
LABELS = {
    "LoRAs": "LoRAs of rank {rank}",
    "rank": "rank of one LoRA",
    "layers": "layers, rank {rank}",
    "tokens": "tokens of the largest layers, rank {rank}",
    "batch": "images at once, rank {rank}",
}
LINES = (("ours", "Remora", "-o"), ("peft", "PEFT", "-s"), ("floor", "least work", "--"))


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    if len(arguments) != 1:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    found = collected(folder)
    if not found:
        print(f"{folder} has no figures", file=sys.stderr)
        return 1
    made = {"machine": found[0]["machine"], "versions": versions(), "programs": found}
    (folder / "report.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(made), encoding="utf-8")
    growth = next((one for one in found if one["benchmark"] == "growth"), None)
    if growth is not None:
        draw(growth["rows"], folder / "growth.svg")
    print(f"{folder / 'report.md'}: {len(found)} programs")
    return 0


def collected(folder: Path) -> list[Record]:
    """Return each program's results by its name."""
    files = (file for file in sorted(folder.glob("*.json")) if file.name != "report.json")
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def versions() -> dict[str, str]:
    """Of what is compared, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def markdown(made: Record) -> str:
    """Format the report for people."""
    machine = ", ".join(f"{key} {value}" for key, value in made["machine"].items())
    packages = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    parts = [f"# Figures\n\n{machine}\n\n{packages}"]
    for one in made["programs"]:
        settings = ", ".join(f"{key} {value}" for key, value in one["settings"].items())
        warning = "\n\n**A tiny model: these figures say nothing.**" if one["settings"].get("tiny") else ""
        picture = "\n\n![how time grows](growth.svg)" if one["benchmark"] == "growth" else ""
        parts.append(f"## {one['benchmark']}\n\n{settings}{warning}\n\n{one['text']}{picture}")
    return "\n\n".join(parts) + "\n"


def draw(rows: Iterable[Record], file: Path) -> None:
    """Time of a step in units of the base's, one plot for each thing that grows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_what: dict[str, list[Record]] = {}
    for row in rows:
        by_what.setdefault(row["what"], []).append(row)
    figure, axes = pyplot.subplots(1, len(by_what), figsize=(3.4 * len(by_what), 3.2), layout="constrained")
    plots: Sequence[Any] = [axes] if len(by_what) == 1 else axes
    for plot, (what, own) in zip(plots, by_what.items(), strict=True):
        for key, label, style in LINES:
            plot.plot([row["value"] for row in own], [row[key] for row in own], style, label=label, markersize=4)
        plot.set_xlabel(LABELS[what].format(rank=own[0]["rank"]))
        plot.set_ylim(bottom=1.0)
        plot.grid(alpha=0.3)
    plots[0].set_ylabel("time of a step / without LoRA")
    plots[0].legend()
    # words as words, and the same file for the same figures
    with matplotlib.rc_context({"svg.hashsalt": "remora", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
