"""Every route of `/remora/v1`: what it answers is what the schema says, and what is wrong is one sentence."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.torch import load_file, save_file

from extension.api.library import _family
from extension.generation.options import GRAMMAR
from extension.hosts.txt2img import Txt2Img
from extension.kept.block_presets import BlockPresetsFile
from extension.kept.region_files import RegionFiles
from extension.standalone.jobs import Runner
from extension.standalone.pnginfo import encode_png
from extension.standalone.server import make_api
from lib_lora import BlockNames, BlockWeights, Family, Strength, inspect_file
from lib_lora.inspection.figures import figures_of
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.measures import measure
from lib_lora.inspection.skeleton import mapped_model
from lib_lora.inspection.stacked import measure_stack
from lib_lora.inspection.verdicts import verdicts
from lib_lora.naming.architectures._ldm_unet import UNET_BLOCKS
from tests.fakes.files import by_component, pair, save

V1 = "/remora/v1"
SMALL: dict[str, Any] = {"steps": 1, "width": 64, "height": 64, "seed": 7, "sampler": "Euler a"}


class Checked:
    """A client that holds each answer to the schema."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self._schema = client.get(f"{V1}/openapi.json").json()
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        told = self._schema["paths"][V1 + path][method.lower()]
        if "content" in more:
            (kind,) = told["requestBody"]["content"]
            more["headers"] = {"Content-Type": kind.replace("*", "png")}
        answer = self._client.request(method, V1 + path, **more)
        assert answer.status_code == status, answer.text
        self.seen.add((method, path))
        if status != 200:
            self._check(answer.json(), {"$ref": "#/components/schemas/Error"})
            assert "\n" not in answer.json()["detail"].strip()
            return answer.json()["detail"]
        (kind,) = told["responses"]["200"]["content"]
        assert answer.headers["content-type"].partition(";")[0] == kind
        if kind != "application/json":
            return answer.content
        self._check(answer.json(), told["responses"]["200"]["content"][kind]["schema"])
        return answer.json()

    def _check(self, data: Any, schema: Any) -> None:
        whole = {**schema, "components": self._schema["components"]}
        jsonschema.Draft202012Validator(whole).validate(data)

    @property
    def client(self) -> TestClient:
        return self._client

    def answers(self, method: str, path: str) -> set[str]:
        return set(self._schema["paths"][V1 + path][method.lower()]["responses"])

    @property
    def routes(self) -> set[tuple[str, str]]:
        return {
            (method.upper(), path.removeprefix(V1))
            for path, methods in self._schema["paths"].items()
            for method in methods
        }


@pytest.fixture(scope="module")
def ask(runner: Runner) -> Iterator[Checked]:
    with TestClient(make_api(runner), base_url="http://localhost") as client:
        runner.studio.session.catalog.wait(60)
        yield Checked(client)


@pytest.fixture
def copy(runner: Runner) -> Iterator[Path]:
    """Return a LoRA file that the test may do anything with."""
    folder = Path(runner.studio.host.adapter_dirs()[0])
    path = folder / "copied.safetensors"
    path.write_bytes((folder / "zorp.safetensors").read_bytes())
    runner.studio.session.catalog.refresh()
    yield path
    for other in folder.glob("copied.*"):
        other.unlink()
    runner.studio.session.catalog.refresh()


def png(side: int = 40) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(stream, "PNG")
    return stream.getvalue()


def test_the_list_and_what_changed_since(ask: Checked, copy: Path) -> None:
    whole = ask("GET", "/loras")
    assert whole["whole"]
    (one,) = [lora for lora in whole["loras"] if lora["name"] == "copied"]
    assert (one["kind"], one["rank"], one["words"], one["read"]) == ("loha", [2, 2], "zorp", True)
    assert whole["families"][one["family"]] == {
        "name": "sd1",
        "title": "Stable Diffusion 1.x",
        "fits": True,
        "usable": True,
        "reason": "",
    }
    ask("PATCH", "/lora", params={"id": one["id"]}, json={"rating": 3})
    since = ask("GET", "/loras", params={"since": whole["revision"]})
    assert not since["whole"]
    assert [(lora["name"], lora["rating"]) for lora in since["loras"]] == [("copied", 3)]
    copy.unlink()
    gone = ask("POST", "/refresh")
    assert gone["whole"]
    assert one["id"] in ask("GET", "/loras", params={"since": since["revision"]})["gone"]
    assert ask("GET", "/loras", params={"since": 10**9})["whole"]  # of a server that ran before


def test_all_about_one_file_and_its_notes(ask: Checked, copy: Path) -> None:
    told = ask("GET", "/lora", params={"name": "copied"})
    assert told["path"] == str(copy)
    assert told["training"]["trained with"] == "lycoris.kohya"
    assert told["training_tags"][0][0] == "zorp"
    assert told["distilled"] is None
    changed = ask("PATCH", "/lora", params={"id": told["id"]}, json={"notes": "n", "tags": ["a"], "strength": 0.5})
    assert (changed["notes"], changed["tags"], changed["strength"]) == ("n", ["a"], 0.5)
    assert json.loads(copy.with_suffix(".json").read_text())["preferred weight"] == 0.5
    assert changed["sidecars"] == ["copied.json"]


def test_where_a_scale_is_a_guess_it_is_said_and_the_users_alpha_counts(ask: Checked, copy: Path) -> None:
    assert not ask("GET", "/lora", params={"name": "copied"})["scale_is_guess"]
    layer = "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    save_file({f"{layer}.lora_A.weight": torch.ones(4, 16), f"{layer}.lora_B.weight": torch.ones(16, 4)}, copy)
    ask("POST", "/refresh")
    told = ask("GET", "/lora", params={"name": "copied"})
    assert (told["scale_is_guess"], told["alpha"]) == (True, None)
    changed = ask("PATCH", "/lora", params={"id": told["id"]}, json={"alpha": 8})
    assert (changed["scale_is_guess"], changed["alpha"]) == (False, 8)
    assert inspect_file(copy).scales == ("user",)


