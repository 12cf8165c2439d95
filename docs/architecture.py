"""Draw docs/architecture.svg, the rooms of both packages, from the import contracts in pyproject.toml.

usage: python docs/architecture.py
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"

CAPTIONS = {
    "extension.serve": "its API for many users",
    "extension.standalone": "the embedded web UI",
    "extension.comfy": "nodes for ComfyUI",
    "extension.guest": "Remora as a web UI calls it",
    "extension.api": "HTTP routes",
    "extension.tab": "the tab's element",
    "extension.generation": "batches, settings, outcomes",
    "extension.hosts": "one file per web UI",
    "extension.kept": "presets, always-on stack, regions",
    "extension.library": "the user's LoRA files",
    "extension.outputs": "the pictures in the output folders",
    "extension.text": "prompts and tags",
    "extension.addresses": "host names",
    "extension.store": "locked files",
    "lib_lora.__main__": "command line",
    "lib_lora.inspection": "files and models on disk",
    "lib_lora.pipelines": "LoRA of a pipeline, by name",
    "lib_lora.saving": "stacks and files as new files",
    "lib_lora.engine": "activates a stack",
    "lib_lora.plan": "layer -> executor",
    "lib_lora.execution": "hooks and executors",
    "lib_lora.stack": "the user's wishes",
    "lib_lora.plugins": "plug-ins of other packages",
    "lib_lora.placement": "devices, budget, offload schemes",
    "lib_lora.strengths": "factors, strength table, regions",
    "lib_lora.naming": "keys -> layers, architectures",
    "lib_lora.adapters": "one file per algorithm",
    "lib_lora.weights": "base weights, quantizations",
    "lib_lora.files": "safetensors files, key formats",
    "lib_lora.report": "what became of each key",
}
"""A name without a caption is drawn alone."""

WIDTH, HEIGHT, GAP = 440, 30, 6


def layers(package: str) -> list[list[str]]:
    """Return the layers of a package from the top; the modules of one layer are side by side."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'containers = \["{package}"\].*?\nlayers = (\[.*?\n\])', text, re.DOTALL)
    if found is None:
        raise SystemExit(f"pyproject.toml has no contract of layers for {package}")
    return [re.split(r"\s*[:|]\s*", layer) for layer in ast.literal_eval(found[1])]


def column(package: str, title: str, left: int) -> list[str]:
    """Draw one package: a title, and a row for each layer."""
    found = [f'<text x="{left}" y="24" class="title">{escape(title)}</text>']
    for row, names in enumerate(layers(package)):
        width = (WIDTH - GAP * (len(names) - 1)) / len(names)
        for i, name in enumerate(names):
            x, y = left + i * (width + GAP), 40 + row * (HEIGHT + GAP)
            caption = CAPTIONS.get(f"{package}.{name}", "") if len(names) < 3 else ""
            text = f'{escape(name)}<tspan class="caption" dx="10">{escape(caption)}</tspan>'
            found.append(f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{HEIGHT}" rx="4"/>')
            found.append(f'<text x="{x + 10:g}" y="{y + 20}">{text}</text>')
    return found


def picture() -> str:
    """Return the picture as SVG."""
    rows = max(len(layers("extension")), len(layers("lib_lora")))
    width, height = 2 * WIDTH + 80, 40 + rows * (HEIGHT + GAP) + 30
    style = (
        "rect{fill:#eef3f8;stroke:#6b8299} text{font:13px sans-serif;fill:#1c2733} "
        ".title{font-weight:bold;font-size:15px} .caption{font-size:12px;fill:#52616f} path{stroke:#6b8299;fill:none}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{style}</style>",
        f'<rect x="0" y="0" width="{width}" height="{height}" style="fill:#fff;stroke:none"/>',
        *column("extension", "extension: glue to web UIs", 10),
        *column("lib_lora", "lib_lora: the library", WIDTH + 70),
        f'<path d="M{WIDTH + 16} 55 h46 m-8 -5 l8 5 l-8 5"/>',
        f'<text x="10" y="{height - 10}" class="caption">Imports run downwards. The extension imports public names of '
        "lib_lora, its inspection and its saving alone; lib_lora imports nothing of the extension.</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
