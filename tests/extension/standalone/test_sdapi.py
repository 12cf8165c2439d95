"""A1111's HTTP API: with its field names, and with a client written for it, over a real socket."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
import webuiapi
from fastapi.testclient import TestClient
from PIL import Image
from starlette.responses import PlainTextResponse

from extension.generation.options import (
    ALWAYS,
    CACHE,
    DEFAULT_MULTIPLIER,
    ENABLED,
    HASHES,
    IN_ORDER,
    LIMITED,
    MERGE,
    NEVER,
    ON_BAD_LORA,
    STORAGE,
    from_parameters,
)
from extension.kept.always_on import AlwaysOn, AlwaysOnEntry
from extension.standalone.jobs import Runner
from extension.standalone.pnginfo import read_infotext
from extension.standalone.server import make_api
from extension.text.infotext import parse_infotext

SMALL: dict[str, Any] = {"prompt": "a fox", "steps": 2, "width": 64, "height": 64, "seed": 7, "sampler_name": "Euler a"}
TXT2IMG = "/sdapi/v1/txt2img"
ROOT = Path(__file__).resolve().parents[3]
LORAS = ["neon", "night", "outline", "stars", "stripes", "zorp"]


@pytest.fixture(scope="module")
def client(runner: Runner) -> Iterator[TestClient]:
    with TestClient(make_api(runner), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def api(runner: Runner) -> Iterator[webuiapi.WebUIApi]:
    """Yield an unchanged client for A1111 that talks to a real server."""
    server = uvicorn.Server(uvicorn.Config(make_api(runner), port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    api = webuiapi.WebUIApi(port=port)
    yield api
    api.session.close()
    server.should_exit = True
    thread.join()


def decoded(image: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(image)))


def test_txt2img_answers_with_pictures_and_what_they_were_made_from(client: TestClient) -> None:
    request = {**SMALL, "prompt": "a fox <lora:zorp:0.8>", "negative_prompt": "bad", "batch_size": 2}
    answer = client.post(TXT2IMG, json=request).json()
    info = json.loads(answer["info"])
    pictures = [decoded(image) for image in answer["images"]]
    assert answer["parameters"] == request
    assert [picture.size for picture in pictures] == [(64, 64)] * 2
    assert info["all_seeds"] == [7, 8]
    assert info["all_prompts"] == ["a fox <lora:zorp:0.8>"] * 2
    assert info["infotexts"] == [read_infotext(picture) for picture in pictures]
    assert parse_infotext(info["infotexts"][1]).settings["Seed"] == "8"
    assert "264 of 264 layers" in info["remora"]["loras"][0]


def test_an_existing_client_works_unchanged(api: webuiapi.WebUIApi) -> None:
    arguments = {"steps": 2, "width": 64, "height": 64, "seed": 7}
    plain = api.txt2img(prompt="a fox", **arguments)
    with_lora = api.txt2img(prompt="a fox <lora:zorp:1>", **arguments)
    assert plain.image.size == (64, 64)
    assert plain.image.tobytes() != with_lora.image.tobytes()
    assert plain.image.tobytes() == api.txt2img(prompt="a fox", **arguments).image.tobytes()
    assert with_lora.info["infotexts"][0] == with_lora.image.info["parameters"]
    assert [lora["name"] for lora in api.get_loras()] == LORAS
    assert "Euler a" in api.util_get_sampler_names()
    assert "karras" in api.util_get_scheduler_names()
    assert api.util_get_current_model() == api.util_get_model_names()[0]
    assert api.get_progress()["progress"] == 0
    assert api.interrupt() == {}
    api.util_wait_for_ready()


def test_an_existing_client_sees_the_reason_of_a_failure(api: webuiapi.WebUIApi) -> None:
    with pytest.raises(RuntimeError, match="did you mean zorp") as caught:
        api.txt2img(prompt="<lora:zorpp:1>", steps=1, width=64, height=64)
    assert caught.value.args[0] == 422


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": "<lora:zorp:1.1.>"}, "'1.1.' is not a number"),
        ({"prompt": "<lora:../x:1>"}, "is outside the LoRA folders"),
        ({"width": 63}, "multiple of 8"),
        ({"width": "wide"}, "width must be a whole number"),
        ({"width": 64.5}, "width must be a whole number"),
        ({"steps": True}, "steps must be a whole number"),
        ({"prompt": ["a"]}, "prompt must be a text"),
        ({"send_images": "no"}, "send_images must be true or false"),
        ({"sampler_name": "Nope"}, "sampler 'Nope' is unknown"),
        ({"scheduler": "Nope"}, "schedule 'Nope' is unknown"),
        ({"scheduler": "Karras"}, "Euler a cannot follow"),
        ({"enable_hr": True}, "enable_hr=True is not supported"),
        ({"init_images": ["x"]}, "init_images"),
        ({"alwayson_scripts": {"controlnet": {}}}, "alwayson_scripts"),
        ({"styles": ["x"]}, "styles"),
        ({"subseed_strength": 0.5}, "subseed_strength"),
        ({"override_settings": {"sd_vae": "x"}}, "sd_vae is not supported"),
        ({"override_settings": {"sd_model_checkpoint": "other"}}, "'other' is not loaded"),
        ({"override_settings": "x"}, "override_settings must be an object"),
        ({"override_settings": {MERGE: "maybe"}}, "override_settings: remora_merge must be one of: never, always"),
        ({"override_settings": {CACHE: -1}}, "remora_cache_mb must be a whole number from 0"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(client: TestClient, change: dict[str, Any], message: str) -> None:
    answer = client.post(TXT2IMG, json={**SMALL, **change})
    assert answer.status_code == 422
    assert message in answer.json()["detail"]


def test_what_asks_for_nothing_is_accepted(client: TestClient) -> None:
    harmless = {
        "enable_hr": False,
        "hr_scale": 2,
        "denoising_strength": 0.7,
        "alwayson_scripts": {},
        "styles": [],
        "subseed": -1,
        "subseed_strength": 0.0,
        "seed_resize_from_w": -1,
        "script_name": None,
        "script_args": [],
        "eta": None,
        "s_noise": 1,
        "some_other_extensions_field": 1,
        "scheduler": "automatic",
        "seed": 7.0,
        "override_settings": {"sd_model_checkpoint": "remora-shapes", "samples_format": "png"},
    }
    assert (
        client.post(TXT2IMG, json={**SMALL, **harmless}).json()["images"]
        == client.post(TXT2IMG, json=SMALL).json()["images"]
    )


def test_override_settings_set_clip_skip_for_one_job(client: TestClient) -> None:
    skipped = client.post(TXT2IMG, json={**SMALL, "override_settings": {"CLIP_stop_at_last_layers": 2}}).json()
    plain = client.post(TXT2IMG, json=SMALL).json()
    assert skipped["images"] != plain["images"]
    assert json.loads(skipped["info"])["clip_skip"] == 2
    assert json.loads(plain["info"])["clip_skip"] == 1


def test_override_settings_of_ours_hold_for_one_job(client: TestClient, runner: Runner) -> None:
    request = {**SMALL, "prompt": "a fox <lora:zorp:0.8>"}
    plain = client.post(TXT2IMG, json=request).json()
    overrides = {MERGE: ALWAYS, IN_ORDER: True, HASHES: False, "CLIP_stop_at_last_layers": 1}
    merged = client.post(TXT2IMG, json={**request, "override_settings": overrides}).json()
    state = client.get("/remora/v1/state").json()
    again = client.post(TXT2IMG, json=request).json()
    info = json.loads(merged["info"])
    settings = parse_infotext(info["infotexts"][0]).settings
    assert (settings["Remora mode"], settings["Remora stacking"]) == ("merged", "in order")
    assert "Lora hashes" not in settings
    assert from_parameters(settings) == {MERGE: ALWAYS, IN_ORDER: True}
    assert info["remora"]["loras"][1] == "264 layers merged"
    assert (state["merged"], state["live"], state["notes"]) == (264, {}, [])
    assert state["loras"][0]["kinds"] == {"loha": 264}
    assert plain["images"] == again["images"]
    assert runner.studio.host.option(MERGE) == NEVER


def test_a_mode_of_former_versions_is_live(client: TestClient, runner: Runner) -> None:
    request = {**SMALL, "prompt": "a fox <lora:zorp:0.8>"}
    plain = client.post(TXT2IMG, json=request).json()
    former = client.post(TXT2IMG, json={**request, "override_settings": {MERGE: "when it pays"}})
    assert former.status_code == 200, former.text
    assert former.json()["images"] == plain["images"]
    assert client.post("/sdapi/v1/options", json={MERGE: "when it pays"}).status_code == 200
    assert runner.studio.host.option(MERGE) == NEVER


def test_a_ruined_picture_is_told_by_the_report_alone(client: TestClient) -> None:
    """Not also by numpy, which would warn of a cast while the picture is written."""
    torch.compiler.reset()  # outputs are looked at only where nothing was compiled
    wanted = {**SMALL, "prompt": "a fox <lora:zorp:1e30>", "override_settings": {LIMITED: False}}
    answer = client.post(TXT2IMG, json=wanted)
    assert answer.status_code == 200, answer.text
    assert decoded(answer.json()["images"][0]).convert("L").getextrema() == (0, 0)
    (warning,) = json.loads(answer.json()["info"])["remora"]["warnings"]
    assert warning.startswith("zorp: the output of ")


def test_turned_off_for_one_job_no_lora_is_applied_and_the_answer_says_so(client: TestClient, runner: Runner) -> None:
    request = {**SMALL, "prompt": "a fox <lora:zorp:0.8>", "override_settings": {ENABLED: False}}
    plain = client.post(TXT2IMG, json=SMALL).json()
    runner.studio.session.always_on.put(AlwaysOn(True, (AlwaysOnEntry("neon"),)))
    try:
        off = client.post(TXT2IMG, json=request).json()
        state = client.get("/remora/v1/state").json()
    finally:
        runner.studio.session.always_on.put(AlwaysOn())
    assert decoded(off["images"][0]).tobytes() == decoded(plain["images"][0]).tobytes()
    assert "turned off in the settings" in " ".join(json.loads(off["info"])["remora"]["notes"])
    assert [(one["written"], one["state"]) for one in state["loras"]] == [("zorp:0.8", "none")]
    assert "Remora is turned off" in state["loras"][0]["reason"]
    parameters = parse_infotext(json.loads(off["info"])["infotexts"][0]).settings
    assert not {"Lora hashes", "Remora always on"} & parameters.keys()


def test_why_layers_are_not_merged_is_in_the_state(client: TestClient, runner: Runner) -> None:
    unet = runner.studio.model.pipeline.unet
    one, other = unet.mid_block.resnets[0].conv1, unet.mid_block.resnets[1].conv1
    own, other.weight = other.weight, one.weight
    try:
        override = {"override_settings": {MERGE: ALWAYS}}
        client.post(TXT2IMG, json={**SMALL, "prompt": "a fox <lora:stripes:0.8>", **override})
        state = client.get("/remora/v1/state").json()
    finally:
        other.weight = own
    assert state["live"] == {"the weight belongs to several layers": 2}


def test_pictures_are_sent_and_saved_as_asked(client: TestClient, runner: Runner) -> None:
    folder = runner.studio.output_dir
    assert folder is not None
    before = set(folder.glob("*.png"))
    answer = client.post(TXT2IMG, json={**SMALL, "send_images": False, "save_images": True}).json()
    (saved,) = set(folder.glob("*.png")) - before
    assert answer["images"] == []
    with Image.open(saved) as image:
        assert read_infotext(image) == json.loads(answer["info"])["infotexts"][0]


def test_pictures_that_cannot_be_saved_are_sent_all_the_same(
    client: TestClient, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    answer = client.post(TXT2IMG, json={**SMALL, "save_images": True})
    assert answer.status_code == 200
    assert len(answer.json()["images"]) == 1
    said = (
        f"the pictures could not be saved in {runner.studio.output_dir} (No space left on device); save them from here"
    )
    assert said in json.loads(answer.json()["info"])["remora"]["notes"]


def test_the_list_of_loras_and_its_refresh(client: TestClient, runner: Runner) -> None:
    entry = client.get("/sdapi/v1/loras").json()[-1]
    assert entry["name"] == entry["alias"] == "zorp"
    assert entry["metadata"]["ss_network_dim"] == "2"
    path = runner.studio.host.adapter_dirs()[0] / "added.safetensors"
    path.write_bytes((path.parent / "zorp.safetensors").read_bytes())
    try:
        assert len(client.get("/sdapi/v1/loras").json()) == len(LORAS)
        assert client.post("/sdapi/v1/refresh-loras").status_code == 200
        assert [lora["name"] for lora in client.get("/sdapi/v1/loras").json()] == ["added", *LORAS]
    finally:
        path.unlink()
        client.post("/sdapi/v1/refresh-loras")


def test_the_state_of_the_latest_job(client: TestClient) -> None:
    client.post(TXT2IMG, json={**SMALL, "prompt": "<lora:stripes:1>"})
    state = client.get("/remora/v1/state").json()
    (lora,) = state["loras"]
    assert (lora["name"], lora["state"], lora["images"], lora["always_on"]) == ("stripes", "applied", [0], False)
    assert lora["hit"] == lora["layers"] > 0
    client.post(TXT2IMG, json=SMALL)
    assert client.get("/remora/v1/state").json()["loras"] == []


def stopped(client: TestClient, by: str, **request: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the progress of a job after its first step, and the answer when it is stopped then."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(client.post(TXT2IMG, json={**SMALL, **request})))
    thread.start()
    seen: dict[str, Any] = {"progress": 0}
    while not seen["progress"] and thread.is_alive():
        seen = client.get("/sdapi/v1/progress").json()
    assert client.post(f"/sdapi/v1/{by}").status_code == 200
    thread.join()
    return seen, answers[0].json()


def test_progress_and_interrupt_of_a_running_job(client: TestClient) -> None:
    seen, answer = stopped(client, "interrupt", steps=150, n_iter=2)
    assert 0 < seen["progress"] < 1
    assert seen["eta_relative"] > 0
    assert seen["state"]["job_count"] == 2
    assert seen["state"]["sampling_steps"] == 150
    assert decoded(seen["current_image"]).size == (64, 64)
    assert [decoded(image).size for image in answer["images"]] == [(64, 64)]  # clients read the first picture
    info = json.loads(answer["info"])
    assert (len(info["infotexts"]), info["remora"]["cancelled"]) == (1, True)
    assert re.fullmatch(r"interrupted after \d+ of 150 steps: the picture is unfinished", info["remora"]["notes"][0])
    assert client.get("/sdapi/v1/progress").json()["state"]["interrupted"] is True


def test_a_skipped_picture_is_unfinished_and_the_next_one_is_not(client: TestClient) -> None:
    whole = client.post(TXT2IMG, json={**SMALL, "seed": 8, "steps": 20}).json()
    _, answer = stopped(client, "skip", steps=20, n_iter=2)
    assert len(answer["images"]) == 2
    assert answer["images"][1] == whole["images"][0]
    told = json.loads(answer["info"])["remora"]
    assert told["cancelled"] is False
    assert [note.partition(" after ")[0] for note in told["notes"]] == ["skipped"]
    state = client.get("/sdapi/v1/progress").json()["state"]
    assert (state["skipped"], state["interrupted"]) == (False, False)


def test_a_method_that_a_path_does_not_have_is_refused_before_the_page(runner: Runner) -> None:
    app = make_api(runner)
    app.mount("/", PlainTextResponse("the page"))
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/").text == "the page"
        for method, path, allowed in (
            ("GET", TXT2IMG, "POST"),
            ("DELETE", "/sdapi/v1/options", "GET, POST"),
            ("POST", "/remora/v1/state", "GET"),
            ("POST", "/remora/v1/preset", "DELETE, GET, PUT"),
        ):
            answer = client.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
            assert answer.json() == {"detail": f"{path} takes {allowed}"}
        wrong = client.get("/sdapi/v1/progress", params={"skip_current_image": "perhaps"})
        assert wrong.status_code == 422
        assert wrong.json()["detail"].startswith("skip_current_image of the query is wrong: ")


def test_the_requests_in_the_documents_are_answered(client: TestClient) -> None:
    """Each `curl` of README.md and docs/, with its own headers and body."""
    asked = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for command in re.findall(r"^curl (?:.*\\\n)*.*", page.read_text(encoding="utf-8"), re.MULTILINE):
            words = shlex.split(command.replace("\\\n", " "))
            (address,) = (word for word in words if word.startswith("127.0.0.1:7860/"))
            name, _, value = words[words.index("-H") + 1].partition(": ")
            body = words[words.index("-d") + 1]
            answer = client.post(address.removeprefix("127.0.0.1:7860"), content=body, headers={name: value})
            assert answer.status_code == 200, (page.name, command, answer.text)
            asked.append(address.rpartition("/")[2])
    client.post("/sdapi/v1/options", json={MERGE: NEVER})
    assert sorted(asked) == ["options", "txt2img"]


def test_options_are_read_and_set(client: TestClient, runner: Runner) -> None:
    options = client.get("/sdapi/v1/options").json()
    assert options["sd_model_checkpoint"].startswith("remora-shapes [")
    assert (options[DEFAULT_MULTIPLIER], options[MERGE], options[CACHE]) == (1.0, NEVER, 4096)
    assert (
        client.post("/sdapi/v1/options", json={DEFAULT_MULTIPLIER: 0.7, "CLIP_stop_at_last_layers": 2}).status_code
        == 200
    )
    try:
        assert runner.studio.host.option(DEFAULT_MULTIPLIER) == 0.7
        assert json.loads(client.post(TXT2IMG, json=SMALL).json()["info"])["clip_skip"] == 2
    finally:
        client.post("/sdapi/v1/options", json={DEFAULT_MULTIPLIER: 1.0, "CLIP_stop_at_last_layers": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"no_such": 1}, "unknown settings: no_such"),
        ({"sd_model_checkpoint": "other"}, "chosen when the program starts"),
        ({"CLIP_stop_at_last_layers": 0}, "clip skip is 0"),
        ({ON_BAD_LORA: "maybe"}, "must be one of"),
        ({DEFAULT_MULTIPLIER: "much"}, "must be a number"),
        ({STORAGE: "int3"}, "must be one of: file, bfloat16, float8"),
        ({MERGE: ALWAYS, CACHE: 1.5}, "must be a whole number"),
    ],
)
def test_a_wrong_option_changes_nothing(client: TestClient, values: dict[str, Any], message: str) -> None:
    before = client.get("/sdapi/v1/options").json()
    answer = client.post("/sdapi/v1/options", json={**values, "samples_format": "png"})
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert client.get("/sdapi/v1/options").json() == before


OTHER_SITES: dict[str, dict[str, str]] = {
    "origin": {"origin": "http://evil.example", "content-type": "application/json"},
    "origin of a sandboxed frame": {"origin": "null"},
    "another port": {"origin": "http://localhost:8000"},
    "as the browser says": {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    "a sister site": {"sec-fetch-site": "same-site"},
    "plain text": {"content-type": "text/plain;charset=UTF-8"},
    "a form": {"content-type": "application/x-www-form-urlencoded"},
    "a form with files": {"content-type": "multipart/form-data; boundary=x"},
}


@pytest.mark.parametrize("headers", OTHER_SITES.values(), ids=OTHER_SITES)
def test_a_page_of_another_site_cannot_change_anything(client: TestClient, headers: dict[str, str]) -> None:
    """Every route that may change something refuses it, whatever its body says; the schema lists them."""
    asked = set()
    for schema in ("/openapi.json", "/remora/v1/openapi.json"):
        for path, methods in client.get(schema).json()["paths"].items():
            for method in set(methods) - {"get", "head", "options"}:
                answer = client.request(method, path, content=json.dumps(SMALL), headers=headers)
                assert answer.status_code in (403, 415), (method, path, answer.text)
                assert set(answer.json()) == {"detail"}
                asked.add((method, path))
    assert {("post", TXT2IMG), ("post", "/remora/v1/compare"), ("put", "/remora/v1/stack")} <= asked


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost", "sec-fetch-site": "same-origin"},
        {"origin": "http://localhost"},
        {"origin": "https://behind.a.proxy", "sec-fetch-site": "same-origin"},
        {"origin": "https://behind.a.proxy", "x-forwarded-host": "behind.a.proxy"},
    ],
)
def test_the_web_uis_own_page_and_programs_are_not_refused(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/remora/v1/resolve", json={"names": ["zorp"]}, headers=headers)
    assert answer.status_code == 200, answer.text