def test_a_hash_is_made_beside_other_work_and_kept(ask: Checked, copy: Path) -> None:
    told = ask("GET", "/lora", params={"name": "copied"})
    deadline = time.monotonic() + 300
    while not told["hash"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        told = ask("GET", "/lora", params={"name": "copied"})
    content = copy.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert told["hash"] == hashlib.sha256(content[start:]).hexdigest()[:12]


def test_pictures(ask: Checked, copy: Path) -> None:
    inside = Image.open(io.BytesIO(ask("GET", "/thumbnail", params={"name": "copied"})))
    assert (inside.format, inside.size) == ("WEBP", (96, 96))
    changed = ask("PUT", "/picture", params={"name": "copied"}, content=png())
    assert copy.with_suffix(".png").is_file()
    beside = Image.open(io.BytesIO(ask("GET", "/thumbnail", params={"id": changed["id"], "v": changed["picture"]})))
    assert beside.size == (40, 40)
    former = copy.with_suffix(".png").read_bytes()
    ask("PUT", "/picture", params={"name": "copied"}, content=png(20))
    for method, path in (("DELETE", "/picture"), ("GET", "/lora")):
        assert ask(method, path, params={"name": "copied"})["picture"]
        assert copy.with_suffix(".png").read_bytes() == former, "as before the latest picture"
    assert "there is no former picture of" in ask("DELETE", "/picture", 404, params={"name": "copied"})
    copy.with_suffix(".png").unlink()
    ask("PUT", "/picture", params={"name": "copied"}, content=png())
    ask("DELETE", "/picture", params={"name": "copied"})
    assert not copy.with_suffix(".png").exists(), "there was none"
    for method, path, sent in (
        ("PUT", "/picture", {"params": {"name": "copied"}, "content": b"no picture"}),
        ("PUT", "/regions", {"json": {"name": "face", "picture": base64.b64encode(b"no picture").decode()}}),
    ):
        refused = ask(method, path, 422, **sent)
        assert refused.endswith("picture cannot be read: its file is damaged, or of an unknown format")


def test_a_picture_of_a_preset_that_is_none_is_refused(ask: Checked) -> None:
    ask("PUT", "/preset", params={"name": "Mine"}, json={"text": "<lora:zorp:1>"})
    try:
        refused = ask("PUT", "/preset/thumbnail", 422, params={"name": "Mine"}, content=png()[:40])
        assert refused.endswith("picture cannot be read: its file is damaged, or of an unknown format")
    finally:
        ask("DELETE", "/preset", params={"name": "Mine"})


def test_of_a_damaged_file_no_picture_is_listed(ask: Checked, copy: Path) -> None:
    assert ask("GET", "/lora", params={"name": "copied"})["picture"]
    assert "give its id or its name" in ask("GET", "/lora", 422)
    copy.write_bytes(copy.read_bytes()[:-1000])
    told = ask("GET", "/lora", params={"name": "copied"})
    assert (told["readable"], told["picture"]) == (False, "")
    assert "has no picture" in ask("GET", "/thumbnail", 404, params={"id": told["id"]})


def test_a_picture_that_is_damaged_is_nothing_and_no_fault(ask: Checked, copy: Path) -> None:
    copy.with_suffix(".png").write_bytes(png()[:40])
    ask("POST", "/refresh")  # a file system's clock stands still for milliseconds, and the folder was read just before
    told = ask("GET", "/lora", params={"name": "copied"})
    assert told["picture"], "only decoding it tells"
    answer = ask.client.get(f"{V1}/thumbnail", params={"id": told["id"]})
    assert (answer.status_code, answer.content) == (204, b"")
    assert "204" in ask.answers("GET", "/thumbnail")


def test_a_distilled_lora_tells_what_it_was_made_for(ask: Checked, copy: Path) -> None:
    named = copy.rename(copy.with_name("Qwen-Image-Lightning-8steps-V2.0.safetensors"))
    try:
        ask("POST", "/refresh")
        told = ask("GET", "/lora", params={"name": named.stem})["distilled"]
    finally:
        named.unlink()
    assert (told["method"], told["steps"], told["cfg"], told["shift"]) == ("Lightning", [8, 8], [1, 1], 3)


def test_names_are_resolved(ask: Checked, copy: Path) -> None:
    meant = ask("POST", "/resolve", json={"names": ["copied.safetensors", "zorpp", "../x"]})["names"]
    assert meant["copied.safetensors"]["name"] == "copied"
    assert meant["zorpp"]["candidates"] == ["zorp"]
    assert "is outside the LoRA folders" in meant["../x"]["problem"]
    path = r"C:\models\loras\copied.safetensors"
    told = ask("POST", "/resolve", json={"names": [path]})["names"][path]
    assert told["candidates"] == ["copied"]
    assert told["problem"].endswith("is outside the LoRA folders; did you mean copied?")
    assert "no more than 50 texts" in ask("POST", "/resolve", 422, json={"names": [f"n{i}" for i in range(51)]})


def test_the_first_unknown_names_of_a_request_are_compared_with_those_there_are(ask: Checked) -> None:
    asked = ["zorpp", "stripe", *(f"no such {i}" for i in range(8)), "nihgt"]
    meant = ask("POST", "/resolve", json={"names": asked})["names"]
    assert [meant[name]["candidates"] for name in ("zorpp", "stripe", "nihgt")] == [["zorp"], ["stripes"], []]


def test_words_of_a_header_hold_no_tags_and_no_lines(ask: Checked, copy: Path) -> None:
    said = {
        "modelspec.trigger_phrase": "zorp <lora:night:5>\nsecond",
        "ss_tag_frequency": json.dumps({"a": {"fur\n<lora:night:5>": 3}}),
    }
    save_file(load_file(copy), copy, said)
    ask("POST", "/refresh")
    told = ask("GET", "/lora", params={"name": "copied"})
    assert told["words"] == "zorp lora:night:5 second"
    assert told["captions"] == "fur lora:night:5"
    assert told["training_tags"] == [["fur lora:night:5", 3]]


def test_half_a_character_in_a_file_beside_a_lora_is_kept_and_keeps_nobody_from_notes(ask: Checked, copy: Path) -> None:
    copy.with_suffix(".json").write_text('{"others": "a\\ud800b", "notes": "x"}')
    assert ask("PATCH", "/lora", params={"name": "copied"}, json={"notes": "n"})["notes"] == "n"
    assert json.loads(copy.with_suffix(".json").read_text("utf-8")) == {"others": "a\ud800b", "notes": "n"}


def test_a_description_that_is_no_page_fails_nothing(ask: Checked, copy: Path) -> None:
    copy.with_suffix(".json").write_text('{"description": "hello <![foo bar]]>", "notes": "n"}')
    assert ask("GET", "/lora", params={"name": "copied"})["notes"] == "n"
    assert ask("PATCH", "/lora", params={"name": "copied"}, json={"notes": "m"})["notes"] == "m"


@pytest.mark.parametrize("what", ["extension.library.scan.read_notes", "extension.api.library.read_training"])
def test_what_nobody_foresaw_of_one_file_is_its_problem(
    ask: Checked, copy: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("nobody foresaw it")

    monkeypatch.setattr(what, fail)
    (problem,) = ask("GET", "/lora", params={"name": "copied"})["problems"]
    assert "nobody foresaw it" in problem
    assert "nobody foresaw it" in ask("PATCH", "/lora", params={"name": "copied"}, json={"rating": 2})["problems"][0]
    assert json.loads(copy.with_suffix(".json").read_text())["remora"] == {"rating": 2}


def test_state_stack_and_inspection(ask: Checked) -> None:
    assert ask("GET", "/state")["model"] == "Stable Diffusion 1.x"
    ask("PUT", "/stack", json={"always_on": False, "entries": [{"name": "zorp"}]})
    assert [entry["name"] for entry in ask("GET", "/stack")["entries"]] == ["zorp"]
    ask("PUT", "/stack", json={})
    assert ask("GET", "/inspect", params={"name": "zorp", "model": "loaded"})["hit"] == 264


def test_a_lora_of_several_components_is_inspected_as_one(ask: Checked, runner: Runner, copy: Path) -> None:
    catalog, content = runner.studio.session.catalog, copy.read_bytes()
    for part in ("unet", "text_encoder"):
        (copy.parent / "sks" / part).mkdir(parents=True)
        (copy.parent / "sks" / part / "adapter_model.safetensors").write_bytes(content)
    catalog.refresh()
    try:
        alone = ask("GET", "/inspect", params={"name": "sks"})
        assert (alone["layers"], alone["changes_nothing"], alone["warning"]) == (528, False, "")
        loaded = ask("GET", "/inspect", params={"name": "sks", "model": "loaded"})
        assert (loaded["hit"], loaded["components"]) == (264, ["text_encoder", "unet"])  # each acts on its own
        told = ask("GET", "/lora", params={"name": "sks"})
        assert (told["name"], told["folder"], told["layers"], told["size"]) == ("sks", "sks", 528, 2 * len(content))
        (copy.parent / "sks" / "text_encoder" / "adapter_model.safetensors").write_bytes(b"")
        assert "its text_encoder is not used: it is empty" in ask("GET", "/inspect", params={"name": "sks"})["warning"]
    finally:
        shutil.rmtree(copy.parent / "sks")
        catalog.refresh()


def test_the_setting_of_brackets_around_tags_is_switched(ask: Checked, runner: Runner) -> None:
    assert ask("GET", "/state")["grammar"] is False
    try:
        assert ask("PUT", "/grammar", json={"on": True})["grammar"] is True
        assert runner.studio.host.option(GRAMMAR) is True
        assert "true or false" in ask("PUT", "/grammar", 422, json={"on": "yes"})
    finally:
        assert ask("PUT", "/grammar", json={"on": False})["grammar"] is False


def test_a_name_that_fits_several_files_has_a_note(ask: Checked, runner: Runner, copy: Path) -> None:
    folder, catalog = copy.parent / "more", runner.studio.session.catalog
    folder.mkdir()
    other = folder / "copied.safetensors"
    other.write_bytes((copy.parent / "night.safetensors").read_bytes())
    names = catalog.names
    choice, names._choice = names._choice, lambda paths: other
    try:
        catalog.refresh()
        (meant,) = ask("POST", "/resolve", json={"names": ["copied"]})["names"].values()
        assert meant["name"] == "more/copied"
        assert meant["note"].startswith("copied fits several files, copied, more/copied: more/copied is applied")
    finally:
        names._choice = choice
        other.unlink()
        folder.rmdir()


def test_blocks_and_presets_of_weights_for_them(ask: Checked) -> None:
    blocks = ask("GET", "/blocks")
    lengths = [one["length"] for one in blocks["layouts"]]
    assert sorted(lengths) == [12, 17, 20, 26]  # a UNet's
    assert [one["id"] for one in blocks["blocks"]] == blocks["layouts"][0]["ids"]
    assert {"id": "BASE", "title": "Text encoders"} in blocks["blocks"]
    assert all(one["title"] for one in blocks["blocks"])
    assert {"name": "ALL0.5", "values": ",".join(["0.5"] * 17), "own": False} in blocks["presets"]
    assert list(blocks["about_rules"]) == blocks["rules"]
    assert blocks["about_rules"]["ATTNDEEPON"] == "Layers with “attn” in their names, in IN05-OUT05: weight 1."
    made = ask("PUT", "/blocks/presets", json={"name": "Mine", "values": "1,R,-0.5"})
    assert {"name": "Mine", "values": "1,R,-0.5", "own": True} in made["presets"]
    gone = ask("DELETE", "/blocks/presets", params={"name": "Mine"})
    assert gone == blocks


def test_regions_of_the_picture(ask: Checked) -> None:
    regions = ask("GET", "/regions")
    assert [one["name"] for one in regions["regions"]][:3] == ["left", "right", "top"]
    left = regions["regions"][0]
    assert (left["own"], left["share"]) == (False, 0.5)
    made = ask("PUT", "/regions", json={"name": "Mine", "picture": f"data:image/png;base64,{left['picture']}"})
    assert made["regions"][-1] == {**left, "name": "Mine", "own": True}
    entry = {"name": "zorp", "on": True, "unet": 0.5, "text_encoder": 1.0, "more": "mask=Mine:feather=0.1"}
    assert ask("PUT", "/stack", json={"entries": [entry]})["entries"] == [entry]
    ask("PUT", "/stack", json={})
    for name, picture, why in (
        ("left", left["picture"], "built-in region"),
        ("a+b", left["picture"], "a region's name is"),
        ("../x", "YWJj", "a region's name is"),
        ("Mine", "no base64", "must be base64"),
        ("Mine", "YWJj", "this picture cannot be read: "),
        (1, "YWJj", "must be text"),
    ):
        assert why in ask("PUT", "/regions", 422, json={"name": name, "picture": picture})
    assert ask("GET", "/regions") == made
    assert ask("DELETE", "/regions", params={"name": "Mine"}) == regions
    assert "no region 'Mine' of your own" in ask("DELETE", "/regions", 422, params={"name": "Mine"})


def test_damaged_files_of_regions_and_of_presets_of_blocks_are_told(
    ask: Checked, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.studio.session, "regions", RegionFiles(lambda: tmp_path))
    monkeypatch.setattr(runner.studio.session, "block_presets", BlockPresetsFile(lambda: tmp_path, tuple))
    (tmp_path / "regions").mkdir()
    bad, own = tmp_path / "regions" / "bad.png", tmp_path / "block_presets.txt"
    for path, route in ((bad, "/regions"), (own, "/blocks")):
        before = ask("GET", route)
        assert before["problem"] == ""
        path.write_bytes(b"\xff")
        told = ask("GET", route)
        path.unlink()
        assert told["problem"].startswith(f"{path} cannot be read as ")
        assert {**told, "problem": ""} == before
        assert ask("GET", route) == before


def test_an_always_on_entry_may_have_further_fields(ask: Checked) -> None:
    entry = {"name": "zorp", "on": True, "unet": 0.5, "text_encoder": 1.0, "more": "lbw=OUTALL:stop=10"}
    assert ask("PUT", "/stack", json={"always_on": True, "entries": [entry]})["entries"] == [entry]
    for more, why in (
        ("lbw=NO", "no preset"),
        ("<", "fields of a tag"),
        (7, "fields of a tag"),
        ("stop=x", "not a number"),
    ):
        detail = ask("PUT", "/stack", 422, json={"always_on": True, "entries": [{**entry, "more": more}]})
        assert why in detail or "neither a number nor block weights" in detail
    assert ask("GET", "/stack")["entries"] == [entry]
    ask("PUT", "/stack", json={"always_on": False, "entries": []})


def test_presets(ask: Checked) -> None:
    made = ask("PUT", "/preset", params={"name": "Mine"}, json={"text": "<lora:zorp:0.5> zorp\n<lora:stripes:1>"})
    text = "<lora:zorp:0.5> zorp\n<lora:stripes:1>"
    assert made["presets"] == [{"name": "Mine", "text": text, "thumbnail": "", "parameters": ""}]
    for recipe in (
        ask("GET", "/preset/recipe", params={"name": "Mine"}),
        ask("POST", "/recipe", json={"text": json.dumps(ask("GET", "/preset/file", params={"name": "Mine"}))}),
        ask("POST", "/recipe/picture", content=encode_png(Image.new("RGB", (4, 4)), text)),
    ):
        assert [(one["name"], one["by"]) for one in recipe["loras"]] == [("zorp", "name"), ("stripes", "name")]
    assert ask("PUT", "/preset/thumbnail", params={"name": "Mine"}, content=png())["presets"][0]["thumbnail"]
    assert Image.open(io.BytesIO(ask("GET", "/preset/thumbnail", params={"name": "Mine"}))).size == (40, 40)
    ask("PUT", "/preset", params={"name": "Ours"}, json={"text": made["presets"][0]["text"], "former": "Mine"})
    text = ask("GET", "/preset", params={"name": "Ours"}).decode()
    assert text == "# Remora preset 1: Ours\n<lora:zorp:0.5> zorp\n<lora:stripes:1>\n"
    assert [one["name"] for one in ask("POST", "/presets", json={"text": text})["presets"]] == ["Ours", "Ours 2"]
    assert [one["name"] for one in ask("DELETE", "/preset", params={"name": "Ours"})["presets"]] == ["Ours 2"]
    ask("DELETE", "/preset", params={"name": "Ours 2"})
    assert ask("GET", "/presets")["presets"] == []


def test_a_comparison(ask: Checked) -> None:
    wanted = {**SMALL, "prompt": "a fox <lora:zorp:1>", "names": ["zorp"], "values": [0, 1]}
    begun = ask("POST", "/compare", json=wanted)
    assert begun["comparison"]["columns"] == ["0", "1"]
    deadline = time.monotonic() + 300
    while (told := ask("GET", "/compare"))["comparison"]["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert told["comparison"]["done"] == [True, True]
    assert [outcome["name"] for outcome in ask("GET", "/state")["loras"]] == ["zorp"]
    pictures = [Image.open(io.BytesIO(ask("GET", "/compare/picture", params={"cell": cell}))) for cell in (0, 1)]
    assert [picture.size for picture in pictures] == [(64, 64)] * 2
    assert pictures[0].tobytes() != pictures[1].tobytes()
    grid = Image.open(io.BytesIO(ask("GET", "/compare/picture")))
    assert grid.width > 128
    assert "a fox <lora:zorp:1>" in grid.info["parameters"]
    assert pictures[0].info["parameters"].startswith("a fox <lora:zorp:0>\n")
    assert json.loads(grid.info["Remora comparison"]) == wanted
    ask("DELETE", "/compare")


def test_pictures_of_the_session_and_their_lora(ask: Checked, runner: Runner) -> None:
    before = ask("GET", "/state")["pictures"]
    for prompt, seed in (("a fox", 1), ("a fox <lora:zorp:0.5>", 2), ("a fox <lora:zorp:1> <lora:stars:1>", 3)):
        runner.submit(Txt2Img(prompt=prompt, seed=seed, steps=1, width=64, height=64)).result(60)
    assert ask("GET", "/state")["pictures"] == before + 3
    told = ask("GET", "/pictures", params={"most": 3})
    assert [one["seed"] for one in told["pictures"]] == [3, 2, 1]
    assert [[lora["name"] for lora in one["loras"]] for one in told["pictures"]] == [["zorp", "stars"], ["zorp"], []]
    zorp = ask("GET", "/lora", params={"name": "zorp"})["id"]
    used = ask("GET", "/pictures", params={"lora": zorp, "seed": 2})
    assert [(one["seed"], one["loras"][0]["strength"]) for one in used["pictures"]] == [(2, "0.5")]
    picture = ask("GET", "/pictures/thumbnail", params={"id": used["pictures"][0]["id"]})
    assert Image.open(io.BytesIO(picture)).size == (64, 64)


@pytest.mark.parametrize(
    ("method", "path", "status", "more", "told"),
    [
        (
            "POST",
            "/compare",
            422,
            {"json": {**SMALL, "prompt": "<lora:zorp:1>", "names": ["zorp"], "mode": "blocks", "values": ["NOPE"]}},
            "NOPE",
        ),
        ("GET", "/pictures", 404, {"params": {"lora": "nope"}}, "is not a file in the LoRA folders"),
        ("GET", "/pictures", 422, {"params": {"seed": "x"}}, "seed must be a whole number"),
        ("GET", "/pictures/thumbnail", 404, {"params": {"id": "999999"}}, "no such picture"),
        ("GET", "/pictures/thumbnail", 422, {}, "id must be a whole number"),
        ("GET", "/loras", 422, {"params": {"since": "x"}}, "since must be a whole number"),
        ("GET", "/lora", 404, {"params": {"name": "../x"}}, "is outside the LoRA folders"),
        ("GET", "/lora", 404, {"params": {"id": "nope"}}, "is not a file in the LoRA folders"),
        ("GET", "/preset", 422, {}, "name is missing from the query"),
        ("PUT", "/regions", 422, {"json": {"name": "../x", "picture": "no picture"}}, "a region's name is 1 to"),
        ("PATCH", "/lora", 422, {"params": {"name": "zorp"}, "json": {"nope": 1}}, "notes has no field nope"),
        ("PATCH", "/lora", 422, {"params": {"name": "zorp"}, "json": {"rating": 9}}, "rating must be"),
        ("PATCH", "/lora", 422, {"params": {"name": "zorp"}, "json": {"alpha": "8"}}, "alpha must be a number or null"),
        ("PATCH", "/lora", 422, {"params": {"name": "zorp"}, "json": {"tags": "a"}}, "tags must be a list of texts"),
        ("PATCH", "/lora", 422, {"params": {"name": "zorp"}, "json": {"strength": 101}}, "a number from -100 to 100"),
        ("PATCH", "/lora", 422, {"params": {"name": "zorp"}, "content": b"{"}, "notes is not JSON"),
        ("PATCH", "/lora", 413, {"params": {"name": "zorp"}, "content": b" " * 2_000_000}, "no more than 1 MB"),
        ("GET", "/thumbnail", 404, {"params": {"name": "nowhere"}}, "is not in the LoRA folders"),
        ("POST", "/resolve", 422, {"json": {"names": [1]}}, "names must be a list"),
        ("PUT", "/preset", 422, {"params": {"name": " "}, "json": {"text": "<lora:a:1>"}}, "the name of a preset"),
        ("PUT", "/preset", 422, {"params": {"name": "x"}, "json": {"text": "no lora"}}, "is not a LoRA; write one tag"),
        ("PUT", "/preset", 422, {"params": {"name": "x"}, "json": {"text": "<lora:a:x>"}}, "'x' is not a number"),
        ("PUT", "/preset", 422, {"params": {"name": "x"}, "json": {"text": 1}}, "text must be text, not 1"),
        ("PUT", "/preset", 422, {"params": {"name": "x"}, "json": {}}, "a preset lacks the field text"),
        ("PUT", "/preset", 422, {"params": {"name": "x"}, "json": {"text": "", "colour": 1}}, "has no field colour"),
        ("PUT", "/grammar", 422, {"json": {"on": 1}}, "on must be true or false, not 1"),
        (
            "PUT",
            "/stack",
            422,
            {"json": [1]},
            "the stack must be an object with the fields version, always_on, entries",
        ),
        ("GET", "/preset", 404, {"params": {"name": "x"}}, "there is no preset 'x'"),
        ("DELETE", "/preset", 404, {"params": {"name": "x"}}, "there is no preset 'x'"),
        ("POST", "/presets", 422, {"json": {"text": "# Remora preset 2: x\n<lora:a:1>"}}, "is of version 2"),
        ("POST", "/presets", 422, {"json": {"text": ""}}, "there is no LoRA in this text"),
        ("PUT", "/blocks/presets", 422, {"json": {"name": "a", "values": "1,x"}}, "value 2 of the list, 'x'"),
        ("PUT", "/blocks/presets", 422, {"json": {"name": "a:b", "values": "1,0"}}, "a preset's name is"),
        ("PUT", "/blocks/presets", 422, {"json": {"name": 1, "values": "1,0"}}, "must be text"),
        ("DELETE", "/blocks/presets", 422, {"params": {"name": "no"}}, "there is no preset of block weights 'no'"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["zorp"]}}, "is not in the prompt"),
        ("POST", "/compare", 422, {"json": {"prompt": "", "names": []}}, "the prompt is empty"),
        ("POST", "/compare", 422, {"json": {"prompt": "<lora:zorp", "names": ["zorp"]}}, "the tag is not closed"),
        ("POST", "/compare", 422, {"json": {"prompt": "<lora:zorp:1>", "names": ["zorp"]}}, "give 1 to 150 strengths"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["a"], "steps": "9"}}, "steps must be a whole"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["a"], "steps": 1.5}}, "steps must be a whole"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["a"], "mode": "x"}}, "mode must be one of: stren"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["a"], "width": 63}}, "width is 63"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["a"], "seed": -2}}, "seed is -2"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["a"], "values": ["x", 1]}}, "a list of numbers"),
        ("POST", "/compare", 422, {"json": {"prompt": "x", "names": ["a"], "values": 12}}, "a list of numbers"),
        ("POST", "/compare", 413, {"content": b" " * 10_000_000}, "a comparison has no more than 1 MB"),
        ("GET", "/compare/picture", 404, {"params": {"cell": "9999"}}, "there is no such picture"),
        ("PUT", "/stack", 413, {"content": b" " * 10_000_000}, "the stack has no more than 1 MB"),
    ],
)
def test_wrong_input_is_one_sentence(
    ask: Checked, method: str, path: str, status: int, more: dict[str, Any], told: str
) -> None:
    assert told in ask(method, path, status, **more)


