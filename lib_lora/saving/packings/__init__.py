"""How the numbers of a weight are stored in the files of a model: one file per packing.

`registry.discover_classes` finds them; `base.packing_of` returns the one that a tensor has.
"""
