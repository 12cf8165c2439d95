"""The routes that take a picture or a preset apart."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from extension.outputs import Outputs
from tests.extension.api.test_outputs import Web
from tests.extension.outputs.pictures import png, saved, text_with, with_comment


@pytest.fixture
def web(tmp_path: Path, lora_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    from extension.hosts.standalone import STANDALONE

    monkeypatch.setattr(Outputs, "start", lambda outputs: None)
    yield Web(tmp_path, lora_file)
    STANDALONE.close()


def of_picture(web: Web, content: bytes, status: int = 200) -> Any:
    return web.ask("POST", "/recipe/picture", status, content=content)


def found(told: Any) -> list[tuple[str, str, str]]:
    return [(one["name"], one["strength"], one["by"]) for one in told["loras"]]


def test_a_picture_tells_its_lora_and_which_of_them_are_here(web: Web) -> None:
    zorp = web.session.catalog.find("zorp")
    digest = web.session.catalog.hashes.short(zorp)
    (web.loras / "neon.safetensors").write_bytes(b"another file of this name")
    web.session.catalog.refresh()
    tags = "<lora:formerly:0.5:stop=10> <lora:zorp:1> <lora:neon:1> <lora:gone:1>"
    text = text_with(tags, f"formerly: {digest}, neon: ffffffffffff") + ", Model: shapes, Model hash: 0123456789"
    saved(web.outputs / "day" / "1.png", png(text))
    web.scan()
    told = of_picture(web, png(text))
    assert found(told) == [
        ("formerly", "0.5:stop=10", "hash"),
        ("zorp", "1", "name"),
        ("neon", "1", "other"),
        ("gone", "1", ""),
    ]
    assert [one["id"] for one in told["loras"]] == [web.ids["zorp"], web.ids["zorp"], web.ids["neon"], None]
    assert (told["file"], told["model"], told["negative"]) == ("day/1.png", "shapes [0123456789]", "grey")
    assert told["tags"] == "<lora:zorp:0.5:stop=10> <lora:zorp:1> <lora:neon:1> <lora:gone:1>"
    assert told["own"].startswith(f"a fox {told['tags']}\nNegative prompt: grey\nSteps: 20")
    assert (told["text"], told["prompt"], told["settings"]["Seed"]) == (text, f"a fox {tags}", "7")
    assert told["searching"] is False
    assert of_picture(web, png(text + ", Clip skip: 2"))["file"] == "", "it is another picture"
    jpeg = of_picture(web, with_comment("JPEG", text))
    assert (jpeg["loras"], jpeg["file"]) == (told["loras"], "")
    assert web.ask("POST", "/recipe", json={"text": text})["loras"] == told["loras"]


def test_what_was_always_on_is_in_the_prompt(web: Web) -> None:
    told = of_picture(web, png(text_with("<lora:neon:1>") + ', Remora stack: "<lora:zorp:0.5>"'))
    assert told["tags"] == "<lora:zorp:0.5> <lora:neon:1>"
    assert "Remora stack" not in told["own"], "the page would add it again"


def test_a_preset_as_a_file_is_found_by_tensors_elsewhere(web: Web) -> None:
    parameters = text_with("<lora:zorp:0.5>")
    web.ask("PUT", "/preset", params={"name": "Mine"}, json={"text": "<lora:zorp:0.5>", "parameters": parameters})
    (listed,) = web.ask("GET", "/presets")["presets"]
    assert listed["parameters"] == parameters
    assert "sketches" not in web.ask("GET", "/preset/file", params={"name": "Mine"})
    answer = web.ask.client.get("/remora/v1/preset/file", params={"name": "Mine", "sketches": "all"})
    assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''Mine.remora.json"
    file = answer.json()
    assert len(base64.b64decode(file["sketches"]["zorp"])) > 1000
    tensors = load_file(web.loras / "zorp.safetensors")
    save_file({key: one.half() for key, one in tensors.items()}, web.loras / "halved.safetensors")
    (web.loras / "again.safetensors").write_bytes((web.loras / "zorp.safetensors").read_bytes())
    catalog = web.session.catalog
    catalog.refresh()
    for name in ("again", "halved", "zorp"):
        catalog.copies.sketch_of(catalog.find(name))
    told = web.ask("POST", "/recipe", json={"text": json.dumps(file)})
    assert found(told) == [("zorp", "0.5", "name")], "of several with the same tensors, the one of this name"
    assert told["own"].startswith("a fox <lora:zorp:0.5>\n")
    for name in ("again", "zorp", "neon"):
        (web.loras / f"{name}.safetensors").unlink()
    catalog.refresh()
    told = web.ask("POST", "/recipe", json={"text": json.dumps(file)})
    assert (told["name"], found(told)) == ("Mine", [("zorp", "0.5", "tensors")])
    assert told["own"].startswith("a fox <lora:halved:0.5>\n")
    without = web.ask("GET", "/preset/recipe", params={"name": "Mine"})
    assert found(without) == [("zorp", "0.5", "")], "it was not found without a sketch"
    for name in ("Mine", "Mine 2"):
        web.ask("POST", "/presets", json={"text": json.dumps(file)})
        told = web.ask("GET", "/preset/recipe", params={"name": f"{name}"})
    assert found(told) == [("zorp", "0.5", "tensors")], "an import keeps its sketches"
    web.ask("PUT", "/preset", params={"name": "Plain"}, json={"text": "<lora:halved:0.5> a fox"})
    plain = web.ask("GET", "/preset/recipe", params={"name": "Plain"})
    assert (found(plain), plain["settings"]) == ([("halved", "0.5", "name")], {})


def test_what_is_no_recipe_is_one_sentence(web: Web) -> None:
    cases: list[tuple[str, str, dict[str, Any], int, str]] = [
        ("POST", "/recipe/picture", {"content": b"no picture"}, 422, "it is no PNG, JPEG or WebP"),
        ("POST", "/recipe/picture", {"content": png()[:20]}, 422, "it is truncated"),
        ("POST", "/recipe/picture", {"content": png()}, 422, "the picture has no parameters text"),
        ("POST", "/recipe", {"json": {"text": "{}"}}, 422, "the file is no preset: it lacks 'remora_preset'"),
        ("POST", "/recipe", {"json": {"text": "# Remora preset 9: x"}}, 422, "of version 9"),
        ("GET", "/preset/recipe", {"params": {"name": "none"}}, 404, "there is no preset 'none'"),
        ("GET", "/preset/file", {"params": {"name": "none"}}, 404, "there is no preset 'none'"),
    ]
    for method, path, asked, status, told in cases:
        assert told in web.ask(method, path, status, **asked), (path, asked)
    web.ask("PUT", "/preset", params={"name": "Mine"}, json={"text": "<lora:zorp>"})
    assert "sketches must be 'all'" in web.ask("GET", "/preset/file", 422, params={"name": "Mine", "sketches": "some"})
