"""A file is written whole or not at all, and nothing of others is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lib_lora import ArgumentError, Engine, Entry, FileError, NoMatchError, Stack, StackError, save_stack
from lib_lora.saving import new_file, writing
from tests.fakes.files import pair, save
from tests.fakes.layers import Model

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def source(tmp_path):
    return save(tmp_path / "source.safetensors", pair("lora_unet_layer", (48, 24), 4, alpha=4.0))


@pytest.fixture
def engine(source):
    model = Model(nn.Linear(24, 48).requires_grad_(False))
    made = Engine({"unet": model})
    made.activate(Stack([Entry(source, 0.5)]))
    yield made
    made.close()


@pytest.fixture(params=["without a name", "with a name"])
def way(request, monkeypatch):
    """Have the unfinished file without a name, as on Linux, and with one, as elsewhere."""
    if request.param == "with a name":
        monkeypatch.setattr(writing, "_OPEN", Path("/nowhere"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("way")
def test_a_name_that_is_taken_is_refused_unless_told(engine, source, tmp_path):
    taken = tmp_path / "taken.safetensors"
    taken.write_bytes(b"of another program")
    with pytest.raises(FileError, match="there is a file of that name"):
        save_stack(engine, taken)
    assert taken.read_bytes() == b"of another program"
    saved = save_stack(engine, taken, replace=True)
    assert taken.stat().st_size == saved.nbytes
    assert names(tmp_path) == ["source.safetensors", "taken.safetensors"]
    save_stack(engine, source, replace=True)  # its own source, too
    assert names(tmp_path) == ["source.safetensors", "taken.safetensors"]


@pytest.mark.usefixtures("way")
def test_a_name_that_is_taken_meanwhile_is_left_alone(engine, tmp_path, monkeypatch):
    path, read_back = tmp_path / "new.safetensors", new_file._read_back

    def slow(*args):
        path.write_bytes(b"of another program")
        return read_back(*args)

    monkeypatch.setattr(new_file, "_read_back", slow)
    with pytest.raises(FileError, match="another program has made a file of that name meanwhile"):
        save_stack(engine, path)
    assert path.read_bytes() == b"of another program"
    assert names(tmp_path) == ["new.safetensors", "source.safetensors"]


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="Windows tells it otherwise")
def test_a_disk_without_room_is_seen_first(engine, tmp_path, monkeypatch):
    full = os.statvfs_result((1, 1, 1 << 40, 1 << 20, 1 << 20, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(FileError, match="bytes, and the disk has 1,048,576 left"):
        save_stack(engine, tmp_path / "new.safetensors")
    assert names(tmp_path) == ["source.safetensors"]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing(engine, tmp_path, monkeypatch, error):
    old = tmp_path / "old.safetensors"
    old.write_bytes(b"the former file")

    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    text = "it cannot be written, and nothing was: No space left" if isinstance(error, OSError) else None
    with pytest.raises(FileError if text else KeyboardInterrupt, match=text):
        save_stack(engine, old, replace=True)
    assert old.read_bytes() == b"the former file"
    assert names(tmp_path) == ["old.safetensors", "source.safetensors"]


@pytest.mark.usefixtures("way")
def test_a_source_that_changes_while_it_is_saved_is_refused(engine, source, tmp_path, monkeypatch):
    read_back = new_file._read_back

    def slow(*args):
        found = read_back(*args)
        save(source, pair("lora_unet_layer", (48, 24), 4, alpha=4.0, seed=1))
        return found

    monkeypatch.setattr(new_file, "_read_back", slow)
    with pytest.raises(FileError, match="it changed on disk while in use"):
        save_stack(engine, tmp_path / "new.safetensors")
    assert names(tmp_path) == ["source.safetensors"]


def test_what_is_read_back_must_be_what_was_meant(engine, tmp_path, monkeypatch):
    write = new_file.write_tensors
    monkeypatch.setattr(new_file, "write_tensors", lambda s, h, tensors: write(s, h, [one * 2 for one in tensors]))
    with pytest.raises(FileError, match="read back, it differs from what was meant"):
        save_stack(engine, tmp_path / "new.safetensors")
    monkeypatch.setattr(new_file, "write_tensors", lambda s, h, tensors: write(s, h.replace(b"unet", b"none"), tensors))
    with pytest.raises(FileError, match=r"read back, it is not what was meant: .*fits no layer"):
        save_stack(engine, tmp_path / "new.safetensors")
    assert names(tmp_path) == ["source.safetensors"]


def test_layers_with_nan_are_left_out_as_in_the_picture_and_said(tmp_path):
    model = nn.Sequential(*[nn.Linear(24, 48).requires_grad_(False) for _ in range(2)])
    tensors = pair("lora_unet_0", (48, 24), 4) | pair("lora_unet_1", (48, 24), 4)
    tensors["lora_unet_1.lora_up.weight"][0, 0] = float("nan")
    path = save(tmp_path / "spoilt.safetensors", tensors)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    saved = save_stack(engine, tmp_path / "saved.safetensors")
    assert [layer.name for layer in saved.layers] == ["0"]
    assert len(saved.notes) == 1
    assert saved.notes[0].startswith("spoilt: keys without effect are left out: of a layer with numbers that are NaN")
    tensors["lora_unet_0.lora_up.weight"][0, 0] = float("inf")
    save(path, tensors)
    with pytest.raises(NoMatchError, match="NaN or infinite in every layer"):
        save_stack(engine, tmp_path / "second.safetensors")
    assert names(tmp_path) == ["saved.safetensors", "spoilt.safetensors"]
    engine.close()


def test_a_base_weight_with_nan_is_refused(tmp_path):
    model = Model(nn.Linear(24, 48).requires_grad_(False))
    tensors = pair("lora_unet_layer", (48, 24), 4) | {"lora_unet_layer.dora_scale": torch.ones(48, 1)}
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(save(tmp_path / "dora.safetensors", tensors))]))
    model.layer.weight[0, 0] = float("nan")
    for options in ({}, {"rank": 2}):
        with pytest.raises(FileError, match="NaN or infinite"):
            save_stack(engine, tmp_path / "saved.safetensors", **options)
    assert names(tmp_path) == ["dora.safetensors"]
    engine.close()


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("mine.pt", FileError, r"ends in \.safetensors"),
        ("nowhere/mine.safetensors", FileError, "there is no folder"),
        (5, ArgumentError, "a path is a text or a Path"),
    ],
)
def test_a_path_that_is_none(engine, tmp_path, path, error, text):
    with pytest.raises(error, match=text):
        save_stack(engine, tmp_path / path if isinstance(path, str) else path)


def test_nothing_to_save(engine, source, tmp_path):
    engine.activate(Stack())
    with pytest.raises(StackError, match="no LoRA is in force"):
        save_stack(engine, tmp_path / "new.safetensors")
    engine.activate(Stack([Entry(source, 0.0)]))
    with pytest.raises(FileError, match="changes nothing"):
        save_stack(engine, tmp_path / "new.safetensors")


KILLED = """
import os, random, signal, sys
import torch
from pathlib import Path
from torch import nn
from lib_lora import Engine, Entry, Stack, load_network, save_stack
torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = nn.ModuleDict({"layer": nn.Linear(1200, 1200).requires_grad_(False)})
engine = Engine({"unet": model})
engine.activate(Stack([Entry(folder / "source.safetensors")]))
random.seed(0)
ends = []
for turn in range(30):
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0, 0.12) + 1e-4)
        save_stack(engine, folder / "new.safetensors", replace=True)
        os._exit(0)
    random.random()
    _, status = os.waitpid(child, 0)
    ends.append("killed" if os.WIFSIGNALED(status) else "saved")
    for replacing in folder.glob(".new.safetensors.*.part"):  # killed in the moment in which it replaces the former
        assert (folder / "new.safetensors").is_file()
        whole = replacing.replace(folder / "whole.safetensors")
        assert load_network(whole, {"unet": model}).report.hit == 1
        whole.unlink()
    print(ends[-1], *sorted(path.name for path in folder.iterdir()))
