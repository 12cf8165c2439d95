"""Safetensors files, and what lies beside them."""

from __future__ import annotations

import json
import os
import struct
from functools import cache
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import nn

from extension.api.library import listed
from extension.library import (
    CatalogFile,
    Facts,
    Found,
    Index,
    Notes,
    NotesError,
    Row,
    Scanner,
    beside,
    read_notes,
    read_training,
    write_notes,
)
from extension.library.pictures import Thumbnails
from lib_lora import AdapterFile, Engine, Entry, LoraError, base_model, glance, inspect_file, load_network

from ..changes import changed_file, changed_json, changed_text, file_of, hollow
from ..target import as_json, check_answer, demand, folder, json_values, target, text_of, texts

LAYERS = ("attn1_to_q", "conv_in", "norm", "proj.out", "text_model_encoder_layers_0_self_attn_q_proj")
MODULES = (
    "lora_unet_attn1_to_q",
    "unet.attn1_to_q",
    "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
    "transformer.attn1_to_q",
)
PARAMS = (
    *(
        "lora_down.weight",
        "lora_up.weight",
        "lora_A.weight",
        "lora_B.weight",
        "alpha",
        "dora_scale",
        "hada_w1_a",
        "hada_w1_b",
    ),
    *(
        "hada_w2_a",
        "hada_w2_b",
        "lokr_w1",
        "lokr_w2",
        "oft_blocks",
        "diff",
        "diff_b",
        "a1.weight",
        "b1.weight",
        "on_input",
        "weight",
    ),
)
METADATA = (
    *(
        "ss_output_name",
        "ss_tag_frequency",
        "ss_dataset_dirs",
        "sshs_model_hash",
        "ss_network_module",
        "ss_network_args",
    ),
    *(
        "modelspec.thumbnail",
        "ssmd_cover_images",
        "modelspec.trigger_phrase",
        "modelspec.architecture",
        "modelspec.title",
    ),
    *(
        "ss_base_model_version",
        "ss_network_alpha",
        "ss_network_dim",
        "ss_sd_model_name",
        "modelspec.date",
        "lora_config",
    ),
    *("modelspec.resolution", "format", "training_info", "software", "lora_adapter_metadata", "ss_lora_alpha"),
)
SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 8, 0]), max_size=4)
TENSOR = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "F16", "BF16", "F64", "U8", "I64", "F8_E4M3"]), "shape": SHAPES}
)
KEYS = st.builds("{}.{}".format, st.sampled_from(MODULES), st.sampled_from(PARAMS)) | st.text(max_size=12)
SAID = st.dictionaries(
    st.sampled_from(METADATA), st.text(max_size=30) | st.sampled_from(["{}", "[]", '{"a": {"b": 1}}', "nan", "1e400"])
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Draw a file; most of them can be opened."""
    header = dict(draw(st.dictionaries(KEYS, TENSOR, max_size=6)))
    if said := draw(SAID):
        header["__metadata__"] = said
    data = file_of(header)
    return data if draw(st.integers(0, 9)) else data[: draw(st.integers(0, len(data)))]


def _written(data: bytes, name: str) -> Path:
    where = folder(name)
    path = where / "fuzzed.safetensors"
    path.write_bytes(data)
    return path


@target(files(), changed_file, (LoraError,))
def headers(data: bytes) -> object:
    """Open a file, inspect it and list it. The body may be left out, to keep real ones small."""
    path = _written(data, "headers")
    if size := hollow(data):
        os.truncate(path, size)
    row = _row(path)
    facts = row.facts or Facts()
    check_answer(facts.to_json())
    demand(Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts, "facts are read back otherwise")
    if facts.problem:
        _only_refusals(path)
        return facts.problem
    looked, opened = glance(path), AdapterFile.open(path)
    demand(looked is None or looked.metadata == opened.metadata, "a glance tells other metadata")
    report = inspect_file(path)
    return [listed(row), report.to_json(), str(report), sorted(opened.numbers)]


def _only_refusals(path: Path) -> None:
    """Check that the library refuses, with an error of its own, each file that the list calls a problem."""
    try:
        inspect_file(path)
        load_network(path, _model())
    except LoraError as error:
        check_answer(str(error))


def _row(path: Path) -> Row:
    """Read a file as the thread does that keeps the list; what that logs as unforeseen is a fault."""
    stat = path.stat()
    file = CatalogFile(path, path.stem, stat.st_size, stat.st_mtime_ns)
    index = Index(None)
    Scanner(lambda: [path.parent], index).read(Found(file))
    row = index.get(file)
    assert row is not None
    assert row.facts is not None
    demand(": it cannot be read: " not in row.facts.problem, row.facts.problem)
    return row


@cache
def _model() -> dict[str, nn.Module]:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        unet = nn.Module()
        unet.attn1_to_q, unet.conv_in, unet.norm = nn.Linear(4, 8), nn.Conv2d(3, 4, 3, padding=1), nn.LayerNorm(4)
        encoder = nn.Module()
        layer = nn.Module()
        layer.self_attn = nn.Module()
        layer.self_attn.q_proj = nn.Linear(4, 4)
        encoder.text_model = nn.Module()
        encoder.text_model.encoder = nn.Module()
        encoder.text_model.encoder.layers = nn.ModuleList([layer])
    return {"unet": unet.requires_grad_(False), "text_encoder": encoder.requires_grad_(False)}


@cache
def _engine() -> Engine:
    return Engine(_model())


@target(files(), changed_file, (LoraError,))
def tensors(data: bytes) -> object:
    """Resolve a file against a model, activate it, compute with it, and deactivate it."""
    path = _written(data, "tensors")
    unet = _model()["unet"]
    inputs = (torch.ones(2, 4), torch.ones(1, 3, 5, 5))
    before = unet.attn1_to_q(inputs[0]), unet.conv_in(inputs[1])  # type: ignore[operator]
    network = load_network(path, _model())
    check_answer([network.report.to_json(), str(network.report)])
    engine = _engine()
    try:
        report = engine.activate([Entry(path, 0.7)])
        with torch.no_grad():
            unet.attn1_to_q(inputs[0])  # type: ignore[operator]
            unet.conv_in(inputs[1])  # type: ignore[operator]
        told = [str(report)]
    finally:
        engine.deactivate()
        after = unet.attn1_to_q(inputs[0]), unet.conv_in(inputs[1])  # type: ignore[operator]
        demand(all(map(torch.equal, before, after)), "the model computes otherwise after a LoRA was taken away")
    return told


@target(SAID.map(as_json) | json_values(METADATA).map(as_json), changed_json, (LoraError,))
def metadata(data: bytes) -> object:
    """Draw metadata as trainers write them into a header."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = {"ss_tag_frequency": text_of(data)}
    said = (
        {str(key): one if isinstance(one, str) else json.dumps(one) for key, one in said.items()}
        if isinstance(said, dict)
        else {}
    )
    keys = ("lora_unet_attn1_to_q.lora_down.weight", (2, 4)), ("lora_unet_attn1_to_q.lora_up.weight", (8, 2))
    path = _written(
        file_of({"__metadata__": said, **{key: {"dtype": "F32", "shape": list(shape)} for key, shape in keys}}),
        "metadata",
    )
    row = _row(path)
    training = read_training(path)
    load_network(path, _model())
    check_answer([base_model(said), dict(training.settings), list(training.tags), inspect_file(path).to_json()])
    Thumbnails(None).of(Found(row.file), True)
    return listed(row)


SIDECARS = (".json", ".civitai.info", ".txt", ".description.txt", "adapter_config.json")
NOTED = (
    *("description", "activation text", "negative text", "notes", "sd version", "preferred weight", "tags", "remora"),
    *("rating", "favourite", "modelVersions", "trainedWords", "baseModel", "model", "name"),
)
SIDECAR = json_values(NOTED, st.sampled_from([0.7, "x, y", "<p>a<br>b</p>", "<!--", "&#x110000;", 3, -1, 101])).map(
    as_json
)


def _changed_sidecar(data: bytes, random: object) -> bytes:
    first, _, rest = data.partition(b"\n")
    change = changed_json if first.endswith((b".json", b".info")) else changed_text
    return first + b"\n" + change(rest, random)  # type: ignore[arg-type]


@target(
    st.builds(
        lambda name, content: name.encode() + b"\n" + content,
        st.sampled_from(SIDECARS[:4]),
        SIDECAR | texts(("<p>", "a", "<br", "&amp;", "\n", "\ufeff")),
    ),
    _changed_sidecar,
    (NotesError,),
)
def sidecars(data: bytes) -> object:
    """Read a user's notes beside a file, change them, and read them again."""
    first, _, content = data.partition(b"\n")
    path = _written(file_of({"lora_unet_attn1_to_q.alpha": {"dtype": "F32", "shape": []}}), "sidecars")
    for end in SIDECARS[:4]:
        path.with_name("fuzzed" + end).unlink(missing_ok=True)
    end = next((one for one in SIDECARS[:4] if one.encode() == first), ".json")
    path.with_name("fuzzed" + end).write_bytes(content)
    file = CatalogFile(path, path.stem, 0, 0)
    notes = read_notes(beside(file).notes)
    check_answer(notes.to_json())
    demand(Notes.from_json(json.loads(json.dumps(notes.to_json()))) == notes, "notes are read back otherwise")
    check_answer(listed(_row(path)))
    changes = {"description": notes.description, "words": "w, v", "tags": ["t"], "rating": 3, "strength": 0.5}
    write_notes(file, changes)
    again = read_notes(beside(file).notes)
    demand(
        (again.words, again.tags, again.rating, again.strength) == ("w, v", ("t",), 3, 0.5),
        "notes are not what was written",
    )
    demand(again.description == notes.description or "<" in notes.description, "a description is not what was written")
    demand(
        (again.notes, again.negative, again.favourite) == (notes.notes, notes.negative, notes.favourite),
        "a note is gone",
    )
    return notes.to_json()


CONFIG = (
    "r",
    "lora_alpha",
    "rank_pattern",
    "alpha_pattern",
    "use_dora",
    "use_rslora",
    "peft_type",
    "target_modules",
    "fan_in_fan_out",
    "bias",
    "layers_pattern",
    "modules_to_save",
)


@target(
    json_values(CONFIG, st.sampled_from([4, 8.0, "LORA", "LOHA", "attn1_to_q", "(a+)+$", "^a"])).map(as_json),
    changed_json,
    (LoraError,),
)
def peft_configs(data: bytes) -> object:
    """Read PEFT's `adapter_config.json` beside a file."""
    where = folder("peft")
    path = where / "adapter_model.safetensors"
    if not path.exists():
        prefix = "base_model.model.attn1_to_q.lora_"
        infos = {f"{prefix}A.weight": (2, 4), f"{prefix}B.weight": (8, 2)}
        path.write_bytes(
            file_of(
                {key: {"dtype": "F32", "shape": list(shape)} for key, shape in infos.items()},
                struct.pack("<24f", *range(24)),
            )
        )
    (where / "adapter_config.json").write_bytes(data)
    check_answer(listed(_row(path)))
    return [inspect_file(path).to_json(), load_network(path, _model()).report.to_json()]
