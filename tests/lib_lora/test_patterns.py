"""Patterns of names of layers are matched as PEFT matches them, and never by trying without end."""

from __future__ import annotations

import json
import random
import re
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib_lora import FileError, inspect_file
from lib_lora.files.formats import Table, read_pattern
from tests.fakes.files import save

NAMES = ["to_k", "mid.proj", "blocks.0.attn.to_k", "blocks.12.attn.to_k", "a.b.layers.3.mlp", "xto_k", "aab", "aaa.b"]
PATTERNS = [
    "to_k",
    "attn.to_k",
    r"mid\..*",
    r"blocks\.\d+\.attn\.to_k",
    r"blocks.[0-9]+.attn.(to_k|to_v)",
    r"^blocks\.(0|1)\.attn\.to_[kqv]$",
    r".*\.mlp",
    r"a+b",
    r"(?:a|aa)*\.?b",
    r"[^x]to_k|xto_k",
    "(a+)+b",
    "^to_k$",
    "^to_k",
    r"^(x?to_k|a.b)$",
    r"^attn\..*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_pefts_expression_matches(pattern):
    want = {name for name in NAMES if re.match(rf"(.*\.)?({pattern})$", name)}
    table = Table([(pattern, 1)])
    assert {name for name in NAMES if table.value(name) == 1} == want


# what PEFT reads otherwise on purpose: a point in a plain name is a point
LETTERS = st.text("ab.", max_size=6)
EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", r"\.", ".", "[ab]", r"\w"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map("|".join).map("({})".format),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda one: f"(?:{one[0]}){one[1]}"),
    ),
    max_leaves=6,
)


@given(st.lists(EXPRESSIONS.map("({})".format), min_size=1, max_size=4), st.lists(LETTERS, min_size=1, max_size=4))
def test_any_expression_is_that_of_pythons_own(patterns, texts):
    read = [one for one in patterns if read_pattern(one) is not None]  # else it has more groups in groups than are read
    table = Table([(one, number) for number, one in enumerate(read)])
    for text in texts:
        want = (number for number, one in enumerate(read) if re.match(rf"(?:.*\.)?(?:{one})$", text))
        assert table.value(text) == next(want, None)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "((a*)*)*b", "(a|a)*b", "(a|aa)+$b", "(.*)*x" * 20, "a?" * 300 + "a" * 300]
)
def test_no_pattern_takes_long(pattern):
    """Python's own expressions take minutes for the first of these and 28 letters."""
    began = time.thread_time()
    Table([(pattern, 1)]).value("a" * 200)
    assert time.thread_time() - began < 2, "seconds; a match that tries without end takes years"


@pytest.mark.parametrize("pattern", ["(?i)to_k", "(?=a)b", r"(a)\1", "a{2}", "(((((a)))))", "(", "[a", "*a", "\\"])
def test_any_other_pattern_is_a_name(pattern):
    assert read_pattern(pattern) is None
    assert Table([(pattern, 1)]).value(f"x.{pattern}") == (1 if "." not in pattern else None)
    assert Table([(pattern, 1)]).value("to_k") is None


def test_of_several_patterns_the_first_counts():
    table = Table([(r".*\.to_k", 1), ("to_k", 2), ("mid.to_k", 3)])
    assert (table.value("mid.to_k"), table.value("to_k"), table.value("to_v")) == (1, 2, None)


LAYERS = [
    f"{blocks}.{i}.{layer}"
    for blocks, count in (("transformer_blocks", 19), ("single_transformer_blocks", 38))
    for i in range(count)
    for layer in (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "ff.net.0.proj", "ff.net.2", "norm1.linear"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "proj_mlp", "proj_out"),
    )
]


@pytest.mark.parametrize(
    "patterns",
    [
        [rf".*transformer_blocks\.{i}\..*" for i in range(57)],
        [rf".*(attn|ff).*\.{i}\.(to_[qkv]|net.*)" for i in range(57)],
        [rf"(.*\.)?single_transformer_blocks\.{i}\.attn\.to_(q|k|v)" for i in range(57)],
        [
            rf"(single_)?transformer_blocks\.{i}\.({part})"
            for i in range(50)
            for part in ("attn.*", "ff.*", ".*1", "p.*")
        ],
    ],
    ids=lambda patterns: patterns[0],
)
def test_many_patterns_of_many_layers_are_matched_at_once(patterns):
    began = time.thread_time()
    table = Table([(pattern, i) for i, pattern in enumerate(patterns)])
    got = [table.value(name) for name in LAYERS]
    assert time.thread_time() - began < 3, "seconds"
    python = [re.compile(rf"(.*\.)?({pattern})$") for pattern in patterns]
    assert got == [next((i for i, one in enumerate(python) if one.match(name)), None) for name in LAYERS]


@pytest.mark.parametrize(
    "patterns", [["to_k"], ["a", "b" * 5000], [r".*\.to_k"], ["x" + ".a" * 5000]], ids=lambda one: one[0][:9]
)
def test_a_name_of_many_parts_takes_no_longer_than_its_letters(patterns):
    name = ".".join("a" * 40_000)
    began = time.thread_time()
    assert Table([(pattern, 1) for pattern in patterns]).value(name) == (1 if patterns[0] == "a" else None)
    assert time.thread_time() - began < 3, "seconds"


def test_patterns_that_would_take_minutes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lib_lora.files.formats._peft_patterns._EFFORT", 500_000)
    patterns = {
        "|".join(f".*{a}.?{b}.*{c}" for a in "abcdefg" for b in "hijk" for c in "lmn") + f"|{i}": 1 for i in range(150)
    }
    names = ["".join(random.Random(i).choices("abcdefghijklmn.", k=200)).strip(".") for i in range(200)]
    tensors = {f"base_model.model.{name}.lora_A.weight": torch.ones(4, 8) for name in names}
    tensors |= {f"base_model.model.{name}.lora_B.weight": torch.ones(8, 4) for name in names}
    config = {"r": 4, "lora_alpha": 8, "alpha_pattern": patterns}
    path = save(tmp_path / "a.safetensors", tensors, {"lora_adapter_metadata": json.dumps(config)})
    began = time.thread_time()
    with pytest.raises(FileError, match=r"a\.safetensors: its patterns .* take too long to match"):
        inspect_file(path)
    assert time.thread_time() - began < 5, "seconds"


def test_a_file_with_a_pattern_that_never_ends_is_read_at_once(tmp_path):
    name = "a" * 28
    config = {"r": 4, "lora_alpha": 8, "alpha_pattern": {"(a+)+b": 1}}
    tensors = {f"base_model.model.{name}.lora_A.weight": torch.ones(4, 8)}
    tensors[f"base_model.model.{name}.lora_B.weight"] = torch.ones(8, 4)
    path = save(tmp_path / "a.safetensors", tensors, {"lora_adapter_metadata": json.dumps(config)})
    assert inspect_file(path).layers == 1
