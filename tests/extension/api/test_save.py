"""The LoRA of tags as one file, by `/remora/v1/save`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image, ImageChops
from safetensors.torch import load_file

from extension.api import records
from extension.generation import saving
from extension.generation.saving import stack_of
from extension.hosts.txt2img import Txt2Img
from extension.standalone.jobs import Runner
from extension.standalone.server import make_api
from extension.text.tag import RULES
from lib_lora import AdapterFile, Entry, Stack
from lib_lora.saving import Combination, bake_stack, combine_files
from lib_lora.saving.merging import How
from lib_lora.saving.provenance import HEADER
from tests.extension.api.test_api_routes import SMALL, Checked
from tests.fakes.files import pair, save

PAIR = ["<lora:stripes:0.8>", "<lora:night:0.5:lbw=OUTALL>"]


@pytest.fixture(scope="module")
def ask(runner: Runner) -> Iterator[Checked]:
    with TestClient(make_api(runner), base_url="http://localhost") as client:
        runner.studio.session.catalog.wait(60)
        yield Checked(client)


@pytest.fixture
def folder(runner: Runner, ask: Checked) -> Iterator[Path]:
    """Return the LoRA folder, which is as before after the test."""
    folder = Path(runner.studio.host.adapter_dirs()[0])
    before = set(folder.rglob("*"))
    yield folder
    ask("DELETE", "/save")
    ended(ask)
    for path in sorted(set(folder.rglob("*")) - before, reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    runner.studio.session.catalog.refresh()


def ended(ask: Checked) -> Any:
    """Wait for the end of the job, and return it."""
    deadline = time.monotonic() + 300
    while (job := ask("GET", "/save")["job"]) is not None and job["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return job


def saved(ask: Checked, **wanted: Any) -> Any:
    ask("POST", "/save", json=wanted)
    job = ended(ask)
    assert job["problem"] == ""
    return job["result"]


def picture(runner: Runner, prompt: str) -> Image.Image:
    (made,) = runner.submit(Txt2Img(**{**SMALL, "steps": 4}, prompt=prompt)).result(120).pictures
    return made.image


def equal(path: Path, other: Path) -> bool:
    """Tell whether two files have the same tensors."""
    one, two = load_file(path), load_file(other)
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def difference(one: Image.Image, other: Image.Image) -> int:
    return max(high for _, high in ImageChops.difference(one, other).getextrema())


def test_a_saved_stack_makes_the_picture_of_the_stack(ask: Checked, runner: Runner, folder: Path) -> None:
    result = saved(ask, name="both", tags=PAIR, picture=True)
    path = folder / "both.safetensors"
    assert (result["name"], result["path"], result["bytes"]) == ("both", str(path), path.stat().st_size)
    assert result["error"] < 1e-5
    assert result["seconds"] > 0
    (listed,) = [lora for lora in ask("GET", "/loras")["loras"] if lora["id"] == result["id"]]
    assert listed["rank"] == result["ranks"]
    before = picture(runner, "a fox")
    stack = picture(runner, f"a fox {' '.join(PAIR)}")
    assert difference(before, stack) > 20
    assert difference(stack, picture(runner, "a fox <lora:both:1>")) <= 1


def test_the_latest_picture_tells_the_tags_and_gives_the_file_its_picture(
    ask: Checked, runner: Runner, folder: Path
) -> None:
    picture(runner, f"a fox {PAIR[0]} {PAIR[1]}")
    saved(ask, name="latest", picture=True)
    saved(ask, name="same", tags=PAIR)
    assert equal(folder / "latest.safetensors", folder / "same.safetensors")
    with Image.open(folder / "latest.png") as beside:
        assert beside.size == (64, 64)
    assert not (folder / "same.png").exists()
    (listed,) = [lora for lora in ask("GET", "/loras")["loras"] if lora["name"] == "latest"]
    assert listed["picture"]


def test_a_lora_of_several_components_is_saved_with_others_and_by_itself(
    ask: Checked, runner: Runner, folder: Path
) -> None:
    (folder / "sks" / "unet").mkdir(parents=True)
    (folder / "sks" / "unet" / "adapter_model.safetensors").write_bytes((folder / "stripes.safetensors").read_bytes())
    runner.studio.session.catalog.refresh()
    saved(ask, name="of files", tags=PAIR)
    saved(ask, name="of a folder", tags=["<lora:sks:0.8>", PAIR[1]])
    assert equal(folder / "of a folder.safetensors", folder / "of files.safetensors")
    saved(ask, name="alone", tags=["<lora:sks:1>"], rank=2)
    saved(ask, name="file alone", tags=["<lora:stripes:1>"], rank=2)
    assert equal(folder / "alone.safetensors", folder / "file alone.safetensors")


def test_a_preview_tells_bytes_and_error_and_writes_nothing(ask: Checked, folder: Path) -> None:
    before = set(folder.iterdir())
    wanted = {"tags": PAIR, "rank": 2, "name": "small"}
    told = saved(ask, **wanted, preview=True)
    assert set(folder.iterdir()) == before
    assert (told["id"], told["name"], told["ranks"]) == ("", "", [2, 2])
    result = saved(ask, **wanted)
    assert told["bytes"] == result["bytes"]
    assert told["error"] == pytest.approx(result["error"], rel=1e-3)
    assert result["error"] > 0.01
    assert saved(ask, tags=PAIR, error=0.5, preview=True)["bytes"] < told["bytes"] * 2
    errors = [one["error"] for one in result["each"]]
    assert errors == sorted(errors, reverse=True)
    assert (result["each"][0]["name"], errors[0]) == (result["worst"], result["worst_error"])
    assert (len(errors), {one["rank"] for one in result["each"]}) == (result["layers"], {2})
    padded = saved(ask, **wanted, pad=4, preview=True)
    assert padded["bytes"] > told["bytes"]
    kron = [saved(ask, tags=PAIR[:1], kind="lokr", factor=factor, preview=True)["bytes"] for factor in (2, 8)]
    assert kron[0] > kron[1]


def test_the_strengths_of_the_negative_prompt_are_saved_where_they_are_asked_for(ask: Checked, folder: Path) -> None:
    tags = ["<lora:stripes:te=0:unet=0.8:half=neg>", "<lora:night:te=0:unet=0.5>"]
    saved(ask, name="negative", tags=tags, negative=True)
    saved(ask, name="positive", tags=tags, negative=False)
    saved(ask, name="both", tags=[tags[0].replace(":half=neg", ""), tags[1]])
    saved(ask, name="one", tags=tags[1:])
    assert equal(folder / "negative.safetensors", folder / "both.safetensors")
    assert equal(folder / "positive.safetensors", folder / "one.safetensors")


def test_files_are_combined_by_a_rule_as_in_python(ask: Checked, folder: Path, tmp_path: Path) -> None:
    tags = ["<lora:stripes:0.8>", "<lora:night:0.5>"]
    saved(ask, name="ties", tags=tags, how="ties_svd", density=0.4, rank=8, dtype="float16")
    files = [Entry(folder / "stripes.safetensors", 0.8), Entry(folder / "night.safetensors", 0.5)]
    other = tmp_path / "ties.safetensors"
    combine_files(files, other, "ties_svd", density=0.4, rank=8, dtype=torch.float16)
    assert equal(folder / "ties.safetensors", other)
    written = [tag.replace(">", ":combine=ties_svd:density=0.4>") for tag in tags]
    saved(ask, name="by tags", tags=written, rank=8, dtype="float16")
    assert equal(folder / "by tags.safetensors", other)
    at_blocks = [tag.replace(">", ":lbw=OUTALL>") for tag in written]
    saved(ask, name="by block", tags=at_blocks, how="orthogonal")
    saved(ask, name="everywhere", tags=written, how="orthogonal")
    parts, whole = (load_file(folder / f"{name}.safetensors") for name in ("by block", "everywhere"))
    assert parts.keys() < whole.keys()
    assert {key[:18] for key in parts if not key.startswith("lora_te")} == {"lora_unet_up_block"}
    assert all(torch.equal(parts[key], whole[key]) for key in parts)
    assert set(RULES) == {*get_args(How)} - {"sum", "cat"}
    mixed = {"name": "mixed", "tags": [written[0], tags[1]]}
    assert "the tags have several rules" in ask("POST", "/save", 422, json=mixed)


def test_a_rule_makes_the_picture_of_the_file_that_is_saved_by_it(ask: Checked, runner: Runner, folder: Path) -> None:
    tags = "<lora:stripes:0.8:combine=orthogonal> <lora:night:0.7:combine=orthogonal>"
    live = picture(runner, f"a fox {tags}")
    acted = [(one.name, one.state, one.file is not None) for one in runner.studio.session.record.pictures()[0].loras]
    assert acted == [("stripes", "applied", True), ("night", "applied", True)]
    hashes = runner.studio.session.last.lines()
    assert len(hashes) == 1
    saved(ask, name="by rule")  # of the latest picture
    assert difference(live, picture(runner, "a fox <lora:by rule:1>")) == 0
    assert difference(live, picture(runner, f"a fox {tags.replace(':combine=orthogonal', '')}")) > 5


def test_the_inputs_of_a_picture_tell_the_error_of_the_outputs(ask: Checked, runner: Runner, folder: Path) -> None:
    assert ask("GET", "/save")["inputs"] == ""
    assert saved(ask, name="before", tags=PAIR, rank=2)["output_error"] is None
    for on, state in ((False, ""), (True, "wanted")):
        assert ask("PUT", "/save/inputs", json={"on": on})["inputs"] == state
    unet = runner.studio.host.components()["unet"]
    plain = picture(runner, f"a fox {' '.join(PAIR)}")
    assert ask("GET", "/save")["inputs"] == "taken"
    assert not any(layer._forward_pre_hooks for layer in unet.modules())
    result = saved(ask, name="after", tags=PAIR, rank=2)
    assert equal(folder / "after.safetensors", folder / "before.safetensors")
    assert 0.01 < result["output_error"] < 1
    assert result["output_error"] != result["error"]
    previewed = saved(ask, tags=PAIR, rank=2, preview=True)
    assert previewed["output_error"] == pytest.approx(result["output_error"], rel=1e-3)
    assert difference(plain, picture(runner, f"a fox {' '.join(PAIR)}")) == 0
    again = saved(ask, name="again", tags=PAIR, rank=2)
    assert again["output_error"] == result["output_error"], "the inputs of one picture stay"


def test_the_step_is_named_where_a_strength_differs(ask: Checked, folder: Path) -> None:
    tags = ["<lora:stripes:te=0:unet=0@0,1@1>"]
    assert "differs from step to step" in ask("POST", "/save", 422, json={"name": "late", "tags": tags})
    saved(ask, name="late", tags=tags, step=16, steps=22)
    saved(ask, name="full", tags=["<lora:stripes:te=0:unet=0.75>"])
    assert equal(folder / "late.safetensors", folder / "full.safetensors")


def test_without_a_model_files_that_tell_their_layers_are_saved(
    ask: Checked, runner: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(runner.studio.host), "components", lambda self: {})
    assert saved(ask, name="alone", tags=["<lora:stripes:0.8>", "<lora:night:0.5>"])["error"] < 1e-5
    ask("POST", "/save", json={"name": "dora", "tags": ["<lora:stars:1>"]})
    assert ended(ask)["problem"].startswith("no model that it is for is loaded, and it cannot be saved without: ")
    (folder / "cut.safetensors").write_bytes((folder / "stars.safetensors").read_bytes()[:-9])
    runner.studio.session.catalog.refresh()
    ask("POST", "/save", json={"name": "dora", "tags": ["<lora:cut:1>"]})
    assert ended(ask)["problem"].startswith("cut.safetensors: it is truncated or damaged")
    assert not (folder / "dora.safetensors").exists()


@pytest.fixture
def models(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of models, whose one model is the loaded one in float32; the demo's own is in float8."""
    runner.studio.model.pipeline.save_pretrained(tmp_path / "plain")
    host = type(runner.studio.host)
    monkeypatch.setattr(host, "models", lambda self: {path.name: path for path in sorted(tmp_path.glob("*"))})
    return tmp_path