def until_done(ask: Checked, path: str, **params: str) -> Any:
    """Ask as a page does, until the answer has a result."""
    deadline = time.monotonic() + 300
    while (told := ask("GET", path, params=params))["result"] is None:
        assert told["done"] <= told["layers"]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return told


def test_a_file_is_checked_and_its_verdicts_have_their_numbers(ask: Checked, copy: Path, runner: Runner) -> None:
    tensors = load_file(copy)
    name = next(key for key in tensors if key.endswith("hada_w1_a"))
    save_file({**tensors, name: torch.zeros_like(tensors[name])}, copy, {"ss_network_dim": "16", "ss_steps": "300"})
    told = until_done(ask, "/check", name="copied")
    measured = measure(layers_of(copy, mapped_model(runner.studio.model.path)))
    found = told["result"]
    assert told["done"] == told["layers"] > 10
    assert told["standings"] == {}
    assert found["norm"] == pytest.approx(measured.norm)
    assert found["relative"] == pytest.approx(measured.relative)
    assert 0.5 < found["relative"] < 1.5
    components = {name: measured.share(part) for name, part in measured.by_component().items()}
    assert found["components"] == pytest.approx(components)
    parts = measured.by_block()
    for one in found["blocks"]:
        part = parts[one["block"] or one["component"]]
        own = (one["share"], one["spectral"], one["relative"])
        assert own == pytest.approx((measured.share(part), part.spectral, part.relative))
    assert sum(one["share"] for one in found["blocks"]) == pytest.approx(1)
    assert {int(rank): share for rank, share in found["kept"]} == pytest.approx(measured.kept())
    assert sum(found["spectrum"]) == pytest.approx(1)
    assert found["spectrum"] == pytest.approx(sorted(found["spectrum"], reverse=True))
    assert sum(found["spectrum"][:2]) == pytest.approx(measured.kept()[2])
    assert found["rank_90"] <= found["rank_99"]
    assert max(one["rank_99"] for one in found["blocks"]) == found["rank_99"]
    assert found["trained"] == {"rank": "16", "steps": "300"}
    by_name = {one["name"]: one for one in found["verdicts"]}
    assert by_name["dead"]["numbers"] == {"count": 1, "total": len(measured.layers)}
    assert (by_name["dead"]["sure"], by_name["dead"]["count"]) == (True, 1)
    assert by_name["resized"]["numbers"] == {"low": 2, "high": 2, "said": 16}
    published = by_name["resized"]["published"]
    assert (published["measure"], published["low"], published["high"]) == ("rank", 4, 128)
    assert published["address"].startswith("https://")
    assert by_name["dead"]["published"] is None
    assert {one["figure"] for one in found["verdicts"]} <= {*figures_of(measured)}
    deadline = time.monotonic() + 300
    while ask("GET", "/copies")["running"]:
        assert time.monotonic() < deadline
    standings = until_done(ask, "/check", name="zorp")["standings"]
    # stars has no figures without the model, and the copy has no known family
    own, *others = [
        measure(layers_of(copy.with_stem(name))).norm for name in ("zorp", "neon", "night", "outline", "stripes")
    ]
    assert standings["norm"] == {"others": 4, "smaller": sum(one < own for one in others), "same": 0}
    assert [one["text"] for one in found["verdicts"]] == [str(one) for one in verdicts(measured)]
    save(copy, pair("lora_unet_mid_block_nowhere", (12, 8), 2))
    other = until_done(ask, "/check", name="copied")["result"]
    assert (other["relative"], other["rank"]) == (None, 2), "it is for another model"


