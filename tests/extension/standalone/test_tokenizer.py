from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from extension.standalone import tokenizer
from extension.standalone.tokenizer import TokenizerError, build_tokenizer, clip_tokenizer, find_vocabulary, read_merges

pytest.importorskip("transformers", "5", reason="the embedded web UI needs transformers 5")


def test_byte_level_symbols_and_specials_are_those_of_clip() -> None:
    made = build_tokenizer(["a b", "ab c</w>"])
    assert len(made) == 256 + 256 + 2 + 2
    # "!" is byte 33, the first in CLIP's order; with </w> each is 256 higher
    assert made("!").input_ids == [514, 256, 515]
    assert made.convert_tokens_to_ids(["!", "a", "a</w>", "ab", "abc</w>"]) == [0, 64, 320, 512, 513]
    assert made("abc ab").input_ids == [514, 513, 64, 321, 515]
    assert (made.bos_token_id, made.eos_token_id, made.pad_token_id) == (514, 515, 515)


def test_padding_can_be_openclips() -> None:
    made = build_tokenizer([], "!")
    assert made("a", padding="max_length").input_ids == [512, 320, 513] + [0] * 74


def test_the_vocabulary_file_is_read_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bpe.txt.gz"
    lines = ["#version: 0.2", *(f"x{index} y" for index in range(48894)), "beyond the published", ""]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert len(read_merges(path)) == 48894
    assert read_merges(path)[0] == "x0 y"
    path.write_bytes(gzip.compress(b"#version: 0.2\na b\nab c</w>\n"))
    monkeypatch.setattr(tokenizer, "find_vocabulary", lambda: path)
    assert clip_tokenizer()("abc").input_ids[1] == 513


def test_the_published_vocabulary_gives_the_published_ids() -> None:
    if find_vocabulary() is None:
        pytest.skip("CLIP's vocabulary is not installed")
    made = clip_tokenizer()
    assert len(made) == 49408
    assert made("a photo of a cat").input_ids == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert made("It's 42!").input_ids == [49406, 585, 568, 275, 273, 256, 49407]


def test_the_file_is_found_beside_a_package_that_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "clip"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs torchvision')")
    (package / "bpe_simple_vocab_16e6.txt.gz").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_vocabulary() == package / "bpe_simple_vocab_16e6.txt.gz"


def test_a_folder_of_the_users_is_taken(tmp_path: Path) -> None:
    build_tokenizer(["a b"]).save_pretrained(tmp_path)
    made = clip_tokenizer(tmp_path, "!")
    assert made("ab").input_ids[1:2] == build_tokenizer(["a b"])("ab").input_ids[1:2]
    assert made.model_max_length == 77
    assert made.pad_token_id == 0


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no CLIP tokenizer"):
        clip_tokenizer(tmp_path)