def test_a_model_with_the_stack_in_it_and_its_difference_make_the_picture_of_the_stack(
    ask: Checked, runner: Runner, folder: Path, models: Path
) -> None:
    assert ask("GET", "/save/choices")["models"] == ["plain"]
    baking = {"what": "model", "model": "plain", "tags": PAIR}
    told = saved(ask, **baking, preview=True)
    assert [path.name for path in models.iterdir()] == ["plain"]
    assert told["seconds"] > 0
    result = saved(ask, **baking, name="baked")
    assert result["path"] == str(models / "baked")
    assert abs(result["bytes"] - told["bytes"]) < 100  # the header has the name
    assert 0 < result["error"] == told["error"] < 1e-4
    assert result["layers"] == told["layers"] > 5
    assert (models / "baked" / "model_index.json").is_file()
    assert "there is a model baked already" in ask("POST", "/save", 422, json={**baking, "name": "baked"})
    random = saved(ask, **baking, name="random", rounding="stochastic", seed=7)
    assert random["error"] == result["error"]  # of float32
    (header,) = {AdapterFile.open(path).metadata[HEADER] for path in (models / "random" / "unet").glob("*.safetensors")}
    assert json.loads(header)["seed"] == 7
    tags = [tag.replace(">", ":combine=dare_linear_svd:density=0.5:seed=4>") for tag in PAIR]
    ruled = {**baking, "tags": tags, "rounding": "stochastic", "seed": 7}
    assert saved(ask, **ruled, preview=True)["error"] == saved(ask, **ruled, name="ruled")["error"]
    rule, entries = Combination("dare_linear_svd", 0.5, 4), stack_of(runner.studio.session, PAIR, None)[0]
    bake_stack(entries, models / "plain", models / "other", combination=rule, rounding="stochastic", seed=7)
    for file in (models / "ruled" / "unet").glob("*.safetensors"):
        assert equal(file, models / "other" / file.relative_to(models / "ruled"))
        assert json.loads(AdapterFile.open(file).metadata[HEADER])["combination"]["how"] == "dare_linear_svd"
    difference_of = {"what": "difference", "model": "plain", "tuned": "baked", "rank": 64}
    told = saved(ask, **difference_of, preview=True)
    result = saved(ask, **difference_of, name="taken out")
    assert (result["ranks"], result["name"]) == (told["ranks"], "taken out")
    stack = picture(runner, f"a fox {' '.join(PAIR)}")
    assert difference(stack, picture(runner, "a fox")) > 20
    assert difference(stack, picture(runner, "a fox <lora:taken out:1>")) <= 2


