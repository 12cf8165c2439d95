"""The command line: what a user reads when it cannot start. That it starts is shown by the browser tests."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from extension.hosts import current_host
from extension.standalone.__main__ import main
from extension.standalone.demo import Demo


def test_without_a_model_it_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "name a model by --model, or try --demo" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--port=0", "--model", str(tmp_path / "nothing")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "neither a checkpoint file nor a diffusers folder" in error
    assert error.count("\n") == 1


def test_a_pickle_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "old.ckpt").write_bytes(b"PK\x03\x04")
    assert main(["--port=0", "--model", str(tmp_path / "old.ckpt")]) == 1
    assert "pickle" in capsys.readouterr().err


def test_an_offload_mode_without_an_accelerator_is_refused(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port=0", "--model", str(demo.model), "--device", "cpu", "--offload", "model"]) == 1
    assert "'model' is not available on cpu" in capsys.readouterr().err
    assert current_host() is None


def test_a_port_that_is_taken_is_one_line_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--demo", "--no-browser", f"--port={port}"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: port {port} on 127.0.0.1 cannot be had")
    assert "name another by --port" in printed.err
