"""The time of everything that reads a text from outside grows with its length.

`tests/javascript/growth.test.js` holds the same for the twins in the browser.
"""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from fastapi import HTTPException
from torch import nn

from extension.addresses import host_name
from extension.api.answers import _parsed
from extension.generation.paste import with_own_names, with_own_regions
from extension.kept import block_presets, presets
from extension.library import CatalogFile, beside, read_notes
from extension.library.catalog import Catalog
from extension.library.facts import _frequencies
from extension.text import block_weights, grammar, infotext, prompt_edit, regions, spelling
from extension.text.known import ANY, Known
from extension.text.prompt import parse, parse_arguments
from lib_lora import Region, inspect_file, load_network
from lib_lora.inspection.distilled import distilled
from tests.fakes.files import pair, save

SIZES = [1 << power for power in range(8, 21, 2)]
"""Characters; four times as many each time."""
MOST = 64.0
"""Times as long for 16 times as many characters: in proportion it is 16, with the square 256."""
FLOOR = 0.00012
"""Seconds, below which a time says nothing."""
ENOUGH = 0.01
"""Seconds that tell."""
REFUSALS = ValueError, LookupError, HTTPException
FACE = {"face": Region.rectangle(0.2, 0.2, 0.6, 0.6)}
KNOWN = Known(block_weights.BUILT_IN, FACE)
Read = Callable[[str], object]


def seconds(read: Read, text: str) -> float:
    """Return the seconds that this thread computes: the load of the machine makes no difference."""
    begun = time.thread_time()
    with suppress(*REFUSALS):
        read(text)
    return time.thread_time() - begun


