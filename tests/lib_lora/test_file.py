"""Files are read exactly or refused with one sentence that says why; nothing else ever happens."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from extension import store
from extension.library import hashes
from lib_lora import Engine, Entry, Stack
from lib_lora.errors import FileError, PickleError
from lib_lora.files import file as file_module
from lib_lora.files import reading
from lib_lora.files.file import AdapterFile, Reader, glance
from lib_lora.files.reading import read_object
from lib_lora.tensors import TensorFields
from tests.fakes.files import pair, save
from tests.selection import examples

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
DTYPES += [name for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]


@dataclass(frozen=True)
class Lying(TensorFields):
    """What an adapter is of a file."""

    tensor: Tensor


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def merged(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: tensor for part in parts for key, tensor in part.items()}


def entry(start: int = 0, end: int = 8, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.fixture
def write(tmp_path: Path):
    def write(content: bytes, name: str = "x.safetensors") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_what_the_reference_library_wrote(tmp_path, dtype):
    want = {
        "odd": torch.randint(0, 2, (3, 5)).to(getattr(torch, dtype)),
        "scalar": torch.tensor(1).to(getattr(torch, dtype)),
        "empty": torch.zeros(0, 4).to(getattr(torch, dtype)),
    }
    safetensors.torch.save_file(want, tmp_path / "a.safetensors", metadata={"ss_network_dim": "4"})
    file = AdapterFile.open(tmp_path / "a.safetensors")
    assert set(file.infos) == set(want)
    assert file.metadata == {"ss_network_dim": "4"}
    for key, tensor in want.items():
        got = file.tensor(key)
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    assert file.numbers == {"scalar": 1.0}


def test_reads_tensors_that_are_not_aligned(write):
    values = torch.tensor([1.5, -2.0])
    header = {"a": entry(0, 1, (1,), "U8"), "b": entry(1, 9)}
    file = AdapterFile.open(write(raw(header, b"\x07" + values.numpy().tobytes())))
    assert torch.equal(file.tensor("b"), values)


def test_opening_reads_no_tensor_and_writing_a_view_reaches_no_disk(write):
    path = write(raw({"a": entry()}, bytes(8)))
    file = AdapterFile.open(path)
    assert file._map is None
    file.tensor("a").fill_(3)
    assert path.read_bytes().endswith(bytes(8))


BAD = {
    "empty": (b"", "is empty"),
    "short": (b"abc", "truncated, or not a safetensors file"),
    "length beyond the file": (raw({"a": entry()}, bytes(8), length=10_000), "header claims 10000 bytes"),
    "length absurd": (struct.pack("<Q", 1 << 63) + bytes(32), "header claims"),
    "not JSON": (raw(b"{nope}"), "truncated or damaged"),
    "not UTF-8": (raw(b'{"\xff":1}'), "truncated or damaged"),
    "not an object": (raw([1]), "truncated or damaged"),
    "deep nesting": (raw(b"[" * 100_000), "truncated or damaged"),
    "duplicate key": (raw(b'{"a":1,"a":2}'), "truncated or damaged"),
    "metadata no strings": (raw({"__metadata__": {"k": 1}}), "truncated or damaged"),
    "entry incomplete": (raw({"a": {"dtype": "F32"}}), "truncated or damaged"),
    "unknown dtype": (raw({"a": entry(dtype="F3")}, bytes(8)), "F3"),
    "endless shape": (raw({"a": entry(0, 0, shape=(2, 0, *(4,) * 40))}, b""), "a shape that no tensor can have"),
    "negative shape": (raw({"a": entry(shape=(-2,))}, bytes(8)), "truncated or damaged"),
    "boolean offset": (
        raw({"a": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}}, b"1"),
        "truncated or damaged",
    ),
    "size wrong": (raw({"a": entry(shape=(3,))}, bytes(8)), "truncated or damaged"),
    "offsets reversed": (raw({"a": entry(8, 0)}, bytes(8)), "truncated or damaged"),
    "truncated": (raw({"a": entry()}, bytes(7)), "truncated or damaged"),
    "out of range": (raw({"a": entry(0, 8), "b": entry(8, 16)}, bytes(8)), "truncated or damaged"),
    "overlap": (raw({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "truncated or damaged"),
    "gap": (raw({"a": entry(0, 8), "b": entry(12, 20)}, bytes(20)), "truncated or damaged"),
    "rest": (raw({"a": entry()}, bytes(9)), "truncated or damaged"),
    "web page": (b"<!DOCTYPE html><html><body>Log in</body></html>", "web page"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
    "GGUF": (b"GGUF\x03\x00\x00\x00" + bytes(64), "GGUF"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses_with_the_reason(write, name):
    content, reason = BAD[name]
    with pytest.raises(FileError) as caught:
        AdapterFile.open(write(content))
    assert reason in str(caught.value)
    assert "x.safetensors" in str(caught.value)


def test_as_many_tensors_as_no_adapter_has_are_not_read(write, monkeypatch):
    monkeypatch.setattr("lib_lora.files.file.MOST_TENSORS", 3)
    said = {"__metadata__": {"text": '"data_offsets"' * 10}}
    most = {str(number): entry(8 * number, 8 * number + 8) for number in range(3)}
    assert len(AdapterFile.open(write(raw(said | most, bytes(24)))).infos) == 3
    with pytest.raises(FileError, match="more than 3 tensors"):
        AdapterFile.open(write(raw(most | {"3": entry(24, 32)}, bytes(32))))


@pytest.mark.parametrize("name", ["a.pt", "a.ckpt", "a.bin", "a.pth", "a.PT"])
def test_refuses_a_pickle_by_name_unread(write, name):
    with pytest.raises(PickleError, match="convert it once with"):
        AdapterFile.open(write(b"anything", name))


@pytest.mark.parametrize("save", [{}, {"_use_new_zipfile_serialization": False}])
def test_refuses_a_pickle_by_content(tmp_path, save):
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.safetensors", **save)
    with pytest.raises(PickleError, match="weights_only=True"):
        AdapterFile.open(tmp_path / "a.safetensors")


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x4B50])
def test_a_header_whose_length_begins_like_a_pickle(write, length):
    header = json.dumps({"x": entry()}).encode()
    path = write(struct.pack("<Q", length) + header.ljust(length) + bytes(8))
    assert AdapterFile.open(path).infos.keys() == {"x"}


def test_the_conversion_it_names_works(tmp_path):
    torch.save({"a": torch.ones(2, 3).t()}, tmp_path / "in.pt")
    with pytest.raises(PickleError) as caught:
        AdapterFile.open(tmp_path / "in.pt")
    command = str(caught.value).partition("once with ")[2]
    command = command.replace("IN.pt", "in.pt").replace("OUT.safetensors", "out.safetensors")
    subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=tmp_path, check=True)
    assert torch.equal(AdapterFile.open(tmp_path / "out.safetensors").tensor("a"), torch.ones(3, 2))


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(FileError, match="cannot be read"):
            AdapterFile.open(path)


def test_other_rights_and_another_link_change_nothing_of_a_file_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"x": torch.ones(2)}, path)
    file = AdapterFile.open(path)
    path.chmod(0o400)
    os.link(path, tmp_path / "b.safetensors")
    file.verify()


def test_a_file_changed_on_disk_is_noticed_before_it_is_touched(write):
    path = write(raw({"a": entry(), "b": entry(8, 12, ())}, bytes(12)))
    file = AdapterFile.open(path)
    file.tensor("a")
    os.truncate(path, 20)  # touching the map now would end the process
    with pytest.raises(FileError, match="changed on disk"):
        file.verify()
    with pytest.raises(FileError, match="changed on disk"):
        file.numbers  # noqa: B018  # it is read then
    path.unlink()
    with pytest.raises(FileError, match="vanished"):
        file.verify()


def test_numbers_are_read_without_the_map(write):
    """One after the other, wherever they lie between the others; a map touched there reads all around it."""
    sizes = {"w": 64, "alpha": 1, "x": 32, "beta": 1}
    values = torch.arange(98, dtype=torch.float32)
    header, start = {}, 0
    for key, size in sizes.items():
        shape = [size] if key in ("w", "x") else [1, 1] if key == "beta" else []
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [4 * start, 4 * (start + size)]}
        start += size
    file = AdapterFile.open(write(raw(header, values.numpy().tobytes())))
    assert file.numbers == {"alpha": 64.0, "beta": 97.0}
    assert file._map is None


def test_a_configuration_beside_the_file(tmp_path):
    path = tmp_path / "adapter_config.json"
    path.write_text('{"lora_alpha": 16}')
    assert read_object(path) == {"lora_alpha": 16}
    for bad in ("{", "[]", "[" * 100_000, " " * (9 << 20)):
        path.write_text(bad)
        with pytest.raises(FileError, match="adapter_config"):
            read_object(path)


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices are files on POSIX systems alone")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path, kind):
    for path in (tmp_path / "a.safetensors", tmp_path / "adapter_config.json"):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
    for read in (AdapterFile.open, glance, read_object):
        with pytest.raises(FileError, match="not a regular file"):
            read(tmp_path / "a.safetensors")


GOOD = raw({"__metadata__": {"k": "v"}, "a": entry(0, 8), "b": entry(8, 16, (2, 1, 2), "F16")}, bytes(16))


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
@example(b"\x00" * 8)
def test_any_bytes_are_read_or_refused(tmp_path, content):
    path = tmp_path / "any.safetensors"
    path.write_bytes(content)
    with contextlib.suppress(FileError):  # and nothing else may come
        AdapterFile.open(path)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
def test_a_damaged_file_is_read_as_it_says_or_refused(tmp_path, place, byte, cut):
    damaged = bytearray(GOOD)
    damaged[place] = byte
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(bytes(damaged[:cut]) if cut < place else bytes(damaged))
    try:
        file = AdapterFile.open(path)
    except FileError:
        return
    for key in file.infos:
        assert tuple(file.tensor(key).shape) == file.infos[key].shape


def test_a_glance_tells_the_metadata_and_which_files_are_alike(tmp_path):
    def saved(name: str, rank: int, **said: str) -> Path:
        path = tmp_path / f"{name}.safetensors"
        safetensors.torch.save_file({"a": torch.zeros(rank, 2), "b": torch.zeros(3)}, path, metadata=said or None)
        return path

    one, other = saved("one", 4, x="1 \u00e9 \\"), saved("other", 4, y='"data_offsets"')
    wider, plain = saved("wider", 5, x="1"), saved("plain", 4)
    found = {path.stem: glance(path) for path in (one, other, wider, plain)}
    assert {name: dict(value.metadata) for name, value in found.items()} == {
        path.stem: dict(AdapterFile.open(path).metadata) for path in (one, other, wider, plain)
    }
    assert found["one"].tensors == found["other"].tensors
    assert len({found[name].tensors for name in ("one", "wider")}) == 2


@pytest.mark.parametrize(
    "header",
    [
        '{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"a": "b"}}',  # not first
        '{"__metadata__":{"a":1},"x":{}}',
        '{"__metadata__":[],"x":{}}',
        '{"__metadata__":{"a":"b"',
        "\u00ff",
    ],
)
def test_a_glance_that_tells_nothing_is_none(tmp_path, header):
    text = header.encode("latin-1")
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    assert glance(path) is None or b"__metadata__" not in text


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_a_file_that_is_alike_a_good_one_can_be_opened(tmp_path, place, byte):
    good, damaged = tmp_path / "good.safetensors", tmp_path / "damaged.safetensors"
    good.write_bytes(GOOD)
    damaged.write_bytes(GOOD[:place] + bytes([byte]) + GOOD[place + 1 :])
    alike = None
    with contextlib.suppress(FileError):
        alike = glance(damaged)
    if alike is not None and alike.tensors == glance(good).tensors:
        assert AdapterFile.open(damaged).infos == AdapterFile.open(good).infos
        assert AdapterFile.open(damaged).metadata == alike.metadata


@pytest.mark.parametrize("when", ["before it is asked for", "while it is read"])
def test_a_file_that_is_truncated_in_place_kills_no_process(tmp_path, monkeypatch, when):
    """A program that saves over a file empties it first; to read its map then is the end of the process."""
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(400, 400)}, path)
    file = AdapterFile.open(path)
    mapped = Lying(file.tensor("a"))
    os.truncate(path, 8192)
    if when == "while it is read":
        monkeypatch.setattr(AdapterFile, "verify", lambda self: None)
    for read in (lambda: file.private(mapped), lambda: file.not_finite(["a"])):
        with pytest.raises(FileError, match=r"a\.safetensors: it (changed on disk|was truncated) while in use"):
            read()


def test_what_is_private_has_the_values_and_lies_elsewhere(tmp_path):
    path = tmp_path / "a.safetensors"
    want = torch.randn(4, 6, 2)
    safetensors.torch.save_file({"first": torch.zeros(3), "a": want}, path)
    file = AdapterFile.open(path)
    mapped, own = file.tensor("a"), torch.ones(2)
    for view in (mapped, mapped[1:3].transpose(0, 2), mapped[:, 2:4, 1], mapped[:1].expand(3, 6, 2), mapped[:0], own):
        copy = file.private(Lying(view)).tensor
        assert torch.equal(copy, view)
        assert (copy.data_ptr() == view.data_ptr()) == (view is own or not view.numel())


def test_numbers_in_fp16_are_looked_at_also_where_torch_finds_no_extremes_of_them(tmp_path, monkeypatch):
    found = torch.aminmax

    def before_2_2(tensor):
        if tensor.dtype is torch.half:
            raise RuntimeError("\"aminmax_cpu\" not implemented for 'Half'")
        return found(tensor)

    bad = torch.ones(4, 4).half()
    bad[1, 2] = torch.inf
    safetensors.torch.save_file({"good": torch.ones(4, 4).half(), "bad": bad}, tmp_path / "a.safetensors")
    monkeypatch.setattr(torch, "aminmax", before_2_2)
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.1.2"))
    assert AdapterFile.open(tmp_path / "a.safetensors").not_finite(["good", "bad"]) == {"bad"}


@pytest.mark.parametrize("ahead", [0, 40, 1 << 20])
def test_tensors_are_the_same_in_whatever_order_and_steps_they_are_read(tmp_path, monkeypatch, ahead):
    monkeypatch.setattr(file_module, "_AHEAD", ahead)
    kinds = (torch.float32, torch.half, torch.int8)
    tensors = {f"{i}": torch.randn(1 + i % 3, 5 + i).to(kinds[i % 3]) for i in range(12)}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
    file = AdapterFile.open(tmp_path / "a.safetensors")
    for order in (sorted(tensors, key=lambda key: file.infos[key].start), [*tensors], [*reversed(tensors)] * 2):
        with file.reading():
            copies = {key: file.private(Lying(file.tensor(key))).tensor for key in order}
        assert all(torch.equal(copies[key], tensor) for key, tensor in tensors.items())
    assert not file.not_finite(tensors)
    for key in (key for key in tensors if tensors[key].is_floating_point()):
        assert file.magnitudes[key] == tensors[key].abs().max().item(), "of each tensor alone"


class Shared(TorchDispatchMode):
    """Notes what torch shares among its threads, but for products."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs, out)) if isinstance(one, Tensor)]
        if func._schema.name in SHARED and any(one.numel() > 32_767 for one in tensors):
            self.names.add(func._schema.name)
        return out


