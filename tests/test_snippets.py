"""The code of docs/ runs as it is written, on the demo's model."""

from __future__ import annotations

import ast
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from diffusers import DiffusionPipeline
from setuptools import build_meta

from tests.fakes.demo import demo_pipeline

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def pipe() -> Any:
    """Return the demo's model, which the documents load."""
    pipe = demo_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def loaded(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders that the code loads; it gets the model that was loaded from there before."""
    named: list[Path] = []

    def load(folder: str) -> Any:
        named.append(Path(folder).resolve())
        return pipe

    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", load)
    return named


def blocks(page: str, language: str = "python") -> Iterator[str]:
    """Yield the code of a page in one language; none is what has no language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    yield from re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of schedulers, which copy tensors into arrays
def test_the_page_of_the_library(
    loaded: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    space: dict[str, Any] = {}
    for code in blocks("library.md"):
        exec(code, space)
    assert loaded == [ROOT / "demo" / "remora-shapes"]
    pictures = {space[name].tobytes() for name in ("image", "other", "neon")}
    assert len(pictures) == 3
    assert space["image"].size == (96, 96)
    assert space["delta"].shape[0] == space["pipe"].unet.get_submodule("mid_block.attentions.0.proj_in").out_channels
    assert "layers" in capsys.readouterr().out


@pytest.mark.quick
def test_strengths_in_python(loaded: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    two_lines = next(blocks("library.md")).partition("image =")[0]
    space: dict[str, Any] = {"i": 0}
    exec(two_lines, space)
    for code in blocks("strength.md"):
        exec(code, space)
    space["engine"].close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook(loaded: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS)
    notebook = json.loads((DOCS / "diffusers.ipynb").read_text(encoding="utf-8"))
    space: dict[str, Any] = {}
    shown = []
    for cell in (one for one in notebook["cells"] if one["cell_type"] == "code"):
        assert not cell["outputs"]
        *body, last = ast.parse(re.sub(r"STEPS = \d+", "STEPS = 2", "".join(cell["source"]))).body
        exec(compile(ast.Module(body, []), "diffusers.ipynb", "exec"), space)
        if isinstance(last, ast.Expr):  # as a notebook shows it below its cell
            shown.append(eval(compile(ast.Expression(last.value), "diffusers.ipynb", "eval"), space))
        else:
            exec(compile(ast.Module([last], []), "diffusers.ipynb", "exec"), space)
    assert loaded == [ROOT / "demo" / "remora-shapes"]
    pictures = [one for one in shown if hasattr(one, "tobytes")]
    assert [one.size for one in pictures] == [(96, 96)] * 6
    assert len({one.tobytes() for one in pictures}) == 6
    assert ("stripes", "outline") in shown


def test_the_package_is_the_library_whole_and_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lib_lora", "docs/library.md", "LICENSE", "pyproject.toml"):
        source, copy = ROOT / name, tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    monkeypatch.chdir(tmp_path)
    wheel = zipfile.ZipFile(tmp_path / "dist" / build_meta.build_wheel("dist"))
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = [file for file in (ROOT / "lib_lora").rglob("*") if file.suffix == ".py" or file.name == "py.typed"]
    assert inside == {file.relative_to(ROOT).as_posix() for file in files}
    told = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
    assert re.findall("^Requires-Dist: (.*)$", told, re.MULTILINE) == [
        "torch>=2.1",
        "safetensors",
        "numpy",
        "typing-extensions>=4.1",
    ]
    assert "\nName: remora-lora\n" in told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_of_saving(
    loaded: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for code in blocks("saving.md"):
        exec(code, space)
    space["engine"].close()
    written = {path.stem: path.stat().st_size for path in tmp_path.glob("*.safetensors")}
    assert written.keys() == {"mine", "rank", "size", "error", "seen", "small", "ties", "difference"}
    assert max(size for name, size in written.items() if name != "ties") == written["mine"]
    assert written["size"] <= 200_000
    assert "layers of rank" in capsys.readouterr().out
