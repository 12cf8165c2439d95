"""Strangers: files that are no adapter for a layer of the model, one entry per kind, found by `registry.discover`.

`base` says what an entry has. A new kind is one more `Stranger`, in a file here or in another package.
"""