def test_what_is_refused_of_models_is_said(ask: Checked, folder: Path, models: Path) -> None:
    (models / "snapshots" / "0123").mkdir(parents=True)
    before = set(models.rglob("*"))
    for wanted, said in (
        ({"what": "model"}, "choose a model"),
        ({"what": "model", "model": "nope"}, "the web UI has no model 'nope'"),
        ({"what": "model", "model": "../plain"}, "the web UI has no model '../plain'"),
        ({"what": "model", "model": "plain", "tags": []}, "there is no LoRA to save"),
        ({"what": "model", "model": "plain", "name": "../a"}, "a file cannot have the name '../a'"),
        ({"what": "model", "model": "plain", "name": "plain"}, "there is a model plain already"),
        ({"what": "model", "model": "plain", "rounding": "down"}, "rounding must be one of"),
        ({"what": "difference", "model": "plain"}, "choose a model"),
        ({"what": "difference", "tuned": "plain"}, "choose a model"),
        ({"what": "difference", "model": "plain", "tuned": "plain", "name": "zorp"}, "there is a file zorp"),
        ({"what": "both"}, "what must be one of"),
    ):
        assert said in ask("POST", "/save", 422, json={"name": "a", "tags": PAIR, **wanted}), wanted
    ask("POST", "/save", json={"what": "difference", "model": "plain", "tuned": "plain", "name": "a"})
    assert "it does not differ from plain" in ended(ask)["problem"]
    assert set(models.rglob("*")) == before


