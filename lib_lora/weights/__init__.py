"""Base weights: how they are stored, their originals while LoRA are merged into them, and rounding.

`base_weight` reads a weight whatever its quantization; `readers/` has one file per quantization. `originals` gives a
merged weight its former bits back. Nothing here knows adapters or names.
"""
