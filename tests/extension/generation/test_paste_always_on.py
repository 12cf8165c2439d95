"""A parameters text read again, with LoRA that were always on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from extension.generation.paste import with_own_names
from extension.library.catalog import Catalog
from extension.standalone.demo import Demo
from extension.text.infotext import Infotext, format_infotext, parse_infotext


@pytest.fixture
def catalog(demo: Demo, tmp_path: Path) -> Catalog:
    shutil.copy(demo.loras / "zorp.safetensors", tmp_path / "mine.safetensors")
    shutil.copy(demo.loras / "stripes.safetensors", tmp_path)
    return Catalog(lambda: [tmp_path])


def pasted(catalog: Catalog, prompt: str, **parameters: str) -> str:
    text = format_infotext(Infotext(prompt, "", {"Steps": "1", "Seed": "1", "Sampler": "x", **parameters}))
    read = parse_infotext(text)
    return with_own_names({"Prompt": read.prompt, **read.settings}, catalog)


def test_always_on_loras_of_a_picture_come_in_front_of_its_prompt(catalog: Catalog) -> None:
    stack = {"Remora stack": "<lora:a:0.8> <lora:b:0.5:1>"}
    assert pasted(catalog, "a fox <lora:c:1>", **stack) == "<lora:a:0.8> <lora:b:0.5:1> a fox <lora:c:1>"
    assert pasted(catalog, "a fox") == "a fox"


def test_they_are_found_by_their_hashes_too(catalog: Catalog) -> None:
    digest = catalog.hashes.known(catalog.find("mine"))
    parameters = {"Remora stack": "<lora:theirs:0.8>", "Lora hashes": f"theirs: {digest}"}
    assert pasted(catalog, "a fox", **parameters) == "<lora:mine:0.8> a fox"


def test_one_that_the_prompt_names_was_not_what_counted(catalog: Catalog) -> None:
    stack = {"Remora stack": "<lora:stripes:0.8> <lora:gone:1>"}
    for own in ("<lora:stripes:0.1>", "<lora:stripes.safetensors:0>", "<lyco:stripes>"):
        assert pasted(catalog, f"a fox {own}", **stack) == f"<lora:gone:1> a fox {own}"
    assert pasted(catalog, "a <lora:gone:0> fox", **stack) == "<lora:stripes:0.8> a <lora:gone:0> fox"