"""


AT_THE_END = """
import os, sys
from pathlib import Path
from torch import nn
from lib_lora import Engine, Entry, Stack, save_stack
folder = Path(sys.argv[1])
model = nn.ModuleDict({"layer": nn.Linear(12, 12).requires_grad_(False)})
engine = Engine({"unet": model})
engine.activate(Stack([Entry(folder / "source.safetensors")]))
Path.replace = lambda *_: os._exit(9)
save_stack(engine, folder / "other.safetensors", replace=True)  # there is none, so nothing is replaced
save_stack(engine, folder / "new.safetensors", replace=True)
"""


def test_a_process_that_is_killed_as_it_replaces_a_file_leaves_both_whole(tmp_path):
    save(tmp_path / "source.safetensors", pair("lora_unet_layer", (12, 12), 4))
    former = tmp_path / "new.safetensors"
    former.write_bytes(b"former")
    assert subprocess.run([sys.executable, "-c", AT_THE_END, tmp_path], cwd=ROOT, check=False).returncode == 9
    assert former.read_bytes() == b"former"
    assert (tmp_path / "other.safetensors").is_file()
    (left,) = tmp_path.glob(".new.safetensors.*.part")
    model = nn.ModuleDict({"layer": nn.Linear(12, 12)})
    Engine({"unet": model}).activate(Stack([Entry(left.rename(tmp_path / "whole.safetensors"))]))


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="elsewhere an unfinished file has a name")
def test_a_process_that_is_killed_leaves_nothing(tmp_path):
    save(tmp_path / "source.safetensors", pair("lora_unet_layer", (1200, 1200), 64, alpha=4.0))
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 30
    assert {line.split()[0] for line in lines} >= {"killed"}, lines
    assert {tuple(line.split()[1:]) for line in lines} <= {
        ("source.safetensors",),
        ("new.safetensors", "source.safetensors"),
    }, lines
    if (tmp_path / "new.safetensors").exists():
        model = nn.ModuleDict({"layer": nn.Linear(1200, 1200)})
        Engine({"unet": model}).activate(Stack([Entry(tmp_path / "new.safetensors")]))