def test_a_model_in_a_cache_is_read_and_nothing_is_put_there(
    ask: Checked, folder: Path, models: Path, monkeypatch: pytest.MonkeyPatch, runner: Runner
) -> None:
    cached = models / "models--someone--plain" / "snapshots" / "0123"
    cached.parent.mkdir(parents=True)
    (models / "plain").rename(cached)
    monkeypatch.setattr(type(runner.studio.host), "models", lambda self: {"plain": cached})
    said = ask("POST", "/save", 422, json={"what": "model", "model": "plain", "name": "a", "tags": PAIR})
    assert said.startswith("models--someone--plain is in the cache of downloads")


def test_files_for_another_model_are_saved_by_what_they_tell_themselves(ask: Checked, folder: Path) -> None:
    names = [f"lora_unet_input_blocks_{i}_1_transformer_blocks_{j}_attn2_to_k" for i in (7, 8) for j in range(10)]
    tensors = {key: one for name in names for key, one in pair(name, (64, 32), 4).items()}
    save(folder / "other.safetensors", tensors, {"ss_base_model_version": "sdxl_base_v1-0"})
    ask("POST", "/refresh")
    result = saved(ask, name="smaller", tags=["<lora:other:0.5>"], rank=2)
    assert (result["ranks"], result["layers"]) == ([2, 2], len(names))


