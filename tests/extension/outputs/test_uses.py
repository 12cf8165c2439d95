"""The LoRA of a parameters text."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from extension.outputs import Use, read_uses
from tests.extension.outputs.pictures import SETTINGS, text_with

HASH = "0123456789ab"


def test_name_strength_and_hash_are_as_the_text_has_them() -> None:
    found = read_uses(text_with("<lora:zorp:0.8> <lora:sub/neon:1:stop=10>", f"zorp: {HASH}"))
    assert found.loras == (Use("zorp", "0.8", HASH), Use("sub/neon", "1:stop=10"))
    assert found.seed == 7
    assert found.prompt == "a fox <lora:zorp:0.8> <lora:sub/neon:1:stop=10>"


TEXTS: Sequence[tuple[str, tuple[Use, ...]]] = [
    ("", ()),
    (f"a fox\n{SETTINGS}", ()),
    ("a fox <lora:zorp:1>", (Use("zorp", "1"),)),
    (text_with("<LoRA:zorp> &lt;lora:neon:0.5&gt;"), (Use("zorp"), Use("neon", "0.5"))),
    (text_with("<lora:zorp:1> <lora:zorp:1> <lora:zorp:2>"), (Use("zorp", "1, 2"),)),
    (text_with(r"<lora:a\: b, c:1>", f"a b c: {HASH}"), (Use("a: b, c", "1", HASH),)),
    (text_with("<lora:zorp:0>"), ()),
    (text_with("", f"zorp: {HASH}"), (Use("zorp", "", HASH),)),
    (text_with("<lora:zorp:1>", "zorp: e3b0c44298fc"), (Use("zorp", "1"),)),
    (text_with("<lora:zorp:1>", "zorp: no hash"), (Use("zorp", "1"),)),
    (
        text_with("<lora:a:1>") + ', Remora stack: "<lora:b:0.5> <lora:c:1>"',
        (Use("a", "1"), Use("b", "0.5"), Use("c", "1")),
    ),
    (text_with("<lora:a:1> <lora:b:0>") + ', Remora stack: "<lora:b:0.5>"', (Use("a", "1"),)),
    (text_with("<lora:a:1>") + ', Hires prompt: "x <lora:b:1>"', (Use("a", "1"), Use("b", "1"))),
    (
        f'a fox\n{SETTINGS}, LoRA networks: "a, b", LoRA hashes: "0123abcd, 4567abcd"',
        (Use("a", "", "0123abcd"), Use("b", "", "4567abcd")),
    ),
    (f"a fox\n{SETTINGS}, LoRA networks: a", (Use("a"),)),
    ("<lora::1> <lora: :1> <lora:", ()),
]


def test_the_lora_of_texts_of_many_programs() -> None:
    for text, wanted in TEXTS:
        assert read_uses(text).loras == wanted, text


def test_what_is_kept_of_a_huge_text_is_bounded() -> None:
    found = read_uses("x" * 5000 + "".join(f"<lora:{i}{'n' * 900}:{'1' * 900}>" for i in range(500)) + f"\n{SETTINGS}")
    assert len(found.loras) == 100
    assert {len(use.name) for use in found.loras} == {500}
    assert {len(use.strength) for use in found.loras} == {100}
    assert len(found.prompt) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "<lora:" + "\\:" * 400_000,
        "<lora:" * 170_000,
        "&lt;lora:" * 110_000,
        "a" * 1_000_000,
        "\n" * 1_000_000,
        '"' * 1_000_000 + ": 1, a: 2, b: 3",
        "a: 1, " * 170_000,
        "Lora hashes: " + "a: 0123456789ab, " * 60_000,
        "\0" * 1_000_000,
    ],
)
def test_a_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    begun = time.process_time()
    read_uses(text)
    assert time.process_time() - begun < 3


def test_a_seed_that_no_database_takes_is_left_out() -> None:
    for seed in ("-1", "9" * 19, "1e3", "٣", str(2**63)):
        assert read_uses(f"a\nSteps: 1, Sampler: x, Seed: {seed}, Size: 1x1").seed is None
