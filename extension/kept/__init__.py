"""What the user keeps: presets, the stack that is always on, presets of block weights, regions.

Each is one file of the data folder, written through `store`, which locks it and reads it again when others changed it.
"""