def test_the_rules_are_the_librarys() -> None:
    """They are written out in the table of records, which is read at every start, without the room that saves."""
    (how,) = get_args(get_type_hints(records.SaveWanted, include_extras=True)["how"])
    assert get_args(get_args(how)[0]) == tuple(rule for rule in get_args(How) if rule != "cat")  # another name of `sum`


REFUSED: Sequence[tuple[dict[str, Any], str]] = [
    ({"name": "a", "tags": []}, "there is no LoRA to save"),
    ({"name": "a", "tags": ["a fox"]}, "there is no LoRA to save"),
    ({"name": "a", "tags": ["<lora:zorp:0>"]}, "every LoRA has the strength 0"),
    ({"name": "a", "tags": ["<lora:zorp"]}, "the tag is not closed"),
    ({"name": "a", "tags": [PAIR[0], "<lora:zorp:x>"]}, "<lora:zorp:x>: 'x' is not a number"),
    ({"name": "a", "tags": ["<lora:nope:1>"]}, "is not in the LoRA folders"),
    ({"name": "a", "tags": ["<lora:../zorp:1>"]}, "is outside the LoRA folders"),
    ({"name": "a", "tags": ["<lora:zorp:1:half=pos>"]}, "acts on one prompt only"),
    ({"name": "a", "tags": ["<lora:zorp:1>"] * 51}, "at most 50 tags"),
    ({"name": "a", "tags": "<lora:zorp:1>"}, "tags must be a list of texts"),
    ({"name": "a", "tags": PAIR, "rank": 0}, "rank must be a whole number from 1 up"),
    ({"name": "a", "tags": PAIR, "rank": "8"}, "rank must be a whole number or null"),
    ({"name": "a", "tags": PAIR, "size": -1}, "size must be a whole number from 1 up"),
    ({"name": "a", "tags": PAIR, "error": 1}, "error must be a number between 0 and 1"),
    ({"name": "a", "tags": PAIR, "dtype": "int8"}, "dtype must be one of"),
    ({"name": "a", "tags": PAIR, "how": "best"}, "how must be one of"),
    ({"name": "a", "tags": PAIR, "how": "ties"}, "keeps a share of the numbers; give it"),
    ({"name": "a", "tags": PAIR, "how": "sum", "density": 0.5}, "keeps all numbers"),
    ({"name": "a", "tags": PAIR, "step": 20}, "the step must be from 0 to 19"),
    ({"tags": PAIR}, "a file cannot have the name ''"),
    ({"name": "zorp", "tags": PAIR}, "there is a file zorp.safetensors already"),
    ({"name": "a", "tags": PAIR, "folder": "nope"}, "there is no folder 'nope' in the LoRA folders"),
    *[
        ({"name": name, "tags": PAIR}, "a file cannot have the name")
        for name in ("", " ", ".", "..", ".hidden", "../a", "a/b", "a\\b", "/etc/a", "C:a", "a\x00", "a\nb", "a.")
    ],
    *[({"name": name, "tags": PAIR}, "a file cannot have the name") for name in ("a<b", "a>b", "a|b", "~", "a*")],
    *[({"name": name, "tags": PAIR}, "the name of a device") for name in ("con", "NUL", "com1.x", "LPT9")],
    *[({"name": name, "tags": PAIR}, "the name is too long") for name in ("a" * 101, "ä" * 95)],
    *[
        ({"name": "a", "tags": PAIR, "folder": folder}, "there is no folder")
        for folder in ("..", "../..", "/", "/tmp", ".", "a/../..", "..\\..", "C:\\", "a\x00", "./.", "sub/")
    ],
]


