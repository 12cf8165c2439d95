"""The command line: what it refuses before anything large is imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from extension.serve.__main__ import main
from extension.serve.ingress import IngressSettings
from extension.serve.model import ModelSettings

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--host", "0.0.0.0"], 2, "--without-login"),
        (["--model", "nothing"], 1, "nothing"),
        (["--keys", "nothing"], 1, "nothing"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    assert said in capsys.readouterr().err


def test_options_are_told_with_the_standard_library_only() -> None:
    command = [sys.executable, "-S", "-m", "extension.serve", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--lora-dir" in done.stdout


def test_the_file_for_a_cluster_has_known_settings() -> None:
    (application,) = yaml.safe_load((ROOT / "extension/serve/serve.yaml").read_text("utf-8"))["applications"]
    given = application["args"]
    assert application["import_path"] == "extension.serve.service:build"
    assert ModelSettings.of(given["model"]) == ModelSettings(gather=ModelSettings().gather)
    assert IngressSettings(**{**given["ingress"], "logins": ()}) == IngressSettings()
    with pytest.raises(TypeError):
        ModelSettings.of({"modle": "x"})


SUFFIXES = {"Counter": {"_total"}, "Gauge": {""}, "Histogram": {"_bucket", "_sum", "_count"}}


def test_the_dashboard_asks_for_metrics_that_exist_and_shows_them_all() -> None:
    source = (ROOT / "extension/serve/service.py").read_text("utf-8")
    made = re.findall(r'(Counter|Gauge|Histogram)\(\s*"(\w+)"', source)
    known = {f"ray_{name}{suffix}": name for kind, name in made for suffix in SUFFIXES[kind]}
    dashboard = json.loads((ROOT / "extension/serve/grafana.json").read_text("utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"ray_\w+", expression)}
    assert names <= set(known)
    assert {known[name] for name in names} == {name for _, name in made}
    labels = set(re.findall(r"(\w+)=\"|by \((\w+)\)", " ".join(asked)))
    told = set(re.findall(r'tag_keys=\("(\w+)",\)', source)) | {"le", "instance"}
    assert {one or other for one, other in labels} <= told