SHARED = {f"aten::{name}" for name in ("aminmax", "copy_", "_to_copy", "clone", "abs", "amax")}


def test_the_first_use_of_a_file_waits_for_no_thread_of_torch(tmp_path):
    tensors = merged([pair("lora_unet_0", (1280, 1280), 32)])
    path, x = save(tmp_path / "a.safetensors", tensors), torch.ones(1, 1280)
    model = nn.Sequential(nn.Linear(1280, 1280))
    with Engine({"unet": model}) as engine, Shared() as shared, torch.no_grad():
        before = model(x)
        engine.activate(Stack([Entry(path)]))
        assert not torch.equal(model(x), before)
    assert not shared.names
    for key, place in (("lora_unet_0.lora_up.weight", 3), ("lora_unet_0.lora_down.weight", 32_768)):
        spoiled = {name: tensor.clone() for name, tensor in tensors.items()}
        spoiled[key].view(-1)[place] = float("nan")
        file = AdapterFile.open(save(tmp_path / f"{place}.safetensors", spoiled))
        assert file.not_finite(spoiled) == {key}
        for name in spoiled.keys() - {key}:
            assert file.magnitudes[name] == tensors[name].abs().max().item()


@pytest.mark.parametrize("layers", [2, 9])
def test_a_file_is_opened_as_often_whatever_the_number_of_its_layers(tmp_path, monkeypatch, layers):
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
    made = {name: merged([pair(f"lora_unet_{i}", (4, 4), 2) for i in range(layers)]) for name in "ab"}
    files = [save(tmp_path / f"{name}.safetensors", tensors) for name, tensors in made.items()]
    opened, os_open = [], os.open
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(files[0])]))
        with monkeypatch.context() as context:
            context.setattr(os, "open", lambda path, *args, **kw: opened.append(path) or os_open(path, *args, **kw))
            engine.activate(Stack([Entry(files[1])]))
        assert sum(path == str(files[1]) for path in opened) == 4, (
            "the header, the map, the check of the numbers, the copy"
        )


