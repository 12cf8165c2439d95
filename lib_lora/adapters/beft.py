"""BEFT: a change of the bias alone, b' = b + m beft_bias, https://arxiv.org/abs/2509.15974.

A layer without a bias gets one. Source: huggingface/peft tuners/beft/layer.py.
"""

from .base import Params
from .full import Full


class BEFT(Full):
    """A change of the bias."""

    name = "beft"
    names = ("", "beft_bias")
    params = Params(frozenset({"beft_bias"}))
    kinds = frozenset({"linear"})