def test_a_lora_of_several_components_is_checked_whole_and_says_which_it_misses(ask: Checked, runner: Runner) -> None:
    folder = Path(runner.studio.host.adapter_dirs()[0]) / "sks"
    try:
        for part, tensors in by_component().items():
            (folder / part).mkdir(parents=True)
            save_file(tensors, folder / part / "adapter_model.safetensors")
        runner.studio.session.catalog.refresh()
        whole = until_done(ask, "/check", name="sks")["result"]
        assert (set(whole["components"]), whole["faults"]) == ({"text_encoder", "unet"}, [])
        assert ask("GET", "/lora", params={"name": "sks"})["path"] == str(folder), "not one of its two files"
        assert len(until_done(ask, "/check/stack", tags="<lora:sks:1><lora:night:1>")["ids"]) == 2
        (folder / "text_encoder" / "adapter_model.safetensors").write_bytes(b"")
        half = until_done(ask, "/check", name="sks")["result"]
        assert set(half["components"]) == {"unet"}
        assert half["faults"] == ["its text_encoder is not used: it is empty (0 bytes); download it again"]
    finally:
        shutil.rmtree(folder)
        runner.studio.session.catalog.refresh()


def test_the_files_of_a_stack_are_checked_at_their_strengths(ask: Checked, runner: Runner) -> None:
    ids = {lora["name"]: lora["id"] for lora in ask("GET", "/loras")["loras"]}
    asked = {"ids": f"{ids['night']},{ids['stripes']}"}
    told = until_done(ask, "/check/stack", **asked, strengths="0.8,0.5")
    folder = Path(runner.studio.host.adapter_dirs()[0])
    measured = measure_stack([layers_of(folder / f"{name}.safetensors") for name in ("night", "stripes")])
    assert (told["ids"], told["strengths"]) == ([ids["night"], ids["stripes"]], [0.8, 0.5])
    acting = measured.at([0.8, 0.5])
    for field in ("norm", "alone", "left"):
        assert told["result"][field] == pytest.approx(getattr(acting, field))
    assert told["result"]["factor"] == pytest.approx(acting.factor())
    assert [one["relation"] for one in told["result"]["pairs"]] == [one.relation for one in measured.pairs]
    assert [one["cosine"] for one in told["result"]["pairs"]] == pytest.approx([one.cosine for one in measured.pairs])
    means = [one.mean_cosine for one in measured.pairs]
    assert [one["mean_cosine"] for one in told["result"]["pairs"]] == pytest.approx(means)
    again = ask("GET", "/check/stack", params={**asked, "strengths": "1,1"})
    assert again["result"]["norm"] == pytest.approx(measured.norm), "nothing is measured again"
    values = ",".join(["0.5"] + ["1"] * 7 + ["0"] * 9)
    written = f"<lora:night:0.25:-0.8:lbw={values}> <lora:stripes:0.4:0.5@0,1@1:lbw=R{',1' * 16}>"
    tagged = until_done(ask, "/check/stack", tags=written)
    weights = [BlockWeights([float(one) for one in text.split(",")]) for text in (values, "0.5" + ",1" * 16)]
    amounts = {"text_encoder": 0.25, "unet": -0.8}, {"text_encoder": 0.4, "unet": 1.0}
    strengths = [Strength(of, blocks=blocks) for of, blocks in zip(amounts, weights, strict=True)]
    acting = measured.at(strengths, BlockNames((*UNET_BLOCKS[1:], "text_encoder")))
    assert (tagged["strengths"], tagged["tags"]) == ([-0.8, 1.0], written)
    assert tagged["result"]["norm"] == pytest.approx(acting.norm)
    assert tagged["result"]["alone"] == pytest.approx(acting.alone)
    assert [one["cosine"] for one in tagged["result"]["pairs"]] == pytest.approx([one.cosine for one in acting.pairs])
    assert acting.alone[0] < 0.9 * 0.8 * measured.alone[0], "the weights take something away"
    tensors = load_file(folder / "night.safetensors")
    layers = measure(layers_of(folder / "night.safetensors")).layers
    deep = UNET_BLOCKS[UNET_BLOCKS.index("IN05") : UNET_BLOCKS.index("OUT05") + 1]
    kept = [one.norm for one in layers if "attn" not in one.layer.name or one.layer.block not in deep]
    deltas = []
    for key, up in tensors.items():
        if key.endswith("lora_up.weight"):
            down = tensors[key.replace("lora_up", "lora_down")]
            scale = float(tensors[key.replace("lora_up.weight", "alpha")]) / len(down)
            deltas.append(scale * up[:, :2].double().flatten(1) @ down[:2].double().flatten(1))
    for fields, want in (
        ("lbwe=ATTNDEEPOFF", math.hypot(*kept)),
        ("dyn=2", math.hypot(*[float(one.norm()) for one in deltas])),
        ("scale=2:step=1-5:mask=left", measured.alone[0] * 2 / scale),
    ):
        other = until_done(ask, "/check/stack", tags=f"<lora:night:1:{fields}> <lora:stripes:1>")
        assert other["result"]["alone"] == pytest.approx([want, measured.alone[1]], rel=1e-5), fields
        assert want < 0.99 * measured.alone[0] or "scale" in fields
        assert other["uncounted"] == (["schedule", "region"] if "mask" in fields else [])
    always = [{"name": "night", "unet": -0.8, "text_encoder": 0.25, "more": f"lbw={values}"}, {"name": "stripes"}]
    ask("PUT", "/stack", json={"always_on": True, "entries": always})
    alone = ask("GET", "/check/stack")["result"]["alone"]
    assert alone == pytest.approx([acting.alone[0], measured.alone[1]])
    entries = [{"name": "zorp", "on": False}]
    entries += [{"name": name, "unet": one, "text_encoder": one} for name, one in (("night", 0.8), ("stripes", 0.5))]
    ask("PUT", "/stack", json={"always_on": True, "entries": entries})
    assert ask("GET", "/check/stack") == told, "the list that is always on"
    ask("PUT", "/stack", json={"always_on": True, "entries": entries[:2]})
    assert "takes 2 to 10 different files" in ask("GET", "/check/stack", 422)
    ask("PUT", "/stack", json={"always_on": False, "entries": []})
    for query, said in (
        ({"ids": ids["night"]}, "takes 2 to 10 different files"),
        ({"ids": f"{ids['night']},{ids['night']}"}, "takes 2 to 10 different files"),
        ({"ids": ",".join(map(str, range(2000)))}, "takes 2 to 10 different files"),
        ({**asked, "strengths": "1"}, "a number for each of the 2 ids"),
        ({**asked, "strengths": "1,nan"}, "a number for each of the 2 ids"),
        ({**asked, "strengths": "1,1e300"}, "a number for each of the 2 ids"),
        ({"tags": "<lora:night:1> <lora:night:0.5>"}, "takes 2 to 10 different files"),
        ({"tags": "<lora:night:1> <lora:stripes:much>"}, "much"),
        ({"tags": "<lora:night:1:lbw=1,0> <lora:stripes>"}, "a list of 2 block weights; the loaded model takes 26, 17"),
    ):
        assert said in ask("GET", "/check/stack", 422, params=query)
    assert "not a file in the LoRA folders" in ask("GET", "/check/stack", 404, params={"ids": f"{ids['night']},x"})


