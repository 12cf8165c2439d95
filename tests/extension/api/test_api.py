"""`/remora/v1/*` over the embedded web UI."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.torch import load_file, save_file

from extension.generation.options import DEFAULT_MULTIPLIER, ENABLED, ON_BAD_LORA, SKIP
from extension.generation.outcomes import TagOutcome
from extension.kept.always_on import AlwaysOn, AlwaysOnFile, read
from extension.standalone.jobs import Runner
from extension.standalone.server import make_api
from extension.text.infotext import parse_infotext
from extension.version import VERSION

DEMO = {"neon", "night", "outline", "stars", "stripes", "zorp"}
SMALL: dict[str, Any] = {"steps": 1, "width": 64, "height": 64, "seed": 7, "sampler_name": "Euler a"}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
STACK = "/remora/v1/stack"
STATE = "/remora/v1/state"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def client(runner: Runner) -> Iterator[TestClient]:
    catalog = runner.studio.session.catalog
    with TestClient(make_api(runner), base_url="http://localhost") as client:
        catalog.wait(60)
        yield client
    runner.studio.session.always_on.put(AlwaysOn())


@pytest.fixture
def folder(runner: Runner) -> Iterator[Path]:
    """Yield the LoRA folder and delete what a test added."""
    folder = Path(runner.studio.host.adapter_dirs()[0])
    before = set(folder.iterdir())
    yield folder
    for path in set(folder.iterdir()) - before:
        path.unlink()
    runner.studio.session.catalog.refresh()


def make(client: TestClient, prompt: str, **settings: object) -> dict[str, Any]:
    payload = {**SMALL, "prompt": prompt, "override_settings": settings}
    return dict(client.post("/sdapi/v1/txt2img", json=payload).json())


def parameters(answer: dict[str, Any]) -> dict[str, str]:
    return dict(parse_infotext(json.loads(answer["info"])["infotexts"][0]).settings)


def keep_in(folder: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the stack kept in a file: the demo has no folder for it."""
    monkeypatch.setattr(runner.studio.session, "always_on", AlwaysOnFile(lambda: folder))


def entry(name: str, **fields: object) -> dict[str, object]:
    return {"name": name, "on": True, "unet": 1.0, "text_encoder": 1.0, **fields, "more": ""}


def put(client: TestClient, *entries: dict[str, object], always_on: bool = True) -> Any:
    return client.put(STACK, json={"always_on": always_on, "entries": list(entries)})


def test_the_version_is_that_of_the_project() -> None:
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_files_are_listed_with_what_is_wrong_with_them(client: TestClient, folder: Path) -> None:
    (folder / "old.pt").write_bytes(b"\x80\x02")
    (folder / "broken.safetensors").write_bytes(b"x" * 100)
    loras = {lora["name"]: lora for lora in client.post("/remora/v1/refresh").json()["loras"]}
    assert client.get("/remora/v1/loras").json()["loras"] == list(loras.values())
    assert loras.keys() == {*DEMO, "broken", "old"}
    good = loras["zorp"]
    assert (good["alias"], good["folder"], good["readable"], good["reason"]) == ("zorp", "", True, "")
    stat = (folder / "zorp.safetensors").stat()
    assert (good["size"], good["mtime"]) == (stat.st_size, pytest.approx(stat.st_mtime))
    assert "a pickle" in loras["old"]["reason"]
    assert loras["broken"]["reason"].startswith("it is truncated"), "the file is named beside it"
    assert not loras["old"]["readable"]
    assert not loras["broken"]["readable"]


