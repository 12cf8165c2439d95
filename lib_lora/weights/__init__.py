"""Base weights: how they are stored, their originals while LoRA are merged into them, and rounding.

`readers/` has one file per quantization; `readers/base` reads a weight whatever its quantization. `originals` tells
whether it changed since, and gives a merged weight its former bits back. Nothing here knows adapters or names.
"""