def test_a_file_that_is_broken_or_goes_costs_its_own_check(ask: Checked, copy: Path) -> None:
    (one,) = [lora for lora in ask("GET", "/loras")["loras"] if lora["name"] == "copied"]
    until_done(ask, "/check", id=one["id"])
    copy.write_bytes(copy.read_bytes()[:-100])
    deadline = time.monotonic() + 300
    while (answer := ask.client.get(f"{V1}/check", params={"id": one["id"]})).status_code == 200:
        assert answer.json()["result"] is None
        assert time.monotonic() < deadline
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("copied.safetensors: it is truncated or damaged")
    copy.unlink()
    assert "is not a file in the LoRA folders any more" in ask("GET", "/check", 404, params={"id": one["id"]})
    assert until_done(ask, "/check", name="zorp")["result"]["norm"] > 0


def test_copies_are_listed_by_page(ask: Checked, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = load_file(copy)
    save_file({name: one.float() for name, one in tensors.items()}, copy.with_name("copied.floats.safetensors"))
    ask("POST", "/refresh")
    names = {lora["id"]: lora["name"] for lora in ask("GET", "/loras")["loras"]}
    deadline = time.monotonic() + 300
    while (told := ask("GET", "/copies", params={"page": "0"}))["running"]:
        assert told["done"] <= told["total"]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert told["done"] == told["total"] == len(names)
    (group,) = [group for group in told["groups"] if "copied" in {names[one["id"]] for one in group}]
    by_name = {names[one["id"]]: one for one in group}
    assert by_name.keys() >= {"zorp", "copied", "copied.floats"}
    assert by_name["copied.floats"]["precisions"] == ["float32"]
    assert {one["alike"] for one in group[1:]} <= {"same", "precision"}
    assert {one["other"] for one in group[1:]} == {group[0]["id"]}
    assert (group[0]["alike"], group[0]["other"]) == (None, None)
    assert told["found"] == len(told["groups"]) == len(told["firsts"])
    assert {one["id"] for one in group[1:]} <= set(told["others"])
    assert told["left_out"] == told["merges"] == []
    assert ask("GET", "/copies", params={"page": "1"})["groups"] == []
    assert "page must be a whole number from 0" in ask("GET", "/copies", 422, params={"page": "x"})
    copy.with_name("copied.floats.safetensors").unlink()
    ask("POST", "/refresh")
    left = [one["id"] for group in ask("GET", "/copies")["groups"] for one in group]
    assert by_name["copied.floats"]["id"] not in left


def test_files_are_changed_moved_deleted_and_restored(ask: Checked, copy: Path) -> None:
    others = [copy.with_name("copied.b.safetensors"), copy.with_name("copied.sub") / "copied.c.safetensors"]
    others[1].parent.mkdir()
    for other in others:
        other.write_bytes(copy.read_bytes())
    copy.with_suffix(".json").write_text('{"tags": ["mine"], "activation text": "zorp"}', "utf-8")
    copy.with_suffix(".civitai.info").write_text("{}", "utf-8")

    def ids() -> dict[str, str]:
        return {one["name"]: one["id"] for one in ask("POST", "/refresh")["loras"] if one["name"].startswith("copied")}

    def lora(name: str) -> Any:
        return ask("GET", "/lora", params={"name": name})

    first = ids()
    every = list(first.values())
    told = ask("PATCH", "/files", json={"ids": [*every, "0" * 16], "add": ["new", "mine"], "rating": 4})
    assert told["changed"] == [[one, one] for one in every]
    assert told["refused"] == [
        {"id": "0" * 16, "reason": "it is not a file in the LoRA folders any more; reload the list", "taken": False}
    ]
    assert (lora("copied")["tags"], lora("copied")["rating"], lora("copied")["words"]) == (["mine", "new"], 4, "zorp")
    ask("PATCH", "/files", json={"ids": every, "remove": ["mine"]})
    assert [lora(name)["tags"] for name in first] == [["new"]] * 3
    # two pages at once, each with a tag for all
    tagging = [
        threading.Thread(target=ask.client.patch, args=(f"{V1}/files",), kwargs={"json": {"ids": every, "add": [tag]}})
        for tag in ("one", "two", "three")
    ]
    for thread in tagging:
        thread.start()
    for thread in tagging:
        thread.join()
    assert all({"new", "one", "two", "three"} == set(lora(name)["tags"]) for name in first)
    # names that are taken stay, unless they may have a number
    inside = copy.parent / "copied.sub" / "copied.json"
    inside.write_text("theirs", "utf-8")
    told = ask("POST", "/files/move", json={"ids": every, "folder": "copied.sub"})
    assert [one["taken"] for one in told["refused"]] == [True]
    assert [former for former, _ in told["changed"]] == [first["copied.b"]]
    moved = ask("POST", "/files/move", json={"ids": [first["copied"]], "folder": "copied.sub", "number": True})
    assert ids()["copied-2"] == moved["changed"][0][1]
    assert inside.read_text("utf-8") == "theirs"
    # a page that does not know it yet writes no notes where the file was
    gone = ask("PATCH", "/lora", 404, params={"id": first["copied"]}, json={"rating": 1})
    assert "is not a file in the LoRA folders any more" in gone
    renamed = ask("POST", "/files/move", json={"ids": [ids()["copied-2"]], "name": "copied.new"})
    assert lora("copied.new")["sidecars"] == ["copied.new.json", "copied.new.civitai.info"]
    wanted = {"ids": [ids()["copied.new"], "no file", ids()["copied.b"]], "names": ["new 0", "new 1", "a/b"]}
    several = ask("POST", "/files/move", json=wanted)
    assert lora("new 0")["sidecars"] == ["new 0.json", "new 0.civitai.info"]
    assert [one["id"] for one in several["refused"]] == wanted["ids"][1:]
    for undone in (several, renamed, moved, told):
        ask("POST", "/files/undo", json={"undo": undone["undo"]})
    assert ids() == first
    assert "cannot be taken back any more" in ask("POST", "/files/undo", 404, json={"undo": told["undo"]})
    deleted = ask("POST", "/files/delete", json={"ids": every})
    assert [list(one) for one in deleted["changed"]] == [[one, ""] for one in every]
    assert not ids()
    trash = ask("GET", "/trash")["files"]
    assert {(one["name"], one["folder"]) for one in trash} == {
        ("copied", ""),
        ("copied.b", ""),
        ("copied.c", "copied.sub"),
    }
    by_name = {one["name"]: one for one in trash}
    assert by_name["copied"]["size"] > by_name["copied.b"]["size"] > 0
    ask("POST", "/files/restore", json={"ids": [by_name["copied"]["id"]]})
    assert lora("copied")["tags"][0] == "new"
    left = ask("DELETE", "/trash", json={"ids": [by_name["copied.b"]["id"]]})["files"]
    assert [one["name"] for one in left] == ["copied.c"]
    ask("POST", "/files/undo", json={"undo": deleted["undo"]})
    assert ids().keys() == {"copied", "copied.c"}
    assert ask("GET", "/trash")["files"] == []
    for body, said in (
        ({"ids": every}, "either a folder or a name"),
        ({"ids": every, "folder": "", "name": "x"}, "either a folder or a name"),
        ({"ids": every, "name": "x"}, "a name is for a single file"),
        ({"ids": every, "name": "x", "names": every}, "either a folder or a name"),
        ({"ids": every, "names": ["x"]}, "one name for each of ids"),
        ({"ids": [first["copied"]], "folder": "../out"}, "a file cannot have the name"),
        ({"ids": ["x"] * 501, "folder": ""}, "no more than 500"),
    ):
        assert said in ask("POST", "/files/move", 422, json=body)
    shutil.rmtree(others[1].parent)


def test_a_file_is_saved(ask: Checked, runner: Runner) -> None:
    assert ask("GET", "/save/choices")["folders"][0] == ""
    begun = ask("POST", "/save", json={"name": "both", "tags": ["<lora:stripes:0.8>", "<lora:night:0.5>"]})
    assert begun["job"]["layers"] == 0 or begun["job"]["running"]
    deadline = time.monotonic() + 300
    while (job := ask("GET", "/save")["job"])["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ask("DELETE", "/save")["job"]["result"] == job["result"]
    assert ask("PUT", "/save/inputs", json={"on": False})["inputs"] == ""
    path = Path(runner.studio.host.adapter_dirs()[0]) / "both.safetensors"
    assert job["result"]["path"] == str(path)
    path.unlink()
    ask("POST", "/refresh")


def test_the_pictures_of_the_output_folders_are_none_without_a_folder(ask: Checked) -> None:
    """`test_outputs.py` beside this file has folders."""
    told = ask("GET", "/outputs", params={"name": "zorp"})
    assert (told["total"], told["found"], told["pictures"]) == (0, 0, [])
    assert ask("GET", "/outputs/loras")["loras"] == []
    for route in ("/outputs/picture", "/outputs/thumbnail"):
        assert "no such picture any more" in ask("GET", route, 404, params={"id": "1"})


def test_nothing_is_looked_up_online_unless_it_was_turned_on(ask: Checked) -> None:
    """`tests/extension/online` turns it on."""
    assert not ask("PUT", "/online", json={"on": False})["on"]
    assert ask("GET", "/online")["job"] is None
    zorp = ask("GET", "/lora", params={"name": "zorp"})["id"]
    wanted = {"lookup": {"ids": []}, "download": {"page": "https://civitai.com/models/1"}, "newer": {"ids": [zorp]}}
    for route, asked in wanted.items():
        assert "is off" in ask("POST", f"/online/{route}", 409, json=asked)
    assert ask("DELETE", "/online")["job"] is None


@pytest.mark.full
def test_every_route_was_asked(ask: Checked) -> None:
    """Runs last: what the tests above asked is all there is."""
    assert ask.seen == ask.routes


def test_the_folder_of_the_tabs_files_is_not_looked_through_at_each_request(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestClient(make_api(runner), base_url="http://localhost") as client:
        assert client.get("/remora/app/main.js").status_code == 200
        monkeypatch.setattr(Path, "rglob", lambda *_: pytest.fail("the folder was looked through"))
        assert client.get("/remora/app/main.js").status_code == 200
        assert client.get("/remora/app/nope.js").status_code == 404


def test_the_tabs_own_files_are_served_and_nothing_else(runner: Runner) -> None:
    with TestClient(make_api(runner), base_url="http://localhost") as client:
        main = client.get("/remora/app/main.js")
        assert main.headers["content-type"] == "text/javascript; charset=utf-8"
        assert client.get("/remora/app/main.js", headers={"If-None-Match": main.headers["etag"]}).status_code == 304
        assert client.get("/remora/app/vendor/preact.js").status_code == 200
        whole = client.get("/remora/app/tab.js")
        assert whole.headers["content-type"] == main.headers["content-type"]
        assert whole.text.count("\nmodules[") > 30
        assert client.get("/remora/app/tab.js", headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
        for name in ("nope.js", "../remora.js", "%2e%2e/remora.js", "..%2fremora.js", "/etc/passwd", "main.js/../../x"):
            assert client.get(f"/remora/app/{name}").status_code == 404, name


@pytest.mark.parametrize("sure", [True, False])
def test_a_file_for_another_family_does_not_fit_a_model_of_a_probable_one(sure: bool) -> None:
    model = Family("sd1", "Stable Diffusion 1.x", sure=sure)
    told = _family(Family("sdxl", "Stable Diffusion XL"), model)
    said = f"made for Stable Diffusion XL; the loaded model is {'' if sure else 'probably '}Stable Diffusion 1.x"
    assert (told["fits"], told["reason"]) == (False, said)
    assert _family(Family("sd1", "Stable Diffusion 1.x"), model)["fits"]
    assert _family(Family("sdxl", "Stable Diffusion XL", sure=False), model)["fits"]
    for loads, usable in ((None, True), ({"sd1", "sdxl"}, True), ({"sd1"}, False)):
        told = _family(Family("sdxl", "Stable Diffusion XL", sure=sure), None, loads)
        assert told["usable"] is (usable or not sure), "a hint is not enough"
        said = "" if told["usable"] else "made for Stable Diffusion XL, which this web UI does not load"
        assert told["reason"] == said
