"""Parameters texts, presets, and what is kept in files."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from hypothesis import strategies as st

from extension.generation.paste import with_own_names, with_own_regions
from extension.kept import always_on
from extension.kept.always_on import AlwaysOnFile, StackRefusedError
from extension.kept.block_presets import BlockPresetsFile
from extension.kept.presets import PresetError, PresetsFile, read_text
from extension.kept.region_files import RegionFiles
from extension.library import Index
from extension.library.catalog import Catalog
from extension.text.block_weights import BlockWeightsError
from extension.text.infotext import format_hashes, format_infotext, parse_hashes, parse_infotext
from extension.text.known import ANY
from extension.text.prompt import PromptError, parse
from extension.text.regions import RegionTextError, read_parameter

from ..changes import changed_json
from ..target import as_json, demand, folder, json_values, target, text_of, texts

LINES = (
    *("a fox <lora:fur:0.8>", "<lora:fur:1:mask=face>", "Negative prompt: blurry", "Steps: 20, Sampler: Euler a", "\n"),
    *(", ", ": ", '"', "\\", "Lora hashes: ", '"fur: 0123456789ab, b: 1"', "Remora stack: <lora:fur:1>", "Seed: 1"),
    *("Remora regions: face: 2x1-eJz7zwAAAgABAA", "LoRA networks: fur", "LoRA hashes: 0123456789ab", "Size: 8x8"),
)


@target(texts((*LINES, *LINES)))
def infotexts(data: bytes) -> object:
    """Paste a parameters text."""
    info = parse_infotext(text_of(data))
    written = format_infotext(info)
    settled = parse_infotext(written)
    if len(info.settings) > 2 and "Negative prompt:" not in info.prompt + info.negative_prompt:
        demand(settled.settings == info.settings, "settings are read back otherwise")
        demand(settled.prompt == info.prompt, "the prompt is read back otherwise")
    given = {**info.settings, "Prompt": info.prompt}
    pairs = parse_hashes(given.get("Lora hashes", ""))
    demand(
        parse_hashes(format_hashes(pairs)) == parse_hashes(format_hashes(parse_hashes(format_hashes(pairs)))),
        "hashes are read back otherwise",
    )
    prompt = with_own_names(given, _catalog())
    regions = read_parameter(given.get("Remora regions", ""))
    prompt, kept = with_own_regions(prompt, regions, {})
    return [prompt, sorted(kept), dict(info.settings), info.negative_prompt]


def _catalog() -> Catalog:
    where = folder("catalog")
    if not (where / "fur.safetensors").exists():
        (where / "fur.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (where / "other.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    if where not in _CATALOGS:
        _CATALOGS[where] = Catalog(lambda: [where])
    return _CATALOGS[where]


_CATALOGS: dict[Path, Catalog] = {}
PRESET_LINES = (
    "# Remora preset 1: sunset",
    "# remora preset 2: x",
    "\n",
    "\n",
    "<lora:light:0.8>",
    " golden hour",
    "#",
    "<lyco:a:1:lbw=MINE>",
)


@target(texts(PRESET_LINES), refusals=(PresetError,))
def presets(data: bytes) -> object:
    """Presets as text."""
    found = read_text(text_of(data))
    for preset in found:
        (again,) = read_text(preset.to_text())
        demand((again.name, again.text) == (preset.name, preset.text), "a preset is read back otherwise")
        parse(preset.text, ANY)
    return [[preset.name, preset.text] for preset in found]


FIELDS = (
    "version",
    "presets",
    "name",
    "text",
    "thumbnail",
    "always_on",
    "entries",
    "on",
    "unet",
    "text_encoder",
    "more",
)
LEAVES = st.sampled_from([1, "x", "<lora:a:1>", "UklGRg==", 0.5, "lbw=OUTALL:stop=10"])
KEPT = json_values(FIELDS, LEAVES).map(as_json)


@target(KEPT | st.binary(max_size=40), changed_json)
def preset_files(data: bytes) -> object:
    """Read and change the file of presets."""
    where = _file("presets.json", data)
    kept = PresetsFile(lambda: where)
    before, problem = kept.all, kept.problem
    kept.put("mine", "<lora:a:1>")
    demand({one.name for one in kept.all} >= {one.name for one in before} | {"mine"}, "a preset is gone")
    others = problem.startswith("some of ")  # are no presets, and stay in the file
    demand(kept.problem.startswith("some of ") if others else not kept.problem, "it cannot be read after a change")
    if others:
        was, now = (json.loads(content)["presets"] for content in (data, (where / "presets.json").read_bytes()))
        demand(len(now) >= len(was), "what is no preset is gone")
    _check_aside(where, "presets.json", data, "" if others else problem)
    return [problem, [[one.name, one.text] for one in before]]


@target(KEPT | st.binary(max_size=40), changed_json, (StackRefusedError, PromptError))
def stack_files(data: bytes) -> object:
    """Read and change the file of the stack that is always on."""
    where = _file("stack.json", data)
    kept = AlwaysOnFile(lambda: where)
    stack, problem = kept.stack, kept.problem
    demand(
        always_on.read(stack.to_json() | {"entries": [dict(vars(one)) for one in stack.entries]}) == stack,
        "the stack is read back otherwise",
    )
    kept.put(stack)
    demand(kept.stack == stack and not kept.problem, "the stack is another one after it was kept")
    _check_aside(where, "stack.json", data, problem)
    tags = [parse(f"<lora:{entry.written}>", ANY).tags for entry in stack.entries]
    return [problem, stack.to_json() | {"entries": [vars(one) for one in stack.entries]}, len(tags)]


@target(
    texts(("A:1,0", "NAME:", "1,0,R,X", "\n", "\r", "#", "\ufeff", ",", ":", "\x85", "\x0b")),
    refusals=(BlockWeightsError,),
)
def block_files(data: bytes) -> object:
    """Read and change the file of the user's own presets of block weights."""
    where = _file("block_presets.txt", data)
    kept = BlockPresetsFile(lambda: where, list)
    before = kept.own
    kept.put("mine", "1,0,0.5")
    demand(kept.own == before | {"mine"}, "a preset is gone")
    kept.delete("mine")
    demand(kept.own == before - {"mine"}, "a preset is gone, or one stays")
    return [sorted(before), sorted(kept.all.lists)]


