"""Textual inversions for a pipeline: vectors that replace words of the prompt during a generation.

No weight is changed and no module is replaced. diffusers' `load_textual_inversion` resizes the token embedding, which
draws from torch's random state, undoes offloading (it continues on the CPU) and leaves the weight trainable and the
configuration with another vocabulary size; of a name with capitals it uses the first vector only. Here the tokenizers
of a generation are copies with more tokens, and a hook overwrites the output of the token embedding.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ..hosts import Embeddings

# Text encoder -> its tokenizer, and the names of its part of an embedding: that of kohya's and A1111's files for two
# encoders, and that of an embedding for the only one.
_ENCODERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "text_encoder": ("tokenizer", ("clip_l", "string_to_param.*")),
    "text_encoder_2": ("tokenizer_2", ("clip_g",)),
}
_HARMLESS = 0  # a token id below every special one: encoders that look for the highest id find the end of the text


class TextualInversions:
    """The active embeddings of one pipeline."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._spelling: dict[str, str] = {}  # lower-case name -> the tokens that stand for it
        self._tokenizers: dict[str, Any] = {}  # the pipeline's own, while copies are in their place
        self._splices: list[_Splice] = []

    def use(self, embeddings: Embeddings) -> Sequence[str]:
        """Activate these in place of the previous ones; without any, restore the pipeline.

        Returns:
            One sentence for each that does not fit the text encoders.
        """
        self._take_off()
        misfits: list[str] = []
        fitting: dict[str, dict[str, Tensor]] = {}
        for name, parts in embeddings.items():
            try:
                fitting[name] = self._fitted(parts)
            except ValueError as error:
                misfits.append(f"embedding {name!r} is read as plain words: {error}")
        if fitting:
            try:
                self._put_on(fitting)
            except BaseException:
                self._take_off()
                raise
        return misfits

    def spell(self, text: str) -> str:
        """Write a prompt with the tokens of the embeddings it names, as whole words in any case."""
        if not self._spelling:
            return text
        names = sorted(self._spelling, key=len, reverse=True)  # the longest that is there, not one it begins with
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)"
        return re.sub(pattern, lambda match: self._spelling[match[0].lower()], text, flags=re.IGNORECASE)

    def _fitted(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return {text encoder: vectors (tokens, width)}, copied, as a file may be overwritten.

        Raises:
            ValueError: an encoder has no vectors, or their number or width is wrong.
        """
        fitted: dict[str, Tensor] = {}
        for name, encoder in self._encoders():
            part = next((parts[part] for part in _ENCODERS[name][1] if part in parts), None)
            if part is None:
                raise ValueError(f"it has no vectors for {name}, only {', '.join(parts)}")
            vectors = (part[None] if part.ndim == 1 else part).to("cpu", torch.float32, copy=True)
            width = encoder.get_input_embeddings().embedding_dim
            if vectors.ndim != 2 or vectors.shape[1] != width or not len(vectors):
                raise ValueError(f"{name} wants vectors of width {width}, got shape {tuple(part.shape)}")
            fitted[name] = vectors
        if len({len(vectors) for vectors in fitted.values()}) > 1:
            raise ValueError("it has not as many vectors for one text encoder as for the other")
        return fitted

    def _put_on(self, fitting: Mapping[str, Mapping[str, Tensor]]) -> None:
        tokens: list[str] = []
        for i, (name, parts) in enumerate(fitting.items()):
            own = [f"<remora-{i}-{j}>" for j in range(len(next(iter(parts.values()))))]
            self._spelling[name.lower()] = " ".join(own)
            tokens += own
        for name, encoder in self._encoders():
            slot = _ENCODERS[name][0]
            own_tokenizer = getattr(self._pipeline, slot)
            tokenizer = _extended(own_tokenizer, tokens)
            self._tokenizers[slot] = own_tokenizer
            setattr(self._pipeline, slot, tokenizer)
            table = torch.cat([parts[name] for parts in fitting.values()])
            self._splices.append(_Splice(encoder, tokenizer.convert_tokens_to_ids(tokens[0]), table))

    def _take_off(self) -> None:
        self._spelling = {}
        while self._splices:
            self._splices.pop().remove()
        while self._tokenizers:
            slot, tokenizer = self._tokenizers.popitem()
            setattr(self._pipeline, slot, tokenizer)

    def _encoders(self) -> Iterator[tuple[str, Any]]:
        for name in _ENCODERS:
            encoder = getattr(self._pipeline, name, None)
            if encoder is not None:
                yield name, encoder


@dataclass
class _Splice:
    """Vectors that one text encoder reads for the token ids from `first` up."""

    encoder: Any
    first: int
    table: Tensor  # (tokens, width)

    def __post_init__(self) -> None:
        self._ids: Tensor | None = None
        # hooks of torch run around those of offload schemes, so ids and vectors are where they are looked up
        self._hooks = (
            self.encoder.register_forward_pre_hook(self._before, with_kwargs=True),
            self.encoder.get_input_embeddings().register_forward_hook(self._looked_up),
        )

    def remove(self) -> None:
        """Restore the encoder."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, encoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Hide ids that the encoder does not know; they are out of range, or would end the text."""
        self._ids = ids = args[0] if args else kwargs["input_ids"]
        known = ids.masked_fill(ids >= self.first, _HARMLESS)
        return ((known, *args[1:]), kwargs) if args else (args, {**kwargs, "input_ids": known})

    def _looked_up(self, embedding: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        assert self._ids is not None
        own = (self._ids - self.first).to(output.device)
        vectors = self.table.to(output)[own.clamp_min(0)]
        return torch.where((own >= 0)[..., None], vectors, output)


def _extended(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """Return a copy of a tokenizer that knows these tokens too, with consecutive ids."""
    from transformers import AddedToken

    extended = copy.deepcopy(tokenizer)
    extended.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    return extended