def test_what_is_refused_changes_nothing(ask: Checked, folder: Path) -> None:
    before = set(folder.parent.rglob("*"))
    for wanted, said in REFUSED:
        assert said in ask("POST", "/save", 422, json=wanted), wanted
    assert set(folder.parent.rglob("*")) == before


def test_a_folder_may_be_below_the_lora_folders_but_no_link_out_of_them(
    ask: Checked, folder: Path, tmp_path: Path
) -> None:
    (folder / "sub" / "mine").mkdir(parents=True)
    (folder / "out").symlink_to(tmp_path)
    tags = ["<lora:stripes:1>"]
    result = saved(ask, name="inside", folder="sub/mine", tags=tags)
    assert result["path"] == str(folder / "sub/mine/inside.safetensors")
    assert "sub/mine" in ask("GET", "/save/choices")["folders"]
    assert "there is no folder 'out'" in ask("POST", "/save", 422, json={"name": "a", "folder": "out", "tags": tags})
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_where_it_is_wanted(ask: Checked, folder: Path) -> None:
    first = saved(ask, name="mine", tags=["<lora:stripes:1>"])
    assert "there is a file mine.safetensors already" in ask(
        "POST", "/save", 422, json={"name": "mine", "tags": ["<lora:night:1>"]}
    )
    second = saved(ask, name="mine.safetensors", tags=["<lora:night:1>"], replace=True)
    assert first["path"] == second["path"]
    assert first["bytes"] != second["bytes"]


def test_a_link_stays_and_what_is_beside_a_former_file_is_said(ask: Checked, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"of another program")
    (folder / "linked.safetensors").symlink_to(other)
    wanted = {"tags": ["<lora:stripes:1>"], "replace": True}
    said = ask("POST", "/save", 422, json={"name": "linked", **wanted})
    assert said.startswith("linked.safetensors is a link to another file")
    assert other.read_bytes() == b"of another program"
    (folder / "mine.json").write_text('{"remora": {"alpha": 2}}')
    assert saved(ask, name="mine", **wanted)["notes"] == [
        "mine.json beside it sets another alpha, so that it acts otherwise; delete the alpha in its details"
    ]