def test_an_answer_that_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    first = client.get(STATE)
    again = client.get(STATE, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    make(client, "<lora:zorp:1>")
    assert client.get(STATE, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200


def test_a_long_answer_is_compressed_for_those_who_take_it(client: TestClient) -> None:
    plain = client.get("/remora/v1/loras?since=0", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    short = client.get("/remora/v1/loras?since=0", headers={"Accept-Encoding": "gzip"})
    assert short.headers["Content-Encoding"] == "gzip"
    assert int(short.headers["Content-Length"]) < len(plain.content) / 2
    assert short.json() == plain.json()
    again = {"Accept-Encoding": "gzip", "If-None-Match": short.headers["ETag"]}
    assert client.get("/remora/v1/loras?since=0", headers=again).status_code == 304


def test_the_state_tells_each_lora_of_the_latest_picture(client: TestClient, folder: Path) -> None:
    (folder / "broken.safetensors").write_bytes(b"x" * 100)
    put(client, entry("stripes"))
    make(client, "<lora:zorp:1> <lora:nowhere:1> <lora:broken:1>", **{ON_BAD_LORA: SKIP})
    state = client.get(STATE).json()
    assert (state["host"], state["version"], state["enabled"], state["images"]) == ("standalone", VERSION, True, 1)
    assert (state["conflicts"], state["notes"], state["merged"], state["live"]) == ([], [], 0, {})
    told = {lora["name"]: (lora["state"], lora["always_on"]) for lora in state["loras"]}
    assert told == {
        "stripes": ("applied", True),
        "zorp": ("applied", False),
        "nowhere": ("missing", False),
        "broken": ("failed", False),
    }
    reasons = {lora["name"]: lora["reason"] for lora in state["loras"]}
    assert reasons["zorp"] == ""
    assert "is not in the LoRA folders" in reasons["nowhere"]
    assert reasons["broken"].startswith("it is truncated"), "the LoRA is named beside it"


def test_a_file_of_which_keys_go_unused_is_applied_partly(client: TestClient, folder: Path) -> None:
    tensors = load_file(folder / "zorp.safetensors")
    layer = next(iter(tensors)).partition(".")[0]
    found = {key: value for key, value in tensors.items() if key.startswith(f"{layer}.")}
    others = {key.replace(layer, "lora_unet_no_such"): value.clone() for key, value in found.items()}
    save_file({**tensors, **others}, folder / "half.safetensors")
    make(client, "<lora:half:1>")
    (lora,) = client.get(STATE).json()["loras"]
    assert (lora["state"], lora["hit"], lora["layers"]) == ("partly", 264, 265)
    assert lora["reason"].startswith("264 of 265 layers fit this model; ")
    assert lora["warning"] == "", "its reason says so already"
    (keys,) = lora["unused"].values()
    assert sorted(keys) == sorted(others)
    save_file(found | others, folder / "half.safetensors")
    make(client, "<lora:half:1>")
    assert client.get(STATE).json()["loras"][0]["reason"].startswith("1 of 2 layers fits this model; ")


def test_each_lora_of_the_state_tells_what_it_is_and_those_left_out_have_the_same_fields(
    client: TestClient, folder: Path
) -> None:
    tensors = load_file(folder / "zorp.safetensors")
    metadata = {"ss_sd_model_name": "demo.safetensors", "ss_base_model_version": "sd_v1"}
    save_file({**tensors, "junk": tensors[next(iter(tensors))].clone()}, folder / "told.safetensors", metadata)
    make(client, "<lora:told:1> <lora:nowhere:1>", **{ON_BAD_LORA: SKIP})
    told, nowhere = client.get(STATE).json()["loras"]
    assert told.keys() == nowhere.keys()
    family = {"name": "sd1", "title": "Stable Diffusion 1.x", "sure": True}
    assert (told["family"], told["base_model"]) == (family, "demo.safetensors (sd_v1)")
    assert (told["format"], told["ranks"], told["changed"]) == ("kohya", [2, 2], 264)
    assert told["causes"] == {"not understood by any key format": "unknown_key"}
    assert told["unused"].keys() == told["causes"].keys()
    assert (told["warning"], nowhere["warning"]) == ("", ""), "a small model is of no family for sure"


def test_where_a_generation_failed_the_state_says_for_what(client: TestClient) -> None:
    make(client, "<lora:zorp:1>")
    assert "detail" in make(client, "<lora:zorp:1> <lora:nowhere:1>")
    state = client.get(STATE).json()
    (lora,) = state["loras"]
    assert (lora["name"], lora["asked"], lora["state"]) == ("nowhere", "nowhere", "missing")
    assert state["notes"] == [], "it is said once, at the LoRA"


@pytest.mark.parametrize("body", ["zorp:1:lbw=NO", "zorp:nope=1", ":1", "zorp:1 " + "x" * 80])
def test_a_tag_that_cannot_be_read_is_told_once_as_the_prompt_had_it(client: TestClient, body: str) -> None:
    make(client, "a fox")
    end = "" if "xx" in body else ">"
    refused = make(client, f"<lora:stripes:1> <lora:{body}{end}")["detail"]
    state = client.get(STATE).json()
    (lora,) = state["loras"]
    assert (lora["name"], lora["asked"], lora["state"]) == (body.partition(":")[0], body, "failed")
    assert (lora["reason"], state["notes"]) == (refused, [])
    make(client, "a fox")
    assert client.get(STATE).json()["loras"] == []


def test_a_failure_of_no_lora_is_told_by_itself(client: TestClient, runner: Runner) -> None:
    runner.studio.session.failed = (TagOutcome.of_all("the model went away"),)
    try:
        state = client.get(STATE).json()
    finally:
        runner.studio.session.failed = ()
    assert (state["loras"], state["notes"]) == ([], ["the model went away"])


def test_settings_that_the_tab_needs_are_in_the_state(client: TestClient, runner: Runner) -> None:
    host = runner.studio.host
    try:
        host.set_option(ENABLED, False)
        host.set_option(DEFAULT_MULTIPLIER, 0.7)
        state = client.get(STATE).json()
    finally:
        host.set_option(ENABLED, True)
        host.set_option(DEFAULT_MULTIPLIER, 1.0)
    assert (state["enabled"], state["default_multiplier"]) == (False, 0.7)
    assert state["own_lora"] is False, "the embedded web UI has no LoRA of its own that would get the tags"


def test_the_stack_is_in_every_picture_while_it_is_on_and_said_in_its_parameters(client: TestClient) -> None:
    plain = make(client, "a fox")
    written = make(client, "a fox <lora:zorp:0.5:0.8>")
    assert put(client, entry("zorp", unet=0.8, text_encoder=0.5)).status_code == 200
    always = make(client, "a fox")
    assert always["images"] != plain["images"]
    assert parameters(always)["Remora stack"] == "<lora:zorp:0.5:0.8>"
    assert parameters(always)["Lora hashes"] == parameters(written)["Lora hashes"]
    assert png(always) == png(written)
    own = make(client, "a fox <lora:zorp:0>")
    assert png(own) == png(plain)
    assert "Remora stack" not in parameters(own)
    put(client, entry("zorp", unet=0.8, text_encoder=0.5), always_on=False)
    assert make(client, "a fox")["images"] == plain["images"]


def png(answer: dict[str, Any]) -> bytes:
    """Return the pixels of a picture without its parameters."""
    with Image.open(io.BytesIO(base64.b64decode(answer["images"][0]))) as image:
        return image.tobytes()


def test_the_stack_is_kept_with_names_as_tags_spell_them(
    client: TestClient, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_in(tmp_path, runner, monkeypatch)
    answer = put(client, entry("zorp.safetensors", unet=2), {"name": "stripes"}).json()
    assert answer["entries"] == [entry("zorp", unet=2.0), entry("stripes")]
    assert client.get(STACK).json() == answer
    assert json.loads((tmp_path / "stack.json").read_text("utf-8"))["entries"] == answer["entries"]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"", 422, "the stack is not JSON"),
        (b"{", 422, "the stack is not JSON"),
        (b"\xff", 422, "the stack is not JSON"),
        (b"[" * 100_000, 422, "the stack is not JSON"),
        (b'{"entries": 1}', 422, "entries must be a list"),
        (b'{"entries": [{"name": "zorpp"}]}', 422, "did you mean zorp"),
        (b'{"entries": [{"name": "../zorp"}]}', 422, "is outside the LoRA folders"),
        (b'{"entries": [{"name": "/etc/passwd"}]}', 422, "is outside the LoRA folders"),
        (
            b'{"entries": [{"name": "zorp", "unet": NaN}]}',
            422,
            "not JSON that can be used: NaN is not a number",
        ),
        (b'{"entries": [{"name": "zorp", "unet": 1e999}]}', 422, "the number 1e999 is too large"),
        (b'{"entries": [{"name": "zorp", "unet": ' + b"1" * 400 + b"}]}", 422, "has 400 digits"),
        (b'{"entries": [{"name": "zorp\\ud800"}]}', 422, "a text has half of a character"),
        (b'{"entries": ' + b"[" * 40 + b"]" * 40 + b"}", 422, "nested more than 32 deep"),
        (b'{"entries": [{"name": "zorp"}, {"name": "zorp.safetensors"}]}', 422, "in the stack twice"),
        (b" " * ((1 << 20) + 1), 413, "no more than 1 MB"),
    ],
)
def test_wrong_input_changes_nothing_and_is_one_sentence(
    client: TestClient, body: bytes, status: int, told: str
) -> None:
    before = put(client, entry("stripes")).json()
    answer = client.put(STACK, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    detail = answer.json()["detail"]
    assert told in detail
    assert "\n" not in detail
    assert client.get(STACK).json() == before


def test_an_entry_whose_file_has_gone_stays_and_can_be_changed(client: TestClient, folder: Path) -> None:
    path = folder / "short-lived.safetensors"
    path.write_bytes((folder / "zorp.safetensors").read_bytes())
    assert put(client, entry("short-lived")).status_code == 200
    path.unlink()
    answer = put(client, entry("short-lived", on=False), entry("stripes"))
    assert answer.json()["entries"] == [entry("short-lived", on=False), entry("stripes")]
    put(client, entry("short-lived"))
    detail = make(client, "a fox")["detail"]
    assert detail.startswith("of the always-on stack: LoRA 'short-lived' is not in the LoRA folders")
    (lora,) = client.get(STATE).json()["loras"]
    assert (lora["name"], lora["state"], lora["always_on"]) == ("short-lived", "missing", True)


def test_many_names_that_are_unknown_take_one_look_at_the_folders(
    client: TestClient, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, looks = runner.studio.session.catalog, []
    refresh = catalog.refresh
    monkeypatch.setattr(catalog, "refresh", lambda: looks.append(1) or refresh())
    gone = [entry(f"gone {number}") for number in range(5)]
    runner.studio.session.always_on.put(read({"always_on": True, "entries": gone}))
    assert put(client, *gone).json()["entries"] == gone
    assert len(looks) == 1
    put(client)
    looks.clear()
    make(client, " ".join(f"<lora:nope{number}:1>" for number in range(5)), **{ON_BAD_LORA: SKIP})
    assert len(client.get(STATE).json()["loras"]) == 5
    assert len(looks) == 1


def test_a_file_that_cannot_be_used_is_not_taken(client: TestClient, folder: Path) -> None:
    (folder / "broken.safetensors").write_bytes(b"x" * 100)
    answer = put(client, entry("broken"))
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("LoRA 'broken' cannot be used: it is truncated")


def test_a_stack_that_cannot_be_kept_is_as_before(
    client: TestClient, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_in(tmp_path, runner, monkeypatch)
    before = put(client, entry("stripes")).json()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    answer = put(client)
    assert answer.status_code == 500
    assert answer.json()["detail"] == "the stack cannot be saved and is unchanged: No space left on device"
    assert client.get(STACK).json() == before


def test_a_change_of_what_another_page_has_changed_is_refused(client: TestClient) -> None:
    mine = put(client, entry("zorp")).headers["ETag"]
    assert client.get(STATE).json()["stack"] == mine.strip('"')
    theirs = put(client, entry("stripes"))
    stale = client.put(STACK, json={"always_on": False, "entries": []}, headers={"If-Match": mine})
    assert stale.status_code == 412
    assert stale.json() == {"detail": "the stack was changed on another page or by another program; read it again"}
    now = client.get(STACK)
    assert now.json() == theirs.json()
    assert now.headers["ETag"] == theirs.headers["ETag"]
    for known in (now.headers["ETag"], f"W/{theirs.headers['ETag']}", f'"other", {theirs.headers["ETag"]}', "*"):
        same = client.put(STACK, json={"always_on": True, "entries": [entry("stripes")]}, headers={"If-Match": known})
        assert same.status_code == 200


@pytest.mark.parametrize(
    ("listed", "change"),
    [
        ("presets", ("PUT", "preset?name=b", {"text": "<lora:zorp:1>"})),
        ("presets", ("POST", "presets", {"text": "<lora:zorp:1>"})),
        ("presets", ("DELETE", "preset?name=a", None)),
        ("blocks", ("PUT", "blocks/presets", {"name": "B", "values": "1,0"})),
        ("blocks", ("DELETE", "blocks/presets?name=A", None)),
        ("regions", ("PUT", "regions", {"name": "b", "picture": PNG})),
        ("regions", ("DELETE", "regions?name=a", None)),
        ("lora?name=zorp", ("PATCH", "lora?name=zorp", {"notes": "mine"})),
    ],
)
def test_a_change_of_a_list_that_another_page_has_changed_is_refused(
    client: TestClient, folder: Path, listed: str, change: tuple[str, str, dict[str, str] | None]
) -> None:
    own = "/remora/v1/"
    client.put(f"{own}preset?name=a", json={"text": "<lora:zorp:1>"})
    client.put(f"{own}blocks/presets", json={"name": "A", "values": "1,0"})
    client.put(f"{own}regions", json={"name": "a", "picture": PNG})
    mine = client.get(own + listed).headers["ETag"]
    client.put(f"{own}preset?name=theirs", json={"text": "<lora:zorp:1>"})
    client.put(f"{own}blocks/presets", json={"name": "THEIRS", "values": "1,0"})
    client.put(f"{own}regions", json={"name": "theirs", "picture": PNG})
    client.patch(f"{own}lora?name=zorp", json={"words": "theirs"})
    before = client.get(own + listed)
    method, path, body = change
    stale = client.request(method, own + path, json=body, headers={"If-Match": mine})
    assert (stale.status_code, "was changed on another page" in stale.json()["detail"]) == (412, True)
    now = client.get(own + listed)
    assert now.json() == before.json()
    done = client.request(method, own + path, json=body, headers={"If-Match": now.headers["ETag"]})
    assert done.status_code == 200
    assert done.headers["ETag"] == client.get(own + listed).headers["ETag"]
    for path in ("preset?name=a", "preset?name=b", "preset?name=imported", "preset?name=theirs"):
        client.delete(own + path)
    for name in ("a", "b", "theirs"):
        client.delete(f"{own}regions?name={name}")
        client.delete(f"{own}blocks/presets?name={name.upper()}")


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("start=10:stop=5", "zorp has no effect on the unet: it stops at step 5 and starts at step 10 only"),
        ("start=50", "zorp has no effect on the unet: its strength was 0 at all "),
        ("pass=hires", "zorp has had no effect: it is for pass=hires, and no such pass was made"),
    ],
)
def test_a_lora_that_acts_by_halves_or_not_at_all_says_so_wherever_it_is_told(
    client: TestClient, field: str, why: str
) -> None:
    answer = make(client, f"<lora:zorp:1:{field}>")
    warning, *notes = json.loads(answer["info"])["remora"]["warnings"]
    assert warning.startswith(why)
    beyond = ["zorp acts in no step: it begins after step 50, and the picture has 1 step"]
    assert notes == (beyond if field == "start=50" else [])
    assert parameters(answer)["Remora warnings"] == "; ".join([warning, *notes])
    state = client.get(STATE).json()
    told = [*state["notes"], *(f"{lora['state']}: {lora['reason']}" for lora in state["loras"])]
    waiting = f"waiting: {warning.removeprefix('zorp has had no effect: ')}"
    assert told == [*notes, waiting if "pass" in field else f"partly: {warning.replace('zorp has', 'it has')}"]


def test_a_picture_that_is_made_makes_no_change_of_a_file_stale(client: TestClient, folder: Path) -> None:
    lora = "/remora/v1/lora?name=zorp"
    mine = client.get(lora)
    make(client, "<lora:zorp:1>")
    used = client.get(lora, headers={"If-None-Match": mine.headers["ETag"]})
    assert used.status_code == 200, "what is told has changed all the same"
    assert used.json()["uses"] > mine.json()["uses"]
    done = client.patch(lora, json={"notes": "mine"}, headers={"If-Match": mine.headers["ETag"]})
    assert done.status_code == 200, done.text
    assert client.get(lora, headers={"If-None-Match": done.headers["ETag"]}).status_code == 304


def test_a_picture_of_a_file_that_another_page_has_changed_is_refused(client: TestClient, folder: Path) -> None:
    (folder / "copied.safetensors").write_bytes((folder / "zorp.safetensors").read_bytes())
    own, content = "/remora/v1/picture?name=copied", base64.b64decode(PNG)
    mine = client.get("/remora/v1/lora?name=copied").headers["ETag"]
    theirs = client.patch("/remora/v1/lora?name=copied", json={"notes": "theirs"}).headers["ETag"]
    headers = {"Content-Type": "image/png", "If-Match": mine}
    stale = client.put(own, content=content, headers=headers)
    assert stale.status_code == 412
    assert stale.json()["detail"].startswith("the entry of copied.safetensors was changed on another page")
    assert not (folder / "copied.png").exists()
    done = client.put(own, content=content, headers={**headers, "If-Match": theirs})
    assert done.status_code == 200
    again = client.put(own, content=content, headers={**headers, "If-Match": theirs})
    assert again.status_code == 412, "it has another picture now"


def test_inspect_tells_what_the_command_tells(client: TestClient, folder: Path) -> None:
    command = [sys.executable, "-m", "lib_lora", "inspect", "--json", str(folder / "zorp.safetensors")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert client.get("/remora/v1/inspect", params={"name": "zorp"}).json() == json.loads(done.stdout)


def test_inspect_tells_of_the_loaded_model_where_that_is_asked_for(client: TestClient) -> None:
    def inspected(**query: str) -> Any:
        return client.get("/remora/v1/inspect", params={"name": "zorp", **query})

    alone, here = inspected().json(), inspected(model="loaded").json()
    assert (alone["hit"], here["hit"], here["changed"]) == (None, 264, 264)
    assert alone.keys() == here.keys()
    wrong = inspected(model="other")
    assert (wrong.status_code, wrong.json()["detail"]) == (422, "model must be 'loaded' or left out, not 'other'")


def test_the_list_tells_from_which_model_a_file_was_made(client: TestClient, folder: Path) -> None:
    tensors = load_file(folder / "zorp.safetensors")
    save_file(tensors, folder / "pony.safetensors", {"ss_sd_model_name": "ponyV6.safetensors"})
    loras = {lora["name"]: lora["base_model"] for lora in client.post("/remora/v1/refresh").json()["loras"]}
    assert loras == {**dict.fromkeys(DEMO, "remora-shapes (sd_v1)"), "pony": "ponyV6.safetensors"}


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("../../secret", 404, "is outside the LoRA folders"),
        ("nowhere", 404, "is not in the LoRA folders"),
        ("", 422, "the query names no LoRA: give its id or its name"),
        ("broken", 422, "broken.safetensors: "),
    ],
)
def test_what_cannot_be_inspected(client: TestClient, folder: Path, name: str, status: int, told: str) -> None:
    (folder / "broken.safetensors").write_bytes(b"x" * 100)
    answer = client.get("/remora/v1/inspect", params={"name": name})
    assert answer.status_code == status
    assert told in answer.json()["detail"]


def test_the_routes_are_in_the_schema(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths[STACK]) == {"get", "put"}
    assert {"/remora/v1/loras", "/remora/v1/refresh", STATE, "/remora/v1/inspect"} <= set(paths)
