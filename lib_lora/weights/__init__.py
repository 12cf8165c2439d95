"""Base weights: how they are stored, their originals while LoRA are merged into them, and rounding.

`readers/` has one file per quantization; `readers/base` reads a weight whatever its quantization, and `marks` tells
whether it changed since. `originals` gives a merged weight its former bits back. Nothing here knows adapters or names.
"""
