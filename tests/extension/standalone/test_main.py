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
    assert "choose a model with --model, or use --demo" in capsys.readouterr().err


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
    assert printed.err.startswith(f"error: port {port} on 127.0.0.1 cannot be used")
    assert "choose another one with --port" in printed.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my-machine", "127.0.0.1.example", ""])
def test_other_machines_are_let_in_only_on_purpose(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--demo", "--no-browser", "--port=0", "--host", host]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: other machines reach ")
    assert "--auth user:password" in error
    assert "--without-login" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--host=127.0.0.1"],
        ["--host=::1"],
        ["--host=localhost"],
        ["--host=0.0.0.0", "--auth=me:secret"],
        ["--host=0.0.0.0", "--without-login"],
    ],
)
def test_this_machine_needs_no_login_and_others_one_or_the_word(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.standalone.__main__._check_port", lambda *_: None)
    assert main([*arguments, "--model", str(tmp_path / "nothing")]) == 1  # it comes as far as the model
    assert "neither a checkpoint file nor a diffusers folder" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--auth", "me"], ["--auth", ":x"], ["--auth", "me:"], ["--auth", ""]])
def test_a_login_is_a_user_and_a_password(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--demo", *arguments])
    assert "argument --auth: write it as user:password" in capsys.readouterr().err


def test_a_login_is_given_or_left_out_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--demo", "--auth=a:b", "--without-login"])
    assert "not allowed with argument" in capsys.readouterr().err