def test_the_model_is_not_kept_when_the_job_is_done(ask: Checked, runner: Runner, folder: Path) -> None:
    session = runner.studio.session
    stack, _ = saving.stack_of(session, PAIR, None)
    path = folder / "a.safetensors"
    write = saving.as_file(stack, path, Combination(), {"preview": True}, None)
    run = saving.SaveRun(session, saving.Wanted(path, write, is_preview=True, uses_model=True))
    assert run._model
    run.start()
    run.wait()
    assert (run.problem, run.running, run._model) == ("", False, {})


class Held:
    """Holds jobs at a layer until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = 5
        step = saving.SaveRun._step

        def held(run: saving.SaveRun, done: int, layers: int) -> None:
            step(run, done, layers)
            deadline = time.monotonic() + 300
            while self.at is not None and done >= self.at and not run.cancelled:
                assert time.monotonic() < deadline
                time.sleep(0.01)

        monkeypatch.setattr(saving.SaveRun, "_step", held)


def waits(ask: Checked) -> Any:
    deadline = time.monotonic() + 300
    while (job := ask("GET", "/save")["job"])["done"] < 5:
        assert job["running"]
        assert time.monotonic() < deadline
    return job


@pytest.mark.parametrize("what", ["file", "model"])
def test_a_cancelled_job_leaves_nothing(
    ask: Checked, folder: Path, models: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    Held(monkeypatch)
    before = set(folder.parent.rglob("*")) | set(models.rglob("*"))
    ask("POST", "/save", json={"what": what, "model": "plain", "name": "gone", "tags": PAIR})
    job = waits(ask)
    assert 5 <= job["done"] < job["layers"]
    assert job["result"] is None
    assert "a file is being saved" in ask("POST", "/save", 409, json={"name": "two", "tags": PAIR})
    assert "a file is being saved" in ask("POST", "/save", 409, json={"tags": PAIR, "preview": True})
    ask("DELETE", "/save")
    job = ended(ask)
    assert (job["cancelled"], job["result"], job["problem"]) == (True, None, "")
    assert set(folder.parent.rglob("*")) | set(models.rglob("*")) == before


def test_a_preview_is_dropped_for_the_next_job(ask: Checked, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    first = ask("POST", "/save", json={"tags": PAIR, "preview": True})["job"]["id"]
    waits(ask)
    held.at = None
    monkeypatch.undo()
    result = saved(ask, name="next", tags=PAIR)
    assert result["name"] == "next"
    assert ask("GET", "/save")["job"]["id"] != first


def test_another_model_or_a_merged_one_ends_the_job(
    ask: Checked, runner: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(runner, "a fox <lora:stripes:1>")  # which makes the engine
    held = Held(monkeypatch)
    session, host = runner.studio.session, type(runner.studio.host)
    ask("POST", "/save", json={"name": "other", "tags": PAIR})
    waits(ask)
    with monkeypatch.context() as patch:
        patch.setattr(host, "components", lambda self: {"unet": torch.nn.Linear(1, 1)})
        held.at = None
        assert "another model was loaded meanwhile" in ended(ask)["problem"]
    engine = session.model.engine
    assert engine is not None
    merged = Stack([Entry(folder / "stripes.safetensors")], mode="merged")
    with engine.active(merged):
        ask("POST", "/save", json={"name": "merged", "tags": PAIR})
        assert "LoRA are merged into the model" in ended(ask)["problem"]
    assert not {"other.safetensors", "merged.safetensors"} & {path.name for path in folder.iterdir()}


def test_a_fault_of_the_work_is_said_and_the_next_job_works(
    ask: Checked, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("POST", "/save", json={"name": "small", "tags": PAIR, "size": 1000})
    assert "allow a larger size" in ended(ask)["problem"]
    with monkeypatch.context() as patch:
        patch.setattr("lib_lora.saving.save_files", lambda *_: 1 / 0)
        ask("POST", "/save", json={"name": "broken", "tags": PAIR})
        assert "broken.safetensors cannot be saved: ZeroDivisionError" in ended(ask)["problem"]
    assert saved(ask, name="works", tags=PAIR)["name"] == "works"
