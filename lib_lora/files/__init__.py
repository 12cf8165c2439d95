"""Files on disk: the safetensors header and tensors, key formats, trainers' configurations, the names of components.

`file.AdapterFile` is one open file. `formats/` has one file per spelling of keys, and what trainers write beside the
tensors. Nothing here knows a model.
"""
