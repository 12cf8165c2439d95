"""Data that the user keeps: presets, the always-on stack, block-weight presets, regions.

Each is one file of the data folder, written through `store`: locked, and read again after others changed it.
"""