@target(st.binary(max_size=60) | st.just(b"SQLite format 3\x00"), lambda data, random: _changed_database(data, random))
def databases(data: bytes) -> object:
    """Read and change the index file of the collection."""
    where = _file("catalog.sqlite3", data)
    for path in where.glob("catalog.sqlite3-*"):
        path.unlink()
    index = Index(where)
    index.save()
    return [len(index), index.problem]


def _changed_database(data: bytes, random: Random) -> bytes:
    from ..changes import changed_bytes

    return changed_bytes(data, random)


@target(
    st.text(max_size=70).map(lambda name: name.encode("utf-8", "surrogatepass")),
    refusals=(RegionTextError, BlockWeightsError, PresetError),
)
def names(data: bytes) -> object:
    """Names that users give: of regions, of presets."""
    name, where = text_of(data), folder("names")
    from extension.kept.presets import _checked_name as preset_name
    from extension.text.block_weights import checked_name as block_name

    preset_name(name)
    block_name(name)
    files = RegionFiles(lambda: where)
    from lib_lora import Region

    files.keep(name, Region(1, 1, b"\xff"))
    demand(name.strip() in files.all, "a region that was kept is not there")
    files.delete(name.strip())
    demand(not files.all, "a region that was deleted is still there")
    return name.strip()


def _file(name: str, data: bytes) -> Path:
    where = folder(name)
    for other in where.glob("*.damaged-*"):
        other.unlink()
    (where / name).write_bytes(data)
    return where


def _check_aside(where: Path, name: str, data: bytes, problem: str) -> None:
    """Check that a damaged file is kept under another name."""
    aside = [path.read_bytes() for path in where.glob(f"{name}.damaged-*")]
    demand(aside == ([data] if problem else []), "a damaged file was not kept as it was")
