"""The words of the world: CLIP's kind of tokenizer trained on captions, and an untrained text model for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Whitespace
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

from extension.standalone.tokenizer import build_tokenizer

WIDTH = 128
_LAYERS = 3
_MERGES = 400  # at most; every word of the captions becomes one token long before


def train_tokenizer(captions: Iterable[str]) -> Any:
    """Train byte pairs on captions, as published for CLIP: lower case, words ended by `</w>`."""
    tokenizer = Tokenizer(BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Sequence([Whitespace(), ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = BpeTrainer(
        vocab_size=512 + _MERGES,
        min_frequency=5,
        end_of_word_suffix="</w>",
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    return build_tokenizer([" ".join(pair) for pair in _merges(tokenizer)])


def make_text_encoder(tokenizer: Any) -> nn.Module:
    """Return a text model with random weights, in the layout of SD 1.5's."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: nn.Module = CLIPTextModel(config)
    return model


def tokenize(tokenizer: Any, captions: Iterable[str]) -> Tensor:
    """Return token numbers as a pipeline makes them, (captions, 77)."""
    length = tokenizer.model_max_length
    tokens = tokenizer(list(captions), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    ids: Tensor = tokens.input_ids
    return ids


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(pair) for pair in pairs]
