"""The routes about the pictures in the output folders."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from extension import register
from extension.hosts.standalone import STANDALONE
from extension.outputs import Outputs
from extension.standalone.pnginfo import encode_png
from tests.extension.api.test_api_routes import Checked
from tests.extension.outputs.pictures import png, saved, text_with

STEPS = "Steps: 20, Sampler: Euler a, CFG scale: 7"


class Web:
    """A web UI without a model."""

    def __init__(self, root: Path, lora_file: Path) -> None:
        self.loras, self.outputs, self.data = root / "loras", root / "outputs", root / "data"
        for name in ("zorp", "neon"):
            saved(self.loras / f"{name}.safetensors", lora_file.read_bytes())
        self.outputs.mkdir()
        STANDALONE.open([self.loras], {}, self.data, self.outputs)
        session = register()
        assert session is not None
        self.session = session
        app = FastAPI()
        STANDALONE.app_started(app)
        session.catalog.wait(30)
        self.ask = Checked(TestClient(app, base_url="http://localhost"))
        self.ids = {one["name"]: one["id"] for one in self.ask("GET", "/loras")["loras"]}

    def add(self, name: str, tags: str, hashes: str = "", age: float = 60) -> Path:
        return saved(self.outputs / name, png(text_with(tags, hashes)), age)

    def scan(self) -> None:
        self.session.outputs.scan()

    def list(self, **query: Any) -> Any:
        return self.ask("GET", "/outputs", params=query)


@pytest.fixture
def web(tmp_path: Path, lora_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(Outputs, "start", lambda outputs: None)  # a test scans when it wants to
    yield Web(tmp_path, lora_file)
    STANDALONE.close()


def files(told: Any) -> list[str]:
    return [one["file"] for one in told["pictures"]]


def test_the_pictures_of_a_lora_come_in_pages_the_latest_first(web: Web) -> None:
    assert web.list() == {
        "total": 0,
        "found": 0,
        "pictures": [],
        "scan": {"running": False, "done": 0, "total": 0},
        "problem": "",
    }
    for number in range(65):
        web.add(
            f"day/{number:02}.png", "<lora:Zorp:0.8>" if number else "<lora:neon:1> <lora:gone:1>", age=999 - number
        )
    web.scan()
    told = web.list(lora=web.ids["zorp"])
    assert (told["total"], told["found"], len(told["pictures"])) == (65, 64, 60)
    assert files(told)[:2] == ["day/64.png", "day/63.png"]
    assert files(web.list(lora=web.ids["zorp"], skip=60)) == [f"day/{number:02}.png" for number in (4, 3, 2, 1)]
    assert files(web.list(lora=web.ids["zorp"], skip=1, most=2)) == ["day/63.png", "day/62.png"]
    assert files(web.list(name="gone")) == ["day/00.png"]
    assert web.list(seed=7)["found"] == 65
    assert web.list(seed=7, lora=web.ids["neon"])["found"] == 1
    assert web.list(seed=8)["found"] == 0
    assert web.session.catalog.alias(web.session.catalog.find("neon")) == "zorp", "which is the name of another file"
    (one,) = web.list(name="GONE")["pictures"]
    assert [(lora["id"], lora["name"], lora["strength"]) for lora in one["loras"]] == [
        (web.ids["neon"], "neon", "1"),
        (None, "gone", "1"),
    ]
    assert (one["seed"], one["width"], one["prompt"]) == (7, 1, "a fox <lora:neon:1> <lora:gone:1>")


def test_a_hash_in_the_text_decides_over_the_name(web: Web) -> None:
    zorp = web.session.catalog.find("zorp")
    digest = web.session.catalog.hashes.short(zorp)
    (web.loras / "neon.safetensors").unlink()
    web.session.catalog.refresh()
    web.add("renamed.png", "<lora:formerly:0.5>", f"formerly: {digest}")
    web.add("other.png", "<lora:zorp:1>", "zorp: ffffffffffff", age=50)
    web.scan()
    told = web.list(lora=web.ids["zorp"])
    assert files(told) == ["renamed.png"]
    assert told["pictures"][0]["loras"] == [
        {"id": web.ids["zorp"], "name": "formerly", "hash": digest, "strength": "0.5"}
    ]
    (other,) = web.list(name="zorp")["pictures"]
    assert other["loras"][0]["id"] is None, "another file had this name"
    details = web.ask("GET", "/outputs/picture", params={"id": told["pictures"][0]["id"]})
    assert details["tags"] == "<lora:zorp:0.5>"


def test_the_tags_of_a_picture_are_as_the_prompt_needs_them(web: Web) -> None:
    path = web.add("1.png", "<lora:neon:1:stop=10> in the rain <lora:zorp:0.5>")
    path.write_bytes(png(text_with("<lora:neon:1:stop=10> in the rain") + ', Remora stack: "<lora:zorp:0.5>"'))
    saved(path, path.read_bytes())
    web.scan()
    (one,) = web.list()["pictures"]
    details = web.ask("GET", "/outputs/picture", params={"id": one["id"]})
    assert details["tags"] == "<lora:zorp:0.5> <lora:neon:1:stop=10>"
    assert [use["id"] for use in details["loras"]] == [web.ids["neon"], web.ids["zorp"]]
    assert (details["file"], details["negative"]) == (one["file"], "grey")
    assert "Remora stack" not in details["own"]


def test_pictures_are_counted_by_lora(web: Web) -> None:
    for number, tags in enumerate(
        ("<lora:zorp:1>", "<lora:ZORP:0.5:stop=10> <lora:gone:0@0,1@0.5>", "<lora:neon>", "")
    ):
        web.add(f"{number}.png", tags)
    web.scan()
    told = web.ask("GET", "/outputs/loras")["loras"]
    latest = {one["name"]: one.pop("latest") for one in told}
    assert {one["name"]: (one.pop("strength"), one.pop("strengths")) for one in told} == {
        "zorp": ("0.5:stop=10", [0.5, 1]),
        "gone": ("0@0,1@0.5", None),
        "neon": ("", None),
    }
    times = {one["file"]: one["time"] for one in web.list()["pictures"]}
    assert latest == {"zorp": max(times["0.png"], times["1.png"]), "gone": times["1.png"], "neon": times["2.png"]}
    (found,) = web.ask("GET", "/outputs/loras", params={"words": "FOX lora:neon"})["loras"]
    assert (found["id"], found["pictures"]) == (web.ids["neon"], 1)
    assert web.ask("GET", "/outputs/loras", params={"words": "cat"})["loras"] == []
    assert web.list(words="fox", lora=web.ids["zorp"])["found"] == 2
    assert told[0] == {"id": web.ids["zorp"], "name": "zorp", "pictures": 2}
    assert sorted(told[1:], key=lambda one: str(one["name"])) == [
        {"id": None, "name": "gone", "pictures": 1},
        {"id": web.ids["neon"], "name": "neon", "pictures": 1},
    ]


def test_thumbnails_are_made_of_pictures_of_the_index_alone(web: Web, tmp_path: Path) -> None:
    secret = saved(tmp_path / "secret.png", png())
    content = encode_png(Image.new("RGB", (900, 600), "red"), "")
    path = saved(web.outputs / "1.png", content)
    saved(web.outputs / "damaged.png", png()[:45])
    web.scan()
    one, damaged = sorted(web.list()["pictures"], key=lambda one: one["file"])
    small = Image.open(io.BytesIO(web.ask("GET", "/outputs/thumbnail", params={"id": one["id"]})))
    assert (small.format, small.size) == ("WEBP", (384, 256))
    answer = web.ask.client.get("/remora/v1/outputs/thumbnail", params={"id": damaged["id"]})
    assert answer.status_code == 204
    assert "private" in answer.headers["cache-control"]
    path.unlink()
    path.symlink_to(secret)
    for route in ("/outputs/thumbnail", "/outputs/picture"):
        assert "no such picture any more" in web.ask("GET", route, 404, params={"id": one["id"]})
        assert "no such picture any more" in web.ask("GET", route, 404, params={"id": 999})
        for wrong in ("", "-1", "../secret.png", str(secret)):
            assert "id must be a whole number" in web.ask("GET", route, 422, params={"id": wrong})


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"lora": "no id"}, 404),
        ({"seed": "x"}, 422),
        ({"skip": "-1"}, 422),
        ({"most": "0"}, 422),
        ({"most": "201"}, 422),
        ({"most": "1e9"}, 422),
        ({"words": " ".join(map(str, range(21)))}, 422),
    ],
)
def test_a_wrong_query_is_one_sentence(web: Web, query: dict[str, str], status: int) -> None:
    assert web.ask("GET", "/outputs", status, params=query)


def test_what_is_wrong_with_the_index_is_said(web: Web) -> None:
    web.add("1.png", "")
    web.scan()
    for path in web.data.glob("pictures.sqlite3*"):
        path.unlink()
    (web.data / "pictures.sqlite3").write_bytes(b"no database" * 1000)
    told = web.list()
    assert "is damaged and was renamed" in told["problem"]
    assert (told["total"], told["pictures"]) == (0, [])
    web.scan()
    told = web.list()
    assert (told["total"], told["problem"]) == (1, "")


def test_an_answer_that_did_not_change_is_not_sent_again(web: Web) -> None:
    web.add("1.png", "")
    web.scan()
    first = web.ask.client.get("/remora/v1/outputs")
    again = web.ask.client.get("/remora/v1/outputs", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == httpx.codes.NOT_MODIFIED


def test_a_web_ui_that_keeps_nothing_has_no_index(tmp_path: Path) -> None:
    STANDALONE.open([tmp_path], {}, None, tmp_path)
    session = register()
    assert session is not None
    app = FastAPI()
    STANDALONE.app_started(app)
    saved(tmp_path / "1.png", png())
    client = TestClient(app, base_url="http://localhost")
    assert client.get("/remora/v1/outputs").json()["total"] == 0
    assert client.get("/remora/v1/outputs/loras").json()["loras"] == []
    assert client.get("/remora/v1/outputs/thumbnail?id=1").status_code == httpx.codes.NOT_FOUND
    STANDALONE.close()
    assert [path.name for path in tmp_path.iterdir()] == ["1.png"]