def growth(read: Read, before: str, run: str, after: str) -> float:
    """Return how many times as long a text of 16 times as many characters takes at most.

    What a text without the run takes is subtracted, such as the time to write a file.
    """
    idle = min([seconds(read, before + after) for _ in range(3)])
    times: list[float] = []
    most = 0.0
    for size in SIZES:
        text = before + run * (size // len(run)) + after
        limit = MOST * max(FLOOR, idle / 4, times[-2] if len(times) > 1 else ENOUGH)
        taken = seconds(read, text) - idle
        for _ in range(3):  # other threads of the process may have asked for the lock of the interpreter
            taken = min(taken, seconds(read, text) - idle) if taken > limit else taken
        most = max(most, MOST * taken / limit)
        times.append(taken)
        if taken > ENOUGH:
            break
    return most


@pytest.fixture(autouse=True)
def nothing_is_collected() -> Iterator[None]:
    """Leave the objects of the other tests alone: the collector would look at them in the times of this one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("loras")
    (folder / "a.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return Catalog(lambda: [folder])


PROMPTS: dict[str, Read] = {
    "a prompt": lambda text: parse(text, KNOWN, on=True),
    "its brackets": lambda text: grammar.read.__wrapped__(text, on=True, parts=True),
    "a negative prompt": lambda text: grammar.read.__wrapped__(text, on=True, negative=True),
    "tags in other spellings": spelling.plain,
    "names": prompt_edit.names_in,
    "a strength that is set": lambda text: prompt_edit.with_strength(text, "a", 0.5, 0.25),
    "a tag that is taken out": lambda text: prompt_edit.without(text, "a"),
    "a name that is replaced": lambda text: prompt_edit.renamed(text, "a", "b"),
    "a preset": presets.read_text,
    "a parameters text": lambda text: infotext.format_infotext(infotext.parse_infotext(text)),
    "regions that are pasted": lambda text: with_own_regions(text, FACE, {}),
}
IN_PROMPTS = [
    ("a <lora:a:", " ", "-1>"),
    ("a <lora:a:1", " ", "x> b"),
    ("a <lora:a:1:step=-", " ", ">"),
    ("", "<lora:a:1> ", ""),
    ("", "<lora:a", ""),
    ("<lora:a", ":mask=face", ">"),
    ("", "\uff1clora\uff1aa", ""),
    ("<lora:a", "\\:", ":1>"),
    ("", "([", ""),
    ("[<lora:a:1>", ":", ":0.5]"),
    ("", "a ", "AND b"),
    ("a\nSteps: 1, ", "- ", "b!"),
    ("a\nSteps: 1, ", 'ab: "\\", ', ""),
    ("a\nSteps: 1, ab: ", '"', ""),
    ("# Remora preset 1:", " ", "a\n<lora:a:1>"),
    ("", "# Remora preset 1: a\n<lora:a:1>\n", ""),
]
TEXTS: dict[str, Read] = {
    "the text of a tag": lambda text: parse_arguments(f"x:{text}", names=KNOWN),
    "any names in it": lambda text: parse_arguments(f"x:{text}", names=ANY),
    "a field that is set": lambda text: [prompt_edit.set_field(f"x:{text}", key, "7") for key in ("te", "stop", "lbw")],
    "multipliers that are set": lambda text: prompt_edit.set_multipliers(f"x:{text}", 0.25, 0.5),
    "a schedule that is scaled": lambda text: prompt_edit.with_strength(f"<lora:x:{text}>", "x", 0.25, 0.5),
    "a list of block weights": block_weights.read_list,
    "a file of block weights": lambda text: block_presets._with(text, "a", "a:1,0\n"),
    "a file of rules": block_weights.read_rules,
    "a name of block weights": block_weights.checked_name,
    "a region": lambda text: regions.read_mask(text, 0.1, FACE),
    "a parameter of regions": regions.read_parameter,
    "a name of a region": regions.checked_name,
    "hashes": infotext.parse_hashes,
    "a Host header": host_name,
    "a name of a distilled file": distilled,
    "words of captions": _frequencies,
    "the body of a request": lambda text: _parsed(text.encode(), "it"),
}
IN_TEXTS = [
    ("", " ", "-"),
    ("-", " ", "x"),
    ("1e", "1", "-"),
    ("", "1", "-x"),
    ("0@0", ",1@1", ""),
    ("1", ":", ""),
    ("1:mask=", "!", "left"),
    ("", "left+", "left"),
    ("1,", "0,", "X+"),
    ("X+", "1", "!"),
    ("0,0,0,1", " ", "x"),
    ("a:", "b:c:1,", ""),
    ("", "a:b:c:1\n\n", ""),
    ("lightning ", "8 ", "steps"),
    ("", "flash_", "x"),
    ("", "2x1-eJz7zwAAAgABAA,", ""),
    ("{", '"a": {"b": 1}, ', "}"),
    ("", "[", "]"),
    ('{"a": {"b": ', "1", "}}"),
]


@pytest.mark.parametrize("what", [*PROMPTS, *TEXTS])
@pytest.mark.quick
def test_the_time_grows_with_the_text(what: str) -> None:
    read, shapes = (PROMPTS[what], IN_PROMPTS) if what in PROMPTS else (TEXTS[what], IN_TEXTS)
    for shape in shapes:
        assert growth(read, *shape) < MOST, shape


@pytest.mark.parametrize(
    "shape", [("", "<lora:a:1> ", ""), ("<lora:a", "\u0315\u0300", ":1>"), ("", "<lora:0123456789ab>", "")]
)
@pytest.mark.quick
def test_the_time_of_names_grows_with_the_text(catalog: Catalog, shape: tuple[str, str, str]) -> None:
    def pasted(text: str) -> str:
        hashes = ", ".join(f"{name}: 0123456789ab" for name in prompt_edit.names_in(text))
        return with_own_names({"Prompt": text, "Remora stack": text, "Lora hashes": hashes}, catalog)

    def found(text: str) -> object:
        return catalog.find(text)

    assert growth(pasted, *shape) < MOST
    assert growth(found, *shape) < MOST


@pytest.mark.parametrize("end", [".json", ".civitai.info", ".txt"])
@pytest.mark.parametrize(
    "shape", [("", "<a", ">"), ("", "<!--", ""), ("", "&#", ";"), ("", "<![", ""), ("", "\\n ", "x")]
)
@pytest.mark.quick
def test_the_time_of_a_sidecar_grows_with_the_text(tmp_path: Path, end: str, shape: tuple[str, str, str]) -> None:
    file = CatalogFile(tmp_path / "a.safetensors", "a", 1, 1)
    path = tmp_path / f"a{end}"

    def read(text: str) -> object:
        path.write_text(text if end == ".txt" else json.dumps({"description": text, "tags": text.split("<")}))
        return read_notes(beside(file).notes)

    assert growth(read, *shape) < MOST


IN_KEYS = (
    ".",
    "_",
    "0.",
    "a.",
    "a_0_",
    "to_q.",
    "lora_unet_",
    "blocks.0.",
    "experts.0.",
    ".base_layer",
    "oft_R.",
    "-",
    "A",
)


@pytest.mark.parametrize("start", ["", "lora_unet_", "diffusion_model.", "base_model.model.", "text_encoder."])
@pytest.mark.quick
def test_the_time_of_a_key_grows_with_the_text(tmp_path: Path, start: str) -> None:
    path, model = tmp_path / "a.safetensors", {"unet": nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(4, 4)])})}
    other = pair("lora_unet_blocks_0", (4, 4), 2)

    def read(text: str) -> object:
        save(path, {text: torch.zeros(4, 4), **other})
        return inspect_file(path), load_network(path, model).report.summary()

    for run in IN_KEYS:
        for end in ("", ".lora_up.weight"):
            assert growth(read, start, run, end) < MOST, (run, end)


@pytest.mark.parametrize("key", ["ss_base_model_version", "ss_network_args", "modelspec.architecture", "anything"])
@pytest.mark.quick
def test_the_time_of_metadata_grows_with_the_text(tmp_path: Path, key: str) -> None:
    path, tensors = tmp_path / "a.safetensors", pair("lora_unet_blocks_0", (4, 4), 2)
    for shape in [*IN_TEXTS, ("", "sdxl_", ""), ("", "a=1,", ""), ("", "conv_dim=", "")]:
        assert growth(lambda text: inspect_file(save(path, tensors, {key: text})), *shape) < MOST, shape


def test_a_pattern_that_grows_with_the_square_is_seen() -> None:
    # other programs may make the time of a short text long, so that the long one's looks in proportion
    assert any(growth(re.compile(r"\s*-").search, "", " ", "x") > MOST for _ in range(10))
