"""Patterns of names of layers are matched as PEFT matches them, and never by trying without end."""

from __future__ import annotations

import json
import re
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib_lora import inspect_file
from lib_lora.files.patterns import Table, compiled
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


@given(EXPRESSIONS, LETTERS)
def test_any_expression_is_that_of_pythons_own(pattern, text):
    step = compiled(pattern)
    if step is not None:  # else it has more groups in groups than are read
        assert (len(text) in step(text, frozenset((0,)))) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "((a*)*)*b", "(a|a)*b", "(a|aa)+$b", "(.*)*x" * 20, "a?" * 300 + "a" * 300]
)
def test_no_pattern_takes_long(pattern):
    """Python's own expressions take minutes for the first of these and 28 letters."""
    began = time.process_time()
    Table([(pattern, 1)]).value("a" * 200)
    assert time.process_time() - began < 2, "seconds; a match that tries without end takes years"


@pytest.mark.parametrize("pattern", ["(?i)to_k", "(?=a)b", r"(a)\1", "a{2}", "(((((a)))))", "(", "[a", "*a", "\\"])
def test_any_other_pattern_is_a_name(pattern):
    assert compiled(pattern) is None
    assert Table([(pattern, 1)]).value(f"x.{pattern}") == (1 if "." not in pattern else None)
    assert Table([(pattern, 1)]).value("to_k") is None


def test_of_several_patterns_the_first_counts():
    table = Table([(r".*\.to_k", 1), ("to_k", 2), ("mid.to_k", 3)])
    assert (table.value("mid.to_k"), table.value("to_k"), table.value("to_v")) == (1, 2, None)


def test_a_file_with_a_pattern_that_never_ends_is_read_at_once(tmp_path):
    name = "a" * 28
    config = {"r": 4, "lora_alpha": 8, "alpha_pattern": {"(a+)+b": 1}}
    tensors = {f"base_model.model.{name}.lora_A.weight": torch.ones(4, 8)}
    tensors[f"base_model.model.{name}.lora_B.weight"] = torch.ones(8, 4)
    path = save(tmp_path / "a.safetensors", tensors, {"lora_adapter_metadata": json.dumps(config)})
    assert inspect_file(path).layers == 1
