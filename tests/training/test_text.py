"""The tokenizer of the drawn world."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import CLIPTokenizer

from training.text import WIDTH, make_text_encoder, tokenize, train_tokenizer
from training.world import Teller

pytest.importorskip("transformers", "5", reason="training needs transformers 5")


def captions(count: int) -> list[str]:
    teller = Teller(0)
    return [teller.caption(teller.scene()) for _ in range(count)]


def test_every_word_of_the_world_is_one_token_and_others_come_apart(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(captions(2000))
    for caption in captions(200):
        words = caption.replace(",", " ,").split()
        assert tokenizer.tokenize(caption) == [f"{word}</w>" for word in words]
    assert "".join(tokenizer.tokenize("a zorp")) == "a</w>zorp</w>"
    tokenizer.save_pretrained(tmp_path)
    again = CLIPTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert again.tokenize("Two BIG stars") == tokenizer.tokenize("two big stars")


def test_the_text_model_reads_what_the_tokenizer_writes() -> None:
    tokenizer = train_tokenizer(captions(300))
    ids = tokenize(tokenizer, ["a red circle", ""])
    assert ids.shape == (2, 77)
    assert make_text_encoder(tokenizer)(ids)[0].shape == (2, 77, WIDTH)
