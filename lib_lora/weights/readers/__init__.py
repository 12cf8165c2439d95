"""How to read a layer's full-precision weight: one file per quantization, found by `registry.discover_classes`."""
