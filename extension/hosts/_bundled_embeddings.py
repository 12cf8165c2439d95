"""Textual inversions of LoRA files, in A1111's embedding database while the LoRA is active."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .base import Embeddings

if TYPE_CHECKING:
    from torch import Tensor

_BOTH = ("clip_g", "clip_l")


class BundledEmbeddings:
    """Remora's embeddings in the database."""

    def __init__(self) -> None:
        self._ours: dict[str, Any] = {}
        self.key: Hashable = ()
        """Equal for equal names and vectors."""

    def use(self, embeddings: Embeddings, database: Any, model: Any, textual_inversion: ModuleType) -> Sequence[str]:
        """Let prompts use these, in place of the previous ones.

        Returns:
            One sentence for each that cannot be used.
        """
        self.take_off(database, model)
        problems, digests = [], []
        for name, parts in embeddings.items():
            problem = self._put(name, parts, database, model, textual_inversion)
            if problem is None:
                digests.append((name, _digest(parts)))
            else:
                problems.append(f"embedding {name!r} is read as plain words: {problem}")
        self.key = tuple(digests)
        return problems

    def take_off(self, database: Any, model: Any) -> None:
        """Restore the database."""
        ours, self._ours, self.key = self._ours, {}, ()
        for name, embedding in ours.items():
            if model is not None and database.word_embeddings.get(name) is embedding:
                database.register_embedding_by_name(None, model, name)

    def _put(
        self, name: str, parts: Mapping[str, Tensor], database: Any, model: Any, textual_inversion: ModuleType
    ) -> str | None:
        if name in database.word_embeddings:
            return "the embeddings folder has one of that name"
        if len(parts) > 1 and set(parts) != set(_BOTH):
            return f"it has parts for {', '.join(sorted(parts))}"
        # copies: a file may be overwritten while its tensors are mapped
        vectors = {part: tensor.detach().clone() for part, tensor in parts.items()}
        data = vectors if len(parts) > 1 else {"*": next(iter(vectors.values()))}
        embedding = textual_inversion.create_embedding_from_data(data, name, filename=name)
        if database.expected_shape not in (-1, embedding.shape):
            return f"it is {embedding.shape} wide, and the model takes {database.expected_shape}"
        self._ours[name] = embedding
        database.register_embedding(embedding, model)
        return None


def _digest(parts: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for part in sorted(parts):
        digest.update(part.encode())
        digest.update(parts[part].detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()
