"""Kinds of PEFT that no adapter of a layer can be: their keys are known, and refused with the reason.

Source: huggingface/peft tuners/*/layer.py.
"""

from __future__ import annotations

from typing import ClassVar

from ._refused import Refused, any_of
from .base import Params


class AdaMSS(Refused):
    """Parts of a subspace that clusters of the weight's singular vectors make."""

    __slots__ = ()

    name: ClassVar[str] = "adamss"
    params: ClassVar[Params] = any_of("adamss_newB", *(f"adamss_{side}.{i}" for side in "AB" for i in range(32)))
    reason: ClassVar[str] = "of AdaMSS, which finds the rows that each part changes by clustering the base weight anew"


class AdaptionPrompt(Refused):
    """Prompts inside the attention of a text model."""

    __slots__ = ()

    name: ClassVar[str] = "adaption_prompt"
    params: ClassVar[Params] = any_of("adaption_prompt", "adaption_gate")
    reason: ClassVar[str] = "of an adaption prompt, which adds tokens to the attention of a text model"


class FRoD(Refused):
    """A weight in a basis that all layers of a category share."""

    __slots__ = ()

    name: ClassVar[str] = "frod"
    params: ClassVar[Params] = any_of("frod_lambda_l", "frod_lambda_s_values")
    reason: ClassVar[str] = (
        "of FRoD, which computes another weight from a basis of the base weight; a basis as large as the largest layer "
        "is shared by layers of like names, which the file does not contain"
    )


class LILY(Refused):
    """Pairs that a router mixes."""

    __slots__ = ()

    name: ClassVar[str] = "lily"
    params: ClassVar[Params] = any_of("lily_A.weight", "lily_B.weight", "lily_router.weight")
    reason: ClassVar[str] = "of LILY, which mixes its pairs by the tokens of each call: that is no change of a weight"


class OSF(Refused):
    """The lesser singular vectors of a weight, trained."""

    __slots__ = ()

    name: ClassVar[str] = "osf"
    params: ClassVar[Params] = any_of(*(f"osf_svd_params.{part}_low" for part in "USV"))
    reason: ClassVar[str] = (
        "of OSF, which takes the place of half the singular vectors of each base weight: save the merged model"
    )


class Poly(Refused):
    """Pairs that the number of a task mixes."""

    __slots__ = ()

    name: ClassVar[str] = "poly"
    params: ClassVar[Params] = any_of("poly_lora_A", "poly_lora_B", "poly_router.module_logits")
    reason: ClassVar[str] = "of Poly, which mixes its pairs by the number of a task, which no web UI has"


class PSOFT(Refused):
    """A turn within the greatest singular vectors of a weight."""

    __slots__ = ()

    name: ClassVar[str] = "psoft"
    params: ClassVar[Params] = any_of("psoft_R.weight", "psoft_R.vector_a", "psoft_R.vector_b")
    reason: ClassVar[str] = (
        "of PSOFT, which turns the greatest singular vectors of the base weight, whose signs each machine chooses "
        "for itself: save the merged model"
    )


class TinyLoRA(Refused):
    """A few numbers for a group of layers."""

    __slots__ = ()

    name: ClassVar[str] = "tinylora"
    params: ClassVar[Params] = any_of("tinylora_A", "tinylora_B", "tinylora_P")
    reason: ClassVar[str] = (
        "of TinyLoRA, whose vectors are numbered in the order of the layers of the model that was trained, which the "
        "file does not tell: convert it to a LoRA with PEFT"
    )
