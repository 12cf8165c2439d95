"""What the hosts of A1111's family show of Remora: the tab, and the settings with their explanations."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from extension.generation.options import MERGE, NEVER, TABLE
from extension.hosts._a1111_family import sort_key
from extension.hosts._webui import WebUIHost
from extension.hosts.sdnext import SDNEXT
from extension.text.tag import Pass

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = """
from extension.tab import build_tab
(component,) = [one for one in build_tab().get_config_file()["components"] if one["type"] == "html"]
print(component["props"]["value"])
"""


class OptionInfo(SimpleNamespace):
    """A setting as the hosts describe it."""

    def __init__(self, default: Any, label: str, component: Any, component_args: Any, **others: Any) -> None:
        others = {"category_id": None, **others}
        super().__init__(default=default, label=label, component=component, component_args=component_args, **others)


class Plain(WebUIHost):
    """A host with nothing of its own."""

    name = "plain"

    def is_current(self) -> bool:
        return False

    def components(self) -> Mapping[str, nn.Module]:
        return {}

    def quiet_builtin(self) -> None: ...

    def wake_builtin(self) -> None: ...

    def tell(self, p: Any, outcome: Any) -> None: ...

    def run_batch(self, p: Any, images: Any, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None: ...

    def pass_of(self, p: Any) -> Pass:
        return "base"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Return the entries of the host's settings page by key."""
    shown: dict[str, Any] = {}
    shared: Any = ModuleType("modules.shared")
    shared.opts = SimpleNamespace(data={}, add_option=shown.__setitem__)
    shared.OptionInfo = OptionInfo
    shared.config_filename = str(tmp_path / "config.json")
    gradio: Any = ModuleType("gradio")
    gradio.Checkbox, gradio.Number, gradio.Radio = "checkbox", "number", "radio"
    for name, module in (("modules", ModuleType("modules")), ("modules.shared", shared), ("gradio", gradio)):
        monkeypatch.setitem(sys.modules, name, module)
    return shown


def test_every_setting_is_shown_with_its_explanation(shown: dict[str, Any]) -> None:
    Plain().add_options(TABLE)
    assert list(shown) == [option.key for option in TABLE]
    for option in TABLE:
        info = shown[option.key]
        section = ("remora_experts", "Remora for experts") if option.expert else ("remora", "Remora")
        assert (info.default, info.section) == (option.default, section)
        assert info.label == (f"{option.label} ({option.info})" if option.info else option.label)
        assert "info" not in info.component_args  # which some themes of SD.Next make pale
        assert info.category_id == "sd"


def test_a_saved_choice_of_a_former_version_becomes_the_default_with_one_line_in_the_log(
    shown: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    data = sys.modules["modules.shared"].opts.data
    data[MERGE] = "when it pays"
    host = Plain()
    with caplog.at_level(logging.INFO):
        host.add_options(TABLE)
        host.add_options(TABLE)  # the host asks again for its settings page
    assert data == {MERGE: NEVER}
    assert host.option(MERGE) == NEVER
    assert [record.message for record in caplog.records] == [
        "remora: Merge LoRA into the weights: 'when it pays' was removed and is 'never' now"
    ]


class ShowsInfo(Plain):
    """A host that shows the `info` of an option beside it."""

    shows_info_of_options = True


def test_an_explanation_is_shown_beside_its_own_setting_where_gradio_shows_it_above(
    shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[str] = []
    monkeypatch.setattr(OptionInfo, "info", lambda self, text: beside.append(text), raising=False)
    ShowsInfo().add_options(TABLE)
    assert beside == [option.info for option in TABLE if option.info]
    assert not any("info" in info.component_args for info in shown.values())


def test_numbers_in_names_sort_by_their_value_and_other_digits_as_letters() -> None:
    assert sorted(["a10", "a²", "a2"], key=sort_key) == ["a2", "a10", "a²"]


def test_what_is_kept_lies_beside_the_hosts_settings(shown: dict[str, Any], tmp_path: Path) -> None:
    assert Plain().data_dir() == tmp_path / "remora"


def test_the_tab_is_made_when_the_host_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    callbacks: Any = ModuleType("modules.script_callbacks")
    callbacks.__getattr__ = lambda name: lambda callback: asked.__setitem__(name, callback)
    monkeypatch.setitem(sys.modules, "modules", ModuleType("modules"))
    monkeypatch.setitem(sys.modules, "modules.script_callbacks", callbacks)
    host, remora = Plain(), SimpleNamespace(tab=lambda: "blocks")
    host.connect(remora)  # type: ignore[arg-type]
    assert asked["on_ui_tabs"]() == [("blocks", "Remora", "remora")]


def test_a_callback_is_registered_with_few_callers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    callers: set[str] = set()
    callbacks: Any = ModuleType("modules.script_callbacks")
    callbacks.__getattr__ = lambda name: lambda callback: callers.update(_callers(sys._getframe()))
    monkeypatch.setitem(sys.modules, "modules", ModuleType("modules"))
    monkeypatch.setitem(sys.modules, "modules.script_callbacks", callbacks)
    script = tmp_path / "script.py"
    script.write_text("connect()")
    spec = importlib.util.spec_from_file_location("script", script)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    module.connect = lambda: Plain().connect(SimpleNamespace())  # type: ignore[arg-type]
    spec.loader.exec_module(module)
    assert any(file.endswith("_webui.py") for file in callers)
    assert str(script) not in callers  # for a file that is no module, A1111 looks through all modules
    assert [file for file in callers if file.startswith("<frozen importlib")] == []


def _callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def test_the_tab_is_one_element_that_says_that_it_loads() -> None:
    # in a process of its own: gradio leaves event loops open, and warnings are errors here
    done = subprocess.run([sys.executable, "-c", BLOCKS], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == '<div id="remora-tab">Loading the tab of Remora …</div>'


def test_pictures_are_looked_for_where_the_settings_have_them(
    shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opts = sys.modules["modules.shared"].opts
    assert list(Plain().output_dirs()) == [], "a host without such settings"
    opts.outdir_samples, opts.outdir_txt2img_samples, opts.outdir_img2img_samples = "", "outputs/txt2img-images", ""
    opts.outdir_grids, opts.outdir_save = "outputs/grids", str(tmp_path / "log" / "images")
    assert list(Plain().output_dirs()) == [tmp_path / "outputs" / "txt2img-images", tmp_path / "log" / "images"]
    opts.outdir_samples = "all"
    assert list(Plain().output_dirs()) == [tmp_path / "all", tmp_path / "log" / "images"]


def test_sdnext_puts_its_folders_below_one_folder(
    shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opts = sys.modules["modules.shared"].opts
    opts.outdir_samples, opts.outdir_txt2img_samples, opts.outdir_control_samples = (
        "",
        "outputs/text",
        "outputs/control",
    )
    opts.outdir_save = str(tmp_path / "kept")
    assert list(SDNEXT.output_dirs()) == [tmp_path / one for one in ("outputs/text", "outputs/control", "kept")]
    opts.outdir_samples = "base"
    assert list(SDNEXT.output_dirs()) == [
        tmp_path / one for one in ("base/outputs/text", "base/outputs/control", "kept")
    ]
