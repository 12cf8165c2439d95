"""LN tuning: a trained copy of a norm, W' = W + m (w - W), b' = b + m (v - b), https://arxiv.org/abs/2312.11420.

`ln_tuning_layers.weight` is w and `ln_tuning_layers.bias` v. PEFT copies layers of any kind so. It knows no strength;
between 0 and 1 the line from one to the other is what a strength can mean. Source: huggingface/peft
tuners/ln_tuning/layer.py.
"""

from .base import Params
from .set_weight import SetWeight


class LNTuning(SetWeight):
    """Another weight and another bias."""

    name = "ln_tuning"
    names = ("ln_tuning_layers.weight", "ln_tuning_layers.bias")
    params = Params(frozenset(names[:1]), frozenset(names[1:]))