@pytest.mark.parametrize("change", ["truncated", "overwritten"])
def test_a_file_that_changes_while_layers_get_its_tensors_changes_no_layer(tmp_path, monkeypatch, change):
    model, x, read = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4), Reader.copy
    files = [
        save(tmp_path / f"{i}.safetensors", merged([pair(f"lora_unet_{j}", (4, 4), 2, seed=i) for j in range(2)]))
        for i in range(2)
    ]
    monkeypatch.setattr(file_module, "_AHEAD", 0)

    def changing(self: Reader, tensor: Tensor) -> Tensor:
        copy = read(self, tensor)
        if change == "truncated":
            os.truncate(files[1], 200)
        else:
            files[1].write_bytes(files[1].read_bytes()[:-4] + bytes(4))
            os.utime(files[1], ns=(1, 1))
        return copy

    with torch.no_grad(), Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(files[0])]))
        want = model(x)
        monkeypatch.setattr(Reader, "copy", changing)
        with pytest.raises(FileError, match=r"1\.safetensors: it (changed on disk|was truncated) while in use"):
            engine.activate(Stack([Entry(files[1])]))
        monkeypatch.undo()
        assert torch.equal(model(x), want)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("opened", [reading.open_regular, store.open_regular])
def test_a_pipe_that_takes_the_place_of_a_file_makes_nobody_wait(tmp_path, monkeypatch, opened):
    """It comes between the look at the file and its opening; nobody writes to it."""
    regular, path = tmp_path / "regular", tmp_path / "a.safetensors"
    regular.write_bytes(b"x")
    os.mkfifo(path)
    stat = regular.stat()
    monkeypatch.setattr(Path, "stat", lambda self, **_: stat)
    with pytest.raises(OSError, match="not a regular file"):
        opened(path)
    with opened(regular) as stream:
        assert stream.read() == b"x"
    for read in (hashes._end_of_header, lambda path: hashes.hash_from(path, 0, bool)):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)
