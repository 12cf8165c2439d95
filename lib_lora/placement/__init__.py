"""What lies on which device: adapters beside their layers, a budget, streaming, offload schemes.

`resident.Resident` is what a layer keeps beside it. `budget` serves devices without room for all of it,
`static` keeps addresses for CUDA graphs, `schemes/` has one file per offload scheme.
"""
