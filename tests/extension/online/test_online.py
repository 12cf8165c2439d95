"""What is looked up and downloaded online, by the routes, against a local server that answers as documented."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from PIL import Image
from safetensors.torch import save

from extension.online import fetch
from extension.online.sites import known_sites
from tests.fakes.sites import HASHES, Answer, FakeSites, json_answer, serving_sites, short_of
from tests.fuzz.targets.requests import V1, Served

SECRET = "key-of-the-user-0123456789"


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Online:
    """The routes over a folder with the files `a`, `b` and `sub/c`, and the server that they ask."""

    def __init__(self, served: Served, sites: FakeSites) -> None:
        self.served, self.sites = served, sites
        self.folder = served.folder

    def ask(self, method: str, path: str, status: int = 200, body: object = None, **query: str) -> Any:
        sent = b"" if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if sent else {}
        got, _, content = self.served.ask(method, V1 + path, urlencode(query), headers, sent)
        assert got == status, content
        told = json.loads(content)
        return told["detail"] if status >= 400 else told

    def switch(self, on: bool = True) -> None:
        self.ask("PUT", "/online", body={"on": on})

    def id(self, name: str) -> str:
        return str(self.ask("GET", "/lora", name=name)["id"])

    @property
    def job(self) -> Any:
        return self.ask("GET", "/online")["job"]

    def ended(self) -> Any:
        until(lambda: not (self.job or {"running": False})["running"])
        return self.job

    def look_up(self, *names: str, **more: str) -> Any:
        self.ask("POST", "/online/lookup", body={"ids": [self.id(name) for name in names], **more})
        return self.ended()

    def download(self, page: str, **more: str) -> Any:
        self.ask("POST", "/online/download", body={"page": page, **more})
        return self.ended()

    def content(self, name: str) -> bytes:
        return (self.folder / f"{name}.safetensors").read_bytes()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("online")

    def below(name: str) -> Path:
        (root / name).mkdir()
        return root / name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fuzz.targets.requests.folder", below)
        made = Served()
    for seed, name in enumerate(("a", "b", "sub/c"), 101):
        (made.folder / f"{name}.safetensors").write_bytes(lora(seed))
    made.session.catalog.refresh()
    yield made
    made.close()


@pytest.fixture
def online(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Online]:
    before = {path: path.read_bytes() for path in served.folder.rglob("*.safetensors")}
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    monkeypatch.setattr(fetch, "FIRST_WAIT", 0.01)
    with serving_sites() as sites:
        monkeypatch.setenv("CIVITAI_ENDPOINT", sites.url)
        monkeypatch.setenv("HF_ENDPOINT", sites.url)
        made = Online(served, sites)
        yield made
        made.switch(False)
        made.ended()
    for path in served.folder.rglob("*"):
        if path.is_file() and path not in before and path.name != ".remora.lock":
            path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
    served.session.catalog.refresh()


def lora(seed: int = 1, width: int = 64) -> bytes:
    """Return a LoRA file; other seeds have other numbers."""
    down, up = (torch.full(shape, float(seed)) for shape in ((2, width), (8, 2)))
    key = "lora_unet_attn1_to_q.lora"
    return save({f"{key}_down.weight": down, f"{key}_up.weight": up})


def png(width: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, width), (90, 0, 120)).save(stream, "PNG")
    return stream.getvalue()


def test_nothing_is_sent_before_it_is_switched_on_nor_after_it_is_off(online: Online) -> None:
    online.sites.civitai(online.content("a"))
    page = f"{online.sites.url}/models/11?modelVersionId=22"
    assert online.ask("GET", "/online")["on"] is False
    online.ask("GET", "/lora", name="a")
    for path, body in (("lookup", {"ids": []}), ("download", {"page": page}), ("newer", {"ids": [online.id("a")]})):
        assert "looking files up online is off" in online.ask("POST", f"/online/{path}", 409, body)
    assert online.sites.log == []
    online.switch()
    assert online.sites.log == [], "the switch alone asks nobody"
    online.sites.answers[f"{HASHES}{hashlib.sha256(online.content('a')).hexdigest()}"] = json_answer({}, 503)
    online.ask("POST", "/online/lookup", body={"ids": [online.id("a")]})
    until(lambda: online.sites.log)
    online.switch(False)
    online.ended()
    sent = len(online.sites.log)
    time.sleep(0.3)
    assert len(online.sites.log) == sent


def test_a_look_up_sends_the_hash_alone_and_fills_what_is_empty(online: Online) -> None:
    content = online.content("a")
    online.sites.civitai(content)
    online.sites.answers["/images/22.png"] = Answer(png(), kind="image/png")
    online.switch()
    job = online.look_up("a")
    assert (job["found"], job["unknown"], job["files"], job["problem"]) == (1, 0, [], "")
    digest = hashlib.sha256(content).hexdigest()
    assert online.sites.paths == [f"{HASHES}{digest}", "/api/v1/models/11", "/images/22.png"]
    names = {"Host", "User-Agent", "Accept", "Accept-Encoding", "Connection"}
    assert all(set(request.headers) == names for request in online.sites.log)
    told = online.ask("GET", "/lora", name="a")
    assert (told["words"], told["tags"]) == ("zorp style, purple", ["style", "purple"])
    assert told["description"] == "Best at 0.8\n\nA purple being"
    assert told["base_model"] == "SD 1.5"
    about = told["online"]
    assert {name: about[name] for name in ("site", "model", "version", "creator", "licence", "newer")} == {
        "site": "civitai",
        "model": "Zorp",
        "version": "v22",
        "creator": "ann",
        "licence": "",
        "newer": None,
    }
    assert about["terms"] == ["credit", "images", "rent_civitai", "same_licence"]
    assert about["page"] == f"{online.sites.url}/models/11?modelVersionId=22"
    own = json.loads((online.folder / "a.json").read_text("utf-8"))
    assert own["activation text"] == "zorp style, purple", "as AUTOMATIC1111's cards read it"
    info = json.loads((online.folder / "a.civitai.info").read_text("utf-8"))
    assert (info["id"], info["modelId"], info["trainedWords"]) == (22, 11, ["zorp style", "purple"])
    with Image.open(online.folder / "a.preview.png") as beside:
        assert (beside.format, beside.size) == ("PNG", (8, 8))
    assert told["picture"]


def test_what_the_user_wrote_and_files_that_are_there_stay(online: Online) -> None:
    files = {"b.civitai.info": b'{"trainedWords": ["mine"]}', "b.jpg": b"a picture of mine", "b.txt": b"my text"}
    for name, content in files.items():
        (online.folder / name).write_bytes(content)
    (online.folder / "b.json").write_text('{"notes": "my notes", "other": [1]}')
    online.sites.civitai(online.content("b"))
    online.switch()
    assert online.look_up("b")["found"] == 1
    assert {name: (online.folder / name).read_bytes() for name in files} == files
    assert not (online.folder / "b.preview.png").exists()
    own = json.loads((online.folder / "b.json").read_text("utf-8"))
    assert (own["notes"], own["other"]) == ("my notes", [1])
    assert not {"activation text", "description"} & own.keys(), "the words and the text of the other files count"
    told = online.ask("GET", "/lora", name="b")
    assert (told["words"], told["description"], told["notes"]) == ("mine", "my text", "my notes")
    online.ask("PATCH", "/lora", body={"tags": []}, name="b")
    online.look_up("b")
    assert online.ask("GET", "/lora", name="b")["tags"] == [], "what the user empties stays empty"


def test_a_changed_header_is_found_by_the_hash_of_what_follows(online: Online) -> None:
    content = online.content("a")
    online.sites.civitai(content)
    size = int.from_bytes(content[:8], "little")
    header = {**json.loads(content[8 : 8 + size]), "__metadata__": {"note": "mine"}}
    new = json.dumps(header).encode()
    (online.folder / "a.safetensors").write_bytes(len(new).to_bytes(8, "little") + new + content[8 + size :])
    told = online.sites.answers["/api/v1/model-versions/22"]
    online.sites.answers[f"{HASHES}{short_of(content)}"] = told
    online.served.session.catalog.refresh()
    online.switch()
    assert online.look_up("a")["found"] == 1


def test_a_newer_version_is_told_and_downloaded_into_a_folder(online: Online) -> None:
    online.sites.civitai(online.content("a"))
    online.sites.civitai(lora(2), version=23, baseModel="Flux.1 D")
    new = lora()
    online.sites.civitai(new, version=24)
    online.switch()
    job = online.look_up("a", "b")
    assert (job["found"], job["unknown"]) == (1, 1)
    assert [(one["id"], one["state"]) for one in job["files"]] == [(online.id("a"), "newer")]
    newer = online.ask("GET", "/lora", name="a")["online"]["newer"]
    assert newer["version"] == "v24", "the latest one for the same base model"
    listed = {one["name"]: one["newer"] for one in online.ask("GET", "/loras")["loras"]}
    assert (listed["a"], listed["b"]) == (newer["page"], "")
    # files whose hash is known by now are asked for at once
    before = len(online.sites.log)
    job = online.look_up("a", "b")
    assert (job["found"], job["unknown"], [one["state"] for one in job["files"]]) == (1, 1, ["newer"])
    asked, *others = online.sites.log[before:]
    hashes = [hashlib.sha256(online.content(name)).hexdigest() for name in "ab"]
    assert (asked.path, json.loads(asked.body)) == (HASHES[:-1], hashes)
    last = f"{HASHES}{short_of(online.content('b'))}"
    assert [one.path for one in others] == ["/api/v1/models/11", "/images/22.png", last]
    job = online.download(newer["page"], folder="sub")
    assert (job["problem"], job["name"], job["note"]) == (
        "",
        "zorp_v24",
        "there is no preview: Civitai has nothing at this address",
    )
    assert (online.folder / "sub/zorp_v24.safetensors").read_bytes() == new
    assert job["done"] == len(new)
    assert job["done"] <= job["total"] <= len(new) + 2048
    told = online.ask("GET", "/lora", id=job["file"])
    assert (told["online"]["version"], told["words"]) == ("v24", "zorp style, purple")
    assert told["page"] == newer["page"], "so that the older file no longer counts as having one"
    assert online.look_up("a")["files"] == []
    assert list(online.folder.rglob("*.part")) == []
    assert "you have this file already, as zorp_v24" in online.download(newer["page"], name="again")["problem"]
    # those of several files are downloaded one after the other; a file that fails costs itself only
    for path in (online.folder / "sub").glob("zorp_v24.*"):
        path.unlink()
    online.sites.civitai(online.content("sub/c"), version=30, model=12)
    online.sites.civitai(other := lora(6), version=31, model=12)
    online.served.session.catalog.refresh()
    assert len(online.look_up("a", "sub/c")["files"]) == 2
    gone = online.sites.answers.pop("/files/24")
    wanted = [online.id(name) for name in ("a", "b", "sub/c")]
    online.ask("POST", "/online/newer", body={"ids": wanted})
    job = online.ended()
    assert (job["kind"], job["done"], job["total"], job["found"], job["unknown"]) == ("newer", 3, 3, 1, 1)
    assert [(one["id"], one["state"]) for one in job["files"]] == [(wanted[0], "failed")]
    assert [path.name for path in online.folder.rglob("zorp_v3*.safetensors")] == ["zorp_v31.safetensors"]
    assert online.content("sub/zorp_v31") == other
    online.sites.answers["/files/24"] = gone
    (online.folder / "zorp_v24.safetensors").write_bytes(b"of another program")
    online.ask("POST", "/online/newer", body={"ids": wanted[:1]})
    assert (online.ended()["found"], online.content("zorp_v24-2")) == (1, new), "nothing is replaced"
    assert online.content("zorp_v24") == b"of another program"
    for ids in ([], ["x"] * 10_001):
        assert "1 to 10,000" in online.ask("POST", "/online/newer", 422, {"ids": ids})


def test_a_cut_download_goes_on_where_it_ended(online: Online) -> None:
    new = lora(width=60_000)
    online.sites.civitai(new, version=24)
    whole = Answer(new, kind="application/octet-stream")
    online.sites.answers["/files/24"] = [Answer(new, cut=100_000), Answer(new, cut=50_000), whole]
    online.switch()
    page = f"{online.sites.url}/models/11?modelVersionId=24"
    assert online.download(page)["problem"] == ""
    ranges = [request.headers.get("Range") for request in online.sites.log if request.path == "/files/24"]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert online.content("zorp_v24") == new
    # one that is cancelled is taken up by the next; a server that knows no ranges begins again
    more = lora(3, width=200_000)
    online.sites.civitai(more, version=25)
    online.sites.answers["/files/25"] = Answer(more, pause=0.05)
    online.ask("POST", "/online/download", body={"page": page.replace("24", "25")})
    until(lambda: online.job["done"] >= 100_000)
    online.ask("DELETE", "/online")
    job = online.ended()
    assert job["cancelled"]
    (part,) = online.folder.glob(".remora-*.part")
    there = part.stat().st_size
    assert 100_000 <= there < len(more)
    assert not (online.folder / "zorp_v25.safetensors").exists()
    online.sites.answers["/files/25"] = Answer(more, has_ranges=False)
    assert online.download(page.replace("24", "25"))["problem"] == ""
    assert online.sites.log[-2].headers["Range"] == f"bytes={there}-"
    assert online.content("zorp_v25") == more
    assert list(online.folder.glob(".remora-*.part")) == []


def test_hugging_face_is_asked_for_the_page_that_the_user_gives(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    online.sites.hugging_face(online.content("b"))
    page = f"{online.sites.url}/ann/zorp/blob/main/zorp.safetensors"
    online.switch()
    job = online.look_up("b", page=page)
    assert job["found"] == 1
    assert online.sites.paths == ["/api/models/ann/zorp/revision/main?blobs=true"], "no hash is sent"
    told = online.ask("GET", "/lora", name="b")
    assert (told["words"], told["online"]["licence"], told["online"]["page"]) == ("a zorp", "apache-2.0", page)
    assert not (online.folder / "b.civitai.info").exists()
    # another file in its place is newer
    new = lora()
    online.sites.hugging_face(new)
    assert online.look_up("b")["files"][0]["state"] == "newer"
    assert online.download(page)["problem"] == ""
    assert online.content("zorp") == new
    assert all(request.headers.get("Authorization") == f"Bearer {SECRET}" for request in online.sites.log)


def to(address: str) -> list[Answer]:
    return [Answer(status=302, headers={"Location": address})]


WRONG: Mapping[str, tuple[list[Answer], str]] = {
    "HTML": ([Answer(b"<html>busy</html>", kind="text/html")], "did not answer with JSON"),
    "nothing": ([Answer(b"")], "did not answer with JSON"),
    "deep": ([Answer(b"[" * 200_000)], "did not answer with JSON"),
    "a list": ([json_answer([1, 2])], "has no number"),
    "wrong types": ([json_answer({"id": "22", "modelId": [11], "files": 5, "images": "x"})], "has no number"),
    "another file": ([json_answer({"id": 1, "files": [{"hashes": {"SHA256": "0" * 64}}]})], "no file of this hash"),
    "huge": ([Answer(b" " * (9 << 20))], "answers with more than 8 MB"),
    "no key": ([json_answer({"error": "Unauthorized"}, 401)], "set the environment variable CIVITAI_TOKEN"),
    "refused": ([json_answer({"error": "bad"}, 400)], "refuses this request with status 400"),
    "another host": (to("https://evil.example/a"), "leads to evil.example"),
    "this machine": (to("http://127.0.0.1:1/a"), "leads to 127.0.0.1"),
    "a private host": (to("https://169.254.169.254/"), "leads to 169.254"),
    "another scheme": (to("file:///etc/passwd"), "cannot be read"),
    "a name before it": (to("https://civitai.com@evil.example/"), "leads to evil"),
    "a like host": (to("https://civitai.com.evil.example/"), "leads to civitai.com.evil"),
    "not encrypted": (to("http://civitai.com/"), "leads to civitai.com"),
    "in a circle": (to("?"), "without an end"),
    "busy for long": ([json_answer({}, 429, headers={"Retry-After": "3600"})], "asks to wait 3600 seconds"),
    "busy for ever": ([json_answer({}, 503)], "cannot be reached now (it answers with status 503)"),
    "cut for ever": ([Answer(b"{" * 100, cut=10)], "cannot be reached now (the connection failed: it ended"),
}  # fmt: skip


def test_a_wrong_answer_costs_that_file_only_and_is_said(online: Online, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(online.content("b")).hexdigest()
    online.switch()
    for what, (answers, said) in WRONG.items():
        online.sites.answers[f"{HASHES}{digest}"] = answers
        job = online.look_up("b")
        reasons = [one["reason"] for one in job["files"]] + [job["problem"]]
        assert any(said in reason for reason in reasons), (what, reasons)
        assert [path.name for path in online.folder.glob("b.*")] == ["b.safetensors"], what
    for limit, answer, said in (
        ("_LONGEST_ANSWER", Answer(b" " * (1 << 18), pause=0.1), "answers too slowly"),
        ("_SILENCE", Answer(b" " * (1 << 15), pause=2), "cannot be reached now (the connection failed: timed out)"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(fetch, limit, 0.3)
            online.sites.answers[f"{HASHES}{digest}"] = answer
            assert said in online.look_up("b")["files"][0]["reason"]
    # the next file is looked up, and a site that is busy for a moment is asked again
    online.sites.civitai(online.content("a"))
    path = f"{HASHES}{hashlib.sha256(online.content('a')).hexdigest()}"
    good = online.sites.answers[path]
    assert isinstance(good, Answer)
    busy = json_answer({}, 429, headers={"Retry-After": "0.0"})
    online.sites.answers[path] = [busy, json_answer({}, 500), Answer(good.body, cut=20), good]
    online.sites.answers[f"{HASHES}{digest}"] = WRONG["HTML"][0]
    job = online.look_up("b", "a")
    assert (job["found"], [one["state"] for one in job["files"]]) == (1, ["failed"])
    # where the answer to many cannot be used, each file is asked for
    online.sites.answers[path] = good
    for many in (WRONG["HTML"][0], json_answer({"error": "no"}, 400), json_answer({}, 404)):
        online.sites.answers[HASHES[:-1]] = many
        job = online.look_up("b", "a")
        assert (job["found"], [one["state"] for one in job["files"]]) == (1, ["failed"])
    # what does not answer for these files tells nothing of them
    online.sites.answers[HASHES[:-1]] = json_answer([None, "text", {"files": [{"hashes": {"SHA256": "00" * 32}}]}])
    assert online.look_up("b", "a")["found"] == 0
    online.sites.answers[HASHES[:-1]] = json_answer({}, 503)
    assert "cannot be reached now" in online.look_up("b", "a")["problem"]


def test_a_wrong_download_leaves_no_file(online: Online) -> None:
    new, base = lora(), f"{online.sites.url}/models/11?modelVersionId="
    before = {path for path in online.folder.rglob("*") if path.name != ".remora.lock"}
    online.switch()

    def named(version: int, name: str = "x.safetensors", **hashes: str) -> None:
        told = online.sites.civitai(new, version=version)
        file = {**told["files"][0], "name": name, "hashes": hashes or told["files"][0]["hashes"]}
        online.sites.civitai(new, version=version, files=[file])

    wrong = {
        "another hash": (Answer(new[:-1] + b"\x01"), {}, "does not have the SHA-256"),
        "too many bytes": (Answer(new * 3), {}, "sends more bytes than it said"),
        "a page": (Answer(b"<html>log in</html>", kind="text/html; charset=utf-8"), {}, "CIVITAI_TOKEN"),
        "no hash": (Answer(new), {"AutoV2": "abc"}, "tells no SHA-256"),
        "a key is needed": (json_answer({"error": "Unauthorized"}, 401), {}, "CIVITAI_TOKEN"),
    }
    for version, (what, (answer, hashes, said)) in enumerate(wrong.items(), 30):
        named(version, **hashes)
        online.sites.answers[f"/files/{version}"] = answer
        assert said in online.download(f"{base}{version}")["problem"], what
        for part in online.folder.glob(".remora-*.part"):
            part.unlink()
    for version, name in enumerate(("../x", "a/b", "a\\b", "con", "C:x", ".x", "~x"), 50):
        named(version, f"{name}.safetensors")
        assert "name" in online.download(f"{base}{version}")["problem"], name
    named(60, "a.safetensors")
    assert "there is a file a.safetensors already" in online.download(f"{base}60")["problem"]
    named(61, "x.pt")
    assert "offers no safetensors file" in online.download(f"{base}61")["problem"]
    assert "there is no folder" in online.download(f"{base}30", folder="../..")["problem"]
    for page in ("", "x", "https://evil.example/models/1", "https://civitai.com.evil.example/models/1", "file:///etc/passwd",
                 "https://huggingface.co/../../x", "https://huggingface.co/datasets", "a" * 3000):  # fmt: skip
        online.ask("POST", "/online/download", 422, {"page": page})
    assert {path for path in online.folder.rglob("*") if path.name != ".remora.lock"} == before


def test_texts_are_plain_and_pictures_are_pixels(online: Online) -> None:
    script = "<img src=x onerror=alert(1)><script>alert(1)</script> &lt;b onclick=alert(1)&gt;"
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    online.sites.civitai(
        online.content("a"),
        name=f"v1 {script}",
        description=f"<p>good</p>{script}\u202egnp\x00",
        trainedWords=[f"zorp {script}", "<lora:evil:5>", "<lora:evil:5> purple", 5, None, "a\nb"],
        images=[{"url": f"{online.sites.url}/images/a.svg", "type": "image"}],
    )
    online.sites.answers["/images/a.svg"] = Answer(svg, kind="image/svg+xml")
    online.switch()
    online.look_up("a")
    told = online.ask("GET", "/lora", name="a")
    assert told["words"] == "zorp alert(1) &lt;b onclick=alert(1)&gt;, purple, 5, a b"
    kept = [path.read_text("utf-8") for path in (online.folder / "a.json", online.folder / "a.civitai.info")]
    for text in (*kept, json.dumps(told)):
        assert not [bad for bad in ("<", "\u202e", "\\u202e", "\\u0000", "javascript:") if bad in text]
    assert not (online.folder / "a.preview.png").exists()
    # however long they are
    long = [f"{number:03} {'x' * 290}" for number in range(200)]
    online.sites.civitai(online.content("b"), description="y" * 50_000, trainedWords=long, tags=long)
    assert online.look_up("b")["found"] == 1
    assert len(online.ask("GET", "/lora", name="b")["words"]) == 20_000
    # a sidecar may come from anywhere
    record = {"site": "civitai", "page": "javascript:alert(1)", "checked": 1}
    (online.folder / "a.json").write_text(json.dumps({"remora": {"online": record}}))
    assert online.ask("GET", "/lora", name="a")["online"] is None
    record |= {"page": "https://civitai.com/models/1", "terms": "x", "newer": [1], "model": {"a": 1}, "checked": 1e999}
    (online.folder / "a.json").write_text(json.dumps({"remora": {"online": record}}))
    assert online.ask("GET", "/lora", name="a")["online"]["newer"] is None


def test_the_key_goes_to_its_site_alone_and_is_never_told(
    online: Online, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("CIVITAI_TOKEN", SECRET)
    new = lora()
    online.sites.civitai(new, version=24)
    with serving_sites() as storage:
        storage.answers["/file"] = Answer(new, kind="application/octet-stream")
        online.sites.answers["/api/download/models/24"] = Answer(b"", 302, headers={"Location": f"{storage.url}/file"})
        (civitai,) = [site for site in known_sites() if site.key == "civitai"]
        client = fetch.SiteClient(civitai.access(), lambda: True, threading.Event())
        # hosts of the site are encrypted, which a local server is not: here the second one stands for such a host
        monkeypatch.setattr(fetch.SiteClient, "_check", lambda self, address: address.startswith(online.sites.url))
        online.switch()
        job = online.download(f"{online.sites.url}/models/11?modelVersionId=24")
        assert (job["problem"], job["name"]) == ("", "zorp_v24")
        assert "Authorization" not in storage.log[0].headers
    assert online.sites.log[0].headers["Authorization"] == f"Bearer {SECRET}"
    told = json.dumps([online.ask("GET", "/online"), online.ask("GET", "/lora", name="zorp_v24")])
    kept = "".join((online.folder / f"zorp_v24.{end}").read_text("utf-8") for end in ("json", "civitai.info"))
    assert SECRET not in told + kept + caplog.text + repr(client.access)
    assert online.ask("GET", "/online")["sites"][0]["token"] is True


def test_requests_wait_for_each_other_and_one_job_runs(online: Online, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSE", 0.2)
    online.switch()
    begun = time.monotonic()
    online.ask("POST", "/online/lookup", body={"ids": []})
    assert "being looked up" in online.ask("POST", "/online/lookup", 409, {"ids": []})
    job = online.ended()
    assert (job["done"], job["total"], job["unknown"]) == (3, 3, 3)
    requests = len(online.sites.log)
    assert requests == len(set(online.sites.paths)), "the same is asked once"
    assert time.monotonic() - begun >= 0.2 * (requests - 1)
    assert "not a file in the LoRA folders" in online.ask("POST", "/online/lookup", 404, {"ids": ["nope"]})
